"""Shards in the graph: documents come back; a defect is named by file and record."""

import functools

import pytest

from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data import reading, records
from tests.corpora.builds import edit_json
from tests.data.record_folders import (
    VOCABULARY,
    distinct_documents,
    flip_byte,
    make_records,
)

NAME = "train/en/tokens-00000-of-00001.tfrecord"
DOCUMENTS = distinct_documents(*range(1, 21))


@functools.cache
def pipeline():
    """path, records, tokens -> the documents of a shard, in an input pipeline."""

    def documents(*shard):
        dataset = tf.data.Dataset.from_tensors(shard)
        loaded = dataset.map(lambda *of: reading.load_shard(*of, VOCABULARY.size))
        return loaded.get_single_element()

    kinds = [tf.TensorSpec([], kind) for kind in (tf.string, tf.int64, tf.int64)]
    return tf.function(documents, input_signature=kinds, autograph=False)


def load(manifest):
    """The documents of the only shard, through the input pipeline."""
    shard = manifest.language("train", "en").files[0]
    sizes = [tf.constant(size, tf.int64) for size in (shard.records, shard.tokens)]
    with reading.named_errors(manifest.folder):
        return pipeline()(tf.constant(manifest.path(shard)), *sizes).to_list()


def test_documents_come_back(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    assert load(manifest) == DOCUMENTS


def test_pieces_are_counted_until_there_are_enough(tmp_path):
    shards = [[[6, 7, 7]], [[7, 8]], [[9] * 10]]
    manifest = make_records(tmp_path, {"en": shards})
    records_of_en = manifest.language("train", "en")
    counts = reading.count_pieces(manifest, records_of_en)
    assert counts.shape == (VOCABULARY.size,)
    assert counts[6:11].tolist() == [1, 3, 1, 10, 0]
    assert counts.sum() == 15
    for tokens, expected in ((3, [1, 2, 0, 0]), (4, [1, 3, 1, 0])):
        counts = reading.count_pieces(manifest, records_of_en, tokens)
        assert counts[6:10].tolist() == expected


def test_a_damaged_file_is_named_where_pieces_are_counted(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    flip_byte(tmp_path / NAME, -6)
    with pytest.raises(UserError, match=f"{NAME}: record 19: .*corrupt"):
        with reading.named_errors(manifest.folder):
            reading.count_pieces(manifest, manifest.language("train", "en"))


@pytest.mark.parametrize("folder", ["data", "Zoë's 資料"])
def test_flipped_byte_is_named_with_the_record(tmp_path, folder):
    manifest = make_records(tmp_path / folder, {"en": [DOCUMENTS]})
    path = tmp_path / folder / NAME
    flip_byte(path, -6)
    with pytest.raises(UserError, match=f"^{path}: record 19: .*corrupt"):
        load(manifest)


def test_missing_file_is_named(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    (tmp_path / NAME).unlink()
    with pytest.raises(
        UserError, match=rf"{NAME}: cannot read \(not found\); see all defects"
    ):
        load(manifest)


@pytest.mark.parametrize(
    "record, problem",
    [
        (b"not an example", ": a record is not an Example with int64 feature 'ids'"),
        (b"\xff\xff", ": a record is not an Example with int64 feature 'ids'"),
        (b"", f"{NAME}: record 1: no int64 feature 'ids', or an empty one"),
        (
            records.serialize([]),
            f"{NAME}: record 1: no int64 feature 'ids', or an empty one",
        ),
    ],
)
def test_record_of_another_kind_is_refused(tmp_path, record, problem):
    manifest = make_records(tmp_path, {"en": [[[6, 7], [8]]]})
    with tf.io.TFRecordWriter(str(tmp_path / NAME)) as writer:
        writer.write(records.serialize([6]))
        writer.write(record)
    with pytest.raises(UserError, match=f"{problem}; see all .*verify_records"):
        load(manifest)


def test_ids_outside_the_vocabulary(tmp_path):
    documents = [[6, 7], [8, 10_003], [9], [20_000, 7, 30_000]]
    manifest = make_records(tmp_path, {"en": [documents]})
    problem = "record 1: id 10003 is outside the vocabulary of 10000 pieces"
    with pytest.raises(UserError, match=f"{NAME}: {problem}"):
        load(manifest)


@pytest.mark.parametrize(
    "unit, problem",
    [
        ("records", "record 20: truncated or corrupt"),
        ("tokens", r"not the file of the manifest \(more or fewer records or tokens"),
    ],
)
def test_a_manifest_that_counts_wrongly(tmp_path, unit, problem):
    make_records(tmp_path, {"en": [DOCUMENTS]})

    def count_more(manifest):
        english = manifest["splits"]["train"]["en"]
        english["files"][0][unit] += 1
        english[unit] += 1

    edit_json(tmp_path / "manifest.json", count_more)
    with pytest.raises(UserError, match=f"{NAME}: {problem}"):
        load(records.read_manifest(str(tmp_path)))
