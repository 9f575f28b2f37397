"""What a command needs beside the core, read from the source without running it.

Imports are followed from module to module, also those inside functions. Calls of
`installed.need`, `installed.lacking` and `installed.Package` say what a module is for.
A call that stands by itself in a command's `main` is about every run; others are about
some inputs or flags.
"""

import ast
import functools
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from decoupled.core.installed import CHECKOUT, requirement_of

# Top-level packages of a checkout, whose imports are followed.
_OWN = ("decoupled", "tests", "benchmarks")
_CALLS = ("installed.need", "installed.lacking", "installed.Package")


class Need(NamedTuple):
    """Top-level modules that are needed together.

    purpose: what for; empty where the source does not say it. always: by every run.
    """

    modules: tuple[str, ...]
    purpose: str
    always: bool


class _Source(NamedTuple):
    """imports: dotted names; of `from a import b` it is a.b. needs: of its calls."""

    imports: tuple[str, ...]
    needs: tuple[Need, ...]


def command_path(name: str) -> pathlib.Path:
    """The source of the command `decoupled NAME`."""
    return CHECKOUT / "decoupled" / "commands" / f"{name}.py"


def reached(starts: Iterable[pathlib.Path]) -> set[pathlib.Path]:
    """The files that are imported by some files, directly or not, and these files."""
    found: set[pathlib.Path] = set()
    left = list(starts)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            for name in _read(path).imports:
                left.extend(files_of(name))
    return found


def other_modules(paths: Iterable[pathlib.Path]) -> set[str]:
    """The top-level modules that files import, but for Python's and the project's."""
    names = {name.partition(".")[0] for path in paths for name in _read(path).imports}
    return names - sys.stdlib_module_names - set(_OWN)


def needs(starts: Iterable[pathlib.Path]) -> list[Need]:
    """What running some files takes beside the core: all that extras bring.

    Modules that no requirement names, as those of other environments, are left out.
    """
    starts = list(starts)
    files = sorted(reached(starts))
    stated = [
        need._replace(
            modules=tuple(filter(_is_of_an_extra, need.modules)),
            always=need.always and path in starts,
        )
        for path in files
        for need in _read(path).needs
    ]
    named = {module for need in stated for module in need.modules}
    silent = [
        Need((module,), "", True)
        for module in sorted(other_modules(files) - named)
        if _is_of_an_extra(module)
    ]
    found = dict.fromkeys([*stated, *silent])
    return [need for need in found if need.modules]


@functools.cache
def _is_of_an_extra(module):
    requirement = requirement_of(module)
    return requirement is not None and bool(requirement.extras)


@functools.cache
def _read(path: pathlib.Path) -> _Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = tuple(dict.fromkeys(_imports(tree)))
    always = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            always = {item.value for item in node.body if isinstance(item, ast.Expr)}
    found = [
        Need(_texts(node.args), *_texts(k.value for k in node.keywords), node in always)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _CALLS
    ]
    return _Source(imports, tuple(found))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _texts(nodes: Iterable[ast.expr]) -> tuple[str, ...]:
    """The texts that are written out; what a variable holds is not known."""
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant))


def files_of(name: str) -> Iterator[pathlib.Path]:
    """The files of the project that importing a dotted name runs."""
    first, *rest = name.split(".")
    folder = CHECKOUT / first
    if first not in _OWN or not folder.is_dir():
        return
    for part in ["__init__", *rest]:
        if (path := folder / f"{part}.py").exists():
            yield path
        if part != "__init__":
            folder = folder / part
            if (path := folder / "__init__.py").exists():
                yield path
