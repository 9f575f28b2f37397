"""Speed and memory beside other implementations: one runner for all suites.

  python -m benchmarks SUITE --quick          do the benchmarks run? tiny sizes
  python -m benchmarks SUITE --only=float32   only comparisons with this in their title
  python -m benchmarks report                 puts the tables of all results into
                                              docs/performance.md
  python -m benchmarks accelerators           on a GPU; --offline: by compilers alone
A suite is a module of this folder, whose text says what it measures. Its results go to
benchmarks/results/SUITE.json.
"""

import argparse
import importlib
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.peers import ROOT
from benchmarks.results import Comparison, measure, read
from benchmarks.sizes import DTYPES
from benchmarks.tables import BenchmarkTable, Suite, gigabytes, show
from decoupled.core import files
from decoupled.core.console import say
from decoupled.core.errors import UserError
from decoupled.core.tables import to_markdown

RESULTS = ROOT / "benchmarks" / "results"
DOCUMENT = ROOT / "docs" / "performance.md"
SUITES = (
    "pretraining", "finetuning_runs", "inference", "retrieval", "corpus",
    "accelerators",
)  # fmt: skip
REPORT = "report"
_PLACE = re.compile(
    r"(?P<start><!-- table:(?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def main(words: Sequence[str] | None = None) -> None:
    """Runs a suite, or fills the document; a mistake is one line and exit code 2."""
    arguments = _parser().parse_args(words)
    try:
        if arguments.suite == REPORT:
            report(arguments.results_dir or RESULTS, arguments.document)
        elif arguments.offline or arguments.write:
            without_a_device(arguments)
        else:
            run(arguments)
    except UserError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def run_module(name: str) -> None:
    """`python -m benchmarks.SUITE` is the same as `python -m benchmarks SUITE`."""
    main([name, *sys.argv[1:]])


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("suite", choices=[*SUITES, REPORT])
    add("--quick", action="store_true", help="tiny sizes, 2 rounds of 2 steps")
    add("--only", action="append", default=[], metavar="TITLE",
        help="only comparisons whose title contains this (repeatable)")  # fmt: skip
    add("--rounds", type=_positive, help="default: the suite's")
    add("--steps", type=_positive, help="steps a round; default: the suite's")
    add("--dtypes", type=_dtypes, metavar="TYPE,...", help="types of activations")
    add("--dump", help="corpus: a dump of Wikipedia (default: a small English one)")
    add("--offline", action="store_true",
        help="accelerators: by the compilers, without any device")  # fmt: skip
    add("--compiler", action="append", default=[], metavar="PYTHON",
        help="accelerators: has libtpu or JAX's CUDA (repeatable)")  # fmt: skip
    add("--programs", type=pathlib.Path, metavar="FOLDER",
        help="accelerators: of programs that --write has written")  # fmt: skip
    add("--write", action="store_true", help="accelerators: only write the programs")
    add("--results_dir", type=pathlib.Path, help="folder of the result files")
    add("--document", type=pathlib.Path, default=DOCUMENT,
        help="report: Markdown file with places for tables")  # fmt: skip
    return parser


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _dtypes(text):
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"{name} is not one of {DTYPES}")
    return names


def run(arguments: argparse.Namespace) -> None:
    """Measures the comparisons that --only leaves in, and prints the suite's tables."""
    suite = load(arguments.suite)
    if arguments.quick:
        arguments.rounds = arguments.steps = 2
    arguments.rounds = arguments.rounds or suite.rounds
    arguments.steps = arguments.steps or suite.steps
    arguments.dtypes = arguments.dtypes or suite.dtypes
    folder = arguments.results_dir or (
        RESULTS / "quick" if arguments.quick else RESULTS
    )
    path = folder / f"{arguments.suite}.json"
    with tempfile.TemporaryDirectory() as scratch:
        plans = list(suite.comparisons(arguments, pathlib.Path(scratch)))
        for part in arguments.only:
            if not any(part in plan.title for plan in plans):
                titles = ", ".join(plan.title for plan in plans)
                raise UserError(f"--only={part}: in none of {titles}")
        for plan in plans:
            if not arguments.only or any(t in plan.title for t in arguments.only):
                measure(path, plan, arguments.rounds, arguments.steps)
    for table in suite.tables(read(path)):
        show(table)


def without_a_device(arguments: argparse.Namespace) -> None:
    """Writes the programs of accelerators, or prints what their compilers say of them.

    Raises:
      UserError: the suite has no such thing, or a folder or a compiler is missing.
    """
    if arguments.suite != "accelerators":
        raise UserError("--offline, --write: only for accelerators")
    accelerators = importlib.import_module("benchmarks.accelerators")
    if arguments.write:
        accelerators.write_programs(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        accelerators.offline(arguments, pathlib.Path(folder))


def load(name: str) -> Suite:
    """The suite of a module."""
    return importlib.import_module(f"benchmarks.{name}").SUITE


def report(folder: pathlib.Path, document: pathlib.Path) -> None:
    """Prints the tables of all results and puts them into the document.

    What stands between `<!-- table:X -->` and `<!-- end -->` is replaced by table X.

    Raises:
      UserError: there are no results, or no document.
    """
    all_results = {name: read(folder / f"{name}.json") for name in SUITES}
    results = {name: content for name, content in all_results.items() if content}
    if not results:
        raise UserError(f"{folder}: no results; run `make bench` first")
    if not document.exists():
        raise UserError(f"{document}: does not exist; create it first")
    tables = [
        t
        for name, comparisons in results.items()
        for t in load(name).tables(comparisons)
    ]
    tables.append(machine_table(results))
    for table in tables:
        show(table)
    text = document.read_text(encoding="utf-8")
    files.write_text(str(document), fill(text, tables))
    places = {match["name"] for match in _PLACE.finditer(text)}
    for name in sorted({table.name for table in tables} - places):
        say(f"{document}: no place for table {name}")


def fill(text: str, tables: list[BenchmarkTable]) -> str:
    """The document with its places filled; a place without a table stays as it is."""
    by_name = {table.name: to_markdown(table.columns, table.rows) for table in tables}

    def replace(match):
        if match["name"] not in by_name:
            return match[0]
        return f"{match['start']}\n{by_name[match['name']]}\n\n{match['end']}"

    return _PLACE.sub(replace, text)


def machine_table(results: dict[str, list[Comparison]]) -> BenchmarkTable:
    """Where, when and with which versions the comparisons of each suite were made."""
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for name, comparisons in results.items():
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
    rows = [[*key[:5], _versions(group), *key[5:]] for key, group in groups.items()]
    columns = [
        "suite", "processor", "instructions", "cores", "memory", "versions", "commit",
        "date",
    ]  # fmt: skip
    return BenchmarkTable("machine", "What was measured where", columns, rows)


def _versions(comparisons):
    versions = {}
    for comparison in comparisons:
        for worker in comparison.workers:
            versions |= worker.facts.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    main()
