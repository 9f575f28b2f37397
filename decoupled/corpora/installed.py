"""Packages that only some corpora need: the extra `data`."""

import importlib.util

from decoupled.errors import UserError


def need(*packages: str) -> None:
    """Raises a UserError where a package cannot be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"{package} is not installed; run pip install 'decoupled[data]', or "
                "in a checkout pip install '.[data]'"
            )
