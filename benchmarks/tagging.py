"""Tagging words on this processor, and scoring tags, beside transformers and seqeval.

Measures sentences a second, from words to tags, of
  decoupled            the graph that evaluates, rows of like length together
  decoupled, padded    the same with all rows as long as the longest may be
  transformers         its token-classification pipeline, a sentence at a time
  transformers, 32     the same in batches of 32
with the same random weights, four layers of the reference sizes, and the same
vocabulary, on real sentences; and of scoring the tags of all sentences of the file
  decoupled            all metrics of udpos
  seqeval              precision, recall and F1, as XTREME's script asks for them

Writes benchmarks/results/tagging.json.

Examples:
  python -m benchmarks.tagging --quick
  python -m benchmarks.tagging --sentences=udpos/test-en.tsv --only=tagging
"""

import functools
import json
import pathlib
import random
import tempfile

from benchmarks import command, tagging_case
from benchmarks.interleave import Worker, rate
from benchmarks.results import Comparison
from benchmarks.tables import Table, gigabytes, with_range, worker_table

NAME = "tagging"
OURS = "decoupled"
# Of the tags that are scored.
_WRONG = 0.2


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=3, steps=1, dtypes=["float32"])
    options.add_argument(
        "--sentences",
        help="a file of udpos with tags (the English test set in "
        f"{tagging_case.DATA_DIR})",
    )
    arguments = command.parse(options)
    with tempfile.TemporaryDirectory() as folder:
        given = (arguments, pathlib.Path(folder))
        comparisons = [
            command.Planned("tagging", functools.partial(tagging_workers, *given)),
            command.Planned("scoring", functools.partial(scoring_workers, *given)),
        ]
        command.measure(arguments, NAME, comparisons, tables)


def tagging_workers(arguments, folder: pathlib.Path) -> list[Worker]:
    """All ways to tag, with one model; its files lie below `folder`."""
    peer = command.python("torch")
    sentences = tagging_case.read(arguments.quick, arguments.sentences)
    case = tagging_case.make_case(sentences, arguments.quick, folder / "tagging")
    batch = case["batch"]
    return [
        *our_workers(case),
        *(
            Worker(name, peer, "transformers_tagging", {**case, "at_once": at_once})
            for name, at_once in (
                ("transformers", 1),
                (f"transformers, {batch}", batch),
            )
        ),
    ]


def our_workers(case: dict) -> list[Worker]:
    """This project's workers, for a case of `make_case`."""
    python = command.python("decoupled")
    return [
        Worker(name, python, "decoupled_tagging", {**case, "by_length": by_length})
        for name, by_length in ((OURS, True), (f"{OURS}, padded", False))
    ]


def scoring_workers(arguments, folder: pathlib.Path) -> list[Worker]:
    """Both ways to score the tags of a file, one in five of which is drawn."""
    sentences = tagging_case.read(arguments.quick, arguments.sentences)
    labels = [sentence.tags for sentence in sentences]
    generator = random.Random(0)
    known = sorted({tag for tags in labels for tag in tags})
    predictions = [
        [generator.choice(known) if generator.random() < _WRONG else t for t in tags]
        for tags in labels
    ]
    path = folder / "tags.json"
    content = {"labels": labels, "predictions": predictions}
    path.write_text(json.dumps(content), encoding="utf-8")
    case = {
        "tags": str(path),
        "task": tagging_case.TASK,
        "sentences": len(labels),
        "words": sum(map(len, labels)),
    }
    python = command.python("decoupled")
    return [
        Worker(OURS, python, "decoupled_scoring", case),
        Worker("seqeval", python, "seqeval_scoring", case),
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    return [
        worker_table(
            "tagging",
            "Words to tags, and tags to scores",
            ["what", "by", "sentences", "rate", "time, against ours", "peak memory"],
            comparisons,
            OURS,
            _cells,
        )
    ]


def _cells(comparison, worker, against):
    sentences = worker.case["sentences"]
    return [
        comparison.title,
        worker.name,
        f"{sentences:,}",
        with_range(rate(worker, sentences), "/s"),
        against,
        gigabytes(worker.peak_resident),
    ]


if __name__ == "__main__":
    command.run(NAME, main)
