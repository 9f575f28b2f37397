"""Counts a model's parameters beside the paper's numbers.

PT is the masked-LM model; FT is a classifier without the task's own last layer. For a
model with the sizes of one in the paper, the paper's PT and FT and the count by the
paper's rules are shown, too.

  decoupled parameters --gin_file=models/e_out_768.gin
  decoupled parameters --all

--all: one line for every shipped model, and Table 1: the share of the word embeddings
in public models.
"""

import os
from collections.abc import Mapping
from dataclasses import fields

from absl import flags

from decoupled.configs import ModelConfig, ParametersConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.model.parameters import (
    ROWS,
    SPECIAL_COLUMNS,
    SPECIAL_TITLE,
    TABLE_1,
    PaperRow,
    PublicModel,
    finetuning_counts,
    pretraining_counts,
    special_variables,
)

FLAGS = flags.FLAGS
_COLUMNS = (
    ["model", "Table"]
    + ["PT", "PT as in paper", "PT in paper"]
    + ["FT", "FT as in paper", "FT in paper", ""]
)


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
        print_table_1()


def _shipped_models() -> dict[str, ModelConfig]:
    """Label of a row of the paper, or gin file -> model."""
    folder = os.path.join(gin_files.packaged_folder(), "models")
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(".gin")]
    file_settings = {f"models/{name}": () for name in names}
    row_settings = {row.label: row.settings for row in ROWS}
    return {
        label: gin_files.configure(ModelConfig, [label.partition(",")[0]], settings)
        for label, settings in {**file_settings, **row_settings}.items()
    }


def print_model(config: ParametersConfig, models: Mapping[str, ModelConfig]) -> None:
    """Prints PT and FT per group, and the paper's numbers if it has the model."""
    row = _published_row(config, models)
    special_rows = special_variables(config.model, config.optimizer)
    entry = next((x for x in TABLE_1 if _same_sizes(_public(x), config.model)), None)
    keep_layers = config.keep_layers or (row.keep_layers if row else 0)
    pretraining = pretraining_counts(config.model)
    finetuning = finetuning_counts(config.model, keep_layers)
    rows = [[g, pretraining[g] or None, finetuning[g] or None] for g in pretraining]
    rows.append(["all", sum(pretraining.values()), sum(finetuning.values())])
    if row is not None:
        totals, rule_counts, paper_counts = _compare(row, pretraining, finetuning)
        rows.append(["counted as in the paper", *totals])
        rows.append(["in millions", *rule_counts])
        rows.append([f"paper, {row.place}", *paper_counts])
    layers = f"{keep_layers or config.model.num_layers} of {config.model.num_layers}"
    title = f"Parameters in the graphs; fine-tuning has {layers} layers"
    console.table(title, ["group", "pre-training (PT)", "fine-tuning (FT)"], rows)
    if special_rows:
        console.table(SPECIAL_TITLE, SPECIAL_COLUMNS, special_rows)
    if entry is not None:
        console.say(
            f"{entry.name}: the paper's Table 1 has {entry.parameters}M, "
            f"{entry.embedding}M ({entry.share}%) of them word embeddings; it counts "
            "the pooler, as (FT)."
        )
    if row is None and entry is None:
        console.say("The paper has no such model.")
    if row is None:
        return
    console.say(f"{row.label}: {row.name!r} of {row.place}.")
    console.say(f"The paper counts there: {row.convention.description}.")
    if rule_counts != paper_counts:
        console.say(f"The paper's number differs: {row.remark}.")


def print_shipped(models: Mapping[str, ModelConfig]) -> None:
    """Prints a line for each model: our count, the paper's rule, the paper's number."""
    rows, remarks = [], []
    paper_rows = {row.label: row for row in ROWS}
    other_labels = sorted(models.keys() - paper_rows.keys())
    for label in console.track([*paper_rows, *other_labels], "counting"):
        row, model = paper_rows.get(label), models[label]
        pretraining = pretraining_counts(model)
        finetuning = finetuning_counts(model, row.keep_layers if row else 0)
        rule_counts, paper_counts, mark = [None] * 2, [None] * 2, ""
        if row:
            _, rule_counts, paper_counts = _compare(row, pretraining, finetuning)
            if rule_counts != paper_counts:
                mark = "differs"
                remarks.append(f"{label} {mark}: {row.remark}.")
        pt, ft = sum(pretraining.values()), sum(finetuning.values())
        counts = list(zip(rule_counts, paper_counts, strict=True))
        columns = [pt, *counts[0], ft, *counts[1], mark]
        rows.append([label, row and row.tables, *columns])
    console.table("Parameters in the graphs, and in the paper", _COLUMNS, rows)
    for remark in remarks:
        console.say(remark)


def print_table_1() -> None:
    """Prints Table 1 of the paper, counted here, with the pooler."""
    rows = []
    for model in TABLE_1:
        counts = finetuning_counts(_public(model))
        total, words = sum(counts.values()), counts["word embeddings"]
        share = f"{100 * words / total:.0f}%"
        printed = f"{model.embedding}M of {model.parameters}M, {model.share}%"
        rows.append([model.name, total, words, share, printed])
    columns = ["model", "parameters", "word embeddings", "share", "Table 1"]
    console.table("Table 1: embeddings in coupled models", columns, rows)


def _public(model: PublicModel) -> ModelConfig:
    return gin_files.configure(ModelConfig, [model.gin_file], model.settings)


def _same_sizes(model: ModelConfig, other: ModelConfig) -> bool:
    """Everything but rates, activation and MLM head."""
    sizes = {field.name for field in fields(ModelConfig) if field.type in (int, bool)}
    sizes.remove("project_equal_output_widths")
    return all(getattr(model, name) == getattr(other, name) for name in sizes)


def _compare(row: PaperRow, pretraining: dict[str, int], finetuning: dict[str, int]):
    """(PT, FT) by the paper's rules, the same in millions, and as printed there."""
    totals = row.convention.totals(pretraining, finetuning)
    rule_counts = [f"{row.convention.millions(total)}M" for total in totals]
    return totals, rule_counts, [f"{row.pretraining}M", f"{row.finetuning}M"]


def _published_row(
    config: ParametersConfig, models: Mapping[str, ModelConfig]
) -> PaperRow | None:
    """The paper's row of the same sizes and layers in fine-tuning, or None."""
    for row in ROWS:
        if _same_sizes(models[row.label], config.model):
            layer_count = row.keep_layers or config.model.num_layers
            return row if config.keep_layers in (0, layer_count) else None
    return None
