"""Local files without TensorFlow do what `tf.io.gfile` does with them."""

import errno
import os
import uuid

import numpy as np
import pytest

from decoupled.core import files, gfile
from decoupled.core.release import tf
from tests.processes import run_python

REFERENCE = tf.io.gfile


@pytest.fixture
def folder(tmp_path):
    """b/ with two files, an empty folder, and a file beside them."""
    (tmp_path / "b" / "empty").mkdir(parents=True)
    (tmp_path / "b" / "2.txt").write_bytes("zwei\r\nü".encode())
    (tmp_path / "b" / "1.txt").write_bytes(b"one\n")
    (tmp_path / "a.txt").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("name", ["b", "b/1.txt", "b/none", "none/1.txt"])
def test_what_is_there(folder, name):
    path = str(folder / name)
    assert gfile.exists(path) == REFERENCE.exists(path)
    assert gfile.isdir(path) == REFERENCE.isdir(path)


def test_folders_are_listed(folder):
    assert sorted(gfile.listdir(str(folder / "b"))) == ["1.txt", "2.txt", "empty"]
    ours, theirs = (
        {path: (set(folders), set(names)) for path, folders, names in walk}
        for walk in (gfile.walk(str(folder)), REFERENCE.walk(str(folder)))
    )
    assert ours == theirs and len(ours) == 3


@pytest.mark.parametrize("pattern", ["*", "*/*.txt", "b/[12].txt", "b/?.txt", "none*"])
def test_patterns(folder, pattern):
    expected = sorted(REFERENCE.glob(str(folder / pattern)))
    assert gfile.glob(f"{folder}/", pattern) == expected
    assert gfile.glob("", str(folder / pattern)) == expected


def test_text_is_utf_8_with_the_line_breaks_that_it_has(folder):
    path = str(folder / "b" / "2.txt")
    with gfile.GFile(path) as ours, REFERENCE.GFile(path) as theirs:
        assert ours.read() == theirs.read() == "zwei\r\nü"
    # TensorFlow's drops every "\r" where a file is read line by line.
    assert list(gfile.GFile(path, "rb")) == [b"zwei\r\n", "ü".encode()]
    with gfile.GFile(path, "w") as handle:
        handle.write("a\rb\n")
    assert REFERENCE.GFile(path, "rb").read() == b"a\rb\n"


def test_of_a_link_to_a_folder_the_link_is_removed(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder / "b")
    gfile.rmtree(f"{link}/")
    assert not os.path.lexists(link) and (folder / "b" / "1.txt").exists()


def test_files_that_somebody_else_removed_are_known(tmp_path):
    gfile.forget_written()
    work = tmp_path / "work"
    work.mkdir()
    for name in ("one", "two", "three", "four"):
        (work / f"{name}.new").write_text(name)
        gfile.rename(str(work / f"{name}.new"), str(work / name))
    gfile.remove(str(work / "two"))
    gfile.rename(str(work), str(tmp_path / "done"))
    assert gfile.lost_files() == []
    (tmp_path / "done" / "one").unlink()
    assert gfile.lost_files() == [f"{tmp_path}/done/one"]
    gfile.rmtree(str(tmp_path / "done"))
    assert gfile.lost_files() == []
    (tmp_path / "five.new").write_text("five")
    gfile.rename(str(tmp_path / "five.new"), str(tmp_path / "five"))
    (tmp_path / "five").unlink()
    assert gfile.lost_files() == [f"{tmp_path}/five"]
    gfile.forget_written()
    assert gfile.lost_files() == []


def test_nothing_is_replaced_unless_asked_for(folder):
    one, two = str(folder / "b" / "1.txt"), str(folder / "b" / "2.txt")
    with pytest.raises(gfile.OpError, match="exists"):
        gfile.rename(one, two)
    gfile.rename(one, two, overwrite=True)
    assert not gfile.exists(one) and gfile.GFile(two).read() == "one\n"


@pytest.mark.parametrize(
    "fails",
    [
        lambda folder: gfile.GFile(str(folder / "none")),
        lambda folder: gfile.GFile(str(folder / "b" / "1.txt" / "below"), "w"),
        lambda folder: gfile.remove(str(folder / "none")),
        lambda folder: gfile.rmtree(str(folder / "none")),
        lambda folder: gfile.listdir(str(folder / "none")),
        lambda folder: gfile.size(str(folder / "none")),
        lambda folder: gfile.makedirs(str(folder / "a.txt")),
        lambda folder: gfile.size("ram://none"),
    ],
)
def test_what_fails_is_an_op_error(folder, fails):
    with pytest.raises(gfile.OpError):
        fails(folder)


@pytest.fixture
def disk(monkeypatch):
    """What is done about durability, in order: ("sync", path), ("rename", path)."""
    done = []

    def fsync(descriptor):
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def replace(source, target):
        done.append(("rename", str(target)))
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return done


