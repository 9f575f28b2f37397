"""Puts the tables of all results into docs/performance.md.

Reads every NAME.json of a folder of results; what stands between `<!-- table:X -->` and
`<!-- end -->` in the document is replaced by table X of the suites. "machine" is the
table of what was measured where.

Example:
  python -m benchmarks.report
"""

import argparse
import importlib
import os
import pathlib
import re

from benchmarks import command
from benchmarks.machine import ROOT
from benchmarks.results import Comparison, read
from benchmarks.tables import Table, gigabytes, markdown, show
from decoupled.core.console import say
from decoupled.core.errors import UserError

NAME = "report"
DOCUMENT = ROOT / "docs" / "performance.md"
_PLACE = re.compile(
    r"(?P<start><!-- table:(?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def main() -> None:
    """Prints all tables and fills the document."""
    arguments = _parse()
    tables = make_tables(arguments.results_dir)
    for table in tables:
        show(table)
    if not arguments.document.exists():
        raise UserError(f"{arguments.document}: does not exist; create it first")
    text = arguments.document.read_text(encoding="utf-8")
    temporary = arguments.document.with_suffix(".tmp")
    temporary.write_text(fill(text, tables), encoding="utf-8")
    os.replace(temporary, arguments.document)
    for name in sorted({table.name for table in tables} - set(places(text))):
        say(f"{arguments.document}: no place for table {name}")


def _parse():
    options = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--results_dir",
        type=pathlib.Path,
        default=command.RESULTS,
        help="folder of the result files (benchmarks/results)",
    )
    options.add_argument(
        "--document",
        type=pathlib.Path,
        default=DOCUMENT,
        help="Markdown file with places for tables (docs/performance.md)",
    )
    return options.parse_args()


def make_tables(folder: pathlib.Path) -> list[Table]:
    """The tables of every suite that has results, and the table of machines.

    Raises:
      UserError: no results, or a file that is not of a suite.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"{folder}: no results; run `make bench` first")
    suites = {path.stem: read(path) for path in paths}
    tables = []
    for name, comparisons in suites.items():
        tables += importlib.import_module(f"benchmarks.{name}").tables(comparisons)
    return [*tables, machine_table(suites)]


def machine_table(suites: dict[str, list[Comparison]]) -> Table:
    """Where, when and with which versions the comparisons of each suite were made."""
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for name, comparisons in suites.items():
        for comparison in comparisons:
            machine = comparison.machine
            key = (
                name,
                machine["processor"],
                " ".join(machine["features"]),
                str(machine["cores"]),
                gigabytes(machine["memory"]),
                comparison.commit or "unknown",
                comparison.date[:10],
            )
            groups.setdefault(key, []).append(comparison)
    rows = [[*key[:5], _versions(found), *key[5:]] for key, found in groups.items()]
    columns = [
        "suite", "processor", "instructions", "cores", "memory", "versions", "commit",
        "date",
    ]  # fmt: skip
    return Table("machine", "What was measured where", columns, rows)


def _versions(comparisons):
    found = {}
    for comparison in comparisons:
        for worker in comparison.workers:
            found |= worker.facts.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def places(text: str) -> list[str]:
    """The names of the tables for which a document has a place."""
    return [match["name"] for match in _PLACE.finditer(text)]


def fill(text: str, tables: list[Table]) -> str:
    """The document with its places filled; a place without a table stays as it is."""
    by_name = {table.name: markdown(table) for table in tables}

    def replace(match):
        if match["name"] not in by_name:
            return match[0]
        return f"{match['start']}\n{by_name[match['name']]}\n{match['end']}"

    return _PLACE.sub(replace, text)


if __name__ == "__main__":
    command.run(NAME, main)
