"""Counts a model's parameters in its graph, beside the numbers of the paper.

PT is the masked-LM graph; FT is a classifier's graph without the task's own last layer.
Both are built for this, without memory for the weights. A model with the sizes of one
in the paper is shown with the paper's PT and FT, and with the count in the way that the
paper counts.

  decoupled parameters --gin_file=models/e_out_768.gin
  decoupled parameters --all

--all: one line for every model that is shipped.
"""

import os
from dataclasses import fields
from typing import NamedTuple

from absl import flags

from decoupled.configs.studies import ParametersConfig, parameters
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.model import published

FLAGS = flags.FLAGS
DEFAULTS = "runs/parameters.gin"
COLUMNS = (
    ["model", "Table"]
    + ["PT", "PT as in paper", "PT in paper"]
    + ["FT", "FT as in paper", "FT in paper", ""]
)
_DIFFERS = "differs"


class Comparison(NamedTuple):
    """A paper row's numbers: exact by its way of counting, so in millions, printed."""

    exact: tuple[int, int]
    computed: tuple[int, int]
    printed: tuple[int, int]

    @property
    def mark(self) -> str:
        """Empty where computed and printed agree."""
        return "" if self.computed == self.printed else _DIFFERS


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_boolean("all", False, "Show every shipped model, one a line.")


def main() -> None:
    """Counts one model or all."""
    if not FLAGS.all:
        print_model(start.parse_gin(parameters, DEFAULTS))
    elif FLAGS.gin_file or FLAGS.gin_param:
        raise UserError(
            "--all: shows the shipped models as they are; leave out --gin_file and "
            "--gin_param, or --all"
        )
    else:
        print_shipped()


def print_model(config: ParametersConfig) -> None:
    """Prints PT and FT per group, and the paper's numbers where it has the model.

    Raises:
      UserError: `keep_layers` does not fit the model.
    """
    row = _published_row(config)
    keep = config.keep_layers or (row.keep_layers if row else 0)
    pretraining, finetuning = _count(config.model, keep)
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


def print_shipped() -> None:
    """Prints a line for every model: counted, counted as in the paper, and printed."""
    rows, remarks = [], []
    for row in console.track(published.ROWS, "counting"):
        counts = _count(_shipped(row.gin_file), row.keep_layers)
        compared = _compare(row, *counts)
        rows.append(_line(row.gin_file, row.tables, counts, compared))
        if compared.mark:
            remarks.append(f"{row.gin_file} {compared.mark}: {row.remark}.")
    for gin_file in _unpublished():
        rows.append(_line(gin_file, None, _count(_shipped(gin_file), 0), None))
    console.table("Parameters in the graphs, and in the paper", COLUMNS, rows)
    for remark in remarks:
        console.say(remark)


def _count(model, keep_layers):
    # Here, so that --help does not wait for TensorFlow.
    from decoupled.model.parameters import finetuning_counts, pretraining_counts

    return pretraining_counts(model), finetuning_counts(model, keep_layers)


def _line(gin_file, tables, counts, compared):
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


def _compare(row, pretraining, finetuning):
    exact = row.convention.totals(pretraining, finetuning)
    computed = tuple(row.convention.millions(total) for total in exact)
    return Comparison(exact, computed, (row.pretraining, row.finetuning))


def _in_millions(pair):
    return [f"{millions}M" for millions in pair]


def _published_row(config):
    """The paper's row of the same sizes and layers in fine-tuning, or None."""
    for row in published.ROWS:
        if _sizes(_shipped(row.gin_file)) == _sizes(config.model):
            printed = row.keep_layers or config.model.num_layers
            return row if config.keep_layers in (0, printed) else None
    return None


def _sizes(model):
    """What tells the paper's models apart: all but rates, activation and MLM head."""
    names = [field.name for field in fields(model) if field.type in (int, bool)]
    return [getattr(model, name) for name in names]


def _shipped(gin_file):
    path = os.path.join(gin_files.packaged_folder(), gin_file)
    return gin_files.configure(parameters, [DEFAULTS, path], []).model


def _unpublished():
    """Shipped models that the paper does not have; *base.gin only serve others."""
    known = {row.gin_file for row in published.ROWS}
    names = sorted(os.listdir(os.path.join(gin_files.packaged_folder(), "models")))
    models = [f"models/{n}" for n in names if n.endswith(".gin")]
    return [m for m in models if m not in known and not m.endswith("base.gin")]
