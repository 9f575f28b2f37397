"""The records folder: its writer, its manifest, and what each refuses."""

import pytest

from decoupled.core.errors import UserError
from decoupled.data import records
from tests.corpora.builds import edit_json
from tests.data.record_folders import (
    distinct_documents,
    make_records,
)

NAME = "train/en/tokens-00000-of-00001.tfrecord"
DOCUMENTS = distinct_documents(*range(1, 21))


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


def test_missing_folder_names_the_command(tmp_path):
    with pytest.raises(UserError, match="nothing: no complete records .*build_records"):
        records.read_manifest(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "change, problem",
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
        (
            lambda m: m["splits"]["train"]["en"]["files"][0].update(name="train/en/.."),
            "'train/en/..' is not the name of a file below",
        ),
        (
            lambda m: m["splits"]["train"].update(
                {"../..": m["splits"]["train"]["en"]}
            ),
            r"'\.\./\.\.' is no language code",
        ),
        (lambda m: m["splits"].update({"..": {}}), r"'\.\.' is no split"),
        (lambda m: m["splits"]["train"].update(en={"files": [7]}), "damaged"),
    ],
)
def test_damaged_manifest_is_refused(tmp_path, change, problem):
    make_records(tmp_path, {"en": [DOCUMENTS]})
    edit_json(tmp_path / "manifest.json", change)
    with pytest.raises(UserError, match=problem):
        records.read_manifest(str(tmp_path))
