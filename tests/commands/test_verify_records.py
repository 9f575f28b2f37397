"""verify_records: one summary line, or one line per bad file and exit code 2."""

import pytest

from decoupled.core.errors import UserError
from decoupled.data.reading import verify_records
from tests.command_line import decoupled
from tests.data.record_folders import distinct_documents, flip_byte, make_records
from tests.data.small_corpus import make_vocabulary

NAME = "train/en/tokens-00000-of-00002.tfrecord"


@pytest.fixture
def folder(tmp_path):
    """A folder with `records/` and their `vocabulary.model`."""
    vocabulary = make_vocabulary(tmp_path / "vocabulary.model")
    shards = [distinct_documents(4, 9, 2), distinct_documents(8, 8)]
    make_records(
        tmp_path / "records", {"en": shards}, {"en": [[[6]]]}, vocabulary=vocabulary
    )
    return tmp_path


def test_a_good_folder_is_summed_up(folder, capsys):
    paths = str(folder / "records"), str(folder / "vocabulary.model")
    assert verify_records(*paths) == []
    assert capsys.readouterr().out == (
        f"{paths[0]}: 3 files, 6 records and 32 tokens, as the manifest says\n"
    )


def test_another_vocabulary_is_refused(folder):
    make_vocabulary(folder / "other.model", size=50)
    with pytest.raises(UserError, match="records: made with vocabulary .*other.model"):
        verify_records(str(folder / "records"), str(folder / "other.model"))


def test_a_file_that_cannot_be_read_is_a_defect_like_others(folder, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr("decoupled.core.files.file_fingerprint", fail)
    found = verify_records(str(folder / "records"), str(folder / "vocabulary.model"))
    assert len(found) == 3
    assert found[0] == f"{folder}/records/{NAME}: cannot read (Input/output error)"


def test_workers_are_refused_in_one_line(folder):
    done = decoupled("verify_records", f"--records_dir={folder}/records", "--workers=2")
    assert (done.returncode, done.stderr) == (
        2,
        "decoupled verify_records: error: --workers is gone (CHANGELOG.md); threads of "
        "one process read several files at once\n",
    )


def test_defects_of_all_files_are_reported(folder):
    flip_byte(folder / "records" / NAME, -6)
    cut = folder / "records/train/en/tokens-00001-of-00002.tfrecord"
    size = len(cut.read_bytes())
    cut.write_bytes(cut.read_bytes()[:-1])
    (folder / "records/eval/en/tokens-00000-of-00001.tfrecord").unlink()
    stray = folder / "records/train/en/tokens-00007-of-00008.tfrecord"
    stray.write_bytes(b"")
    done = decoupled(
        "verify_records",
        f"--records_dir={folder}/records",
        f"--vocabulary={folder}/vocabulary.model",
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{folder}/records/{NAME}: sha256 is not that of the manifest",
        f"{cut}: truncated or corrupt ({size - 1} bytes, the manifest says {size})",
        f"{folder}/records/eval/en/tokens-00000-of-00001.tfrecord: missing",
        f"{stray}: not in the manifest",
    ]
