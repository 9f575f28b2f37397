"""The reproduction: its data, its jobs, and the document that it writes of them."""

import importlib.util
import json
import shlex
import subprocess
import sys
import types

import pytest

from decoupled.commands import reproduce
from decoupled.configs import ScaleConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.reports.reproduction_inputs import find_folders
from tests.exports.models import train_sentencepiece
from tests.reports.fake_reproduction import SCORES, write_json, write_reproduction


@pytest.fixture
def options(tmp_path):
    """The command's flags, with --work_dir below a temporary folder."""
    return types.SimpleNamespace(
        work_dir=f"{tmp_path}/w",
        size=1.0,
        data_dir=None,
        tatoeba_dir=None,
        word_similarity_dir=None,
        gin_file=[],
        gin_param=["SweepConfig.seeds = (0,)"],
        gin_location_prefix=[],
    )


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    train_sentencepiece(str(folder / "sentencepiece.model"))
    return folder


def planned(options, vocabulary):
    folders = found(options)._replace(vocabulary=str(vocabulary))
    root = reproduce.configure(options, folders)
    return reproduce.plan(root, folders, ["en", "de", "sw", "xx"])


def found(options):
    return find_folders(
        options.work_dir,
        options.size,
        options.data_dir,
        options.tatoeba_dir,
        options.word_similarity_dir,
    )


def test_all_jobs_of_a_default_run(options, vocabulary, tmp_path):
    options.gin_param = []
    jobs, rows = planned(options, vocabulary)
    assert [row.name for row in rows][:3] == list(reproduce.E_OUT_ROWS)
    kinds = [job.kind for job in jobs]
    # Nine models, three seeds, and one as a control; three models with one and two
    # layers fewer; neighbours and spectrum, without files of word similarity.
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "pretrain": 27 + 3,
        "finetune": 27 + 18 + 3,
        "analyze": 6,
    }
    folders = [job.folder for job in jobs]
    assert len(set(folders)) == len(folders)
    assert all(folder.startswith(f"{tmp_path}/w/runs/") for folder in folders)


def test_jobs_are_those_of_the_sweep_command(options, vocabulary, tmp_path):
    jobs, _ = planned(options, vocabulary)
    command = [
        *(sys.executable, "-m", "decoupled", "sweep", "--print_jobs", "--scale=mini"),
        *("--gin_file=sweeps/reproduce.gin", "--tasks=catalogs"),
        "--gin_param=SweepConfig.seeds = (0,)",
        f"--records_dir={tmp_path}/w/data/records",
        f"--vocabulary={vocabulary}/sentencepiece.model",
        f"--data_dir={tmp_path}/w/data/corpus/tasks",
        f"--sweep_dir={tmp_path}/w/runs",
    ]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    sweep = [shlex.split(line) for line in printed.stdout.splitlines()]
    ours = [
        [job.kind, *job.arguments]
        for job in jobs
        if job.name.startswith(("models/", "tasks/"))
    ]
    assert len(sweep) == 18 and ours == sweep


def test_word_similarity_needs_its_files(options, vocabulary, tmp_path):
    words = tmp_path / "data" / "word_similarity"
    words.mkdir(parents=True)
    options.data_dir = f"{tmp_path}/data"
    jobs, _ = planned(options, vocabulary)
    job = next(job for job in jobs if "word_similarity" in job.name)
    assert f"--data_dir={words}" in job.arguments
    assert f"--output_dir={tmp_path}/w/runs/analyses/word_similarity/seed_0" in (
        job.arguments
    )


