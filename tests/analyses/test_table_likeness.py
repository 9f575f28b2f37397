"""Tables of which the likeness is known."""

import numpy as np
import pytest

from decoupled.analyses.models import open_models
from decoupled.analyses.table_likeness import Table, compare
from decoupled.model import variables as names
from tests.analyses.tiny_runs import write_run

SIZES = {"coupled": True, "output_embedding_size": 6}


def write_coupled(folder, vocabulary, table):
    weights = {names.WORD_EMBEDDINGS: table.astype(np.float32)}
    return write_run(folder, vocabulary, SIZES, weights)


def test_a_rotated_table_is_the_same(vocabulary, tmp_path):
    """The special pieces, which differ, do not enter."""
    table = np.random.default_rng(0).normal(size=[48, 6]).astype(np.float32)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=[6, 6]))
    rotated = (table @ rotation).astype(np.float32)
    rotated[list(vocabulary.special_ids)] = 77
    folders = [
        write_coupled(tmp_path / name, vocabulary, weights)
        for name, weights in (("one", table), ("two", rotated))
    ]
    tables = [Table(model, "input") for model in open_models(folders)]
    found = compare(tables, neighbours=5, pieces=30, seed=3)
    [pair] = found["pairs"]
    assert pair["first"] == {"model": "one", "embedding": "coupled"}
    assert pair["cka"] == pytest.approx(1, abs=1e-5)
    assert pair["overlap"] == 1
    ordinary = 48 - len(set(vocabulary.special_ids) | {vocabulary.pad_id})
    [expected] = found["random_overlap"].values()
    assert expected == 5 / (ordinary - 1)


def test_one_piece_that_moved_has_other_neighbours(vocabulary, tmp_path):
    """Pieces on an arc, each nearest to the one before; the first moves to the end.

    So the moved piece, the second and the last one get other nearest neighbours.
    """
    pieces = np.setdiff1d(np.arange(48), [vocabulary.pad_id, *vocabulary.special_ids])
    angles = np.zeros(48)
    angles[pieces] = np.deg2rad(np.cumsum(1 + 0.1 * np.arange(len(pieces))))
    moved = angles.copy()
    moved[pieces[0]] = angles[pieces[-1]] + np.deg2rad(0.5)
    folders = []
    for name, places in (("one", angles), ("two", moved)):
        table = np.zeros([48, 6])
        table[:, 0], table[:, 1] = np.cos(places), np.sin(places)
        folders.append(write_coupled(tmp_path / name, vocabulary, table))
    tables = [Table(model, "input") for model in open_models(folders)]
    [pair] = compare(tables, neighbours=1, pieces=100, seed=0)["pairs"]
    assert pair["overlap"] == pytest.approx(1 - 3 / len(pieces))
    assert pair["cka"] < 0.999
