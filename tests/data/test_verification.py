"""The verifier names file and record of every kind of defect."""

import dataclasses

import pytest

from decoupled.core.release import tf
from decoupled.data import records
from decoupled.data.reading import (
    all_shards,
    check_beginnings,
    stray_files,
    verify_shard,
    verify_shards,
)
from tests.corpora.builds import edit_json
from tests.data.record_folders import distinct_documents, flip_byte, make_records
from tests.refusals import refusal

NAME = "train/en/tokens-00000-of-00001.tfrecord"
# A length of exabytes with the right checksum.
EXABYTES = (1 << 62).to_bytes(8, "little") + b"\x7f\x85\xf0\x00"
DOCUMENTS = distinct_documents(*[3] * 1100, start=6)


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


def beginnings(folder):
    check_beginnings(records.read_manifest(str(folder)))


def test_a_good_folder_has_none(folder):
    assert defects(folder) == []
    beginnings(folder)
    assert stray_files(records.read_manifest(str(folder))) == []


def cut(folder):
    path = folder / NAME
    path.write_bytes(path.read_bytes()[:-1])


def of_another_schema(folder):
    path = folder / NAME
    size = path.stat().st_size
    rewrite(folder, [b"x" * (size - 16)])
    assert path.stat().st_size == size


def without_end(folder):
    """The first record has exabytes, by a length with the right checksum."""
    size = (folder / NAME).stat().st_size
    (folder / NAME).write_bytes(EXABYTES.ljust(size, b"x"))


@pytest.mark.parametrize(
    "damage, problem",
    [
        (lambda folder: (folder / NAME).unlink(), "cannot read (No such file or dir"),
        (cut, "truncated or corrupt ("),
        (
            lambda folder: (folder / NAME).write_bytes(b""),
            "truncated or corrupt (0 byt",
        ),
        (lambda folder: flip_byte(folder / NAME, 3), "record 0: truncated or corrupt"),
        (
            lambda folder: flip_byte(folder / NAME, record_end(0) - 6),
            "record 0: truncated or corrupt",
        ),
        (without_end, "record 0: truncated or corrupt"),
        (of_another_schema, "record 0: no int64 feature 'ids', or an empty one"),
    ],
)
def test_what_can_be_seen_at_once_is_reported_before_training(folder, damage, problem):
    damage(folder)
    message = refusal(beginnings, folder)
    assert message.startswith(f"{folder / NAME}: {problem}")
    assert message.endswith(f"decoupled verify_records --records_dir={folder}")


def with_byte(content, place):
    """The content with another byte at this place."""
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


# From a file's content, and where a record starts and ends, a damaged content.
DAMAGES = {
    "cut within": lambda content, start, end: content[: end - 5],
    "cut before": lambda content, start, end: content[:start],
    "content": lambda content, start, end: with_byte(content, end - 6),
    # Reading ends there: the other damage, at the end of the file, is not reported.
    "length": lambda content, start, end: with_byte(
        with_byte(content, start), len(content) - 1
    ),
    # A whole checksum over a length of exabytes takes no memory.
    "length without end": lambda content, start, end: content[:start] + EXABYTES + b"x",
}


@pytest.mark.parametrize("record", [0, 17, 1099])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named(folder, damage, record):
    path = folder / NAME
    start = record_end(record - 1) if record else 0
    path.write_bytes(DAMAGES[damage](path.read_bytes(), start, record_end(record)))
    assert defects(folder) == [f"{path}: record {record}: truncated or corrupt"]


def test_missing(folder):
    (folder / NAME).unlink()
    assert defects(folder) == [f"{folder / NAME}: missing"]


def test_ids_outside_the_vocabulary(tmp_path):
    make_records(tmp_path, {"en": [[[6, 7], [8, 10_003], [9], [20_000, 7, 30_000]]]})
    problem = "record 1: id 10003 is outside the vocabulary of 10000 pieces"
    assert defects(tmp_path) == [f"{tmp_path / NAME}: {problem}"]


@pytest.mark.parametrize(
    "record, problem",
    [
        (b"\xff\xff", "a record is not an Example with int64 feature 'ids'"),
        (b"", "record 1: no int64 feature 'ids', or an empty one"),
        (records.serialize([]), "record 1: no int64 feature 'ids', or an empty one"),
    ],
)
def test_records_of_another_schema(tmp_path, record, problem):
    make_records(tmp_path, {"en": [[[6], [7], [6]]]})
    rewrite(tmp_path, [records.serialize([6]), record, records.serialize([6])])
    assert defects(tmp_path) == [f"{tmp_path / NAME}: {problem}"]


@pytest.mark.parametrize(
    "unit, problem",
    [
        ("records", "record 1100: truncated or corrupt"),
        ("tokens", "not the file of the manifest (more or fewer records or tokens)"),
    ],
)
def test_a_manifest_that_counts_wrongly(folder, unit, problem):
    def count_more(manifest):
        english = manifest["splits"]["train"]["en"]
        english["files"][0][unit] += 1
        english[unit] += 1

    edit_json(folder / "manifest.json", count_more)
    assert defects(folder) == [f"{folder / NAME}: {problem}"]


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


@pytest.mark.slow
def test_several_processes_find_the_same_in_the_same_order(tmp_path):
    shards = [[[n, 6]] for n in range(6, 18)]
    manifest = make_records(tmp_path, {"en": shards[:6], "sw": shards[6:]})
    for number in (1, 4, 9):
        flip_byte(tmp_path / all_shards(manifest)[number].name, -6)
    found = list(verify_shards(manifest, 2))
    assert found == list(verify_shards(manifest, 1))
    assert [n for n, defects in enumerate(found) if defects] == [1, 4, 9]