def test_a_file_is_on_disk_before_its_new_name_is(folder, disk):
    gfile.rename(str(folder / "a.txt"), str(folder / "c.txt"))
    assert disk == [
        ("sync", f"{folder}/a.txt"),
        ("rename", f"{folder}/c.txt"),
        ("sync", f"{folder}"),
    ]


def test_all_of_a_folder_is_on_disk_before_its_new_name_is(folder, disk):
    gfile.rename(str(folder / "b"), str(folder / "c"))
    before, after = disk[: disk.index(("rename", f"{folder}/c"))], disk[-1]
    assert sorted(before) == [
        ("sync", f"{folder}/b"),
        ("sync", f"{folder}/b/1.txt"),
        ("sync", f"{folder}/b/2.txt"),
        ("sync", f"{folder}/b/empty"),
    ]
    # A folder after what is in it.
    assert before[-1] == ("sync", f"{folder}/b")
    assert after == ("sync", f"{folder}")


def fails_to_sync(monkeypatch, number, wanted):
    """os.fsync fails for what `wanted` is true of, a path."""

    def fsync(descriptor):
        if wanted(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_file_system_that_cannot_sync_folders_is_written_to(folder, monkeypatch):
    fails_to_sync(monkeypatch, errno.EINVAL, os.path.isdir)
    files.write_text(str(folder / "c.txt"), "text")
    gfile.rename(str(folder / "b"), str(folder / "c"))
    assert sorted(os.listdir(folder)) == ["a.txt", "c", "c.txt"]


@pytest.mark.parametrize(
    "number, wanted", [(errno.EIO, os.path.isdir), (errno.EINVAL, os.path.isfile)]
)
def test_what_does_not_come_to_the_disk_is_an_error(
    folder, monkeypatch, number, wanted
):
    fails_to_sync(monkeypatch, number, wanted)
    with pytest.raises(OSError, match=os.strerror(number)):
        files.write_text(str(folder / "c.txt"), "text")


def test_a_remote_path_needs_no_sync(disk):
    path = f"ram://{uuid.uuid4().hex}"
    files.write_text(path, "text")
    gfile.sync(path)
    assert disk == [] and files.read_text(path) == "text"


def test_a_remote_file_may_have_arrays():
    path = f"ram://{uuid.uuid4().hex}.npz"
    files.write_arrays(path, {"numbers": np.arange(3), "text": np.array("a")})
    arrays = files.read_arrays(path)
    assert arrays["numbers"].tolist() == [0, 1, 2] and arrays["text"] == "a"


def test_a_missing_file_is_not_found(folder):
    for path in (str(folder / "none"), "ram://none"):
        with pytest.raises(gfile.NotFoundError):
            gfile.size(path)


def test_remote_paths_are_tensorflow_s():
    """`ram://` is a file system of TensorFlow's, as `gs://` is."""
    root = f"ram://{uuid.uuid4().hex}"
    gfile.makedirs(f"{root}/a")
    with gfile.GFile(f"{root}/a/x", "w") as handle:
        handle.write("text")
    assert gfile.isdir(f"{root}/a") and gfile.exists(f"{root}/a/x")
    assert gfile.size(f"{root}/a/x") == 4
    assert gfile.listdir(f"{root}/a") == ["x"]
    gfile.rename(f"{root}/a/x", f"{root}/a/y", overwrite=True)
    assert gfile.GFile(f"{root}/a/y").read() == "text"
    gfile.remove(f"{root}/a/y")
    assert not gfile.exists(f"{root}/a/y")


def test_local_files_need_no_tensorflow(folder):
    code = (
        "import sys\n"
        "from decoupled.core import files, gfile\n"
        f"files.write_json({str(folder / 'made' / 'x.json')!r}, [1])\n"
        "try:\n"
        "    gfile.size('none')\n"
        "except gfile.OpError:\n"
        "    assert 'tensorflow' not in sys.modules\n"
        "    print('none')\n"
    )
    (folder / "made").mkdir()
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("none\n", "")


@pytest.mark.parametrize("place", ["{tmp_path}", "ram://bucket"])
@pytest.mark.parametrize("name", ["corpus[1]", "a*", "what?", "back\\slash", "[!a]"])
def test_a_folder_may_have_the_signs_of_patterns_in_its_name(tmp_path, place, name):
    folder = f"{place.format(tmp_path=tmp_path)}/{name}"
    for path in (f"{folder}/a.txt", f"{folder}/a.index", f"{folder}x/b.txt"):
        gfile.makedirs(path.rpartition("/")[0])
        with gfile.GFile(path, "w") as handle:
            handle.write("text")
    assert gfile.glob(f"{folder}/", "*.txt") == [f"{folder}/a.txt"]
    assert gfile.glob(f"{folder}/a", ".*") == [f"{folder}/a.index", f"{folder}/a.txt"]
