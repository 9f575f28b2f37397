"""Questions to features on this processor, beside transformers' fast tokenizer.

Measures questions a second, from texts in memory to arrays with the windows of all
contexts, the characters of every piece and the place of the answer, of
  decoupled                 the features of the task xquad
  transformers              its fast tokenizer with windows and offsets in batches of
                            1,000, and the search for the answer's pieces, as its
                            example script for question answering does it
  transformers, one thread  the same with TOKENIZERS_PARALLELISM=false, as ours has
with the same vocabulary, on the questions of real files. Windows of transformers
overlap by a fixed number of pieces, ours begin at fixed distances; its overlap is such
that it never has more windows than ours.

Writes benchmarks/results/question_features.json.

Examples:
  python -m benchmarks.question_features --quick
  python -m benchmarks.question_features --questions=xquad/xquad.en.json
"""

import dataclasses
import functools
import glob
import json
import os
import pathlib
import tempfile
from typing import Any

from benchmarks import command
from benchmarks.interleave import Skip, Worker, rate
from benchmarks.results import Comparison
from benchmarks.sizes import QUICK, REFERENCE
from benchmarks.tables import Table, gigabytes, with_range, worker_table
from decoupled.configs import QuestionAnsweringConfig, VocabularyConfig
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.exports.interop.tokenizer_files import write_tokenizer
from decoupled.tasks.qa_features import SPECIALS
from decoupled.tasks.qa_files import Answer, Question, read_questions
from decoupled.xtreme.files import LanguageFile

NAME = "question_features"
OURS = "decoupled"
DATA_DIR = "DECOUPLED_DATA_DIR"
# XTREME's, as in gin/tasks/qa.gin.
LENGTH = 384
SETTINGS = QuestionAnsweringConfig(64, 128, 30, 20)
QUICK_LENGTH = 40
QUICK_SETTINGS = QuestionAnsweringConfig(20, 8, 8, 5)
VOCABULARY = VocabularyConfig(16_000, 0.9995, False, 10**6, 10**9, 16)
QUICK_VOCABULARY = dataclasses.replace(VOCABULARY, vocab_size=33)
AT_ONCE = 1000


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=1, dtypes=["float32"])
    options.add_argument(
        "--questions",
        action="append",
        help=f"a file in SQuAD's form (repeatable; all of XQuAD in {DATA_DIR})",
    )
    arguments = command.parse(options)
    with tempfile.TemporaryDirectory() as folder:
        workers = functools.partial(_workers, arguments, pathlib.Path(folder))
        comparisons = [command.Planned("question features", workers)]
        command.measure(arguments, NAME, comparisons, tables)


def _workers(arguments, folder):
    questions = read(arguments.quick, arguments.questions)
    case = make_case(questions, arguments.quick, folder)
    return [our_worker(case), *peer_workers(case)]


def read(quick: bool, paths: list[str] | None) -> list[Question]:
    """Questions: of the files, or else all of XQuAD in DATA_DIR.

    Args:
      quick: a few invented ones will do.
      paths: of the files.

    Raises:
      Skip: there is no file. UserError: one is malformed.
    """
    if quick:
        return [_invented(number) for number in range(20)]
    if not paths:
        folder = os.path.join(os.environ.get(DATA_DIR, ""), "xtreme", "xquad")
        paths = sorted(glob.glob(os.path.join(folder, "xquad.*.json")))
    if not paths:
        raise Skip(f"no questions: give --questions, or set {DATA_DIR}")
    return [
        question
        for path in paths
        for question in read_questions(LanguageFile(path, "xquad", "any")).questions
        if question.trained_answer
    ]


def _invented(number):
    context = f"The word {number} stands here. " * (1 + number % 3)
    answer = Answer(f"word {number}", 4, 9 + len(str(number)))
    return Question(str(number), "What stands here?", context, (answer,))


def make_case(
    questions: list[Question], quick: bool, folder: pathlib.Path
) -> dict[str, Any]:
    """Writes questions and vocabulary below `folder`; gives the workers' case."""
    texts = dict.fromkeys(text for q in questions for text in (q.context, q.text))
    config = QUICK_VOCABULARY if quick else VOCABULARY
    vocabulary = train_vocabulary(texts, str(folder / "pieces.model"), config)
    write_tokenizer(str(folder), vocabulary, QUICK if quick else REFERENCE)
    rows = [
        [q.text, q.context, q.answers[0].start, q.answers[0].end] for q in questions
    ]
    (folder / "questions.json").write_text(json.dumps(rows), encoding="utf-8")
    settings = QUICK_SETTINGS if quick else SETTINGS
    length = QUICK_LENGTH if quick else LENGTH
    room = length - SPECIALS - settings.max_question_length
    return {
        "folder": str(folder),
        "questions": len(rows),
        "contexts": len({q.context for q in questions}),
        "sequence_length": length,
        "settings": dataclasses.asdict(settings),
        "overlap": room - settings.doc_stride,
        "at_once": AT_ONCE,
        "warmup": 1,
    }


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `make_case`."""
    return Worker(OURS, command.python("decoupled"), "decoupled_questions", case)


def peer_workers(case: dict) -> list[Worker]:
    """The workers of transformers, for a case of `make_case`."""
    python = command.python("torch")
    return [
        Worker(
            name,
            python,
            "transformers_questions",
            case,
            environment={"TOKENIZERS_PARALLELISM": parallel},
        )
        for name, parallel in (
            ("transformers", "true"),
            ("transformers, one thread", "false"),
        )
    ]


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker."""
    columns = [
        "by", "questions", "contexts", "windows", "rate", "time, against ours",
        "peak memory",
    ]  # fmt: skip
    title = "Questions to features"
    return [worker_table(NAME, title, columns, comparisons, OURS, _cells)]


def _cells(comparison, worker, against):
    questions = worker.case["questions"]
    return [
        worker.name,
        f"{questions:,}",
        f"{worker.case['contexts']:,}",
        f"{worker.facts['windows']:,}",
        with_range(rate(worker, questions / 1e3), "k/s"),
        against,
        gigabytes(worker.peak_resident),
    ]


if __name__ == "__main__":
    command.run(NAME, main)
