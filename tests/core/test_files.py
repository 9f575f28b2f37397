"""A file is complete or absent, and what is wrong with one is reported in one line."""

import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora.text_lines import read_lines


def test_json_keeps_the_order_of_keys_and_is_not_escaped(tmp_path):
    path = str(tmp_path / "a.json")
    files.write_json(path, {"z": 1, "a": "ü"})
    assert (tmp_path / "a.json").read_text() == '{\n  "z": 1,\n  "a": "ü"\n}\n'
    assert files.read_json(path) == {"z": 1, "a": "ü"}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_not_written(number, tmp_path):
    files.write_json(str(tmp_path / "a"), {"loss": 1.0})
    with pytest.raises(UserError, match=r"a: not written, a number is NaN or infinite"):
        files.write_json(str(tmp_path / "a"), {"loss": number})
    assert files.read_json(str(tmp_path / "a")) == {"loss": 1.0}


@pytest.mark.parametrize("value", [{"\ud800": 1}, ["a\udcff"]])
def test_half_a_surrogate_pair_is_not_written(value, tmp_path):
    with pytest.raises(UserError, match=r"a: not written, a name or a text .* '\\ud"):
        files.write_json(str(tmp_path / "a"), value)
    assert not (tmp_path / "a").exists()


def test_files_of_a_scratch_folder_are_not_lost():
    gfile.forget_written()
    with files.scratch_folder() as folder:
        files.write_text(f"{folder}/below.txt", "a")
    assert gfile.lost_files() == [] and not os.path.exists(folder)


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        with files.atomic_write(str(path)) as handle:
            handle.write("new")
            1 / 0  # noqa: B018
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_is_renamed_as_a_whole_and_removed_on_an_exception(tmp_path):
    with files.atomic_path(str(tmp_path / "good")) as temporary:
        os.mkdir(temporary)
        open(os.path.join(temporary, "x"), "w").close()
    with pytest.raises(KeyboardInterrupt):
        with files.atomic_path(str(tmp_path / "bad")) as temporary:
            os.mkdir(temporary)
            raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["good"]
    assert os.listdir(tmp_path / "good") == ["x"]


