"""Equal documents: the first in the order of the files stays, in bounded memory."""

import numpy as np
import pytest

from decoupled.corpora import duplicates
from decoupled.corpora.duplicates import (
    find_duplicates,
    find_moved_document,
    has_document,
)


def digests(folder, *lists):
    paths = []
    for index, numbers in enumerate(lists):
        path = folder / f"{index}.digests"
        path.write_bytes(np.array(numbers, "<u8").tobytes())
        paths.append(str(path))
    return paths


def found(paths):
    return [own.tolist() for own in find_duplicates(paths)]


def test_the_first_of_equal_documents_stays(tmp_path):
    paths = digests(tmp_path, [7, 8, 7, 9], [], [8, 10, 10], [2**64 - 1, 7, 10])
    assert found(paths) == [[2], [], [0, 2], [1, 2]]


def test_nothing_is_repeated(tmp_path):
    assert found(digests(tmp_path, [1, 2], [3])) == [[], []]
    assert found(digests(tmp_path, [], [])) == [[], []]
    assert found([]) == []


@pytest.mark.parametrize("at_once", [1, 3, 50, 1000])
def test_several_passes_find_the_same(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(duplicates, "DOCUMENTS_AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    lists = [rng.integers(0, 60, 40).tolist() for _ in range(5)]
    seen, expected = set(), []
    for numbers in lists:
        expected.append([])
        for place, number in enumerate(numbers):
            if number in seen:
                expected[-1].append(place)
            seen.add(number)
    assert found(digests(tmp_path, *lists)) == expected


@pytest.mark.parametrize(
    "lists, expected",
    [
        (([7, 5, 9], [6]), 5),
        (([7], [], [2**64 - 1, 3]), 3),
        (([2**64 - 1], [2**64 - 2]), 2**64 - 2),
        # Needed for training.
        (([7],), None),
        (([7, 7], [7]), None),
        (([], []), None),
        ((), None),
    ],
)
def test_the_document_to_hold_out_has_the_lowest_digest(tmp_path, lists, expected):
    assert find_moved_document(digests(tmp_path, *lists), {"train"}) == expected


@pytest.mark.parametrize(
    "splits, moved",
    [({"train", "eval"}, None), ({"eval"}, 9), ({"train"}, 5), (set(), 9)],
)
def test_the_document_to_train_on_has_the_highest_digest(tmp_path, splits, moved):
    assert find_moved_document(digests(tmp_path, [7, 5, 9], [6]), splits) == moved
    assert find_moved_document(digests(tmp_path, [7]), {"eval"}) == 7


def test_a_document_is_found_in_its_file(tmp_path):
    one, other = digests(tmp_path, [7, 2**64 - 1], [])
    assert has_document(one, 2**64 - 1) and not has_document(one, 8)
    assert not has_document(other, 7)
