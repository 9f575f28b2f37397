"""gin files and bindings to a configuration; every mistake as one line for the user.

Files are read here and handed to gin as text. gin's own file search asks Python's
import system for packages named like the folders, which fails on some and logs errors
about files that it then finds.
"""

import dataclasses
import difflib
import importlib.resources
import inspect
import io
import os
import re
import tokenize
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import gin

from decoupled import configs, gfile
from decoupled.errors import UserError

T = TypeVar("T")

_INCLUDE = re.compile(r"""^\s*include\s+(['"])(?P<file>.+?)\1\s*(#.*)?$""")
_IMPORT = re.compile(r"^\s*(import|from)\s")
_MACRO = re.compile(r"%([\w./]+)")
_BINDING = re.compile(r"^([\w./]+) =", re.MULTILINE)
# More names than this are listed only where none of them is close to what was written.
_MOST_NAMES = 20
_MISTAKES = (
    ImportError,
    KeyError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


def configure(
    root: Callable[[], T],
    files: Sequence[str],
    params: Sequence[str],
    prefixes: Sequence[str] = (),
) -> T:
    """Reads gin files, then single bindings, and calls `root`; later bindings win.

    Args:
      root: a `@gin.configurable` without required arguments of its own.
      files: gin files, each a path or a name below one of the search folders.
      params: bindings, e.g. "TrainingConfig.train_steps = 100".
      prefixes: folders to search after the current one and before the package's.

    Raises:
      UserError: see `decoupled.launch.parse_gin`.
    """
    gin.clear_config()
    reader = Reader(root, prefixes)
    for name in files:
        reader.read_file(find_file(name, prefixes))
    for param in params:
        reader.read_lines([param], f"--gin_param={param!r}")
    config = _call(root)
    _check_references()
    unused = [name for name in unused_bindings() if name not in reader.macros]
    if unused:
        raise UserError(
            f"gin: {', '.join(unused)}: set, but {root.__name__} asks for no such "
            "setting; remove it or correct the name"
        )
    return config


def used_text() -> str:
    """The settings that the last `configure` used, as a gin file."""
    return gin.operative_config_str()


def unused_bindings() -> list[str]:
    """Settings, macros and scopes that were given and that nothing has asked for."""
    used = set(_BINDING.findall(gin.operative_config_str()))
    return sorted(
        name
        for name in set(_BINDING.findall(gin.config_str()))
        if not any(other == name or other.endswith("/" + name) for other in used)
    )


def packaged_folder() -> str:
    """Where the gin files of the package lie: inside it, or beside it in a checkout."""
    package = importlib.resources.files("decoupled")
    for folder in (str(package / "gin"), str(package / ".." / "gin")):
        if os.path.isdir(folder):
            return os.path.normpath(folder)
    raise UserError(
        f"{package / 'gin'}: the package's gin files are missing; reinstall"
    )


def find_file(name: str, prefixes: Sequence[str] = ()) -> str:
    """The path of a gin file: as given, below a prefix, or in the package.

    Raises:
      UserError: no such file; the folders that were searched and close names are told.
    """
    if os.path.isabs(name) or "://" in name:
        if _is_file(name):
            return name
        raise UserError(f"{name}: no such gin file")
    folders = ["", *prefixes, packaged_folder()]
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_file(path):
            return path
    searched = ", ".join(folder or "." for folder in folders)
    raise UserError(
        f"{name}: no such gin file in {searched}{_close(name, _packaged_files())}"
    )


def _packaged_files():
    folder = packaged_folder()
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".gin")
    )


def _is_file(path):
    if "://" not in path:
        return os.path.isfile(path)
    try:
        return gfile.exists(path) and not gfile.isdir(path)
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({_first_line(error)})") from error


def _read_lines(path):
    try:
        if "://" not in path:
            with open(path, encoding="utf-8") as handle:
                return handle.readlines()
        from decoupled import files

        return files.read_text(path).splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read ({error})") from error


