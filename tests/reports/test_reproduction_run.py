"""The jobs of a reproduction, and what its document tells of the run."""

import dataclasses
import shlex
import shutil
import subprocess
import sys

import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import files
from decoupled.core.machine import usable_cores
from decoupled.reports import reproduction_run as run
from decoupled.reports.finished_runs import read_reproduction
from decoupled.reports.reproduction_data import Folders
from decoupled.reports.reproduction_run import Options
from tests.exports.models import train_sentencepiece
from tests.reports.fake_reproduction import SCORES, write_json, write_reproduction

SWEEP = SweepConfig(
    title="T",
    rows=("coupled",),
    keep_layers={},
    tasks=(),
    seeds=(0,),
    finetuning_runs=1,
    task_files={},
    pretraining=(
        "MaskingConfig.sequence_length = 32",
        "ScheduleConfig.train_steps = 1500",
        "TrainingConfig.batch_size = 64",
    ),
    finetuning=(),
)
SCALE = ScaleConfig(8, 4, 4)


@pytest.fixture
def options(tmp_path):
    """The command's flags, with --work_dir below a temporary folder."""
    return Options(f"{tmp_path}/w", gin_param=["SweepConfig.seeds = (0,)"])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    train_sentencepiece(str(folder / "sentencepiece.model"))
    return folder


def planned(options, vocabulary):
    folders = options.folders()._replace(vocabulary=str(vocabulary))
    root = run.configure(options, folders)
    return run.plan(root, folders, ["en", "de", "sw", "xx"])


def test_all_jobs_of_a_default_run(options, vocabulary, tmp_path):
    options = options._replace(gin_param=[])
    jobs, rows = planned(options, vocabulary)
    assert [row.name for row in rows][:3] == list(run.E_OUT_ROWS)
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
    options = options._replace(data_dir=f"{tmp_path}/data")
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
    options = options._replace(data_dir=f"{tmp_path}/data")
    jobs, _ = planned(options, vocabulary)
    by_name = {job.name: job for job in jobs}
    tags = by_name["tasks/udpos/coupled/seed_0"].arguments
    assert f"--data_dir={tmp_path}/data/xtreme" in tags
    messages = by_name["tasks/catalogs/coupled/seed_0"].arguments
    assert f"--data_dir={tmp_path}/w/data/corpus/tasks" in messages
    probing = by_name["analyses/probing/seed_0"]
    assert f"--data_dir={tmp_path}/w/data/edges" in probing.arguments
    assert probing.needs == tuple(f"models/{row}/seed_0" for row in run.E_OUT_ROWS)


def test_pairs_of_a_given_folder(options, vocabulary, tmp_path):
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for name in ("sw-en.sw", "sw-en.en", "yy-en.yy", "de-en.de"):
        (pairs / name).write_text("a\n")
    options = options._replace(tatoeba_dir=str(pairs))
    jobs, _ = planned(options, vocabulary)
    job = next(job for job in jobs if "neighbours" in job.name)
    assert {f"--data_dir={pairs}", "--languages=de,sw"} <= set(job.arguments)
    assert "--gin_file=runs/reproduce_neighbours.gin" in job.arguments


def test_a_larger_one_has_its_own_runs(options, vocabulary, tmp_path):
    options = options._replace(size=2.0)
    assert run.configure(options, options.folders()).scale == ScaleConfig(4, 2, 4)
    jobs, _ = planned(options, vocabulary)
    assert jobs[0].folder.startswith(f"{tmp_path}/w/runs_2/")
    assert "--gin_param=ScheduleConfig.train_steps = 5000" in jobs[0].arguments
    assert "--gin_param=ModelConfig.hidden_size = 192" in jobs[0].arguments


