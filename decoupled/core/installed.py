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
        specifiers = SpecifierSet(self.limits)
        return version is not None and specifiers.contains(version, prereleases=True)


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
        entry = entries.get(name, Requirement(name, limits, ()))
        entries[name] = entry._replace(extras=(*entry.extras, *extras))
    return list(entries.values())


def _lines_of_checkout():
    path = CHECKOUT / "requirements.txt"
    extras = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        header = re.fullmatch(r"# \[([\w ]+)\]", line)
        # As setup.py reads it; `pip install -r` leaves it out.
        single = re.fullmatch(r"# \[(\w+)\] (.+)", line)
        if header:
            extras = header[1].split()
        elif single:
            yield f"{single[2]}; extra == '{single[1]}'"
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
    first_extras = choices[0] if choices else ()
    shared_extras = [e for e in first_extras if all(e in extras for extras in choices)]
    names = shared_extras[:1] or sorted({e for extras in choices for e in extras[:1]})
    return f"[{','.join(names)}]" if names else ""


def cure(modules: Iterable[str]) -> str:
    """The command that installs the extras of some top-level modules."""
    known_requirements = filter(None, map(requirement_of, modules))
    extras = in_brackets([requirement.extras for requirement in known_requirements])
    return f"pip install 'decoupled{extras}', or in a checkout pip install '.{extras}'"


def lacking(*modules: str, purpose: str) -> str:
    """One line that names the missing ones of top-level modules; empty if none is."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    verb = "is" if len(missing) == 1 else "are"
    return (
        f"{', '.join(missing)} {verb} not installed (needed for {purpose}); run "
        f"{cure(missing)}"
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of installed packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def need(*modules: str, purpose: str) -> None:
    """Raises a UserError with the line of `lacking` if a module is missing."""
    if problem := lacking(*modules, purpose=purpose):
        raise UserError(problem)
