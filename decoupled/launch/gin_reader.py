"""Binds the settings of gin files without running any code from them.

gin's own parser splits a text into statements, and this module binds each. It refuses
all forms of imports, and it resolves includes with the caller's search. A value may
name only the classes of settings. gin's `parse_config`, which imports modules, is never
called.
"""

import dataclasses
import io
import math
import re
import tokenize
from collections.abc import Callable, Collection
from typing import Any

import gin
from gin import config_parser
from gin.config import ConfigurableReference, ParserDelegate

from decoupled import configs
from decoupled.configs.checks import Settings
from decoupled.configs.removed import REMOVED, REMOVED_CLASSES
from decoupled.core import files
from decoupled.core.errors import UserError, close_names

# A limit for files that include others twice each, which multiply at every level.
_MOST_FILES = 100
_MISTAKES = (
    KeyError,
    RuntimeError,
    SyntaxError,
    TypeError,
    UserError,
    ValueError,
    tokenize.TokenError,
)


class Reader:
    """Binds the statements of texts in order; an include binds its file at its place.

    A text is parsed completely before its first statement is bound.

    Args:
      root: the class of the command's settings.
      find_file: the name in an include statement -> the path of the file.
      task, tasks: of the command, and all that it knows. TASK/Name.parameter = value
        is a setting of TASK alone.

    Attributes:
      macros: the names of all macros that occurred in values.
    """

    def __init__(
        self,
        root: type,
        find_file: Callable[[str], str],
        task: str | None = None,
        tasks: Collection[str] = (),
    ):
        self.macros: set[str] = set()
        self._root = root
        self._find_file = find_file
        self._task, self._tasks = task, tasks
        self._include_count = 0

    def read_file(self, path: str, chain: tuple[str, ...] = ()) -> None:
        """Reads one file; `chain` are the files that include it."""
        if path in chain:
            raise UserError(f"{chain[-1]}: includes {path}, which includes this file")
        self._include_count += bool(chain)
        if self._include_count > _MOST_FILES:
            raise UserError(f"{chain[-1]}: more than {_MOST_FILES} files are included")
        text = files.read_text(path)
        for statement in self._statements(text, path):
            place = _place(path, statement.location.line_num)
            if isinstance(statement, config_parser.IncludeStatement):
                included_path = self._find_included(statement.filename, place)
                self.read_file(included_path, (*chain, path))
            else:
                self._bind(statement, place)

    def read_param(self, param: str) -> None:
        """Reads the text of one --gin_param, which has exactly one binding."""
        where = f"--gin_param={param!r}"
        statements = self._statements(param, where, lines=False)
        kinds = [type(statement) for statement in statements]
        if kinds != [config_parser.BindingStatement]:
            raise UserError(
                f"{where}: must be one setting, Name.parameter = value; write each "
                "setting on its own, and name files with --gin_file"
            )
        self._bind(statements[0], where)

    def find(self, name: str) -> Callable:
        """The class of settings that a name in a gin file stands for."""
        if name in REMOVED_CLASSES:
            raise UserError(f"{name} was removed: {REMOVED_CLASSES[name]}")
        try:
            kind = gin.get_configurable(name)
        except KeyError as error:
            raise UserError(first_line(error)) from error
        except ValueError:
            kind = None
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
        name = name.rpartition("/")[2]
        names = [self._root.gin_name, *_config_classes()]
        raise UserError(f"no configurable named {name!r}{close_names(name, names)}")

    def _statements(self, text, where, lines=True):
        """All statements of a text, none of them an import; nothing is bound.

        `lines` says whether a message names the line.
        """
        handle = io.StringIO(text, newline=None)
        handle.name = where
        statements = []
        try:
            parser = _Parser(handle, _References(self))
            while statement := parser.parse_statement():
                _refuse_import(statement)
                statements.append(statement)
        except _MISTAKES as error:
            place = _place(where, lines and _line_number(error))
            raise UserError(f"{place}: {_parse_mistake(error)}") from error
        return statements

    def _find_included(self, name, place):
        try:
            return self._find_file(name)
        except UserError as error:
            raise UserError(f"{place}: {error}") from error

    def _bind(self, statement, place):
        try:
            if isinstance(statement, config_parser.BlockDeclaration):
                self.find(statement.selector)
            elif _had_no_effect(statement):
                return
            elif _has_infinity(statement.value):
                raise UserError(
                    f"{statement.selector}.{statement.arg_name}: a number is too large"
                )
            elif statement.arg_name:
                self._check_parameter(statement.selector, statement.arg_name)
                if statement.scope in self._tasks:
                    if statement.scope != self._task:
                        return
                    statement = statement._replace(scope="")
                gin.bind_parameter(statement[:3], statement.value)
            else:
                parts = [statement.scope, statement.selector]
                macro = "/".join(part for part in parts if part)
                gin.bind_parameter((macro, "gin.macro", "value"), statement.value)
        except _MISTAKES as error:
            raise UserError(f"{place}: {_parse_mistake(error)}") from error

    def _check_parameter(self, owner, name):
        parameters = _parameters(self.find(owner))
        if name in parameters:
            return
        if (owner, name) in REMOVED:
            advice = REMOVED[owner, name].advice
            raise UserError(f"{owner}.{name} was removed: {advice}")
        owners = [
            other
            for other, config in _config_classes().items()
            if name in _parameters(config)
        ]
        hint = close_names(name, parameters)
        if owners:
            names = " and ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
            hint = f"; {names} {'have' if owners[1:] else 'has'} one"
        raise UserError(f"{owner} has no parameter {name!r}{hint}")


