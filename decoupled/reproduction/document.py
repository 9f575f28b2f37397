"""The page of a reproduction: verdicts, what they teach, curves, measures, tables.

Beside the page lie, in a folder of its name: pictures, every number by seed
(scores.csv), and the page that means link to, runs.md, which has them by seed too, each
with the settings of its run. The design, design.md, is written by hand.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.tables import GAP, Cell
from decoupled.reports import published, sweeps
from decoupled.reports.page import RUNS, Page
from decoupled.reports.results import Number, Results, Row
from decoupled.reproduction import lessons, pictures
from decoupled.reproduction.measured import CONTROL, LOGITS, NATS, Measured
from decoupled.reproduction.statistics import Estimate, estimate

DESIGN = "design.md"
OUT_OF_REACH = "out of reach: it takes 1.8T tokens"
SCORE, LOSS, ACCURACY = "score", "masked-LM loss", "masked-LM accuracy"

# The paper's tables of models: title -> row here -> row there.
PAPER_TABLES = {
    "Table 2: coupled or decoupled": {
        "coupled": "coupled", "decoupled": "decoupled",
    },
    "Table 3: large input or large output embedding": {
        "decoupled": "decoupled", "out_small": "large_in_small_out",
        "in_small": "e_out_768",
    },
    "Table 4: output embedding size": {
        "e_small": "e_out_128", "in_small": "e_out_768", "e_large": "e_out_3072",
    },
    "Table 5: additional layers or a larger output embedding": {
        "e_small": "e_out_128", "in_small": "e_out_768",
        "add_layers": "additional_layers_23",
    },
    "Table 6: reinvesting the input embedding": {
        "coupled": "coupled", "in_small": "e_out_768", "reinv_h": "reinvested_h",
        "reinv_l": "reinvested_l",
    },
}  # fmt: skip
# Exploratory: the nonlinear head against the linear one.
HEADS = {"in_small_head": "in_small", "e_large_head": "e_large"}


class Section(NamedTuple):
    """A table of rows with a column for each metric of a task.

    task: of the numbers. title, text: above it. digits: after the point. drawn: names
    of the columns and of the values in a picture; None without one.
    """

    task: str
    title: str
    text: str
    digits: int = 1
    drawn: tuple[str, str] | None = None


SECTIONS = (
    Section(
        "retrieval",
        "Figure 2: retrieval of translations by layer",
        "Share of held-out verses whose nearest neighbour in another language is their "
        "translation, %: the mean over all ordered pairs of languages. Layer 0 is the "
        "input embedding.",
        drawn=("layer", "retrieved, %"),
    ),
    Section(
        "retrieval_logits",
        "The same in logits",
        "Log of the odds, in which claim 7 is judged.",
        2,
        ("layer", "log of the odds"),
    ),
    Section(
        "layer_drop",
        "Figure 1: without the last layers",
        "Parts of speech, F1 in %, of models that were fine-tuned with their first "
        "layers alone.",
        drawn=("layers kept", "F1, %"),
    ),
    Section(
        "word_translation",
        "Instead of Table 8: word translation by the tables",
        "Mean reciprocal rank of a word's translation, x 100, by the rows of the input "
        "and of the output table; a coupled model has one table. The paper compares "
        "similarities with those that people gave, which takes more words than this "
        "vocabulary has.",
    ),
    Section(
        "probing",
        "Table 9: probes",
        "Right answers of a probe on a learned mix of all layers of the frozen model, "
        "%. In the paper the probe for parts of speech has 96.7, 96.7 and 96.8 for "
        "E_out of 128, 768 and 3072, that for dependencies 94.3, 94.4 and 94.5.",
    ),
    Section(
        "geometry",
        "Geometry",
        "*Gradient*: share of the gradient of the logits that reaches the encoder. "
        "*Anisotropy*: mean cosine of vectors of different texts. *Rank*: effective "
        "rank of the logits; with a linear head it cannot be above H. *CKA*: likeness "
        "of the table of `coupled` to the input and the output table of a row.",
        3,
    ),
    Section(
        "spectrum",
        "Spectrum of the tables",
        "Effective rank: the exponential of the entropy of the singular values, after "
        "the mean row was taken away.",
    ),
    Section(
        "word_similarity",
        "Table 8: word similarity",
        "Spearman x 100 with the similarities that people gave, pairs of whole pieces "
        "alone.",
    ),
    Section(
        "frequency",
        "Loss by frequency",
        "Masked-LM loss in nats, by how often the masked piece occurs in the training "
        "text.",
        2,
        ("occurrences", "loss, nats"),
    ),
    Section(
        "secondary",
        "Other measures",
        "Shown for comparison; they decide nothing.",
    ),
)
