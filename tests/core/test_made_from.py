"""Results belong to the contents of the files that they were computed from."""

import json
import os

import pytest

from decoupled.core.made_from import changes, hash_files, in_words, read_results

SHA_OF_ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
MADE = {
    "checkpoint": "c1",
    "files": {"dev-en.tsv": "d1", "test-en.tsv": "t1"},
    "settings": {"answers": {"n_best": 20}, "seed": 3},
}


def test_a_file_is_known_by_its_content(tmp_path):
    path = tmp_path / "topics" / "test-en.tsv"
    path.parent.mkdir()
    path.write_text("abc")
    assert hash_files([str(path)], str(tmp_path)) == {"topics/test-en.tsv": SHA_OF_ABC}
    stamp = path.stat().st_mtime_ns
    path.write_text("abd")
    os.utime(path, ns=(stamp, stamp))
    assert path.stat().st_size == 3 and path.stat().st_mtime_ns == stamp
    assert hash_files([str(path)])[str(path)] != SHA_OF_ABC


@pytest.mark.parametrize(
    "names, read",
    [
        (["b.txt", "below/a.txt"], ["b.txt", "below/a.txt"]),
        (["manifest.json", "train/en/tokens.tfrecord"], ["manifest.json"]),
        (
            ["checkpoint", "model.ckpt-3.index", "best/model.ckpt-2.index", "job.log"],
            ["model.ckpt-3.index", "best/model.ckpt-2.index"],
        ),
        ([], []),
    ],
)
def test_a_folder_is_known_by_what_has_checksums_of_the_rest(tmp_path, names, read):
    folder = tmp_path / "a[1]"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("abc")
    result = hash_files([str(folder)], str(folder))
    assert result == dict.fromkeys(read, SHA_OF_ABC)


def test_a_path_of_nothing_has_no_hash(tmp_path):
    assert hash_files([str(tmp_path / "none")]) == {}


@pytest.mark.parametrize(
    "changed, words",
    [
        ({}, []),
        ({"checkpoint": "c2"}, ["the checkpoint is another one"]),
        (
            {"files": {"dev-en.tsv": "d1", "test-en.tsv": "t2"}},
            ["test-en.tsv has changed"],
        ),
        (
            {"files": {"dev-sw.tsv": "d1", "test-en.tsv": "t1"}},
            ["dev-en.tsv is gone", "dev-sw.tsv is new"],
        ),
        (
            {"settings": {"answers": {"n_best": 5}, "seed": 3}},
            ["answers.n_best was 20, is 5"],
        ),
        ({"settings": {"answers": {"n_best": 20}, "seed": 3, "x": (1, 2)}},
         ["x was None, is [1, 2]"]),
    ],
)  # fmt: skip
def test_what_has_changed_is_said_in_words(changed, words):
    assert changes(MADE, MADE | changed) == words


def test_what_earlier_versions_did_not_record_agrees_with_anything():
    narrow, wide = ({"MeshConfig.slice_dtype": x} for x in ("bfloat16", "float32"))
    now = MADE | {"settings": MADE["settings"] | narrow}
    assert changes(MADE, now) == []
    saved = MADE | {"settings": MADE["settings"] | wide}
    assert changes(saved, now) == [
        "MeshConfig.slice_dtype was 'float32', is 'bfloat16'"
    ]


@pytest.mark.parametrize("saved", [None, 3, {}, {"files": []}])
def test_results_that_name_no_files_are_of_unknown_files(saved):
    assert changes(saved, MADE) == ["it does not say from which files it was computed"]


def test_tuples_are_lists_in_a_file():
    saved = json.loads(json.dumps({"files": {}, "settings": {"x": (1, 2)}}))
    assert changes(saved, {"files": {}, "settings": {"x": (1, 2)}}) == []


def test_many_changes_are_counted():
    message = in_words([f"{name} has changed" for name in "abcdefg"])
    assert message == (
        "a has changed, b has changed, c has changed, d has changed, e has changed and "
        "2 more changes"
    )


def test_results_are_read_if_they_are_of_the_same(tmp_path, capsys):
    path = tmp_path / "eval.json"
    assert read_results(str(path), MADE) is None
    assert capsys.readouterr().out == ""
    path.write_text(json.dumps({"all": 1, "made_from": MADE}))
    assert read_results(str(path), MADE) == {"all": 1, "made_from": MADE}
    assert capsys.readouterr().out == ""
    assert read_results(str(path), MADE | {"checkpoint": "c2"}) is None
    assert capsys.readouterr().out == ""
    assert read_results(str(path), MADE | {"checkpoint": "c2", "files": {}}) is None
    assert capsys.readouterr().out.startswith(
        f"{path}: evaluated again: the checkpoint is another one, "
    )
