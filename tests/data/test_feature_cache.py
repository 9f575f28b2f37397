"""The cache of features: what comes back, what is never served, what is repaired."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data import feature_cache
from decoupled.data.feature_cache import cache_path, cached_features

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


def test_arrays_larger_than_a_record(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(feature_cache, "_RECORD_BYTES", 1000)
    generator = np.random.default_rng(0)
    build = Builder({"a": generator.integers(0, 9, [333, 7]), "b": np.ones(250, "f4")})
    cached(tmp_path, lines, build=build)
    path = cache_path(str(tmp_path), KEY)
    sizes = [len(r.numpy()) for r in tf.data.TFRecordDataset(path, "ZLIB")]
    assert sizes[1:] == [1000] * 18 + [648] + [1000]
    assert_same(cached(tmp_path, lines)[0], build.features)


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


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        half,
        flipped,
        lambda content: content[:-20],
        lambda content: content[:1],
        lambda content: b"",
        lambda content: b"no record at all" * 9,
    ],
    ids=["half", "flipped", "end missing", "one byte", "empty", "other content"],
)
def test_a_damaged_file_is_told_and_replaced(tmp_path, lines, damage):
    cached(tmp_path, lines)
    path = cache_path(str(tmp_path), KEY)
    content = files.read_bytes(path)
    with open(path, "wb") as handle:
        handle.write(damage(content))
    features, calls = cached(tmp_path, lines)
    assert calls == 1
    assert_same(features, FEATURES)
    (line,) = lines
    assert line.startswith(f"{path}: damaged (")
    assert line.endswith("; these features are built anew")
    assert files.read_bytes(path) == content
    assert cached(tmp_path, lines)[1] == 0


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_damage_goes_unseen(tmp_path_factory, data):
    """Wherever a byte changes or the file ends: what is served is what was written."""
    folder, lines = tmp_path_factory.mktemp("cache"), []
    cached(folder, lines)
    path = cache_path(str(folder), KEY)
    content = bytearray(files.read_bytes(path))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    with open(path, "wb") as handle:
        handle.write(content)
    other = Builder({"other": np.array([1])})
    features, calls = cached(folder, lines, build=other)
    assert len(lines) == calls
    assert_same(features, other.features if calls else FEATURES)


def rewrite(path, change):
    """Applies `change` to the list of records of a file, checksums and all."""
    records = [record.numpy() for record in tf.data.TFRecordDataset(path, "ZLIB")]
    with tf.io.TFRecordWriter(path, "ZLIB") as writer:
        for record in change(records):
            writer.write(record)


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda r: r[:-1], "damaged (truncated)"),
        (lambda r: [*r, b"x"], "damaged (its content is not what was written)"),
        (
            lambda r: [r[0], bytes(len(r[1])), *r[2:]],
            "damaged (its content is not what was written)",
        ),
        (
            lambda r: [r[0].replace(b'"weights"', b'"heights"'), *r[1:]],
            "damaged (its content is not what was written)",
        ),
        (lambda r: [r[0].replace(b"features-1", b"features-0")], "of another format"),
        (lambda r: [b"[]"], "damaged (it does not say what it holds)"),
        (
            lambda r: [b"[" * 100_000, *r[1:]],
            "damaged (it does not say what it holds)",
        ),
        (lambda r: [b"{}"], "damaged (it does not say what it holds)"),
        (lambda r: r[1:], "damaged (it does not say what it holds)"),
    ],
)
def test_whole_records_that_are_wrong(tmp_path, lines, change, problem):
    cached(tmp_path, lines)
    path = cache_path(str(tmp_path), KEY)
    rewrite(path, change)
    assert_same(cached(tmp_path, lines)[0], FEATURES)
    assert lines == [f"{path}: {problem}; these features are built anew"]


def header_with(key, described, content):
    """Records whose digest is right, whatever they hold."""
    digest = feature_cache._digest(key, described)
    digest.update(content)
    header = {
        "format": feature_cache.FORMAT,
        "key": key,
        "arrays": described,
        "sha256": digest.hexdigest(),
    }
    return [json.dumps(header).encode(), content]


@pytest.mark.parametrize(
    "described",
    [
        [["a", "|O", [1]]],
        [["a", "<M8[s]", [1]]],
        [["a", "|V8", [1]]],
        [["a", "i4,i4", [1]]],
        [["a", [["x", "|O"]], [1]]],
        [["a", None, [1]]],
        [["a", "<i4", [1 << 60]]],
        [["a", "<i4", [1 << 20, 1 << 20]]],
        [["a", f"<U{1 << 28}", [1 << 20]]],
        [["a", "<i4", [-2]]],
        [["a", "<i4", 2]],
        [["a", "<i4", [2.0]]],
        [["a", "<i4", [True, 2]]],
        [["a", "<i4", [1] * 100]],
        [["a", "<i4", [0, 1 << 70]]],
        [["a", "<U0", [2]]],
        [[7, "<i4", [2]]],
        [["a", "<U2", [1]]],
        ["a"],
        7,
    ],
    ids=str,
)
def test_a_hostile_header_is_told_and_replaced(tmp_path, lines, described):
    """The digest protects against accidents; whoever writes the file makes it fit."""
    cached(tmp_path, lines)
    path = cache_path(str(tmp_path), KEY)
    rewrite(path, lambda _: header_with(KEY, described, b"\xff" * 8))
    features, calls = cached(tmp_path, lines)
    assert calls == 1
    assert_same(features, FEATURES)
    (line,) = lines
    assert line.startswith(f"{path}: damaged (")


def test_a_header_nested_too_deeply_is_damaged(tmp_path, lines):
    cached(tmp_path, lines)
    path = cache_path(str(tmp_path), KEY)
    rewrite(path, lambda _: [b"[" * 100_000])
    assert cached(tmp_path, lines)[1] == 1
    assert len(lines) == 1


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
    def full(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io, "TFRecordWriter", full)
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
    with pytest.raises(ValueError, match="texts: arrays of object"):
        cached(tmp_path, lines, build=build)
    assert os.listdir(tmp_path) == []
