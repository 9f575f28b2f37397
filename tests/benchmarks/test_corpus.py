"""Leftovers of markup, and quick runs of the readers of dumps."""

import os

import pytest

from benchmarks import corpus, results
from benchmarks.__main__ import main
from benchmarks.workers import leftovers
from tests.corpora import dumps

PEERS = os.environ.get("DECOUPLED_CORPUS_PYTHON")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It is (as he said) clean, and it has no marks: none.", 0),
        ("A [[link]] and a {{template|x}} of <ref>y</ref>.", 7),
        ("thumb 200px nbsp of it (; born 1900) ,", 5),
    ],
)
def test_leftovers_are_counted(text, expected):
    assert leftovers.count(text) == expected


@pytest.mark.parametrize("content", [None, b"<page>", b""])
def test_a_dump_that_is_none_is_named(tmp_path, content, capsys):
    path = tmp_path / "dump.xml.bz2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, f"--dump={path}")
    assert f"error: {path}: not a dump as .xml.bz2 (" in capsys.readouterr().err


def run(folder, *words):
    main(["corpus", "--quick", f"--results_dir={folder}", *words])
    return results.read(folder / "corpus.json")[0].workers


@pytest.mark.slow
def test_a_quick_run_of_our_worker(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(corpus, "peer_workers", lambda case: [])
    pages = [dumps.page(f"Page {n}", dumps.prose(n)) for n in range(30)]
    path = dumps.write(tmp_path / "dump.xml.bz2", dumps.dump_xml(pages))
    (ours,) = run(tmp_path, f"--dump={path}")
    assert ours.case["pages"] == 30
    # Every step reads what the count of characters has seen.
    assert {chunk.loss for chunk in ours.rounds} == {ours.rounds[0].loss}
    assert 0 < ours.rounds[0].loss <= ours.facts["characters"]
    assert ours.facts["leftovers"] == 0
    assert "Dump to text" in capsys.readouterr().out


@pytest.mark.interop
@pytest.mark.skipif(not PEERS, reason="no interpreter with gensim and wikiextractor")
def test_a_quick_run_with_the_peers(tmp_path):
    workers = run(tmp_path)
    assert [worker.name for worker in workers] == [
        "decoupled", "gensim", "wikiextractor 1", "wikiextractor 2",
    ]  # fmt: skip
    assert min(worker.facts["characters"] for worker in workers) > 10_000