KILLED_WHILE_WRITING = """
import os, signal, sys
from decoupled.core import files
with files.atomic_write(sys.argv[1]) as handle:
    handle.write("new" * 1000000)
    handle.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_the_old_file_and_a_removable_temporary(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(path)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    left = sorted(set(os.listdir(tmp_path)) - {"a.txt"})
    assert len(left) == 1 and files.is_temporary(left[0])
    files.remove_temporaries(str(tmp_path))
    assert os.listdir(tmp_path) == ["a.txt"]


def assert_user_error(call, path, reason):
    with pytest.raises(UserError) as caught:
        call(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.read_json])
def test_a_missing_file_is_named(tmp_path, read):
    assert_user_error(read, tmp_path / "absent", "No such file")


@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.read_json])
def test_a_device_is_not_read(read):
    assert_user_error(read, "/dev/null", "a pipe or a device")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_named_with_and_without_a_byte_order_mark(encoding, tmp_path):
    (tmp_path / "a.txt").write_bytes("text\tneutral\n".encode(encoding))
    assert_user_error(files.read_text, tmp_path / "a.txt", "save it as UTF-8")


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}')
    assert files.read_json(str(path)) == {"a": 1}
    assert files.read_text(str(path)) == '{"a": 1}'


def test_lines_end_at_three_line_ends_only():
    text = "a\u2028b\x85c\x0b\x0c\x1cd\re\r\n\nf\n"
    lines = ["a\u2028b\x85c\x0b\x0c\x1cd", "e", "", "f"]
    assert files.split_lines(text) == lines
    assert files.split_lines("") == [] and files.split_lines("\n") == [""]
    assert files.split_blanks(" a\u00a0b\tc\u3000 \x85 ") == [
        "a\u00a0b",
        "c\u3000",
        "\x85",
    ]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"ab\xff", "not UTF-8 at byte 2, line 1"),
        (b"a\n\xff", "not UTF-8 at byte 2, line 2"),
        (b"\x1f\x8b\x08", "not UTF-8 at byte 1, line 1; unpack it: gzip -dc "),
        (b'{"a": 1,\n "b" 2}', "line 2, column 6"),
        (b'{"q1": "yes", "q2": "no", "q1": "no"}', "two values under the name 'q1'"),
        (b'{"\\ud800x": 1}', "line 1, column 3 (half a surrogate pair)"),
        (b'["a",\n"\\uDE00\\ud83d"]', "line 2, column 2 (half a surrogate pair)"),
        (b'["\\\\\\ud83d"]', "line 1, column 5 (half a surrogate pair)"),
        (b"[" * 100_000 + b"]" * 100_000, "column 1 (nested too deeply)"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "column 1 (nested too deeply)"),
        (b"[" * 21 + b"1" + b"]" * 21, "nested too deeply"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested too deeply"),
        (b"1" * 5000, "column 1 (Exceeds the limit"),
    ],
    ids=[
        *("bytes", "line", "gzip", "mistake", "names", "name", "halves", "escapes"),
        *("lists", "objects", "21 lists", "900 objects", "digits"),
    ],
)
def test_json_that_cannot_be_read_ends_in_one_line(tmp_path, content, reason):
    (tmp_path / "a").write_bytes(content)
    assert_user_error(files.read_json, tmp_path / "a", reason)


def test_nesting_of_files_as_they_are_is_read(tmp_path):
    for text in ("1", "[]", "[" * 20 + "1" + "]" * 20):
        (tmp_path / "a").write_text(text)
        assert files.read_json(str(tmp_path / "a")) == json.loads(text)


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    (tmp_path / "a").write_bytes(b'["\\ud83d\\ude00", "\\\\ud83d"]')
    assert files.read_json(str(tmp_path / "a")) == ["\U0001f600", "\\ud83d"]


def test_an_output_does_not_replace_a_device_or_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/stdout", "/dev/null", "/dev/fd/1", str(tmp_path / "pipe")):
        with pytest.raises(UserError, match=f"--out: {path} is no regular file"):
            files.check_output("--out", path)
    files.check_output("--out", str(tmp_path / "new" / "file.json"))
    assert (tmp_path / "new").is_dir()


def test_fingerprints_are_sha256(tmp_path):
    content = os.urandom(3_000_000)
    expected = hashlib.sha256(content).hexdigest()
    (tmp_path / "a").write_bytes(content)
    assert files.fingerprint(content) == expected
    assert files.file_fingerprint(str(tmp_path / "a")) == expected
    assert files.fingerprint("é") == hashlib.sha256(b"\xc3\xa9").hexdigest()


@pytest.mark.parametrize(
    "name", ["a", "a.txt", "train/en/a.txt", "..a", "a..", "...", "sr@latin/é 1.txt"]
)
def test_names_below_a_folder(name):
    assert files.is_below(name)
    assert files.path_below("/data", name, "m.json") == f"/data/{name}"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/", "/etc/passwd", "../a", "a/../b", "a/..", "./a", "a//b", "a/"]
    + ["a\\b", "gs://b/a", "a\n", "a\x00b", "a\x7f", "a\u2028b", "\ud800"]
    + [None, 7, ["a"], b"a"],
)
def test_names_that_lead_elsewhere_are_refused_in_one_line(name):
    assert not files.is_below(name)
    with pytest.raises(UserError, match="m.json: .*not the name of a file") as caught:
        files.path_below("/data", name, "m.json")
    assert len(str(caught.value).splitlines()) == 1


SESSION_FAILED = """Graph execution error:

Detected at node 'save/SaveV2_1' defined at (most recent call last):
    File "/a/estimator.py", line 92, in train
