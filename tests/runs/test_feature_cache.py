"""The cache of features: what comes back, what is never served, what is repaired."""

import errno
import io
import os
import zipfile

import numpy as np
import pytest
from numpy.lib import format as npy_format

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.runs.task_data import cache_path, cached_features

KEY = {
    "task": "xnli",
    "settings": {"max_sequence_length": 128, "labels": ["a", "b"]},
    "vocabulary": "0a1b",
    "file": "2c3d",
    "code": 1,
}
FEATURES = {
    "ids": np.arange(12, dtype=np.int32).reshape(3, 4),
    "weights": np.array([0.1, -0.0, np.nan], np.float32),
    "flags": np.array([[True], [False], [True]]),
    "large": np.array([2**62, -1]),
    "half": np.array([1.5], np.float16),
    "names": np.array(["a", "ﬁß", ""]),
    "bytes": np.array([b"x", b"yz"]),
    "number": np.array(7.5),
    "nothing": np.zeros([0, 5], np.int64),
    "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
}


class Builder:
    """Counts how often features are built."""

    def __init__(self, features=None):
        self.features = FEATURES if features is None else features
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.features


@pytest.fixture
def lines():
    return []


def cached(folder, lines, key=KEY, build=None):
    """(features, times that they were built)."""
    build = build or Builder()
    return cached_features(str(folder), key, build, lines.append), build.calls


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def test_features_are_built_once_and_come_back_bit_for_bit(tmp_path, lines):
    first, calls = cached(tmp_path / "new" / "folder", lines)
    assert calls == 1
    assert_same(first, FEATURES)
    second, calls = cached(tmp_path / "new" / "folder", lines)
    assert calls == 0
    assert_same(second, FEATURES)
    second["ids"] += 1  # One's own to change.
    assert lines == []


@pytest.mark.parametrize(
    "change",
    [
        {"vocabulary": "0a1c"},
        {"file": "2c3e"},
        {"code": 2},
        {"task": "pawsx"},
        {"settings": {"max_sequence_length": 64, "labels": ["a", "b"]}},
        {"settings": {"max_sequence_length": 128, "labels": ["b", "a"]}},
        {"more": None},
    ],
    ids=str,
)
def test_other_inputs_are_built_anew(tmp_path, lines, change):
    cached(tmp_path, lines)
    other = Builder({"ids": np.array([1])})
    features, calls = cached(tmp_path, lines, {**KEY, **change}, other)
    assert calls == 1
    assert_same(features, other.features)
    # Both are kept.
    assert cached(tmp_path, lines)[1] == 0
    assert cached(tmp_path, lines, {**KEY, **change})[1] == 0


def test_the_order_of_the_key_does_not_matter(tmp_path, lines):
    cached(tmp_path, lines)
    turned = dict(reversed(list(KEY.items())))
    assert cached(tmp_path, lines, turned)[1] == 0


def test_a_file_under_the_name_of_other_inputs_is_not_served(tmp_path, lines):
    cached(tmp_path, lines)
    other = {**KEY, "vocabulary": "ffff"}
    path = cache_path(str(tmp_path), other)
    os.rename(cache_path(str(tmp_path), KEY), path)
    assert cached(tmp_path, lines, other)[1] == 1
    assert lines == [
        f"{path}: made of other inputs than its name says; these features are built "
        "anew"
    ]
    assert cached(tmp_path, lines, other)[1] == 0


def half(content):
    return content[: len(content) // 2]


def archive(**members):
    """A .npz file of these members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as written:
        for name, member in members.items():
            written.writestr(f"{name}.npy", member)
    return content.getvalue()


def npy(header):
    """An array's member whose header says this, with 8 bytes."""
    text = header.encode("latin-1")
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + b"\xff" * 8


def pickled():
    content = io.BytesIO()
    np.savez(content, a=np.array([None]))
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        half,
        lambda content: b"no archive at all" * 9,
        lambda content: pickled(),
        lambda content: archive(a=b""),
        lambda content: archive(a=b"[" * 100_000),
        *(
            lambda content, header=header: archive(a=npy(header))
            for header in (
                "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
                "{'descr': '<i4', 'fortran_order': False, 'shape': (1 << 60,)}",
                f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({1 << 60},)}}",
                "{'descr': '<i4', 'fortran_order': False, 'shape': (-2,)}",
                "{'descr': '<i4', 'fortran_order': False, 'shape': (9,)}",
                "{'descr': '<i4', 'fortran_order': False}",
                "__import__('os').getcwd()",
                "(" * 5000,
            )
        ),
    ],
)
def test_a_damaged_or_hostile_file_is_reported_and_replaced(tmp_path, lines, content):
    """That no damaged byte goes unseen is shown in tests/core/test_files.py."""
    cached(tmp_path, lines)
    path = cache_path(str(tmp_path), KEY)
    written = files.read_bytes(path)
    with open(path, "wb") as handle:
        handle.write(content(written))
    features, calls = cached(tmp_path, lines)
    assert calls == 1
    assert_same(features, FEATURES)
    assert lines == [f"{path}: damaged; these features are built anew"]
    assert cached(tmp_path, lines)[1] == 0


def test_what_a_killed_process_left_is_not_read(tmp_path, lines):
    temporary = files.temporary_name(cache_path(str(tmp_path), KEY))
    with open(temporary, "wb") as handle:
        handle.write(b"half")
    assert cached(tmp_path, lines)[1] == 1
    assert lines == []


def test_an_error_while_building_leaves_nothing(tmp_path, lines):
    def build():
        raise UserError("train-en.tsv:3: 5 columns")

    with pytest.raises(UserError, match="5 columns"):
        cached_features(str(tmp_path), KEY, build, lines.append)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_costs_the_cache_only(tmp_path, lines, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(npy_format, "write_array", full)
    features, _ = cached(tmp_path, lines)
    assert_same(features, FEATURES)
    (line,) = lines
    assert "cannot write (No space left on device)" in line
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path, lines):
    (tmp_path / "file").write_text("")
    build = Builder()
    with pytest.raises(UserError, match="cannot write here"):
        cached(tmp_path / "file", lines, build=build)
    assert build.calls == 0


def test_objects_are_refused(tmp_path, lines):
    build = Builder({"texts": np.array(["a", None], object)})
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        cached(tmp_path, lines, build=build)
    assert os.listdir(tmp_path) == []
