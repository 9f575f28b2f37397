"""The project's requirements by extra, and the installed and importable packages.

This module needs only Python, so that it can also explain a broken installation. A
command that needs an extra calls `need` before its work starts.
"""

import importlib.metadata
import importlib.util
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError

CHECKOUT = pathlib.Path(__file__).parent.parent.parent
# What the packages of each extra are for.
EXTRAS = {
    "demo": "demo, and build_corpus of catalogs:django",
    "data": "build_corpus of Wikipedia dumps, of text without sentences, of catalogs",
    "parquet": "build_corpus of Parquet files and of files packed with Zstandard",
    "plots": "plots beside the tables of finetune, report, analyze and others",
    "reproduce": "reproduce",
    "beam": "build_corpus and build_records with --runner",
    "tpu": "pretrain and finetune with --tpu=NAME, tpu_health",
    "xla": "pretrain and finetune with --accelerator=cpu",
    "dev": "make test, test-slow and lint",
}
# Distributions whose modules have a different name.
_DISTRIBUTIONS = {
    "absl": "absl-py",
    "gin": "gin-config",
}


class Requirement(NamedTuple):
    """A distribution, its version limits, and its extras; without extras, required."""

    name: str
    limits: str
    extras: tuple[str, ...]

    @property
    def installed(self) -> str | None:
        """The installed version."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def fits(self) -> bool:
        """Whether the installed version is within the limits."""
        try:
            from packaging.specifiers import SpecifierSet
        except ImportError:
            # It is listed as missing; the other versions are shown unchecked.
            return True
        version = self.installed
        allowed = SpecifierSet(self.limits)
        return version is not None and allowed.contains(version, prereleases=True)


class NeededModule(NamedTuple):
    """A module of an extra, and its purpose, e.g. "MediaWiki dumps"."""

    module: str
    purpose: str

    def check(self) -> None:
        """As `need`."""
        need(self.module, purpose=self.purpose)


def requirements() -> list[Requirement]:
    """The requirements of the installed package, or requirements.txt of a checkout."""
    try:
        lines = importlib.metadata.requires("decoupled") or []
    except importlib.metadata.PackageNotFoundError:
        lines = _lines_of_checkout()
    entries: dict[str, Requirement] = {}
    for line in lines:
        text, _, condition = line.partition(";")
        # jax[cuda13] is no distribution; doctor tries the devices instead.
        if "[" in text:
            continue
        name, limits = re.fullmatch(r"([\w.-]+)\s*\(?([^)]*)\)?\s*", text).groups()
        extras = re.findall(r"""extra == ['"](\w+)['"]""", condition)
        before = entries.get(name, Requirement(name, limits, ()))
        entries[name] = before._replace(extras=(*before.extras, *extras))
    return list(entries.values())


def _lines_of_checkout():
    path = CHECKOUT / "requirements.txt"
    extras = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        header = re.fullmatch(r"# \[([\w ]+)\]", line)
        # As setup.py reads it; `pip install -r` leaves it out.
        alone = re.fullmatch(r"# \[(\w+)\] (.+)", line)
        if header:
            extras = header[1].split()
        elif alone:
            yield f"{alone[2]}; extra == '{alone[1]}'"
        elif line and not line.startswith("#"):
            yield from (f"{line}; extra == '{extra}'" for extra in extras)
            if not extras:
                yield line


def requirement_of(module: str) -> Requirement | None:
    """The requirement that provides a top-level module, or None."""
    distribution = _DISTRIBUTIONS.get(module, module).replace("_", "-").lower()
    for requirement in requirements():
        if requirement.name.lower() == distribution:
            return requirement
    return None


def in_brackets(choices: Sequence[Sequence[str]]) -> str:
    """The extras that install distributions, for pip: "[data]".

    `choices` has the extras of each distribution, the smallest first.
    """
    first = choices[0] if choices else ()
    shared = [extra for extra in first if all(extra in each for each in choices)]
    extras = shared[:1] or sorted({extra for each in choices for extra in each[:1]})
    return f"[{','.join(extras)}]" if extras else ""


def cure(modules: Iterable[str]) -> str:
    """The command that installs the extras of some top-level modules."""
    required = filter(None, map(requirement_of, modules))
    chosen = in_brackets([requirement.extras for requirement in required])
    return f"pip install 'decoupled{chosen}', or in a checkout pip install '.{chosen}'"


def lacking(*modules: str, purpose: str) -> str:
    """One line that names the missing ones of top-level modules; empty if none is."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    verb = "is" if len(absent) == 1 else "are"
    return (
        f"{', '.join(absent)} {verb} not installed (needed for {purpose}); run "
        f"{cure(absent)}"
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of installed packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def need(*modules: str, purpose: str) -> None:
    """Raises a UserError with the line of `lacking` if a module is missing."""
    if problem := lacking(*modules, purpose=purpose):
        raise UserError(problem)
