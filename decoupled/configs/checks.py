"""What all settings share: their names in gin, and the checks of their fields.

Each check raises a UserError of one line.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import gin

from decoupled.core.errors import UserError

T = TypeVar("T")


def configurable(name: str | None = None) -> Callable[[type[T]], type[T]]:
    """Lets gin files set the fields of a dataclass, under its name or a command's.

    `gin.register` leaves the class as it is: only gin's own calls look at bindings.
    """

    def register(kind: type[T]) -> type[T]:
        kind.gin_name = name or kind.__name__
        return gin.register(kind.gin_name)(kind)

    return register


def bound(kind: type) -> Any:
    """The default of a field: an instance of a class, with what gin files set of it."""
    return dataclasses.field(default_factory=lambda: gin.get_configurable(kind)())


def where(config: Any, name: str) -> str:
    """A field as gin names it, e.g. "MeshConfig.mesh_shape"."""
    return f"{type(config).gin_name}.{name}"


class Settings:
    """What all classes of settings do: they check first the types, then the values."""

    def __post_init__(self):
        check_types(self)
        self._check()

    def _check(self) -> None:
        """Refuses values that cannot work."""


def check_types(config: Any) -> None:
    """Refuses a field whose value is not of its annotated type.

    An int is accepted as a float, a bool is not accepted as a number, and no int that
    64 bits do not hold: graphs and files could not.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        kinds = typing.get_args(field.type) or (field.type,)
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(
                f"{where(config, field.name)}: {value!r} is not of type "
                f"{names.replace('NoneType', 'None')}"
            )
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise UserError(f"{where(config, field.name)}: {value} is beyond 64 bits")


def unused_settings(config: Any, names: Collection[str], why: str) -> list[str]:
    """A line for each of these fields that has another value than its default, although
    nothing reads it."""
    return [
        f"{where(config, field.name)} = {value!r} has no effect: {why}"
        for field in dataclasses.fields(config)
        if field.name in names
        and (value := getattr(config, field.name)) != field.default
    ]


def check_positive(config: Any, names: str) -> None:
    """Refuses fields that are not finite and above 0; spaces separate their names."""
    for name in names.split():
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise UserError(
                f"{where(config, name)}: {value} is not a finite number above 0"
            )


def check_not_negative(config: Any, names: str) -> None:
    """Refuses fields that are negative or not finite."""
    for name in names.split():
        value = getattr(config, name)
        if not 0 <= value < math.inf:
            raise UserError(
                f"{where(config, name)}: {value} is not a finite number of at least 0"
            )


def check_rates(config: Any, names: str, closed: bool = False) -> None:
    """Refuses fields that are not in [0, 1), or in [0, 1] if `closed`."""
    for name in names.split():
        value = getattr(config, name)
        if not (0 <= value < 1 or (closed and value == 1)):
            interval = "[0, 1]" if closed else "[0, 1)"
            raise UserError(f"{where(config, name)}: {value} is not in {interval}")


def check_choice(config: Any, name: str, choices: tuple[str, ...]) -> None:
    """Refuses a field whose value is not one of the choices."""
    value = getattr(config, name)
    if value not in choices:
        raise UserError(
            f"{where(config, name)}: {value!r} is unknown; one of {', '.join(choices)}"
        )


def check_patterns(config: Any, name: str, words: tuple[str, ...] = ()) -> None:
    """Refuses a dictionary that does not give each pattern a number of at least 0 or
    one of the words."""
    for pattern, value in getattr(config, name).items():
        is_number = type(value) in (int, float) and 0 <= value < math.inf
        if type(pattern) is not str or not (is_number or value in words):
            alternatives = "".join(f" or {word!r}" for word in words)
            raise UserError(
                f"{where(config, name)}: {pattern!r}: {value!r} is not the pattern of "
                f"a name and a finite number of at least 0{alternatives}"
            )