def test_document(options, vocabulary, tmp_path, capsys):
    path = tmp_path / "docs" / "r.md"
    options = options._replace(gin_param=[], document=str(path), jobs=2)
    write_reproduction(tmp_path / "w" / "runs")
    train = {"de": {"sentences": 12, "characters": 100}}
    write_json(tmp_path / "w/data/corpus/manifest.json", {"splits": {"train": train}})
    write_json(tmp_path / "w/seconds.json", {"corpus": 60.0})
    shutil.copytree(vocabulary, tmp_path / "w/data/vocabulary")
    run.write(options, ["--work_dir=w", "--document=r.md"])
    text = path.read_text()
    assert "\n    decoupled reproduce --work_dir=w\n" in text
    for number in range(2, 7):
        assert f"## Table {number}: " in text
    for row in SCORES:
        assert f"| {row} |" in text
    # 10 s of each of 27 + 27 + 18 + 6 + 12 jobs and a minute of data. Other commands
    # made these, so that none of ours is complete.
    told = "0 of 84 jobs complete; their times add up to 16 min, with 2 at a time."
    assert f"{told}\n\n**Not everything is complete: what follows has gaps.**" in text
    assert "Text: 12 sentences" in text and "5,120,000 tokens" in text
    assert "- Table 9 and a part of claim 7 are left out" in text
    assert "not supported" in capsys.readouterr().out


def test_complete_jobs_tell_how_long_the_rest_takes(options, vocabulary):
    jobs, _ = planned(options, vocabulary)
    assert run.announcement(jobs, 1) == "28 jobs, 28 to do"
    for job, seconds in ((jobs[0], 100.0), (jobs[1], 40.0)):
        files.make_folder(job.folder)
        job.record(seconds)
    # 9 more to pre-train, 15 to fine-tune, 2 analyses at the mean of both; 2 at a time.
    minutes = round((9 * 100 + 15 * 40 + 2 * 70) / 2 / 60)
    expected = f"28 jobs, 26 to do; about {minutes} min left"
    assert run.announcement(jobs, 2) == expected


def test_the_command_tells_no_folder_of_the_machine():
    given = ["--work_dir=runs/a", "--data_dir=/mnt/disk/data/", "--gin_param=A.b = 1"]
    given += ["--document_only", "--document=/tmp/r.md"]
    assert run.shown_command(given) == (
        "decoupled reproduce --work_dir=runs/a --data_dir=data '--gin_param=A.b = 1'"
    )


def test_data(tmp_path):
    train = {
        "de": {"sentences": 1200, "characters": 1_000_000},
        "fr": {"sentences": 300, "characters": 260_000},
    }
    write_json(tmp_path / "manifest.json", {"splits": {"train": train}})
    assert run.about_data(str(tmp_path), ["catalogs:django", "/a/enwiki.xml"]) == (
        "Text: 1,500 sentences (1.3 million characters) in 2 languages, from "
        "catalogs:django, enwiki.xml."
    )


def test_scale(tmp_path):
    runs = write_reproduction(tmp_path / "runs", ("coupled",), (0,))
    results = read_reproduction(str(runs))
    text = run.about_scale(SWEEP, SCALE, results)
    model = results.rows["coupled"].model
    assert "every width divided by 8 and every depth by 4" in text
    assert f"H = {model.hidden_size}, 3 layers" in text
    # 1500 * 64 * 32 tokens.
    assert "1,500 steps of 64 sequences of 32 tokens, 3,072,000 tokens" in text
    share = model.vocab_size * 16 / results.rows["coupled"].pretraining
    assert f"Word embeddings are {share:.0%} of the coupled model" in text

    unknown = dataclasses.replace(SWEEP, pretraining=())
    assert "Pre-training" not in run.about_scale(unknown, SCALE, results)


def test_what_is_missing():
    given = {
        **dict.fromkeys(Folders._fields, "x"),
        **{"corpus": "C", "pairs": "P", "words": "W", "xtreme": "X"},
        "treebank": ["ud/en_ewt-ud-dev.conllu", "ud/en_ewt-ud-test.conllu"],
    }
    found = list(run.left_out(Folders(**given)))
    assert len(found) == 3 and "en_ewt-ud-dev.conllu" in found[0]
    nothing = {"pairs": "C/parallel", "words": None, "xtreme": None, "treebank": []}
    found = list(run.left_out(Folders(**{**given, **nothing})))
    assert [
        word in line
        for word, line in zip(
            ("--word_similarity_dir", "--tatoeba_dir", "Table 9", "catalogs"),
            found,
            strict=True,
        )
    ] == [True] * 4


def test_durations():
    assert run.duration(29) == "0 min"
    assert run.duration(600) == "10 min"
    assert run.duration(3900) == "1 h 05 min"


def test_machine_names_its_cores():
    assert run.machine().startswith(f"{usable_cores()} cores (")
