"""What the finished jobs of a reproduction measured, read from their folders.

A job that is missing or not complete leaves a gap.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.reports.results import Number, Row
from decoupled.reproduction.measured import Measured


class Findings(NamedTuple):
    """All that a document tells of.

    folder: of the jobs. rows: by name, with sizes and parameters, in their order; those
    that were run. seeds: that were to be run. controls: rows that were also measured
    after one step.
    measured: name as in `reproduction.claims` -> values; a seed that is missing in one
    row is left out of all.
    numbers: every mean by row, measure (`task`), detail (`metric`) and seed, each with
    the folder that it was read from and its settings. Rows of controls are called
    "control:ROW".
    layers: row -> percent of translations found, dev sentences not among them, float64
    [seeds, layers + 1], mean over directions; the seeds are those of
    measured["retrieval"].
    curves: (row, seed) -> `decoupled.runs.curve.Curve` of pre-training.
    unigram_entropy: language -> nats a token of held-out text. shares: language -> its
    share of the training sequences.
    results: name of an analysis -> seed -> its JSON, for what has no items (geometry,
    spectrum) and for details.
    text: sentences on the text that was trained on. steps: of pre-training.
    activation_dtype: of it. machine: cores, processor, Python. seconds: of all complete
    jobs, added. complete, jobs: how many. command: that makes the document.
    left_out: sentences on what is missing or other than in the paper.
    """

    folder: str
    rows: Mapping[str, Row]
    seeds: Sequence[int]
    controls: Sequence[str]
    measured: Mapping[str, Measured]
    numbers: Sequence[Number]
    layers: Mapping[str, Any]
    curves: Mapping[tuple[str, int], Any]
    unigram_entropy: Mapping[str, float]
    shares: Mapping[str, float]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    complete: int
    jobs: int
    command: str
    left_out: Sequence[str]
