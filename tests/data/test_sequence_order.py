"""The order of the stream: counted quickly, alpha-smoothed, nobody dropped."""

from dataclasses import replace

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.data.sequences import (
    Position,
    SequenceOrder,
    chunk_count,
    sampling_rows,
)
from tests.data.record_folders import SAMPLING, distinct_documents, make_records

TRAIN = {
    "en": [distinct_documents(30, 20), distinct_documents(50), distinct_documents(10)],
    "sw": [distinct_documents(3)],
    "tr": [distinct_documents(40)],
    "xx": [],
}
SENTENCES = {"en": 900, "tr": 90, "sw": 10, "xx": 0}


@pytest.fixture
def manifest(tmp_path):
    return make_records(tmp_path, TRAIN, sentences=SENTENCES)


def test_chunks_of_a_shard_follow_from_the_manifest(manifest):
    # 50 tokens and one [SEP] between the documents: 51 = 3 * 14 + 9.
    assert chunk_count(manifest.language("train", "en").files[0], 16) == 4
    assert chunk_count(manifest.language("train", "sw").files[0], 16) == 1


def test_counts_before_are_those_of_the_draws(manifest):
    order = SequenceOrder(manifest, SAMPLING, 3, 16)
    drawn = order.draw(0, 600_000)
    for end in (0, 1, 1000, 600_000):
        expected = np.bincount(drawn[:end], minlength=3)
        np.testing.assert_array_equal(order.counts_before(end), expected)
    np.testing.assert_array_equal(order.draw(500, 100), drawn[500:600])


def test_languages_are_drawn_by_smoothed_shares(manifest):
    # sqrt(.9), sqrt(.01), sqrt(.09) are .9487, .1, .3; their sum is 1.3487.
    order = SequenceOrder(manifest, SAMPLING, 1, 16)
    assert order.languages == ("en", "sw", "tr")
    np.testing.assert_allclose(
        order.probabilities, [0.70342, 0.07415, 0.22244], atol=1e-5
    )
    total = 100_000
    found = order.counts_before(total) / total
    bounds = 4 * np.sqrt(order.probabilities * (1 - order.probabilities) / total)
    assert (abs(found - order.probabilities) < bounds).all()


def test_alpha_alone_gives_the_stream_of_before(manifest):
    # Drawn when alpha was the only setting: runs of that time go on with the same text.
    expected = [0, 2, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2]
    order = SequenceOrder(manifest, SAMPLING, 3, 16)
    assert order.draw(0, 20).tolist() == expected
    assert order.thresholds.tolist() == [3021141988, 3339598315, 4294967296]


def test_a_language_of_weight_zero_is_never_drawn(manifest):
    order = SequenceOrder(manifest, replace(SAMPLING, weights={"en": 0}), 1, 16)
    assert order.languages == ("sw", "tr")


def test_a_rare_language_keeps_its_chance(tmp_path):
    train = {name: TRAIN[name] for name in ("en", "sw")}
    manifest = make_records(tmp_path, train, sentences={"en": 10**12, "sw": 1})
    order = SequenceOrder(manifest, replace(SAMPLING, alpha=1.0), 1, 16)
    assert order.thresholds.tolist() == [2**32 - 1, 2**32]


def test_position_counts_epochs_shards_and_chunks(manifest):
    order = SequenceOrder(manifest, SAMPLING, 3, 16)
    counts = order.counts[0]
    assert counts.tolist() == [4, 4, 1]
    visited = []
    for taken in range(4 * 9):
        epoch, rank, offset = order.position(0, taken)
        visited.append((epoch, int(order.shard_order(0, epoch)[rank]), offset))
    chunks = {(s, o) for s, count in enumerate(counts) for o in range(count)}
    for epoch in range(4):
        part = visited[9 * epoch : 9 * epoch + 9]
        assert {p[0] for p in part} == {epoch}
        assert {p[1:] for p in part} == chunks
    assert order.position(1, 7) == Position(7, 0, 0)
    assert len({tuple(order.shard_order(0, epoch)) for epoch in range(20)}) > 3


def test_the_order_of_a_language_does_not_depend_on_the_others(manifest, tmp_path):
    alone = make_records(tmp_path / "alone", {"en": TRAIN["en"]})
    first, second = (SequenceOrder(m, SAMPLING, 3, 16) for m in (manifest, alone))
    for epoch in range(5):
        assert list(first.shard_order(0, epoch)) == list(second.shard_order(0, epoch))


def test_rows_of_the_sampling_table(manifest):
    table = sampling_rows(manifest, SAMPLING, 16, 32 * 100)
    assert [row[0] for row in table] == ["en", "tr", "sw", "xx"]
    assert [row[1] for row in table] == [900, 90, 10, 0]
    assert [row[2] for row in table] == pytest.approx([0.9, 0.09, 0.01, 0])
    assert [row[3] for row in table] == pytest.approx(
        [0.70342, 0.22244, 0.07415, 0], abs=1e-5
    )
    # 3200 sequences; 9, 3 and 1 chunks.
    assert [row[4] for row in table] == pytest.approx([250.1, 237.3, 237.3, 0], abs=0.1)


def test_no_text_at_all_is_refused(tmp_path):
    with pytest.raises(UserError, match="no text to train on in any language"):
        SequenceOrder(make_records(tmp_path, {"en": []}), SAMPLING, 1, 16)
