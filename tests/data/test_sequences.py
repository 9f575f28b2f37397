"""Documents -> [CLS] chunk [SEP]: nothing lost, nothing twice within an epoch."""

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.data.sequences import (
    SequenceOrder,
    chunks,
    evaluation_count,
    evaluation_sequences,
    training_sequences,
)
from tests.data.record_folders import (
    SAMPLING,
    VOCABULARY,
    distinct_documents,
    make_records,
)

CLS, SEP, PAD = 3, 4, 0


def cut(documents, length=6):
    ids = tf.ragged.constant(documents, tf.int64, row_splits_dtype=tf.int64)
    return chunks(ids, length, VOCABULARY).numpy().tolist()


def take(manifest, order, first, count, length=8):
    stream = training_sequences(manifest, order, first, length, VOCABULARY)
    return np.array(list(stream.take(count).as_numpy_iterator()))


def test_chunks_by_hand():
    assert cut([[10, 11, 12, 13, 14], [20, 21]]) == [
        [CLS, 10, 11, 12, 13, SEP],
        [CLS, 14, SEP, 20, 21, SEP],
    ]


def test_a_chunk_that_ends_with_a_separator_gets_no_second_one():
    assert cut([[10, 11, 12], [20, 21]]) == [
        [CLS, 10, 11, 12, SEP, PAD],
        [CLS, 20, 21, SEP, PAD, PAD],
    ]


def test_a_document_of_one_token():
    assert cut([[10]]) == [[CLS, 10, SEP, PAD, PAD, PAD]]


def test_every_chunk_holds_text_and_one_closing_separator():
    documents = distinct_documents(*range(1, 40))
    rows = np.array(cut(documents, 7))
    for row in rows:
        real = row[row != PAD].tolist()
        assert real[0] == CLS and real[-1] == SEP and real[-2] not in (SEP, CLS)
        assert not row[len(real) :].any()
    text = rows[~np.isin(rows, (PAD, CLS, SEP))].tolist()
    assert text == [token for document in documents for token in document]


def make_folder(path):
    shards = [distinct_documents(25, 9, 1), distinct_documents(30, start=1000)]
    shards.append(distinct_documents(6, start=2000))
    small = [distinct_documents(2, start=5000)]
    return make_records(path, {"en": shards, "sw": small}, sentences={"en": 9, "sw": 1})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def order(manifest):
    return SequenceOrder(manifest, SAMPLING, 7, 8)


@pytest.fixture(scope="module")
def rows(manifest, order):
    """The first 100 sequences."""
    return take(manifest, order, 0, 100)


def test_an_epoch_has_each_token_once_before_any_repeats(order, rows):
    languages = order.draw(0, 100)
    # English: 37, 30 and 6 places at 6 a piece.
    english, epoch = rows[languages == 0], 7 + 5 + 1
    expected = sorted([*range(6, 41), *range(1000, 1030), *range(2000, 2006)])
    assert len(english) > 5 * epoch
    orders = set()
    for start in range(0, 5 * epoch, epoch):
        part = english[start : start + epoch]
        assert sorted(part[~np.isin(part, (PAD, CLS, SEP))]) == expected
        orders.add(part.tobytes())
    assert len(orders) == 5
    swahili = rows[languages == 1]
    assert len(swahili) > 10
    assert (swahili == [CLS, 5000, 5001, SEP, PAD, PAD, PAD, PAD]).all()


def test_another_seed_gives_another_order(manifest, order):
    """Of languages, and of the shards of each."""
    other = SequenceOrder(manifest, SAMPLING, 8, 8)
    assert not np.array_equal(other.draw(0, 40), order.draw(0, 40))
    shards, others = (
        [list(each.shard_order(0, epoch)) for epoch in range(9)]
        for each in (order, other)
    )
    assert shards != others


def test_a_late_start_reads_only_the_shards_it_needs(tmp_path):
    manifest = make_folder(tmp_path)
    order = SequenceOrder(manifest, SAMPLING, 7, 8)
    first = 10**6
    epoch, rank, _ = order.position(0, order.counts_before(first)[0])
    assert epoch > 10**4
    current = order.shard_order(0, epoch)[rank]
    for index, shard in enumerate(manifest.language("train", "en").files):
        if index != current:
            tf.io.gfile.remove(manifest.path(shard))
    assert take(manifest, order, first, 1).shape == (1, 8)


def test_evaluation_gives_each_language_once_in_order(tmp_path):
    manifest = make_records(
        tmp_path,
        {"en": [[[6]]]},
        {"en": [[[10, 11, 12], [13]], [[14]]], "sw": [[[20]]]},
    )
    entries = [manifest.language("eval", name) for name in ("en", "sw")]
    counts = [evaluation_count(entry, 5) for entry in entries]
    assert counts == [3, 1]
    assert evaluation_count(entries[0], 5, limit=2) == 2
    batches = evaluation_sequences(manifest, entries, counts, 2, 5, VOCABULARY)
    rows = [
        (ids.tolist(), numbers.tolist(), int(count))
        for ids, numbers, count in batches.as_numpy_iterator()
    ]
    nothing = [PAD] * 5
    assert rows == [
        ([[CLS, 10, 11, 12, SEP], [CLS, SEP, 13, SEP, PAD]], [0, 1], 3),
        ([[CLS, 14, SEP, PAD, PAD], nothing], [2, 3], 3),
        ([[CLS, 20, SEP, PAD, PAD], nothing], [0, 1], 1),
    ]
