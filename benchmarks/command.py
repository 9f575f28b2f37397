"""What suites share: options, interpreters, a default dump, errors in one line."""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from benchmarks import machine
from benchmarks.interleave import Worker
from benchmarks.machine import ROOT
from benchmarks.results import Comparison, Results
from benchmarks.sizes import DTYPES
from benchmarks.tables import Table, show
from decoupled.core.errors import UserError

RESULTS = ROOT / "benchmarks" / "results"
# The variable that names an interpreter, or else where `make bench` installs the peers.
PEERS = {
    "torch": ("DECOUPLED_INTEROP_PYTHON", ".venv-interop"),
    "mesh_bert": ("DECOUPLED_MESH_BERT_PYTHON", ".venv-mesh-bert"),
    "corpus": ("DECOUPLED_CORPUS_PYTHON", ".venv-corpus"),
}
# The dump in DECOUPLED_DATA_DIR.
BUNDLED = "wikipedia/enwiki-pages-articles-shortened.xml.bz2"
# The same pages of the English Wikipedia, among gensim's test data.
_IN_GENSIM = (
    "lib/python*/site-packages/gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-*-shortened.bz2"
)


def parser(
    name: str,
    description: str,
    rounds: int,
    steps: int,
    dtypes: Sequence[str] = DTYPES,
) -> argparse.ArgumentParser:
    """The options of a suite.

    Args:
      name: of the suite, a module of `benchmarks`.
      description: its docstring.
      rounds, steps, dtypes: defaults of the options of these names.

    Returns:
      A parser, to which a suite can add its own options.
    """
    options = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--quick", action="store_true", help="tiny sizes, 2 rounds: does it run?")
    add("--resume", action="store_true", help="keep what this commit has measured")
    add("--only", action="append", default=[], metavar="TITLE",
        help="only comparisons whose title contains this (repeatable)")  # fmt: skip
    add("--rounds", type=_positive, default=rounds, help=f"rounds ({rounds})")
    add("--steps", type=_positive, default=steps, help=f"steps a round ({steps})")
    add("--dtypes", type=_dtypes, default=list(dtypes), metavar="TYPE,...",
        help=f"activations ({','.join(dtypes)})")  # fmt: skip
    add("--results_dir", type=pathlib.Path,
        help="folder of the result file (benchmarks/results)")  # fmt: skip
    return options


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


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line; --quick changes rounds, steps and the folder of results."""
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds = arguments.steps = 2
    if arguments.results_dir is None:
        arguments.results_dir = RESULTS / "quick" if arguments.quick else RESULTS
    return arguments


class Planned(NamedTuple):
    """A comparison of a suite.

    title: unique in its suite. make_workers: gives its workers when it is their turn;
    raises `Skip` where they cannot be measured. rounds, steps: where the command line's
    do not apply. together: as in `interleave`.
    """

    title: str
    make_workers: Callable[[], Sequence[Worker]]
    rounds: int | None = None
    steps: int | None = None
    together: bool = True


def measure(
    arguments: argparse.Namespace,
    name: str,
    comparisons: Iterable[Planned],
    tables: Callable[[list[Comparison]], Sequence[Table]],
) -> None:
    """Measures the comparisons that --only leaves in, and prints the suite's tables.

    Args:
      arguments: the command line.
      name: of the suite.
      comparisons: of the suite.
      tables: makes the tables of the results, those of earlier runs too.
    """
    results = Results(arguments.results_dir / f"{name}.json", name, arguments.resume)
    for title, make_workers, rounds, steps, together in comparisons:
        if not arguments.only or any(text in title for text in arguments.only):
            rounds, steps = rounds or arguments.rounds, steps or arguments.steps
            results.measure(title, make_workers, rounds, steps, together)
    for table in tables(results.comparisons()):
        show(table)


def python(framework: str) -> str:
    """The interpreter that has a framework: "decoupled" or one of `PEERS`.

    Raises:
      UserError: it is missing.
    """
    if framework == "decoupled":
        return sys.executable
    variable, folder = PEERS[framework]
    path = os.environ.get(variable) or str(ROOT / folder / "bin" / "python")
    if not os.access(path, os.X_OK):
        raise UserError(
            f"{path}: no interpreter there; run `make bench`, which installs the "
            f"peers, or let {variable} name one"
        )
    return path


def default_dump() -> str:
    """The Wikipedia dump that suites read where the command line names none.

    It is the one in DECOUPLED_DATA_DIR, or else the one that gensim's wheel brings.

    Raises:
      UserError: there is neither.
    """
    folder = os.environ.get("DECOUPLED_DATA_DIR")
    if folder:
        return os.path.join(folder, BUNDLED)
    environment = pathlib.Path(python("corpus")).parent.parent
    found = sorted(environment.glob(_IN_GENSIM))
    if not found:
        raise UserError(
            f"{environment}: no gensim with a dump in it; give --dump=FILE, or set "
            "DECOUPLED_DATA_DIR"
        )
    return str(found[0])


def matmul_workers(
    dtype: str, quick: bool, frameworks: Sequence[str] = ("tensorflow",)
) -> list[Worker]:
    """Workers that measure this machine's rate of matrix products.

    Args:
      dtype: "float32" or "bfloat16". quick: small matrices.
      frameworks: of "tensorflow" and "torch".
    """
    places = {"tensorflow": "decoupled", "torch": "torch"}
    pythons = {framework: python(places[framework]) for framework in frameworks}
    return machine.matmul_workers(pythons, dtype, 64 if quick else machine.MATMUL_SIZE)


def run(name: str, main: Callable[[], None]) -> None:
    """Runs a command; a user's mistake is one line on stderr and exit code 2."""
    try:
        main()
    except UserError as error:
        print(f"benchmarks.{name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
