"""Packages that only some corpora need, and their versions: the extra `data`."""

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from decoupled.errors import UserError


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The version of each installed package that decides what text a corpus has."""
    return {package: importlib.metadata.version(package) for package in packages}


def need(*packages: str) -> None:
    """Raises a UserError where a package cannot be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"{package} is not installed; run pip install 'decoupled[data]', or "
                "in a checkout pip install '.[data]'"
            )
