"""The corpus folder: complete or absent, and exactly what was written."""

import re

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.corpus import (
    SPLITS,
    Corpus,
    find_corpus,
    no_held_out_warning,
    read_documents,
)
from decoupled.corpora.corpus_writer import building, write_corpus
from tests.corpora.builds import edit_json, tree

ENGLISH = [("train", ["One.", "Two."]), ("eval", ["Held out."]), ("train", ["Three."])]
THAI = [("train", ["สาม"])]
CORPUS_FILES = [
    "manifest.json",
    "tasks/catalogs/labels.txt",
    "text/eval/en/text-00000-of-00001.txt",
    "text/train/en/text-00000-of-00001.txt",
    "text/train/th/text-00000-of-00001.txt",
]


def write(folder, languages=(("en", ENGLISH), ("th", THAI)), inputs=None):
    return write_corpus(
        str(folder),
        source="a test",
        inputs=inputs or {"files": {"en": "abc"}},
        languages=languages,
        dropped={"too short": 2},
        contents={"tasks/catalogs/labels.txt": "a\nb\n"},
        tasks={"catalogs": {"labels": ["a", "b"]}},
    )


def test_what_is_written_is_read_and_is_in_the_manifest(tmp_path):
    corpus = write(tmp_path)
    assert corpus.languages("train") == ["en", "th"]
    assert corpus.languages("eval") == ["en"]
    assert corpus.counts("train") == {"en": 3, "th": 1}
    assert corpus.counts("train", "documents") == {"en": 2, "th": 1}
    assert list(corpus.documents("train", "en")) == [["One.", "Two."], ["Three."]]
    assert list(corpus.sentences("train", "th")) == ["สาม"]
    assert list(corpus.documents("eval", "en")) == [["Held out."]]
    assert list(tree(tmp_path)) == CORPUS_FILES
    text = (tmp_path / "text/train/en/text-00000-of-00001.txt").read_text()
    assert text == "One.\nTwo.\n\nThree.\n"
    assert corpus.manifest["format"] == "decoupled-corpus-1"
    assert corpus.manifest["dropped"] == {"too short": 2}
    digest = "0f2a2624f70c0573b4f2abe5c4ff2309032a55259c962ccb2d4d93a50b87a7a8"
    name = "text/train/th/text-00000-of-00001.txt"
    assert corpus.manifest["splits"]["train"]["th"] == {
        "files": [{"name": name, "sha256": digest, "bytes": 10}],
        **{"documents": 1, "sentences": 1, "characters": 3, "bytes": 10},
    }


def test_large_text_is_spread_over_files(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_writer, "MAX_FILE_BYTES", 8)
    corpus = write(tmp_path)
    assert list(tree(tmp_path / "text/train/en")) == [
        "text-00000-of-00002.txt",
        "text-00001-of-00002.txt",
    ]
    assert list(corpus.documents("train", "en")) == [["One.", "Two."], ["Three."]]


def test_the_same_text_has_the_same_fingerprint(tmp_path):
    one, again = write(tmp_path / "1"), write(tmp_path / "2")
    other = write(tmp_path / "3", languages=[("en", ENGLISH)])
    assert one.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_leaves_nothing(tmp_path, exists):
    def broken():
        yield from ENGLISH
        raise UserError("a.txt:3: not UTF-8")

    folder = tmp_path / "c"
    if exists:
        folder.mkdir()
    with pytest.raises(UserError, match="a.txt:3"), building(str(folder), {}):
        write(folder, languages=[("th", THAI), ("en", broken())])
    assert tree(tmp_path) == {}
    assert folder.exists() == exists


def test_no_text_is_no_corpus(tmp_path):
    with pytest.raises(UserError, match="no text for training"):
        write(tmp_path / "c", languages=[("en", [("eval", ["One."])])])
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    "left", ["building.txt", "building.txt.tmp-01234567", "text/train/xx/text.tmp-01"]
)
def test_what_a_killed_run_left_is_cleared(tmp_path, left):
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("half")
    if "/" in left:
        (tmp_path / "building.txt").write_text("")
    assert find_corpus(str(tmp_path), {}) is None
    with building(str(tmp_path), {}):
        write(tmp_path)
    assert list(tree(tmp_path)) == CORPUS_FILES


def test_somebody_elses_files_are_not_touched(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text/thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="neither empty nor a corpus"):
        find_corpus(str(tmp_path), {})
    assert list(tree(tmp_path)) == ["text/thesis.txt"]


