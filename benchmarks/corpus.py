"""Text from a Wikipedia dump: this project's reader and its peers, interleaved.

Measures pages and MB of XML a second, each on two processes, of
  decoupled        dump to clean sentences
  gensim           WikiCorpus: dump to lists of words
  wikiextractor 1  dump to text without templates: one process that extracts, beside
                   the one that reads
  wikiextractor 2  the same with two that extract
and counts what is left of markup in what they write from one copy. For the rates the
dump is repeated with fresh titles, so that starting processes counts little; it is
unpacked in each measurement.
"""

import bz2
import os
import pathlib
import re
from collections.abc import Iterable

from benchmarks import peers
from benchmarks.interleave import Worker, rate
from benchmarks.results import Comparison, Plan
from benchmarks.tables import OURS, BenchmarkTable, Suite, with_range, worker_table
from decoupled.core import files
from decoupled.core.errors import UserError

PROCESSES = 2
# Copies of the dump's pages; a quick run reads one.
REPEATS = 8


def comparisons(arguments, folder: pathlib.Path) -> list[Plan]:
    """One comparison: all readers on one dump."""
    case = _case(arguments, folder)
    return [Plan(case["dump"], lambda: [our_worker(case), *peer_workers(case)])]


def _case(arguments, folder):
    dump = arguments.dump or peers.default_dump()
    try:
        with bz2.open(dump, "rt", encoding="utf-8") as handle:
            xml = handle.read()
        head = xml[: xml.index("<page>")]
    except (OSError, EOFError, ValueError) as error:
        reason = files.reason(error)
        raise UserError(f"{dump}: not a dump as .xml.bz2 ({reason})") from error
    pages = re.findall(r"<page>.*?</page>", xml, re.DOTALL)
    path, sample = folder / "dump.xml.bz2", folder / "sample.xml.bz2"
    write_dump(sample, head, pages)
    copies = 1 if arguments.quick else REPEATS
    page_copies = (
        page.replace("</title>", f" {copy}</title>", 1)
        for copy in range(copies)
        for page in pages
    )
    count, size = write_dump(path, head, page_copies)
    return {
        "dump": f"{os.path.basename(dump)} x{copies}",
        "path": str(path),
        "sample": str(sample),
        "pages": count,
        "bytes": size,
        "processes": PROCESSES,
        "warmup": 1,
    }


def write_dump(path: pathlib.Path, head: str, pages: Iterable[str]) -> tuple[int, int]:
    """Writes a bzip2 file; returns its numbers of pages and of bytes of XML."""
    count = 0
    with bz2.open(path, "wt", encoding="utf-8") as handle:
        size = handle.write(head)
        for page in pages:
            size += len(page.encode("utf-8")) + 1
            handle.write(page + "\n")
            count += 1
        size += handle.write("</mediawiki>\n")
    return count, size


def our_worker(case: dict) -> Worker:
    """This project's worker."""
    return Worker(OURS, "decoupled", "decoupled_corpus", case)


def peer_workers(case: dict) -> list[Worker]:
    """gensim, and wikiextractor with one and with two processes that extract."""
    workers = [Worker("gensim", "corpus", "gensim_corpus", case)]
    for count in (1, 2):
        reader_case = {**case, "processes": count}
        name = f"wikiextractor {count}"
        workers.append(Worker(name, "corpus", "wikiextractor_corpus", reader_case))
    return workers


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each worker."""
    columns = [
        "dump", "reader", "XML", "pages", "time, against ours", "text of one copy",
        "leftovers of markup",
    ]  # fmt: skip
    title = "Dump to text on two processes"
    return [worker_table("corpus", title, columns, results, _cells)]


def _cells(comparison, worker, slowdown):
    facts = worker.facts
    leftovers_per_1000 = 1000 * facts["leftovers"] / max(1, facts["characters"])
    return [
        comparison.title,
        worker.name,
        with_range(rate(worker, worker.case["bytes"] / 1e6), "MB/s"),
        with_range(rate(worker, worker.case["pages"]), "/s"),
        slowdown,
        f"{facts['characters'] / 1e6:.2f} M characters",
        f"{leftovers_per_1000:.3f} per 1,000",
    ]


SUITE = Suite(comparisons, tables, rounds=5, steps=1)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("corpus")
