"""Files become a corpus: the same whoever makes it, resumable, nothing half-written."""

import dataclasses
import errno
import hashlib
import importlib.metadata
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import unicodedata

import pytest
import sentencepiece

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer, from_files, sources, text_units
from decoupled.corpora.build import build
from decoupled.corpora.corpus import SPLITS, Corpus
from decoupled.corpora.input_files import find_inputs
from decoupled.corpora.runners import Runner
from tests.corpora import dumps
from tests.corpora.builds import edit_json, killed_at, tree
from tests.corpora.dumps import dump_xml, page
from tests.corpora.no_beam import run_without_beam
from tests.processes import wait_until

SETTINGS = CorpusSettings(eval_share=0.2, min_characters=5, part_bytes=500, max_parts=3)
ROOT = pathlib.Path(__file__).parent.parent.parent
TOWN = (
    "{{{{Infobox town}}}}\n'''{0}''' is a [[town|small town]] on the Elbe. It has {1} "
    "bridges, and a market on Mondays.\n\n== References ==\nNone."
)


@pytest.fixture
def inputs(tmp_path):
    """Two dumps, JSON lines and plain text in three languages."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        titles = [f"Town {number} {letter}" for letter in "abcdefghijkl"]
        pages = [page(t, TOWN.format(t, n)) for n, t in enumerate(titles, start=1)]
        dumps.write(folder / f"enwiki-{number}.xml.bz2", dump_xml(pages))
    lines = (json.dumps({"text": f"Ein Satz. Satz {i} ist da."}) for i in range(40))
    (folder / "de.jsonl").write_text("\n".join(lines))
    (folder / "sw.txt").write_text("\n\n".join(f"Neno la {i}." for i in range(30)))
    return [f"en={folder}/en*.bz2,de={folder}/de.jsonl", f"sw={folder}/sw.txt"]


def make(inputs, folder, workers=1, settings=SETTINGS):
    runner = Runner(workers=workers)
    build(None, inputs, str(folder), settings, runner=runner)
    return Corpus(str(folder))


def all_documents(corpus, language):
    return [
        document
        for split in ("train", "eval")
        if language in corpus.languages(split)
        for document in corpus.documents(split, language)
    ]


def test_inputs_are_globs_by_language(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    result = find_inputs([f"zh-Hans={tmp_path}/c.jsonl", f"en={tmp_path}/*.txt"])
    assert result == {
        "en": [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"],
        "zh-Hans": [f"{tmp_path}/c.jsonl"],
    }


@pytest.mark.parametrize(
    "value, message",
    [
        *(
            (value, "not of the form LANGUAGE=GLOB")
            for value in ("en", "=a.txt", "en=")
        ),
        *(
            (f"{language}=a.txt", "--input: .* is no language code")
            for language in ("../x", "e n", "/en", "en\n")
        ),
        ("en={folder}/*.none", "no file matches"),
        ("en={folder}/a.txt,en={folder}/a*", "is given twice"),
        ("fr={folder}/caf*.txt", r"the name of .*caf.*\.txt' is not UTF-8"),
    ],
)
def test_an_input_that_cannot_be_is_refused(tmp_path, value, message):
    for name in ("a.txt", os.fsdecode(b"caf\xe9.txt")):
        (tmp_path / name).write_text("One.\n")
    with pytest.raises(UserError, match=message):
        find_inputs([value.format(folder=tmp_path)])


def test_a_name_with_signs_of_a_pattern_is_a_name(tmp_path):
    for name in ("dump 1.txt", "dump [1].txt"):
        (tmp_path / name).write_text("x")
        path = f"{tmp_path}/{name}"
        assert find_inputs([f"en={path}"]) == {"en": [path]}
    assert len(find_inputs([f"en={tmp_path}/dump*[1]*.txt"])["en"]) == 2


def test_codes_of_all_kinds_separate_inputs(tmp_path):
    (tmp_path / "a,b.txt").write_text("x")
    codes = ["be-tarask", "sr@latin", "zh-Hant", "zh_TW"]
    inputs = find_inputs([",".join(f"{code}={tmp_path}/a,b.txt" for code in codes)])
    assert list(inputs) == codes


def test_a_pipe_and_an_archive_are_refused_before_anything_is_written(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    with tarfile.open(tmp_path / "b.txt", "w") as archive:
        archive.add(__file__)
    for name, message in (("a.txt", "a pipe or a device"), ("b.txt", "a tar archive")):
        with pytest.raises(UserError, match=f"{name}: {message}"):
            make([f"en={tmp_path}/{name}"], tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_dumps_json_and_text_give_one_corpus(inputs, tmp_path):
    corpus = make(inputs, tmp_path / "c")
    assert corpus.languages("train") == ["de", "en", "sw"]
    english = all_documents(corpus, "en")
    assert len(english) == 24
    assert [
        "Town 1 c is a small town on the Elbe.",
        "It has 3 bridges, and a market on Mondays.",
    ] in english
    german = all_documents(corpus, "de")
    assert ["Ein Satz.", "Satz 7 ist da."] in german and len(german) == 40
    # Nothing but the corpus is left.
    assert {name.split("/")[0] for name in tree(tmp_path / "c")} == {
        "manifest.json",
        "text",
    }


def test_the_manifest_says_what_was_read_and_what_was_dropped(inputs, tmp_path):
    (tmp_path / "in/sw.txt").write_text("Habari.\n\nNdiyo.\n\nHabari.\n")
    manifest = make(inputs, tmp_path / "c").manifest
    for split, languages in manifest["splits"].items():
        for language, counts in languages.items():
            written = [
                (tmp_path / "c" / e["name"]).read_text() for e in counts["files"]
            ]
            lines = [line for text in written for line in text.split("\n") if line]
            assert counts["sentences"] == len(lines), (split, language)
            assert counts["characters"] == sum(map(len, lines))
            assert counts["bytes"] == sum(len(text.encode()) for text in written)
    path = tmp_path / "in/sw.txt"
    assert manifest["languages"]["sw"] == {
        "inputs": [
            {
                "path": "sw.txt",
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "size": path.stat().st_size,
            }
        ],
        "dropped": {from_files.DUPLICATE: 1},
    }
    assert manifest["dropped"][from_files.DUPLICATE] == 1


def test_several_processes_make_the_same_and_need_no_beam(inputs, tmp_path):
    # With equal documents, which further units leave out.
    (tmp_path / "in/de2.jsonl").write_text(
        f"{(tmp_path / 'in/de.jsonl').read_text()}\n" * 2
    )
    inputs = [*inputs, f"de={tmp_path}/in/de2.jsonl"]
    program = (
        "import sys\n"
        "from tests.corpora.test_from_files import make\n"
        "make(sys.argv[2:], sys.argv[1], workers=2)\n"
    )
    run_without_beam(program, tmp_path / "blocked", tmp_path / "two", *inputs)
    make(inputs, tmp_path / "one")
    assert len(tree(tmp_path / "one")) > 5
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def other_spelling(number, text):
    """Another text that nmt_nfkc makes equal to this one."""
    return (
        unicodedata.normalize("NFD", text),
        text.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}),
        text.replace("fi", "\ufb01").replace(" ", "\u00a0"),
        text.replace("fi", "\u200efi").replace(" ", "\u200b "),
    )[number % 4]


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_documents_that_a_vocabulary_makes_equal_are_equal(tmp_path, drop_duplicates):
    texts = [f"Été {n} à Paris.\nIl a fini {n} cafés." for n in range(60)]
    others = [other_spelling(number, text) for number, text in enumerate(texts)]
    assert not set(texts) & set(others)
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in others)
    )
    settings = with_share(0.3, drop_duplicates=drop_duplicates, split_json=False)
    inputs = [f"fr={tmp_path}/*.*"]
    corpus = make(inputs, tmp_path / "c", settings=settings)
    vocabulary = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    result = [
        [
            tuple(vocabulary.normalize(line) for line in document)
            for document in corpus.documents(split, "fr")
        ]
        for split in ("train", "eval")
    ]
    assert result[0] and result[1] and not set(result[0]) & set(result[1])
    if drop_duplicates:
        assert sum(map(len, result)) == 60 == len({*result[0], *result[1]})
        assert corpus.manifest["dropped"] == {from_files.DUPLICATE: 60}
        kept = all_documents(corpus, "fr")
        assert sorted(map("\n".join, kept)) == sorted(texts)


@pytest.mark.parametrize(
    "texts, kept",
    [
        # That differ in case alone.
        ({"en": ["One.", "one.", "Two.", "TWO."]}, 4),
        # In two languages.
        ({"en": ["OK.", "Two.", "A.a.a."], "de": ["OK.", "Zwei.", "A.a.a."]}, 3),
    ],
)
def test_documents_that_are_not_the_same_stay(tmp_path, texts, kept):
    for language, documents in texts.items():
        (tmp_path / f"{language}.txt").write_text("\n\n".join(documents))
    inputs = [f"{language}={tmp_path}/{language}.txt" for language in texts]
    settings = dataclasses.replace(SETTINGS, min_characters=3)
    corpus = make(inputs, tmp_path / "c", settings=settings)
    assert all(len(all_documents(corpus, language)) == kept for language in texts)


def write_texts(path, numbers):
    path.write_text("\n\n".join(f"Document {number}." for number in numbers))


def with_share(share, **changes):
    return dataclasses.replace(SETTINGS, eval_share=share, **changes)


@pytest.mark.parametrize("drop_duplicates", [True, False])
def test_a_language_has_a_held_out_document(tmp_path, drop_duplicates):
    """Otherwise nothing of 97 documents is held out, with a share of 1%."""
    for name, first in (("a", 0), ("b", 10)):
        write_texts(tmp_path / f"{name}.txt", [*range(first, first + 10), 3])
    settings = with_share(1e-9, drop_duplicates=drop_duplicates)
    result = make([f"en={tmp_path}/*.txt"], tmp_path / "c", settings=settings)
    train, held_out = (list(result.documents(s, "en")) for s in ("train", "eval"))
    chosen = min(([f"Document {n}."] for n in range(20)), key=text_units.digest)
    assert set(map(tuple, held_out)) == {tuple(chosen)}
    assert chosen not in train
    assert len(train) + len(held_out) == (20 if drop_duplicates else 22)
    # What stays is in the order of the files.
    order = [int(document[0][9:-1]) for document in train]
    if drop_duplicates:
        assert order == sorted(order)
    # It is the first that a larger share holds out.
    share = (text_units.digest(chosen) + 1) / 2**64
    larger = make([f"en={tmp_path}/*.txt"], tmp_path / "l", settings=with_share(share))
    assert chosen in list(larger.documents("eval", "en"))


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3]])
def test_a_language_has_a_document_to_train_on(tmp_path, capsys, numbers):
    """Also where the hashes of all documents would hold them out."""
    write_texts(tmp_path / "sw.txt", numbers)
    write_texts(tmp_path / "en.txt", range(40))
    inputs = [f"sw={tmp_path}/sw.txt", f"en={tmp_path}/en.txt"]
    digests = [text_units.digest([f"Document {n}."]) for n in numbers]
    share = (max(digests) + 2**40) / 2**64
    result = make(inputs, tmp_path / "c", settings=with_share(share))
    counts = [result.counts(split, "documents").get("sw", 0) for split in SPLITS]
    assert counts == [1, len(numbers) - 1]
    assert "no held-out text in sw" in capsys.readouterr().out or len(numbers) > 1


@pytest.mark.parametrize(
    "share, numbers, message",
    [
        (0.2, {"a": [1], "b": range(40)}, "no held-out text in sw; pretrain"),
        (0.2, {"a": range(40), "b": range(40)}, None),
        (0.0, {"a": range(40), "b": range(40)}, "no held-out text in en, sw; pretrain"),
    ],
)
def test_languages_without_held_out_text_are_reported(
    tmp_path, capsys, share, numbers, message
):
    for name, own in numbers.items():
        write_texts(tmp_path / f"{name}.txt", own)
    inputs = [f"sw={tmp_path}/a.txt,en={tmp_path}/b.txt"]
    make(inputs, tmp_path / "c", settings=with_share(share))
    printed = capsys.readouterr().out
    assert printed.count("warning: ") == (message is not None)
    assert message is None or message in printed


def test_an_empty_line_after_each_page_gives_held_out_text(tmp_path, capsys):
    """As the warning says, two documents are enough with any share but 0."""
    (tmp_path / "a.txt").write_text("One page.\nTwo pages.\n")
    settings = with_share(1e-9)
    make([f"en={tmp_path}/a.txt"], tmp_path / "a", settings=settings)
    command = "sed G FILE > NEW_FILE"
    assert command in capsys.readouterr().out
    command = command.replace("NEW_FILE", "b.txt").replace("FILE", "a.txt")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    corpus = make([f"en={tmp_path}/b.txt"], tmp_path / "b", settings=settings)
    assert "no held-out text" not in capsys.readouterr().out
    assert [corpus.counts(x, "documents") for x in SPLITS] == [{"en": 1}, {"en": 1}]


@pytest.mark.parametrize(
    "share, documents, message",
    [
        (0.01, 10, "held out: 10% of en, though build_corpus.eval_share is 0.01; more"),
        (0.03, 10, None),
        (0.001, 30, None),
    ],
)
def test_far_more_held_out_text_than_the_share_is_reported(
    tmp_path, capsys, share, documents, message
):
    write_texts(tmp_path / "a.txt", range(documents))
    inputs = [f"en={tmp_path}/a.txt"]
    result = make(inputs, tmp_path / "c", settings=with_share(share))
    assert result.counts("eval", "documents") == {"en": 1}
    printed = capsys.readouterr().out
    assert printed.count("held out: ") == (message is not None)
    assert message is None or message in printed


def test_a_file_given_under_two_names_is_read_once(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("One.\n\nTwo.\n\nThree.\n\nFour.")
    corpus = make([f"en={tmp_path}/*.txt"], tmp_path / "c")
    assert len(all_documents(corpus, "en")) == 4
    assert corpus.manifest["dropped"] == {from_files.REPEATED_FILE: 1}
    assert f"{tmp_path}/b.txt: a copy of another file of en" in capsys.readouterr().out


def record_units(monkeypatch):
    """The units that are read from now on."""
    read = []
    read_unit = text_units.read_unit
    monkeypatch.setattr(
        text_units,
        "read_unit",
        lambda unit, *rest: read.append(unit) or read_unit(unit, *rest),
    )
    return read


@pytest.fixture
def mixed(tmp_path):
    """JSON lines in two languages; the settings that tell them apart but for one."""
    values = ["deu", "deu", "sw", None] * 20
    rows = ({"text": f"Row {n} is here.", "lang": v} for n, v in enumerate(values))
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"de={tmp_path}/mixed.jsonl,sw={tmp_path}/mixed.jsonl"


def test_a_file_that_mixes_languages_gives_each_its_rows(mixed, tmp_path):
    settings = with_share(
        0.2, language_column="lang", language_values={"de": "deu"}, part_bytes=1000
    )
    corpus = make([mixed], tmp_path / "c", settings=settings)
    for language, rows in (("de", (0, 1)), ("sw", (2,))):
        texts = sorted([f"Row {n} is here."] for n in range(80) if n % 4 in rows)
        assert sorted(all_documents(corpus, language)) == texts
    assert corpus.manifest["languages"]["sw"]["dropped"] == {
        sources.NO_LANGUAGE: 20,
        sources.OTHER_LANGUAGE: 40,
    }


def test_text_without_columns_is_no_file_of_several_languages(mixed, tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    settings = with_share(0.2, language_column="lang")
    both = f"de={tmp_path}/a.txt,sw={tmp_path}/a.txt"
    for inputs, message in (
        ([both], "no --input is a table or JSON lines; leave it out"),
        ([both, mixed], r"a.txt: is given for de and sw, but has no columns \(build_"),
    ):
        with pytest.raises(UserError, match=message):
            make(inputs, tmp_path / "c", settings=settings)
    assert not (tmp_path / "c").exists()


def test_a_language_without_rows_is_reported_and_only_its_own_are_read_again(
    mixed, tmp_path, monkeypatch
):
    read = record_units(monkeypatch)
    wrong = with_share(0.2, language_column="lang", part_bytes=1 << 20)
    message = (
        r"^--input=de=: no text in (\S*mixed\.jsonl) with 'de' in column 'lang', "
        r"which has others there \(build_corpus\.language_values\)$"
    )
    with pytest.raises(UserError, match=message):
        make([mixed], tmp_path / "c", settings=wrong)
    assert [unit.language for unit in read] == ["de", "sw"]
    right = dataclasses.replace(wrong, language_values={"de": "deu"})
    corpus = make([mixed], tmp_path / "c", settings=right)
    assert [unit.language for unit in read] == ["de", "sw", "de"]
    assert len(all_documents(corpus, "de")) == 40


def test_a_truncated_dump_is_reported_and_the_rest_is_not_read_again(
    inputs, tmp_path, monkeypatch
):
    make(inputs, tmp_path / "whole")
    path = tmp_path / "in/enwiki-1.xml.bz2"
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(UserError, match=r"enwiki-1\.xml\.bz2: .* at byte \d+"):
        make(inputs, tmp_path / "c")
    with pytest.raises(UserError, match="no corpus here"):
        Corpus(str(tmp_path / "c"))
    path.write_bytes(content)
    read = record_units(monkeypatch)
    make(inputs, tmp_path / "c")
    assert {unit.path for unit in read} == {str(path)}
    assert tree(tmp_path / "c") == tree(tmp_path / "whole")


def test_a_full_disk_is_reported_and_leaves_nothing_that_looks_complete(
    inputs, tmp_path, monkeypatch
):
    make(inputs, tmp_path / "whole")
    shards = corpus_writer.TextShards
    room = [3]

    class Full(shards):
        def write(self, document):
            room[0] -= 1
            if room[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(document)

    monkeypatch.setattr(corpus_writer, "TextShards", Full)
    with pytest.raises(UserError, match="cannot write .*No space left on device"):
        make(inputs, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    room[0] = 45
    with pytest.raises(UserError, match="No space left"):
        make(inputs, tmp_path / "c")
    left = tree(tmp_path / "c")
    assert "manifest.json" not in left
    assert not any(".tmp-" in name for name in left)
    monkeypatch.setattr(corpus_writer, "TextShards", shards)
    make(inputs, tmp_path / "c")
    assert tree(tmp_path / "c") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "module, at",
    [
        (from_files, "find_duplicates"),
        (from_files, "unique_unit"),
        (from_files, "_check_text"),
        (corpus_writer, "clean_up"),
    ],
)
def test_what_a_later_step_left_is_used(inputs, tmp_path, monkeypatch, module, at):
    (tmp_path / "in/sw.txt").write_text("Habari.\n\nNdiyo.\n\nSawa.\n\nHabari.\n")
    make(inputs, tmp_path / "whole")

    with killed_at(module, at):
        make(inputs, tmp_path / "c")
    read = record_units(monkeypatch)
    assert make(inputs, tmp_path / "c").languages("train") == ["de", "en", "sw"]
    assert not read and tree(tmp_path / "c") == tree(tmp_path / "whole")


def with_version(monkeypatch, package, version):
    versions = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: version if name == package else versions(name),
    )


@pytest.mark.parametrize("package", ["sentencex", "mwparserfromhell"])
def test_another_version_of_a_library_begins_anew_and_says_so(
    inputs, tmp_path, monkeypatch, capsys, package
):
    with killed_at(from_files, "find_duplicates"):
        make(inputs, tmp_path / "c")
    with_version(monkeypatch, package, "0.0.1")
    read = record_units(monkeypatch)
    capsys.readouterr()
    corpus = make(inputs, tmp_path / "c")
    message = f"begun with other inputs (libraries.{package}: "
    assert capsys.readouterr().out.count(message) == 1
    # Plain text with a sentence a line needs no library.
    assert {unit.language for unit in read} == (
        {"de", "en"} if package == "sentencex" else {"en"}
    )
    assert corpus.manifest["inputs"]["libraries"][package] == "0.0.1"


def test_a_finished_corpus_that_names_no_versions_is_reused(inputs, tmp_path, capsys):
    make(inputs, tmp_path / "c")
    edit_json(tmp_path / "c/manifest.json", lambda m: m["inputs"].pop("libraries"))
    before = tree(tmp_path / "c")
    make(inputs, tmp_path / "c")
    assert "complete already, reused" in capsys.readouterr().out
    assert tree(tmp_path / "c") == before


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on(tmp_path):
    lines = (json.dumps({"text": f"This is text {i}. " * 20}) for i in range(60_000))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-m",
        "decoupled",
        "build_corpus",
        f"--input=en={tmp_path}/a.jsonl",
        "--workers=2",
        "--gin_param=build_corpus.part_bytes = 4000000",
        "--gin_param=build_corpus.max_parts = 6",
    ]
    whole, folder = tmp_path / "whole", tmp_path / "c"
    subprocess.run([*command, f"--output_dir={whole}"], check=True, cwd=ROOT)
    command.append(f"--output_dir={folder}")
    process = subprocess.Popen(command, cwd=ROOT)
    wait_until(lambda: len(list(folder.glob("work/*.done.json"))) >= 2, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "manifest.json").exists()
    again = subprocess.run(
        command, check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "done before" in again.stdout
    for name in ("command.1", "config.1.gin"):
        os.remove(whole / name)
        os.remove(folder / name)
    assert tree(folder) == tree(whole)
