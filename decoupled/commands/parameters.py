"""Counts a model's parameters beside the paper's numbers.

PT is the masked-LM model; FT is a classifier without the task's own last layer. A model
with the sizes of one in the paper is shown with the paper's PT and FT, and with the
count in the way that the paper counts.

  decoupled parameters --gin_file=models/e_out_768.gin
  decoupled parameters --all

--all: one line for every model that is shipped.
"""

import os

from absl import flags

from decoupled.configs import ModelConfig
from decoupled.configs.studies import parameters
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.reports import parameter_tables

FLAGS = flags.FLAGS
DEFAULTS = "runs/parameters.gin"


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_boolean("all", False, "Show every shipped model, one a line.")


def main() -> None:
    """Counts one model or all."""
    if not FLAGS.all:
        config = start.parse_gin(parameters, DEFAULTS)
        parameter_tables.print_model(config, _shipped_models())
    elif FLAGS.gin_file or FLAGS.gin_param:
        raise UserError(
            "--all: shows the shipped models as they are; leave out --gin_file and "
            "--gin_param, or --all"
        )
    else:
        parameter_tables.print_shipped(_shipped_models())


def _shipped_models() -> dict[str, ModelConfig]:
    """Gin file -> model; *base.gin only serve others."""
    folder = os.path.join(gin_files.packaged_folder(), "models")
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(".gin")]
    return {
        f"models/{name}": _read(os.path.join(folder, name))
        for name in names
        if not name.endswith("base.gin")
    }


def _read(path: str) -> ModelConfig:
    return gin_files.configure(parameters, [DEFAULTS, path], []).model