class _Parser(config_parser.ConfigParser):
    """Refuses a dictionary with a key twice, of which Python would keep the last."""

    def __init__(self, *args):
        self._keys = []
        super().__init__(*args)

    def _maybe_parse_container(self):
        self._keys.append([])
        try:
            return super()._maybe_parse_container()
        finally:
            self._keys.pop()

    def _parse_dict_item(self):
        key, value = super()._parse_dict_item()
        if key in self._keys[-1]:
            self._raise_syntax_error(f"the key {key!r} occurs twice")
        self._keys[-1].append(key)
        return key, value


class _References(ParserDelegate):
    """Resolves `@Name` in a value to an object of this package, `%NAME` to a macro.

    gin's own delegate would also find gin's singletons and constants, and objects that
    other libraries registered with gin.
    """

    def __init__(self, reader: Reader):
        super().__init__()
        self._reader = reader

    def configurable_reference(self, scoped_selector: str, evaluate: bool) -> Any:
        """`@scope/Name()`; `@scope/Name`, if not `evaluate`, is refused."""
        name = scoped_selector.rpartition("/")[2]
        if name in REMOVED_CLASSES:
            return _Removed()
        self._reader.find(name)
        if not evaluate:
            raise UserError(
                f"@{scoped_selector} names a class; write @{scoped_selector}()"
            )
        return super().configurable_reference(scoped_selector, evaluate)

    def macro(self, name: str) -> Any:
        """`%name`, which may be defined later."""
        self._reader.macros.add(name)
        return ConfigurableReference(f"{name}/gin.macro", True)


class _Removed:
    """The value `@Name()` of a removed class. Only the bindings of that class can be
    mistakes."""


def _refuse_import(statement):
    if isinstance(statement, config_parser.ImportStatement):
        message = f"{statement.format()!r} would run code; gin files hold settings only"
        raise SyntaxError(message, statement.location[:3] + ("",))


def _has_infinity(value):
    if isinstance(value, dict):
        return any(map(_has_infinity, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(_has_infinity, value))
    return isinstance(value, float) and not math.isfinite(value)


def _had_no_effect(statement):
    removed = REMOVED.get((statement.selector, statement.arg_name))
    if removed is not None:
        return statement.value in removed.without_effect
    return (
        isinstance(statement.value, _Removed) or statement.selector in REMOVED_CLASSES
    )


def _place(where, number):
    return f"{where}:{number}" if number else where


def _line_number(error):
    if isinstance(error, SyntaxError):
        return error.lineno
    if isinstance(error, tokenize.TokenError):
        return error.args[1][0]
    line = re.search(r"\n  In file .* line (\d+)\n", str(error))
    return line and line[1]


def _parse_mistake(error):
    if isinstance(error, RecursionError):
        return "a value is nested too deeply"
    if isinstance(error, tokenize.TokenError):
        return f"{error.args[0]}: a bracket or a string is not closed"
    if not isinstance(error, SyntaxError):
        return first_line(error)
    token = re.search(r"\n *Failed to parse token '(.*)'", error.msg, re.DOTALL)
    if token:
        return f"{token[1]!r} is no value; a text needs quotes"
    source = f" in {error.text.strip()!r}" if error.text else ""
    message = " ".join(error.msg.split()).rstrip(".")
    return f"{message}{source}"


def _config_classes():
    """The classes whose gin name is their own, without the settings of commands."""
    return {
        name: kind
        for name, kind in vars(configs).items()
        if name == getattr(kind, "gin_name", None)
    }


def _parameters(kind):
    return [field.name for field in dataclasses.fields(kind)]


def first_line(error: Exception) -> str:
    """The first line of an error's message, without the period at its end."""
    text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
    return text.strip().splitlines()[0].rstrip(".")
