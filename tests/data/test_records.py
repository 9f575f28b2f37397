"""Records: what is written is read back; each defect is named by file and record."""

import json

import pytest
import tensorflow as tf

from decoupled.data import records
from decoupled.errors import UserError
from tests.data.record_folders import (
    VOCABULARY,
    distinct_documents,
    flip_byte,
    make_records,
)

NAME = "train/en/tokens-00000-of-00001.tfrecord"
DOCUMENTS = distinct_documents(*range(1, 21))


def load(manifest, vocab_size=VOCABULARY.size):
    """The documents of the only shard, through the input pipeline."""
    shard = manifest.language("train", "en").files[0]

    def ids(_):
        return records.load_shard(
            manifest.path(shard), shard.records, shard.tokens, vocab_size
        )

    with records.named_errors(manifest.folder):
        return next(iter(tf.data.Dataset.range(1).map(ids))).to_list()


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_documents_come_back(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    assert load(manifest) == DOCUMENTS


def test_manifest_comes_back(tmp_path):
    manifest = make_records(
        tmp_path, {"en": [[[6, 7, 8], [9]]], "sw": []}, {"en": [[[6]]]}, {"en": 5}
    )
    english = manifest.language("train", "en")
    assert (english.records, english.tokens, english.sentences) == (2, 4, 5)
    shard = english.files[0]
    assert (shard.name, shard.records, shard.tokens) == (NAME, 2, 4)
    assert shard.bytes == (tmp_path / NAME).stat().st_size
    assert manifest.language("train", "sw").records == 0
    assert list(manifest.splits["eval"]) == ["en"]
    assert manifest.vocab_size == 10_000


@pytest.mark.parametrize(
    "ids, told",
    [
        ([6, 10_000], "document 1: id 10000 is outside the vocabulary of 10000 pieces"),
        ([-1], "document 1: id -1 is outside the vocabulary"),
        ([], "document 1: no ids"),
    ],
)
def test_writer_refuses_and_names_the_document(tmp_path, ids, told):
    with pytest.raises(UserError, match=told):
        records.write_shard(str(tmp_path), "a.tfrecord", [[6], ids], 10_000)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_names_the_command(tmp_path):
    with pytest.raises(UserError, match="nothing: no complete records .*build_records"):
        records.read_manifest(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda m: m.update(format="other"), "not of format decoupled-records-1"),
        (lambda m: m.pop("splits"), "damaged .*splits"),
        (lambda m: m["vocabulary"].update(vocab_size="many"), "damaged .*many"),
        (
            lambda m: m["splits"]["train"]["en"].update(tokens=1),
            "train/en: tokens is 1, its files have 210",
        ),
        (
            lambda m: m["splits"]["train"]["en"]["files"][0].update(name="../secret"),
            "train/en: file '../secret' lies elsewhere",
        ),
    ],
)
def test_damaged_manifest_is_refused(tmp_path, change, told):
    make_records(tmp_path, {"en": [DOCUMENTS]})
    edit_manifest(tmp_path, change)
    with pytest.raises(UserError, match=told):
        records.read_manifest(str(tmp_path))


def test_other_vocabulary_is_refused(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    with pytest.raises(UserError, match="made with vocabulary abababababab, not with x"):
        manifest.check_vocabulary("0" * 64, "x.model")


def test_unknown_language_is_refused(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    with pytest.raises(UserError, match=r"no language 'xx' .*\(there: en\)"):
        manifest.language("train", "xx")


def cut_before_record(path, number):
    """Cuts a file in the middle of a record; each takes 16 bytes around its data."""
    sizes = [len(records.serialize(ids)) + 16 for ids in DOCUMENTS]
    path.write_bytes(path.read_bytes()[: sum(sizes[:number]) + 20])


def test_truncated_file_is_named_with_the_record(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    cut_before_record(tmp_path / NAME, 17)
    with pytest.raises(UserError, match=f"{NAME}: record 17: truncated or corrupt"):
        load(manifest)


def test_flipped_byte_is_named_with_the_record(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    flip_byte(tmp_path / NAME, -6)
    with pytest.raises(UserError, match=f"{NAME}: record 19: .*corrupt"):
        load(manifest)


def test_missing_file_is_named(tmp_path):
    manifest = make_records(tmp_path, {"en": [DOCUMENTS]})
    (tmp_path / NAME).unlink()
    with pytest.raises(UserError, match=fr"{NAME}: cannot read \(not found\); see all defects"):
        load(manifest)


def test_id_outside_the_vocabulary_is_named_with_the_record(tmp_path):
    manifest = make_records(tmp_path, {"en": [[[6, 7], [8], [9, 10_003, 6]]]})
    with pytest.raises(
        UserError,
        match=f"{NAME}: record 2: id 10003 is outside the vocabulary of 10000 pieces",
    ) as error:
        load(manifest)
    assert "\n" not in str(error.value)


def test_another_file_under_the_same_name_is_noticed(tmp_path):
    manifest = make_records(tmp_path / "a", {"en": [[[6, 7], [8]]]})
    make_records(tmp_path / "b", {"en": [[[6, 7], [8, 9]]]})
    (tmp_path / "b" / NAME).rename(tmp_path / "a" / NAME)
    with pytest.raises(UserError, match=f"{NAME}: not the file of the manifest"):
        load(manifest)


def test_record_of_another_kind_is_refused(tmp_path):
    manifest = make_records(tmp_path, {"en": [[[6, 7], [8]]]})
    with tf.io.TFRecordWriter(str(tmp_path / NAME)) as writer:
        writer.write(b"not an example")
        writer.write(records.serialize([6]))
    with pytest.raises(UserError, match="a record is not an Example .*verify_records"):
        load(manifest)
