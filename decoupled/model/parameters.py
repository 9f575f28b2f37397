"""Parameter counts of a model, and those that the paper prints.

Counts come from the declaration of variables; no graph is built. Three ways of counting
reproduce the paper's tables from the counts per group:

Tables 2-6, and 12 multilingual: the encoder and the output table, rounded down to
  millions. Neither pooler nor H -> E_out projection nor output bias.
Tables 12 (English) and 13: the same parts, rounded to the nearest million.
RemBERT: PT is everything in the checkpoint, pooler included; FT is the encoder; both
  rounded to the nearest million.

Where a row still differs, its `remark` says what is known about it. Table 1 counts
other public models, in which the word embeddings are the output embedding, too.
"""

import collections
import functools
from typing import NamedTuple

from decoupled.configs import ModelConfig, OptimizerConfig
from decoupled.core.errors import UserError
from decoupled.model.variables import (
    ALL_HEADS,
    GROUPS,
    IDENTITY,
    MASKED_LM,
    Head,
    Role,
    by_pattern,
    declare,
    summary,
)

ENCODER = tuple(
    group
    for group, role in GROUPS.items()
    if role in (Role.INPUT_EMBEDDING, Role.ENCODER)
)


class Convention(NamedTuple):
    """A way of counting.

    head: groups that PT counts beside the encoder; FT is the encoder alone.
    rounding: added before the fraction of a million is cut: 0, or half a million.
    """

    head: tuple[str, ...]
    rounding: int
    description: str

    def totals(
        self, pretraining: dict[str, int], finetuning: dict[str, int]
    ) -> tuple[int, int]:
        """PT and FT, exact, from the counts per group of the two graphs."""
        # The masked-LM graph has no pooler; a checkpoint may have one.
        parts = {**pretraining, "pooler": finetuning["pooler"]}
        return (
            sum(parts[group] for group in (*ENCODER, *self.head)),
            sum(finetuning[group] for group in ENCODER),
        )

    def millions(self, total: int) -> int:
        """A total as the paper prints it."""
        return (total + self.rounding) // 1_000_000


class PaperRow(NamedTuple):
    """A model of the paper.

    model, settings: its file in gin/models/, and what to set beside it.
    tables, name: the tables that list it, and its name there.
    pretraining, finetuning: PT and FT as printed, in millions.
    keep_layers: layers that fine-tuning keeps; 0 is all.
    remark: why the count of `convention` differs, where it does.
    """

    model: str
    tables: str
    name: str
    pretraining: int
    finetuning: int
    convention: Convention
    keep_layers: int = 0
    remark: str = ""
    settings: tuple[str, ...] = ()

    @property
    def gin_file(self) -> str:
        return f"models/{self.model}.gin"

    @property
    def label(self) -> str:
        """Its file and settings, e.g. "models/coupled.gin, vocab_size = 30000"."""
        changes = [setting.partition(".")[2] for setting in self.settings]
        return ", ".join([self.gin_file, *changes])

    @property
    def place(self) -> str:
        return f"Table{'s' if ',' in self.tables else ''} {self.tables}"


class PublicModel(NamedTuple):
    """A row of Table 1: millions of parameters, and of those of the word embeddings.

    gin_file, settings: as of `PaperRow`.
    """

    name: str
    gin_file: str
    parameters: int
    embedding: int
    settings: tuple[str, ...] = ()

    @property
    def share(self) -> int:
        """The share of the embeddings as printed, in percent."""
        return round(100 * self.embedding / self.parameters)