Node: 'save/SaveV2_1'
/a/model.ckpt-6_temp/part.tempstate1; No space left on device
\t [[{{node save/SaveV2_1}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add something.
"""


def test_a_file_larger_than_the_memory_is_named(monkeypatch, tmp_path):
    class Large(io.BytesIO):
        """Only its beginning fits."""

        def read(self, size=-1):
            if size < 0 or self.tell():
                raise MemoryError
            return super().read(size)

    monkeypatch.setattr(gfile, "GFile", lambda path, mode: Large(b"a" * 10**6))
    with pytest.raises(UserError, match=r"^a\.json: does not fit into memory$"):
        files.read_json("a.json")
    with pytest.raises(UserError, match=r"^a\.txt:1: does not fit into memory$"):
        list(read_lines("a.txt"))


@pytest.mark.parametrize(
    "path, expanded",
    [
        ("~", "/home/me"),
        ("~/a", "/home/me/a"),
        ("~root", "/root"),
        ("~root/a", "/root/a"),
        ("./~/a", "./~/a"),
        ("a~", "a~"),
        ("gs://b/~/a", "gs://b/~/a"),
    ],
)
def test_a_tilde_at_the_beginning_is_a_home(path, expanded, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert files.expand_home(path) == expanded


def test_reason_is_the_first_line_of_an_error():
    assert files.reason(ValueError("one\ntwo")) == "one"
    assert files.reason(ValueError()) == "ValueError"
    assert files.reason(ValueError(SESSION_FAILED)) == "No space left on device"
    other = SESSION_FAILED.replace("/a/model.ckpt-6_temp/part.tempstate1; ", "")
    assert files.reason(ValueError(other)) == "No space left on device"
    several = "2 root error(s) found.\n  (0) RESOURCE_EXHAUSTED: /a/model.ckpt-6"
    other = SESSION_FAILED.replace("/a/model.ckpt-6", several)
    assert files.reason(ValueError(other)) == "No space left on device"
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[")
    assert files.reason(caught.value) == "Expecting value: line 1 column 2 (char 1)"


@pytest.mark.parametrize(
    "message",
    [
        "{{function_node __wrapped__RestoreV2_dtypes_1_device_/job:localhost/task:0}} "
        "a.index: damaged [Op:RestoreV2]",
        "a.index: damaged\n\t [[{{node save/RestoreV2}}]]",
        "a.index: damaged [[{{node save/RestoreV2}}]] [Op:RestoreV2] name: x",
    ],
)
def test_reason_names_no_node_of_a_graph(message):
    assert files.reason(ValueError(message)) == "a.index: damaged"


def test_every_damaged_byte_of_an_array_is_reported(tmp_path):
    """NumPy, zipfile and zlib raise more kinds of errors than they document."""
    path = tmp_path / "items.npz"
    files.write_arrays(str(path), {"a": np.arange(9.0)})
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :],
        ):
            path.write_bytes(damaged)
            try:
                files.read_arrays(str(path))
            except UserError as error:
                refused += "items.npz: not a file of arrays (" in str(error)
    assert refused > len(whole)


def test_arrays_come_back_and_objects_are_refused(tmp_path):
    path = str(tmp_path / "items.npz")
    files.write_arrays(path, {"0/hits": np.eye(3, dtype=np.uint8)})
    np.testing.assert_array_equal(files.read_arrays(path)["0/hits"], np.eye(3))
    np.savez(path, np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"items\.npz: not a file of arrays"):
        files.read_arrays(path)


def test_what_a_killed_writer_left_stays_if_the_next_one_fails(tmp_path):
    """Where it was killed between two renames, both folders are whole."""
    target, names = tmp_path / "out", ["out.tmp-01234567", "out.tmp-f1234567"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "export.json").write_text(name)
    with pytest.raises(KeyboardInterrupt):
        with files.new_folder(str(target), replaces=True):
            raise KeyboardInterrupt
    assert sorted(os.listdir(tmp_path)) == names
    assert all((tmp_path / name / "export.json").exists() for name in names)


def test_of_two_writers_of_a_new_folder_the_later_one_is_refused(tmp_path):
    target = tmp_path / "out"
    with pytest.raises(UserError, match=f"{target}: exists; choose a new folder"):
        with files.new_folder(str(target)):
            with files.new_folder(str(target)) as first:
                pathlib.Path(first, "first").write_text("")
    assert os.listdir(tmp_path) == ["out"] and os.listdir(target) == ["first"]


def test_ctrl_c_while_a_folder_is_replaced_keeps_the_earlier_one(tmp_path, monkeypatch):
    target, rename = tmp_path / "out", gfile.rename
    target.mkdir()
    (target / "old").write_text("earlier")

    def interrupted(source, to, overwrite=False):
        if to == str(target) and os.path.basename(source).startswith("out.tmp"):
            if os.path.exists(os.path.join(source, "new")):
                raise KeyboardInterrupt
        rename(source, to, overwrite)

    monkeypatch.setattr(gfile, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with files.new_folder(str(target), replaces=True) as folder:
            pathlib.Path(folder, "new").write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (target / "old").read_text() == "earlier"