class Reader:
    """Hands files to gin in the order of their lines, included files in their place.

    macros: the names of all macros that were read in a value.
    """

    def __init__(self, root: Callable, prefixes: Sequence[str] = ()):
        self.root = root
        self.prefixes = prefixes
        self.macros = set()

    def read_file(self, path: str, above: tuple[str, ...] = ()) -> None:
        """Reads one file; `above` are the files that include it."""
        if path in above:
            raise UserError(f"{above[-1]}: includes {path}, which includes this file")
        self.read_lines(_read_lines(path), path, above)

    def read_lines(
        self, lines: Iterable[str], where: str, above: tuple[str, ...] = ()
    ) -> None:
        """Reads lines; `where` is the file they are from, or the flag."""
        pending = ""
        for number, line in enumerate(lines, start=1):
            include = _INCLUDE.match(line)
            if _IMPORT.match(line):
                raise UserError(
                    f"{_place(where, number)}: {line.strip()!r} would run code; gin "
                    "files hold settings only"
                )
            if not include:
                pending += line
                continue
            self._parse(pending, where)
            # Empty lines in place of what is done keep gin's line numbers right.
            pending = "\n" * number
            found = self._find_included(include["file"], _place(where, number))
            self.read_file(found, (*above, where))
        self._parse(pending, where)

    def _find_included(self, name, where):
        try:
            return find_file(name, self.prefixes)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error

    def _parse(self, text, where):
        # A macro whose only use is overridden by a later binding is not a mistake.
        self.macros.update(_MACRO.findall(text))
        handle = io.StringIO(text)
        handle.name = where
        try:
            gin.parse_config(handle)
        except _MISTAKES as error:
            place = _place(where, _line_number(error))
            raise UserError(f"{place}: {_parse_mistake(error, self.root)}") from error


def _place(where, number):
    is_file = number and not where.startswith("--")
    return f"{where}:{number}" if is_file else where


def _line_number(error):
    if isinstance(error, SyntaxError):
        return error.lineno
    if isinstance(error, tokenize.TokenError):
        return error.args[1][0]
    found = re.search(r"\n  In file .* line (\d+)\n", str(error))
    return found and found[1]


def _parse_mistake(error, root):
    """What gin found wrong with a text, with the names that it does know."""
    if isinstance(error, SyntaxError):
        source = f" in {error.text.strip()!r}" if error.text else ""
        return f"{error.msg.rstrip('.')}{source}"
    if isinstance(error, tokenize.TokenError):
        return f"{error.args[0]}: a bracket or a string is not closed"
    message = _first_line(error)
    unknown = re.search(
        r"No configurable matching (?:reference )?'@?([^']+?)(\(\))?'", message
    )
    if unknown:
        name = unknown[1].rpartition("/")[2]
        known = [root.__name__, *_config_names()]
        return f"no configurable named {name!r}{_close(name, known)}"
    parameter = re.search(r"Configurable '(.+)' .* parameter named '(.+)'", message)
    if parameter:
        owner, name = parameter[1], parameter[2]
        known = _parameters(owner.rpartition(".")[2], root)
        return f"{owner} has no parameter {name!r}{_close(name, known)}"
    return message


def _call(root):
    try:
        gin.finalize()
        return root()
    except UserError as error:
        # gin re-raises it as a class of its own with lines about the call below ours.
        raise UserError(_first_line(error)) from None
    except (RuntimeError, TypeError, ValueError) as error:
        message = _call_mistake(str(error))
        if message is None:
            raise
        raise UserError(message) from error


def _call_mistake(message):
    """What is missing, by gin's or Python's message; None for any other error."""
    macro = re.match(r"No bindings specified for '(.+?)/(?:gin\.)?macro'", message)
    if macro:
        return f"gin: %{macro[1]} is used but defined nowhere; add {macro[1]} = ..."
    required = re.match(
        r"Required bindings for `(.+?)` not provided .*?: (\[.*\])", message
    )
    if required:
        names = re.findall(r"'(\w+)'", required[2])
        return _missing(required[1], names)
    arguments = re.match(r"(\w+)\.__init__\(\) missing \d+ required", message)
    if arguments:
        names = re.findall(r"'(\w+)'", message.splitlines()[0])
        return _missing(arguments[1], names)
    return None


def _missing(owner, names):
    example = f"{owner}.{names[0]} = ..."
    return (
        f"gin: {owner} needs {', '.join(names)}; give a --gin_file that sets them or "
        f"--gin_param='{example}'"
    )


def _check_references():
    """Refuses `@Name`, the class, where `@Name()`, one of its kind, is meant."""
    found = re.search(r"^([\w./]+) = @([\w./]+)$", used_text(), re.MULTILINE)
    if found:
        raise UserError(
            f"gin: {found[1]} = @{found[2]} names a class; write @{found[2]}()"
        )


def _config_names():
    return [
        name
        for name, value in vars(configs).items()
        if inspect.isclass(value) and dataclasses.is_dataclass(value)
    ]


def _parameters(name, root):
    if name == root.__name__:
        return list(inspect.signature(root).parameters)
    return list(inspect.signature(getattr(configs, name)).parameters)


def _close(name, known):
    near = difflib.get_close_matches(name, known, n=3)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    if near and len(known) > _MOST_NAMES:
        return guess
    return f"{guess or ';'} Known: {', '.join(known)}"


def _first_line(error):
    text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
    return text.strip().splitlines()[0].rstrip(".")
