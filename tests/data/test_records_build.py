"""Building records: every document in its shard, resumable, nothing half-written."""

import dataclasses
import json
import os
import shutil

import pytest
from scipy import stats

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.corpora import corpus_writer, runners
from decoupled.corpora.corpus import Corpus
from decoupled.data import records, records_build
from decoupled.data.records_build import build_records
from decoupled.data.vocabulary import SentencePiece, open_vocabulary
from tests.corpora.builds import killed_at, tree
from tests.corpora.no_beam import run_without_beam
from tests.data.small_corpus import make_corpus, make_vocabulary


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with `corpus/` and `vocabulary.model`."""
    folder = tmp_path_factory.mktemp("source")
    make_corpus(folder / "corpus")
    make_vocabulary(folder / "vocabulary.model")
    return folder


def build(source, output, tokens_per_shard=300):
    return build_records(
        str(source / "corpus"),
        str(source / "vocabulary.model"),
        str(output),
        tokens_per_shard,
    )


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The folder of a build that nothing disturbed."""
    output = tmp_path_factory.mktemp("whole") / "records"
    build(source, output)
    return output


@pytest.fixture
def complete(whole, tmp_path):
    """A copy of it, to change."""
    return shutil.copytree(whole, tmp_path / "records")


def stored(manifest, split, language):
    """All documents of a language, as they lie in the files."""
    results = []
    for shard in manifest.language(split, language).files:
        for line in tf.data.TFRecordDataset(manifest.path(shard)):
            example = tf.train.Example.FromString(line.numpy())
            results.append(list(example.features.feature["ids"].int64_list.value))
    return results


def expected(source, split, language):
    vocabulary = open_vocabulary(str(source / "vocabulary.model"))
    return [
        [token for sentence in document for token in vocabulary.encode(sentence)]
        for document in Corpus(str(source / "corpus")).documents(split, language)
    ]


def test_records_are_the_documents_of_the_corpus(source, tmp_path, capsys):
    manifest = build(source, tmp_path / "records")
    for split, language, documents in (
        ("train", "en", 60),
        ("train", "sw", 8),
        ("eval", "en", 5),
    ):
        results = stored(manifest, split, language)
        # Documents of several shards are mixed.
        assert sorted(results) == sorted(expected(source, split, language))
        assert len(results) == manifest.language(split, language).records == documents
    assert list(manifest.splits["eval"]) == ["en"]
    shards = manifest.language("train", "en").files
    assert len(shards) > 2 and all(shard.tokens <= 300 for shard in shards)
    corpus = Corpus(str(source / "corpus"))
    counts = {name: e.sentences for name, e in manifest.splits["train"].items()}
    assert counts == corpus.counts("train")
    assert manifest.corpus_fingerprint == corpus.fingerprint
    names = tree(tmp_path / "records")
    assert not any("work" in name or "part-" in name for name in names)
    printed = capsys.readouterr().out
    assert "Records in" in printed
    problem = "warning: no held-out text in sw; pretrain cannot evaluate there"
    assert printed.count(problem) == 1


def test_a_long_document_becomes_several_records(source, tmp_path):
    manifest = build(source, tmp_path / "records", tokens_per_shard=20)
    results = stored(manifest, "train", "sw")
    assert all(len(ids) <= 20 for ids in results) and len(results) > 8
    pieces = [
        ids[start : start + 20]
        for ids in expected(source, "train", "sw")
        for start in range(0, len(ids), 20)
    ]
    assert sorted(results) == sorted(pieces)
    corpus = Corpus(str(source / "corpus"))
    sentences = manifest.language("train", "sw").sentences
    assert sentences == corpus.counts("train")["sw"]


@pytest.fixture(scope="module")
def two_sources(tmp_path_factory):
    """As `source`; the files of its English text have one word each."""
    documents = [
        (split, [" ".join([word] * 10)])
        for split in ("train", "eval")
        for word in ["text"] * 300 + ["kept"] * 300
    ]
    folder, languages = tmp_path_factory.mktemp("two"), [("en", documents)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_writer, "MAX_FILE_BYTES", 300 * 31)
        corpus = corpus_writer.write_corpus(
            str(folder / "corpus"), "", {}, languages, {}, {}, {}
        )
    make_vocabulary(folder / "vocabulary.model")
    assert len(corpus.manifest["splits"]["train"]["en"]["files"]) > 1
    return folder


@pytest.fixture(scope="module")
def mixed(two_sources, tmp_path_factory):
    """The folder of a build of them that nothing disturbed."""
    output = tmp_path_factory.mktemp("mixed") / "records"
    build(two_sources, output, tokens_per_shard=2000)
    return output


