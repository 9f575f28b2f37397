"""Packages that only some corpora need, their versions, and their extra."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from decoupled.errors import UserError


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The version of each installed package that decides what text a corpus has."""
    return {package: importlib.metadata.version(package) for package in packages}


def need(extra: str, *packages: str) -> None:
    """Raises a UserError where a package of an extra cannot be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"{package} is not installed; run pip install 'decoupled[{extra}]', or "
                f"in a checkout pip install '.[{extra}]'"
            )
