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
from benchmarks.results import Comparison, Planned
from benchmarks.tables import OURS, BenchmarkTable, Suite, with_range, worker_table

PROCESSES = 2
# Copies of the dump's pages.
REPEATS = 8
QUICK_PAGES = 30


def comparisons(arguments, folder: pathlib.Path) -> list[Planned]:
    """All readers on one dump."""
    case = _case(arguments, folder)
    return [Planned(case["dump"], lambda: [our_worker(case), *peer_workers(case)])]


def _case(arguments, folder):
    path = folder / "dump.xml.bz2"
    if arguments.quick:
        pages, size = write_dump(path, _small_head(), _small_pages())
        return _facts("small pages", path, path, pages, size)
    dump = arguments.dump or peers.default_dump()
    with bz2.open(dump, "rt", encoding="utf-8") as handle:
        xml = handle.read()
    head = xml[: xml.index("<page>")]
    pages = re.findall(r"<page>.*?</page>", xml, re.DOTALL)
    sample = folder / "sample.xml.bz2"
    write_dump(sample, head, pages)
    repeated = (
        page.replace("</title>", f" {copy}</title>", 1)
        for copy in range(REPEATS)
        for page in pages
    )
    count, size = write_dump(path, head, repeated)
    title = f"{os.path.basename(dump)} x{REPEATS}"
    return _facts(title, path, sample, count, size)


def _facts(dump, path, sample, pages, size):
    return {
        "dump": dump,
        "path": str(path),
        "sample": str(sample),
        "pages": pages,
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


def _small_head():
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" '
        'xml:lang="en">\n<siteinfo>\n<sitename>Test</sitename>\n'
        "<base>https://test.org/wiki/Main_Page</base>\n<namespaces>\n"
        '<namespace key="0" case="first-letter" />\n'
        '<namespace key="10" case="first-letter">Template</namespace>\n'
        "</namespaces>\n</siteinfo>\n"
    )


def _small_pages():
    # In lines as MediaWiki's: wikiextractor reads lines.
    text = "{{x|y}}\n" + "'''A''' [[word|words]] is in this sentence. " * 50
    for number in range(1, QUICK_PAGES + 1):
        yield (
            f"<page>\n<title>Page {number}</title>\n<ns>0</ns>\n<id>{number}</id>\n"
            f"<revision>\n<id>{number}</id>\n<text>{text}</text>\n</revision>\n</page>"
        )


def our_worker(case: dict) -> Worker:
    """This project's worker."""
    return Worker(OURS, peers.python("decoupled"), "decoupled_corpus", case)


def peer_workers(case: dict) -> list[Worker]:
    """gensim, and wikiextractor with one and with two processes that extract."""
    python = peers.python("corpus")
    return [
        Worker("gensim", python, "gensim_corpus", case),
        *(
            Worker(
                f"wikiextractor {processes}",
                python,
                "wikiextractor_corpus",
                {**case, "processes": processes},
            )
            for processes in (1, 2)
        ),
    ]


def tables(measured: list[Comparison]) -> list[BenchmarkTable]:
    """One table: a row for each worker."""
    columns = [
        "dump", "reader", "XML", "pages", "time, against ours", "text of one copy",
        "leftovers of markup",
    ]  # fmt: skip
    title = "Dump to text on two processes"
    return [worker_table("corpus", title, columns, measured, _cells)]


def _cells(comparison, worker, against):
    facts = worker.facts
    leftovers = 1000 * facts["leftovers"] / max(1, facts["characters"])
    return [
        comparison.title,
        worker.name,
        with_range(rate(worker, worker.case["bytes"] / 1e6), "MB/s"),
        with_range(rate(worker, worker.case["pages"]), "/s"),
        against,
        f"{facts['characters'] / 1e6:.2f} M characters",
        f"{leftovers:.3f} per 1,000",
    ]


SUITE = Suite(comparisons, tables, rounds=5, steps=1)

if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("corpus")
