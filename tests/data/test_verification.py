"""The verifier names file and record of every kind of defect."""

import dataclasses

import pytest
import tensorflow as tf

from decoupled.data import records
from decoupled.data.verification import all_shards, stray_files, verify_shard
from tests.data.record_folders import distinct_documents, flip_byte, make_records

NAME = "train/en/tokens-00000-of-00001.tfrecord"
DOCUMENTS = distinct_documents(*[3] * 2000, start=6)


@pytest.fixture
def folder(tmp_path):
    make_records(tmp_path, {"en": [DOCUMENTS]})
    return tmp_path


def defects(folder):
    manifest = records.read_manifest(str(folder))
    return [d for shard in all_shards(manifest) for d in verify_shard(manifest, shard)]


def record_end(number):
    return sum(len(records.serialize(ids)) + 16 for ids in DOCUMENTS[: number + 1])


def rewrite(folder, lines):
    with tf.io.TFRecordWriter(str(folder / NAME)) as writer:
        for line in lines:
            writer.write(line)


def test_a_good_folder_has_none(folder):
    assert defects(folder) == []
    assert stray_files(records.read_manifest(str(folder))) == []


@pytest.mark.parametrize("record", [0, 17, 1500, 1999])
def test_truncated(folder, record):
    path = folder / NAME
    path.write_bytes(path.read_bytes()[: record_end(record) - 5])
    assert defects(folder) == [f"{path}: record {record}: truncated"]


def test_cut_between_records(folder):
    path = folder / NAME
    path.write_bytes(path.read_bytes()[: record_end(9)])
    assert defects(folder) == [f"{path}: 10 records, the manifest says 2000"]


@pytest.mark.parametrize("record", [0, 1023, 1024])
def test_flipped_byte(folder, record):
    flip_byte(folder / NAME, record_end(record) - 6)
    told = "corrupt (its checksum does not match)"
    assert defects(folder) == [f"{folder / NAME}: record {record}: {told}"]


def test_missing(folder):
    (folder / NAME).unlink()
    assert defects(folder) == [f"{folder / NAME}: missing"]


def test_ids_outside_the_vocabulary(tmp_path):
    make_records(tmp_path, {"en": [[[6, 7], [8, 10_003], [9], [20_000]]]})
    assert defects(tmp_path) == [
        f"{tmp_path / NAME}: record 1: id 10003 is outside the vocabulary of 10000 "
        "pieces",
        f"{tmp_path / NAME}: 1 more records with such defects",
    ]


@pytest.mark.parametrize(
    "record, told",
    [
        (b"\xff\xff", "not a tf.train.Example"),
        (b"", "no int64 feature 'ids', or an empty one"),
        (records.serialize([]), "no int64 feature 'ids', or an empty one"),
    ],
)
def test_records_of_another_schema(folder, record, told):
    rewrite(folder, [records.serialize([6]), record, records.serialize([6])])
    (found,) = defects(folder)
    assert found.startswith(f"{folder / NAME}: record 1: {told}")


def test_other_contents_of_the_same_counts(folder):
    changed = [[token + 1 for token in ids] for ids in DOCUMENTS]
    rewrite(folder, map(records.serialize, changed))
    assert defects(folder) == [f"{folder / NAME}: sha256 is not that of the manifest"]


def test_files_that_the_manifest_does_not_know(folder):
    other = folder / "train/en/tokens-00003-of-00009.tfrecord"
    other.write_bytes(b"")
    manifest = records.read_manifest(str(folder))
    assert stray_files(manifest) == [f"{other}: not in the manifest"]
    none = dataclasses.replace(manifest, splits={})
    assert len(stray_files(none)) == 2