def test_a_treebank_is_probed_and_tags_are_a_task(options, vocabulary, tmp_path):
    for name in ("ud", "xtreme/udpos"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for split in ("dev", "test"):
        (tmp_path / "data" / "ud" / f"en_ewt-ud-{split}.conllu").write_text("")
    options.data_dir = f"{tmp_path}/data"
    jobs, _ = planned(options, vocabulary)
    by_name = {job.name: job for job in jobs}
    tags = by_name["tasks/udpos/coupled/seed_0"].arguments
    assert f"--data_dir={tmp_path}/data/xtreme" in tags
    messages = by_name["tasks/catalogs/coupled/seed_0"].arguments
    assert f"--data_dir={tmp_path}/w/data/corpus/tasks" in messages
    probing = by_name["analyses/probing/seed_0"]
    assert f"--data_dir={tmp_path}/w/data/edges" in probing.arguments
    assert probing.needs == tuple(
        f"models/{row}/seed_0" for row in reproduce.E_OUT_ROWS
    )


def test_pairs_of_a_given_folder(options, vocabulary, tmp_path):
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for name in ("sw-en.sw", "sw-en.en", "yy-en.yy", "de-en.de"):
        (pairs / name).write_text("a\n")
    options.tatoeba_dir = str(pairs)
    jobs, _ = planned(options, vocabulary)
    job = next(job for job in jobs if "neighbours" in job.name)
    assert {f"--data_dir={pairs}", "--languages=de,sw"} <= set(job.arguments)
    assert "--gin_file=runs/reproduce_neighbours.gin" in job.arguments


def test_a_larger_one_has_its_own_runs(options, vocabulary, tmp_path):
    options.size = 2.0
    assert reproduce.configure(options, found(options)).scale == ScaleConfig(4, 2, 4)
    jobs, _ = planned(options, vocabulary)
    assert jobs[0].folder.startswith(f"{tmp_path}/w/runs_2/")
    assert "--gin_param=ScheduleConfig.train_steps = 5000" in jobs[0].arguments
    assert "--gin_param=ModelConfig.hidden_size = 192" in jobs[0].arguments


def test_dumps_are_text_beside_the_messages(options, tmp_path, monkeypatch):
    dumps = tmp_path / "data" / "wikipedia"
    dumps.mkdir(parents=True)
    (dumps / "swwiki-1.xml").write_text("")
    options.data_dir = f"{tmp_path}/data"
    folders = found(options)
    manifest = {"splits": {"train": {"de": {"files": [{"name": "text/de.txt"}]}}}}
    write_json(tmp_path / "w/data/corpus/manifest.json", manifest)
    steps = {}
    monkeypatch.setattr(
        reproduce, "_run", lambda _, name, title, command: steps.update({name: command})
    )
    reproduce.make_data(folders, ["en", "de"])
    assert list(steps) == ["corpus", "text", "vocabulary", "records"]
    assert "--languages=en,de" in steps["corpus"]
    assert f"--input=de={folders.corpus}/text/de.txt" in steps["text"]
    assert f"--input=sw={dumps}/swwiki-1.xml" in steps["text"]
    assert f"--corpus_dir={folders.text}" in steps["records"]
    for command in steps.values():
        assert importlib.util.find_spec(f"decoupled.commands.{command[0]}")


def test_a_step_that_fails_is_named(tmp_path):
    with pytest.raises(UserError, match="records: ended with code 2.* goes on"):
        reproduce._run(str(tmp_path), "records", "encode", ["no_such_command"])
    assert not (tmp_path / "seconds.json").exists()


def test_document(options, vocabulary, tmp_path, capsys):
    options.gin_param = []
    write_reproduction(tmp_path / "w" / "runs")
    train = {"de": {"sentences": 12, "characters": 100}}
    write_json(tmp_path / "w/data/corpus/manifest.json", {"splits": {"train": train}})
    write_json(tmp_path / "w/seconds.json", {"corpus": 60.0})
    jobs, _ = planned(options, vocabulary)
    folders = found(options)
    root = reproduce.configure(options, folders)
    path = tmp_path / "docs" / "r.md"
    reproduce.write_document(str(path), root, folders, jobs, 2)
    text = path.read_text()
    for number in range(2, 7):
        assert f"## Table {number}: " in text
    for row in SCORES:
        assert f"| {row} |" in text
    # 10 s of each of 27 + 27 + 18 + 6 + 12 jobs and a minute of data. Other commands
    # made these, so that none of ours is complete.
    told = "0 of 84 jobs complete; their times add up to 16 min, with 2 at a time."
    assert told in text
    assert "Text: 12 sentences" in text and "5,120,000 tokens" in text
    assert "not supported" in capsys.readouterr().out


def test_complete_jobs_tell_how_long_the_rest_takes(options, vocabulary):
    jobs, _ = planned(options, vocabulary)
    assert reproduce.announcement(jobs, 1) == "28 jobs, 28 to do"
    for job, seconds in ((jobs[0], 100.0), (jobs[1], 40.0)):
        files.make_folder(job.folder)
        job.record(seconds)
    # 9 more to pre-train, 15 to fine-tune, 2 analyses at the mean of both; 2 at a time.
    minutes = round((9 * 100 + 15 * 40 + 2 * 70) / 2 / 60)
    expected = f"28 jobs, 26 to do; about {minutes} min left"
    assert reproduce.announcement(jobs, 2) == expected


def test_help():
    command = [sys.executable, "-m", "decoupled", "reproduce", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--document_only" in shown and "No download" in shown


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_whole_one_with_few_steps_and_once_more(tmp_path):
    command = [
        *(sys.executable, "-m", "decoupled", "reproduce", "--size=0.01"),
        f"--work_dir={tmp_path}/w",
        f"--document={tmp_path}/r.md",
        "--gin_param=SweepConfig.rows = ('e_out_128', 'e_out_3072')",
        "--gin_param=SweepConfig.keep_layers = {}",
        "--gin_param=SweepConfig.seeds = (0, 1)",
    ]
    subprocess.run(command, check=True)
    text = (tmp_path / "r.md").read_text()
    assert "24 of 24 jobs complete" in text
    assert "| score, e_out_3072 - e_out_128 |" in text
    record = tmp_path / "w/runs_0.01/models/e_out_128/seed_1/job.json"
    before = record.read_text()
    assert json.loads(before)["command"] == "pretrain"
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "24 of 24 jobs complete already" in again
    assert record.read_text() == before


def test_without_the_demo_s_catalogs_nothing_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "django", None)
    with pytest.raises(UserError, match=r"django is not .*'decoupled\[demo\]'"):
        reproduce.main()


def test_what_dumps_need_is_told_before_the_first_job(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    folders = found(options)
    reproduce.check_installed(folders)
    with pytest.raises(UserError, match=r"sentencex is not .*'decoupled\[data\]'"):
        reproduce.check_installed(folders._replace(dumps=[("en", "enwiki.xml")]))


def test_without_matplotlib_that_is_told_before_the_first_job(
    options, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reproduce.check_installed(found(options))
    assert "no plots: matplotlib is not installed" in capsys.readouterr().out
