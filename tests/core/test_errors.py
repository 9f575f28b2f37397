"""Mistakes that are collected and told at once."""

import pytest

from decoupled.core.errors import Mistakes, UserError


def test_one_mistake_is_told_as_it_is_and_several_with_numbers():
    mistakes = Mistakes()
    mistakes.raise_all()
    for text in ("a: missing", "b: empty"):
        with mistakes.noted():
            raise UserError(text)
        if text.startswith("a"):
            with pytest.raises(UserError, match="^a: missing$"):
                mistakes.raise_all()
    with pytest.raises(UserError, match=r"^2 mistakes: \(1\) a: missing; \(2\) b: emp"):
        mistakes.raise_all()


def test_other_errors_pass():
    with pytest.raises(KeyError), Mistakes().noted():
        raise KeyError("a defect")