@pytest.mark.parametrize("split", ["train", "eval"])
def test_each_shard_has_the_documents_of_all_files(mixed, split):
    manifest = records.read_manifest(str(mixed))
    entry = manifest.language(split, "en")
    words = {tuple(ids) for ids in stored(manifest, split, "en")}
    assert len(entry.files) > 2 and len(words) == 2 and entry.records == 600
    for shard in entry.files[:-1]:
        only = dataclasses.replace(entry, files=(shard,))
        lone = dataclasses.replace(manifest, splits={split: {"en": only}})
        results = stored(lone, split, "en")
        counts = [sum(tuple(ids) == word for ids in results) for word in words]
        # A binomial test: a fair sample is outside with a probability below 1e-6.
        assert stats.binomtest(counts[0], sum(counts)).pvalue > 1e-6
        assert shard.tokens <= 2000 and sum(counts) == shard.records


def test_small_files_of_a_language_become_one_shard(two_sources, tmp_path):
    manifest = build(two_sources, tmp_path / "records", tokens_per_shard=10**6)
    (shard,) = manifest.language("train", "en").files
    assert (shard.records, shard.name) == (
        600,
        "train/en/tokens-00000-of-00001.tfrecord",
    )


def test_more_shards_than_a_process_holds_are_mixed_in_groups(two_sources):
    corpus = Corpus(str(two_sources / "corpus"))
    texts = records_build.text_files(corpus)
    results = [
        {
            "shards": [
                dict(name=f"part-{n:05d}.tfrecord", records=1, tokens=1, bytes=1)
                | {"sha256": files.fingerprint(f"{text.name} {n}".encode())}
                for n in range(10)
            ]
        }
        for text in texts
    ]
    groups = records_build.shard_groups(texts, results)
    names = [shard.name for group in groups for shard in group.shards]
    assert len(names) == len(set(names)) == 10 * len(texts)
    assert max(len(group.shards) for group in groups) <= 8
    files_of = [
        {shard.name.split("/")[0] for shard in group.shards} for group in groups
    ]
    assert all(len(names) > 1 for names in files_of)


def test_a_build_that_was_killed_while_it_mixed_goes_on(two_sources, mixed, tmp_path):
    """Once what is damaged or gone is there again."""
    output = tmp_path / "records"
    with killed_at(records_build.MixingJob, "run"):
        build(two_sources, output, tokens_per_shard=2000)
    (part,) = output.glob("work/train-en-00000/part-00000.tfrecord")
    content = part.read_bytes()
    part.write_bytes(content[:-9])
    with pytest.raises(
        UserError, match="part-00000.tfrecord: record .*; remove .*/work"
    ):
        build(two_sources, output, tokens_per_shard=2000)
    part.write_bytes(content)
    with killed_at(records_build.records, "write_manifest"):
        build(two_sources, output, tokens_per_shard=2000)
    first, *_ = sorted(output.glob("train/en/*.tfrecord"))
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(UserError, match="part-00000.tfrecord: is gone, though a note"):
        build(two_sources, output, tokens_per_shard=2000)
    first.write_bytes(content)
    build(two_sources, output, tokens_per_shard=2000)
    assert tree(output) == tree(mixed)


def test_builds_with_other_sizes_that_were_killed_leave_nothing_in_use(
    two_sources, mixed, tmp_path
):
    """A note of the first one names mixed shards that the second one has removed."""
    output = tmp_path / "records"
    for size in (2000, 10**6):
        with killed_at(records_build.records, "write_manifest"):
            build(two_sources, output, tokens_per_shard=size)
    build(two_sources, output, tokens_per_shard=2000)
    assert tree(output) == tree(mixed)


def test_names_of_units_are_different_whatever_languages_are_called():
    shards = (records.Shard("x", 1, 1, "", 1),)
    groups = [records_build.ShardGroup("train", name, 0, shards) for name in ("a", "b")]
    texts = [
        records_build.TextFile("train", name, 0, {})
        for name in ("a", "mixed", "a-mixed", "mixed-a", "mixed-train-a")
    ]
    names = [unit.name for unit in [*groups, *texts]]
    assert len(set(names)) == len(names)


def test_a_complete_folder_is_reused(source, complete, capsys):
    (complete / "work").mkdir()
    (complete / "work/thesis.txt").write_text("mine")
    before = tree(complete)
    assert build(source, complete) == records.read_manifest(str(complete))
    assert tree(complete) == before
    assert f"{complete}: complete already, reused" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["work/thesis.txt", "train/en/notes.txt", "building.txt", "a.tfrecord"]
)
def test_somebody_elses_files_are_not_touched(source, tmp_path, name):
    output = tmp_path / "records"
    (output / name).parent.mkdir(parents=True)
    (output / name).write_text("mine")
    with pytest.raises(UserError, match=rf"neither empty nor records \(holds {name}\)"):
        build(source, output)
    assert list(tree(output)) == [name]


def test_complete_records_with_larger_shards_are_refused(source, complete):
    with pytest.raises(UserError, match=r"shards of up to \d+ tokens, more than --tok"):
        build(source, complete, tokens_per_shard=10)


