"""Counts a model's parameters beside the paper's numbers.

PT is the masked-LM model; FT is a classifier without the task's own last layer. For a
model with the sizes of one in the paper, the paper's PT and FT and the count by the
paper's rules are shown, too.

  decoupled parameters --gin_file=models/e_out_768.gin
  decoupled parameters --all

--all: one line for every shipped model.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

from absl import flags

from decoupled.configs import ModelConfig, ParametersConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.model.parameters import ROWS, Row, finetuning_counts, pretraining_counts

FLAGS = flags.FLAGS
_COLUMNS = (
    ["model", "Table"]
    + ["PT", "PT as in paper", "PT in paper"]
    + ["FT", "FT as in paper", "FT in paper", ""]
)
_DIFFERS = "differs"

Counts = tuple[dict[str, int], dict[str, int]]


class Comparison(NamedTuple):
    """Counts for a row of the paper: computed, computed in millions, and printed."""

    exact: tuple[int, int]
    computed: tuple[int, int]
    printed: tuple[int, int]

    @property
    def mark(self) -> str:
        """Empty if the computed and the printed number agree."""
        return "" if self.computed == self.printed else _DIFFERS


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_boolean("all", False, "Show every shipped model, one per line.")


def main() -> None:
    """Counts one model or all."""
    if not FLAGS.all:
        config = start.parse_gin(ParametersConfig)
        print_model(config, _shipped_models())
    elif FLAGS.gin_file or FLAGS.gin_param:
        raise UserError(
            "--all: shows the shipped models as they are; leave out --gin_file and "
            "--gin_param, or --all"
        )
    else:
        print_shipped(_shipped_models())


def _shipped_models() -> dict[str, ModelConfig]:
    """Gin file -> model, without *base.gin, which only other files include."""
    folder = os.path.join(gin_files.packaged_folder(), "models")
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(".gin")]
    return {
        f"models/{name}": _read(os.path.join(folder, name))
        for name in names
        if not name.endswith("base.gin")
    }


def _read(path: str) -> ModelConfig:
    return gin_files.configure(ModelConfig, [path], [])


def print_model(config: ParametersConfig, shipped: Mapping[str, ModelConfig]) -> None:
    """Prints PT and FT per group, and the paper's numbers if it has the model.

    Args:
      config: the model, and the number of layers that fine-tuning keeps.
      shipped: gin file -> model, of all models of the package.

    Raises:
      UserError: `keep_layers` does not fit the model.
    """
    row = _published_row(config, shipped)
    keep = config.keep_layers or (row.keep_layers if row else 0)
    pretraining = pretraining_counts(config.model)
    finetuning = finetuning_counts(config.model, keep)
    rows = [[g, pretraining[g] or None, finetuning[g] or None] for g in pretraining]
    rows.append(["all", sum(pretraining.values()), sum(finetuning.values())])
    if row is not None:
        compared = _compare(row, pretraining, finetuning)
        rows.append(["counted as in the paper", *compared.exact])
        rows.append(["in millions", *_in_millions(compared.computed)])
        rows.append([f"paper, {row.place}", *_in_millions(compared.printed)])
    layers = f"{keep or config.model.num_layers} of {config.model.num_layers}"
    title = f"Parameters in the graphs; fine-tuning has {layers} layers"
    console.table(title, ["group", "pre-training (PT)", "fine-tuning (FT)"], rows)
    if row is None:
        console.say("The paper has no such model.")
        return
    console.say(f"{row.gin_file}: {row.name!r} of {row.place}.")
    console.say(f"The paper counts there: {row.convention.description}.")
    if compared.mark:
        console.say(f"The paper's number {compared.mark}: {row.remark}.")


def print_shipped(shipped: Mapping[str, ModelConfig]) -> None:
    """Prints a line for each model: our count, the paper's rule, the paper's number."""
    rows, remarks = [], []
    for row in console.track(ROWS, "counting"):
        counts = _count(shipped[row.gin_file], row.keep_layers)
        compared = _compare(row, *counts)
        rows.append(_line(row.gin_file, row.tables, counts, compared))
        if compared.mark:
            remarks.append(f"{row.gin_file} {compared.mark}: {row.remark}.")
    for gin_file in sorted(set(shipped) - {row.gin_file for row in ROWS}):
        rows.append(_line(gin_file, None, _count(shipped[gin_file], 0), None))
    console.table("Parameters in the graphs, and in the paper", _COLUMNS, rows)
    for remark in remarks:
        console.say(remark)


def _count(model: ModelConfig, keep_layers: int) -> Counts:
    return pretraining_counts(model), finetuning_counts(model, keep_layers)


def _line(
    gin_file: str, tables: str | None, counts: Counts, compared: Comparison | None
) -> list:
    pt, ft = (sum(part.values()) for part in counts)
    if compared is None:
        return [gin_file, tables, pt, None, None, ft, None, None, ""]
    as_paper = _in_millions(compared.computed)
    paper = _in_millions(compared.printed)
    return [
        *(gin_file, tables),
        *(pt, as_paper[0], paper[0]),
        *(ft, as_paper[1], paper[1]),
        compared.mark,
    ]


def _compare(
    row: Row, pretraining: dict[str, int], finetuning: dict[str, int]
) -> Comparison:
    exact = row.convention.totals(pretraining, finetuning)
    computed = tuple(row.convention.millions(total) for total in exact)
    return Comparison(exact, computed, (row.pretraining, row.finetuning))


def _in_millions(pair: tuple[int, int]) -> list[str]:
    return [f"{millions}M" for millions in pair]


def _published_row(
    config: ParametersConfig, shipped: Mapping[str, ModelConfig]
) -> Row | None:
    """The paper's row of the same sizes and layers in fine-tuning, or None."""
    for row in ROWS:
        if _sizes(shipped[row.gin_file]) == _sizes(config.model):
            printed = row.keep_layers or config.model.num_layers
            return row if config.keep_layers in (0, printed) else None
    return None


def _sizes(model: ModelConfig) -> list[int]:
    """The sizes of a model: everything but rates, activation and MLM head."""
    names = [field.name for field in fields(model) if field.type in (int, bool)]
    return [getattr(model, name) for name in names]
