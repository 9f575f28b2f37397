"""Token records from text, this project's and Hugging Face's, interleaved.

Measures tokens a second, each on two processes, of
  decoupled  the work of build_records: text files to TFRecords with checksums
  datasets   datasets.map with a tokenizers.Tokenizer of the same pieces: sentences in
             an Arrow file to ids in another; reading the text does not count
on real text: that of a Wikipedia dump, repeated with a first sentence of its own in
each document, and a vocabulary trained on it.

Writes benchmarks/results/records.json.

Examples:
  python -m benchmarks.records --quick
  python -m benchmarks.records --dump=enwiki-pages-articles-shortened.xml.bz2
"""

import os
import pathlib
import tempfile
from typing import Any

from benchmarks import command
from benchmarks.interleave import Worker, rate
from benchmarks.results import Comparison
from benchmarks.tables import Table, gigabytes, with_range, worker_table
from decoupled.configs import VocabularyConfig
from decoupled.configs.corpora import CorpusSettings, TaskSettings, TextSettings
from decoupled.corpora.build import build
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.corpus_writer import write_corpus
from decoupled.data.vocabulary_training import train_vocabulary

NAME = "records"
OURS = "decoupled"
PEER = "datasets"
PROCESSES = 2
# Text files of a large corpus are longer, and there are many.
FILE_BYTES = 4 << 20
VOCABULARY = VocabularyConfig(24_000, 0.9999, False, 10**6, 10**9, 16)
QUICK_VOCABULARY = VocabularyConfig(45, 1.0, False, 10**6, 10**9, 16)
TOKENS_PER_SHARD = 1 << 22
TEXT = TextSettings(0.0, 10, True, False, True, 1 << 28, 1)


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=1)
    options.add_argument("--dump", help="a dump (default: a small English one)")
    options.add_argument(
        "--repeats", type=int, default=12, help="copies of its text (12)"
    )
    arguments = command.parse(options)
    with tempfile.TemporaryDirectory() as folder:
        case = make_case(arguments, pathlib.Path(folder))
        comparison = command.Planned(
            case["text"], lambda: [our_worker(case), peer_worker(case)]
        )
        command.measure(arguments, NAME, [comparison], tables)


def make_case(arguments, folder: pathlib.Path) -> dict[str, Any]:
    """Writes corpus, vocabulary, and the text as lines for the peer; gives the case."""
    if arguments.quick:
        title, repeats, config = "small text", 2, QUICK_VOCABULARY
        documents = [[f"The word {n} stands here.", "So it is."] for n in range(200)]
    else:
        dump = arguments.dump or command.default_dump()
        repeats, config = arguments.repeats, VOCABULARY
        title = f"{os.path.basename(dump)} x{repeats}"
        documents = _dump_documents(dump, folder / "source")
    repeated = (
        ("train", [f"This is copy number {copy} of the text.", *document])
        for copy in range(repeats)
        for document in documents
    )
    written = write_corpus(
        str(folder / "corpus"), title, {}, [("en", repeated)], {}, {}, {}, FILE_BYTES
    )
    sentences = (sentence for document in documents for sentence in document)
    train_vocabulary(sentences, str(folder / "pieces.model"), config)
    with open(folder / "text.txt", "w", encoding="utf-8") as handle:
        handle.writelines(f"{line}\n" for line in written.sentences("train", "en"))
    return {
        "text": title,
        "folder": str(folder),
        "sentences": written.counts("train")["en"],
        "bytes": written.counts("train", "bytes")["en"],
        "processes": PROCESSES,
        "tokens_per_shard": TOKENS_PER_SHARD,
        "warmup": 1,
    }


def _dump_documents(dump, folder) -> list[list[str]]:
    settings = CorpusSettings(TEXT, TaskSettings(0.1, 0.1, 1, 1))
    build(None, [f"en={dump}"], str(folder), settings)
    return list(Corpus(str(folder)).documents("train", "en"))


def our_worker(case: dict) -> Worker:
    """This project's worker, for a case of `make_case`."""
    return Worker(OURS, command.python("decoupled"), "decoupled_records", case)


def peer_worker(case: dict) -> Worker:
    """Hugging Face's worker, for a case of `make_case`."""
    return Worker(PEER, command.python("records"), "datasets_records", case)


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker."""
    return [
        worker_table(
            "records",
            "Text to token records on two processes",
            ["text", "writer", "tokens", "rate", "time, against ours", "peak memory"],
            comparisons,
            OURS,
            _cells,
        )
    ]


def _cells(comparison, worker, against):
    millions = worker.facts["tokens"] / 1e6
    return [
        comparison.title,
        worker.name,
        f"{millions:.2f} M",
        with_range(rate(worker, millions), "M/s"),
        against,
        gigabytes(worker.peak_resident),
    ]


if __name__ == "__main__":
    command.run(NAME, main)