def test_a_build_that_was_killed_goes_on_with_the_next_file(
    source, whole, tmp_path, monkeypatch
):
    output, begun = tmp_path / "records", []
    write_shard = records.write_shard

    def killed_in_the_second(folder, *arguments):
        begun.append(folder)
        if len(set(begun)) == 2:
            raise ValueError("killed")
        return write_shard(folder, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(records_build, "write_shard", killed_in_the_second)
        with pytest.raises(ValueError, match="killed"):
            build(source, output)
    with pytest.raises(UserError, match="no complete records"):
        records.read_manifest(str(output))
    # Half a shard of the process that was killed.
    with open(os.path.join(begun[-1], "part-00000.tfrecord"), "wb") as half:
        half.write(b"half")
    again = []
    monkeypatch.setattr(
        records_build,
        "write_shard",
        lambda folder, *rest: again.append(folder) or write_shard(folder, *rest),
    )
    build(source, output)
    assert begun[0] not in again and begun[-1] in again
    assert tree(output) == tree(whole)


def test_work_in_progress_with_another_vocabulary_is_begun_anew(
    source, whole, tmp_path
):
    job = records_build.EncodingJob(
        str(source / "corpus"),
        str(source / "vocabulary.model"),
        str(tmp_path / "records"),
        50,
        {"corpus": "other", "vocabulary": "other"},
    )
    os.makedirs(job.work_dir)
    (text,) = (
        unit
        for unit in records_build.text_files(Corpus(job.corpus_dir))
        if (unit.split, unit.language) == ("train", "en")
    )
    runners.attempt(job, text)
    assert runners.result_of(job, text)["sentences"] > 0
    manifest = build(source, tmp_path / "records")
    assert manifest.language("train", "en").records == 60
    assert tree(tmp_path / "records") == tree(whole)


def notes(folder, suffix):
    """Path -> content of the notes of a build."""
    results = [path for path in (folder / "work").rglob(f"*{suffix}")]
    return {path: json.loads(path.read_text()) for path in results}


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result["shards"][0].update(name="../../../mine.txt"),
        lambda result: result.pop("sentences", None),
        lambda result: result.update(empty_documents="many"),
    ],
)
def test_a_note_of_somebody_else_is_not_followed(source, whole, tmp_path, change):
    output = tmp_path / "records"
    with killed_at(records_build, "gather"):
        build(source, output)
    (tmp_path / "mine.txt").write_text("mine")
    results = notes(output, runners.DONE)
    assert results
    for path, note in results.items():
        change(note["result"])
        path.write_text(json.dumps(note))
    next(iter(results)).write_text(json.dumps({**note, "result": None}))
    build(source, output)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert tree(output) == tree(whole)


def test_a_folder_of_other_inputs_is_refused(source, complete, tmp_path):
    other = tmp_path / "vocabulary.model"
    make_vocabulary(other, size=50)
    before = tree(complete)
    with pytest.raises(UserError, match="records: holds records of another vocabulary"):
        build_records(str(source / "corpus"), str(other), str(complete), 300)
    assert tree(complete) == before


def test_a_document_without_pieces_is_left_out_and_said(
    source, tmp_path, capsys, monkeypatch
):
    encode = SentencePiece.encode_batch

    def without_the_first(self, texts):
        return [[] if i == 0 else ids for i, ids in enumerate(encode(self, texts))]

    monkeypatch.setattr(SentencePiece, "encode_batch", without_the_first)
    monkeypatch.setattr(
        records_build, "read_documents", lambda *_: iter([["a"], ["the text"]])
    )
    manifest = build(source, tmp_path / "records")
    assert manifest.language("train", "sw").records == 1
    problem = "train/sw: 1 documents without pieces left out"
    assert problem in capsys.readouterr().out


def test_a_vocabulary_without_the_letters_of_a_language_is_named(
    source, tmp_path, capsys, monkeypatch
):
    def to_unknown(self, texts):
        return [[7] * 9 + [self.unk_id] for _ in texts]

    monkeypatch.setattr(SentencePiece, "encode_batch", to_unknown)
    build(source, tmp_path / "records")
    assert "train/sw: 10% of the tokens are the unknown piece" in (
        capsys.readouterr().out
    )


def test_text_that_changed_stops_the_build_and_leaves_no_shard(tmp_path):
    make_corpus(tmp_path / "corpus")
    make_vocabulary(tmp_path / "vocabulary.model")
    path = tmp_path / "corpus/text/train/sw/text-00000-of-00001.txt"
    path.write_text(path.read_text().replace("neno", "NENO"))
    with pytest.raises(UserError, match="train/sw/text-00000.* changed since"):
        build(tmp_path, tmp_path / "records", tokens_per_shard=20)
    left = tree(tmp_path / "records")
    assert not any(name.startswith("train/sw") or "manifest" in name for name in left)


@pytest.mark.slow
def test_several_processes_write_the_same_and_need_no_beam(source, whole, tmp_path):
    program = (
        "import sys\n"
        "from decoupled.corpora.runners import Runner\n"
        "from decoupled.data.records_build import build_records\n"
        "corpus, vocabulary, output = sys.argv[1:]\n"
        "build_records(corpus, vocabulary, output, 300, Runner(workers=2))\n"
    )
    run_without_beam(
        program,
        tmp_path / "blocked",
        source / "corpus",
        source / "vocabulary.model",
        tmp_path / "two",
    )
    assert tree(whole) == tree(tmp_path / "two")