def pretraining_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of the masked-LM model (the paper's PT) per group of variables."""
    return _count(config, MASKED_LM)


def finetuning_counts(config: ModelConfig, keep_layers: int = 0) -> dict[str, int]:
    """Parameters of a classifier (the paper's FT) per group of variables: with the
    pooler, without the task's last layer. `keep_layers` 0 keeps all."""
    if type(keep_layers) is not int or not 0 <= keep_layers <= config.num_layers:
        raise UserError(
            f"keep_layers: {keep_layers!r} is not a number of layers from 1 to "
            f"{config.num_layers}, nor 0, which keeps all"
        )
    layers = keep_layers or config.num_layers
    return _count(config.with_layers(layers), Head(pooler=True))


def special_variables(
    model: ModelConfig, optimizer: OptimizerConfig
) -> list[list[str | None]]:
    """[name, initial values, learning rate] of the variables for which
    `ModelConfig.initial_values` or `OptimizerConfig.rates` has a pattern; one row for
    the same variable of all layers."""
    variables = declare(model, ALL_HEADS)
    rates = by_pattern("OptimizerConfig.rates", optimizer.rates, variables)
    patterns = {name: summary([name])[0] for name in variables}
    rows: dict[tuple, list[str]] = {}
    for name, variable in variables.items():
        values, rate = None, rates.get(name)
        if variable.initializer == IDENTITY:
            values = IDENTITY
        elif variable.scale != 1:
            values = f"deviation {model.initializer_range * variable.scale:g}"
        if values is not None or name in rates:
            rate_text = rate and f"{rate * optimizer.learning_rate:g} ({rate:g} x)"
            rate_text = "not trained" if rate == 0 else rate_text
            rows.setdefault((patterns[name], values, rate_text), []).append(name)
    counts = collections.Counter(patterns.values())
    return [
        [name, values, rate_text]
        for (pattern, values, rate_text), members in rows.items()
        for name in ([pattern] if len(members) == counts[pattern] else members)
    ]


def _count(config: ModelConfig, head: Head) -> dict[str, int]:
    groups = [group for group, role in GROUPS.items() if role is not Role.TASK_HEAD]
    counts = dict.fromkeys(groups, 0)
    for variable in declare(config, head).values():
        counts[variable.group] += variable.size
    return counts


# The table of `special_variables`.
SPECIAL_TITLE = "Variables with initial values or a learning rate of their own"
SPECIAL_COLUMNS = ["variable", "initial values", "learning rate"]

_TABLES = (
    "encoder and output table, without pooler, H -> E_out projection and output bias, "
)
ROUNDED_DOWN = Convention(("output embedding",), 0, f"{_TABLES}rounded down")
TO_NEAREST = Convention(
    ("output embedding",), 500_000, f"{_TABLES}rounded to the nearest"
)
RELEASED = Convention(
    ("pooler", "MLM transform", "output embedding", "output bias"),
    500_000,
    "PT everything with the pooler, FT the encoder without it, rounded to the nearest",
)

_multilingual = functools.partial(PaperRow, convention=ROUNDED_DOWN)
# BERT-base's sizes.
_ENGLISH = "ModelConfig.vocab_size = 30000"
_english = functools.partial(PaperRow, convention=TO_NEAREST, settings=(_ENGLISH,))
_deep = functools.partial(_english, "additional_layers_23", "13", keep_layers=12)
_rembert = functools.partial(PaperRow, convention=RELEASED)
ROWS = (
    _multilingual("coupled", "2, 6, 12", "coupled", 177, 177),
    _multilingual("decoupled", "2", "decoupled", 269, 177),
    _multilingual("large_in_small_out", "3", "E_in 768, E_out 128", 192, 177),
    _multilingual("e_out_768", "3, 4, 5, 6", "E_in 128, E_out 768", 192, 100),
    _multilingual("e_out_128", "4", "E_out 128", 115, 100),
    _multilingual("e_out_3072", "4", "E_out 3072", 469, 100),
    _multilingual(
        "additional_layers_23", "5", "11 additional layers", 193, 100, keep_layers=12
    ),
    _multilingual(
        "reinvested_h", "6", "reinvested in H", 260, 168,
        remark="both numbers come out with the pooler and rounded to the nearest, but "
        "no other row of Tables 2-6 is counted so",
    ),
    _multilingual("reinvested_l", "6", "reinvested in L", 270, 178),
    _multilingual("albert_coupled_128", "12", "multilingual, E 128", 100, 100),
    _english(
        "coupled", "12, 13", "BERT-base, coupled", 110, 110,
        remark="110M is what BERT is known by: 30,522 pieces, pooler and MLM head "
        "counted",
    ),
    _english("albert_coupled_128", "12", "English, E 128", 89, 89),
    _english("e_out_128", "13", "E_out 128", 93, 89),
    _english("e_out_768", "13", "E_out 768", 112, 89),
    _english("e_out_3072", "13", "E_out 3072", 181, 89),
    _deep("15 layers", 114, 89, settings=(_ENGLISH, "ModelConfig.num_layers = 15")),
    _deep("24 layers", 178, 89, settings=(_ENGLISH, "ModelConfig.num_layers = 24")),
    _rembert("rembert", "7, 16", "RemBERT, as released", 995, 575),
    _rembert(
        "rembert_table14", "14", "RemBERT, as printed", 995, 575,
        remark="E_out 1536 and V 250k cannot give 995M; E_out 1664 and V 250,300 of "
        "the released checkpoint (models/rembert.gin) do",
    ),
)  # fmt: skip

_LARGE = (
    "ModelConfig.input_embedding_size = 1024",
    "ModelConfig.output_embedding_size = 1024",
    "ModelConfig.hidden_size = 1024",
    "ModelConfig.num_layers = 24",
    "ModelConfig.num_heads = 16",
    "ModelConfig.intermediate_size = 4096",
)
_BERT = ("ModelConfig.vocab_size = 30522",)
TABLE_1 = (
    PublicModel("mBERT", "models/mbert.gin", 178, 92),
    PublicModel("XLM-R base", "models/xlm_r.gin", 270, 192),
    PublicModel("XLM-R large", "models/xlm_r.gin", 550, 256, _LARGE),
    PublicModel("BERT base", "models/mbert.gin", 110, 23, _BERT),
    PublicModel("BERT large", "models/mbert.gin", 335, 31, (*_BERT, *_LARGE)),
)