@pytest.mark.parametrize(
    "manifest, message",
    [
        (None, "no corpus here.*decoupled build_corpus"),
        (
            '{"format": "decoupled-corpus-1", "splits": {"train": {}, "eval": {}}}',
            "corpus is empty.*decoupled build_corpus",
        ),
        ('{"format": "decoupled-records-1"}', "not the manifest of a corpus"),
    ],
)
def test_what_is_no_corpus_is_reported_with_the_command(tmp_path, manifest, message):
    if manifest:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match=message):
        Corpus(str(tmp_path))


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda splits: splits["train"]["en"]["files"][0].update(name="../secret"),
            "'../secret' is not the name of a file below",
        ),
        (
            lambda splits: splits["eval"]["en"]["files"][0].update(name="/etc/passwd"),
            "'/etc/passwd' is not the name",
        ),
        (
            lambda splits: splits["train"].update({"../..": splits["train"]["en"]}),
            r"'\.\./\.\.' is no language code",
        ),
        (lambda splits: splits.update({"..": {}}), r"damaged .*no split '\.\.'"),
        (lambda splits: splits["train"]["en"].pop("files"), "damaged .*files"),
        (lambda splits: splits["eval"]["en"].update(files={}), "files are no list"),
        (lambda splits: splits.update(train=[]), "damaged"),
        (lambda splits: splits["train"].update(en=None), "damaged"),
        (lambda splits: splits["train"]["en"].update(sentences="many"), "'many' sent"),
        (
            lambda splits: splits["eval"]["en"]["files"][0].pop("sha256"),
            "damaged .*sha256",
        ),
    ],
)
def test_a_hostile_manifest_is_refused_in_one_line(tmp_path, change, message):
    write(tmp_path / "c")
    (tmp_path / "secret").write_text("mine")
    edit_json(tmp_path / "c/manifest.json", lambda m: change(m["splits"]))
    with pytest.raises(UserError, match=message) as caught:
        Corpus(str(tmp_path / "c"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["inputs", "dropped", "tasks"])
def test_a_manifest_of_another_form_is_refused_in_one_line(tmp_path, name):
    write(tmp_path)
    edit_json(tmp_path / "manifest.json", lambda manifest: manifest.update({name: 7}))
    with pytest.raises(UserError, match=f"damaged .*{name} are no object"):
        find_corpus(str(tmp_path), {})


@pytest.mark.parametrize(
    "source, advice",
    [
        ("text", r"two different documents give some, .* with sed G FILE > NEW_FILE"),
        ("aligned", "more documents, or a larger share to hold out, would give some"),
    ],
)
def test_what_helps_without_held_out_text_depends_on_the_source(
    tmp_path, source, advice
):
    corpus = write(tmp_path, inputs={"source": source})
    warning = no_held_out_warning(corpus, *map(corpus.languages, SPLITS))
    expected = f"no held-out text in th; pretrain cannot evaluate there [(]{advice}[)]"
    assert re.fullmatch(f"warning: {expected}", warning)


def test_documents_are_never_read_from_elsewhere(tmp_path):
    (tmp_path / "secret").write_text("mine")
    entries = [{"name": "../secret", "sha256": ""}]
    with pytest.raises(UserError, match="'../secret' is not the name of a file below"):
        list(read_documents(str(tmp_path / "c"), entries))


def test_a_missing_or_shorter_file_is_named(tmp_path):
    """A build would refuse the folder again, so that it has to be removed."""
    write(tmp_path)
    advice = f"; restore it, or remove {tmp_path} and build the corpus again"
    path = tmp_path / "text/train/en/text-00000-of-00001.txt"
    path.write_text("One.\n")
    sizes = r"train/en/text-.*: 5 bytes, 18 in manifest\.json"
    with pytest.raises(UserError, match=f"{sizes}{advice}"):
        Corpus(str(tmp_path))
    path.unlink()
    with pytest.raises(UserError, match=f"train/en/text-.*cannot read.*{advice}"):
        Corpus(str(tmp_path))


def test_a_changed_file_is_named(tmp_path):
    corpus = write(tmp_path)
    path = tmp_path / "text/train/en/text-00000-of-00001.txt"
    path.write_text(path.read_text().replace("One", "Won"))
    # A build would reuse the folder: it looks at the sizes alone.
    message = rf"text-00000-of-00001\.txt: changed since .* or remove {tmp_path} and"
    with pytest.raises(UserError, match=message):
        list(corpus.documents("train", "en"))


def test_a_file_that_cannot_be_read_later_is_named(tmp_path):
    """A unit takes other errors of files for those of what it writes."""
    corpus = write(tmp_path)
    path = tmp_path / "text/train/en/text-00000-of-00001.txt"
    path.unlink()
    with pytest.raises(UserError, match=f"{path}: cannot read [(]No such file"):
        list(corpus.documents("train", "en"))
