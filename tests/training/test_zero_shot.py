"""Files loaded one ahead of the one in use."""

import threading

import pytest

from decoupled.core.errors import UserError
from decoupled.training.zero_shot import _ahead


def test_results_come_in_order_each_loaded_before_it_is_asked_for():
    started = {name: threading.Event() for name in "abc"}

    def load(name):
        started[name].set()
        return name.upper()

    results = _ahead(load, [("a",), ("b",), ("c",)])
    assert next(results) == "A"
    assert started["b"].wait(timeout=30)
    assert list(results) == ["B", "C"]


def test_a_mistake_in_a_file_is_raised_where_its_turn_is():
    def load(name):
        if name == "b":
            raise UserError("b.tsv:1: empty")
        return name

    results = _ahead(load, [("a",), ("b",), ("c",)])
    assert next(results) == "a"
    with pytest.raises(UserError, match="b.tsv:1: empty"):
        next(results)
