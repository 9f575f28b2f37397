"""Every file of records is there and is, to the byte, the one that was built."""

import dataclasses

import pytest

from decoupled.data import records
from decoupled.data.reading import check_sizes, stray_files
from tests.data.record_folders import distinct_documents, make_records
from tests.refusals import refusal

NAME = "train/en/tokens-00000-of-00001.tfrecord"


@pytest.fixture
def folder(tmp_path):
    make_records(tmp_path, {"en": [distinct_documents(*[3] * 20)]})
    return tmp_path


@pytest.mark.parametrize(
    "damage, problem",
    [
        (lambda path: path.unlink(), "cannot read (No such file or directory); "),
        (lambda path: path.write_bytes(b""), "truncated or corrupt (0 bytes, the ma"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1]),
            "truncated or corrupt (",
        ),
    ],
)
def test_sizes_are_checked_before_training(folder, damage, problem):
    manifest = records.read_manifest(str(folder))
    check_sizes(manifest)
    damage(folder / NAME)
    message = refusal(check_sizes, manifest)
    assert message.startswith(f"{folder / NAME}: {problem}")
    assert message.endswith(f"decoupled verify_records --records_dir={folder}")


def test_files_that_the_manifest_does_not_know(folder):
    manifest = records.read_manifest(str(folder))
    assert stray_files(manifest) == []
    other = folder / "train/en/tokens-00003-of-00009.tfrecord"
    other.write_bytes(b"")
    assert stray_files(manifest) == [f"{other}: not in the manifest"]
    none = dataclasses.replace(manifest, splits={})
    assert len(stray_files(none)) == 2
