"""Sentences on data, scale and machine."""

import dataclasses

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core.processor import usable_cores
from decoupled.reports import reproduction_facts as facts
from decoupled.reports.reproduction_inputs import Folders
from decoupled.reports.reproduction_results import read_evidence
from tests.reports.fake_reproduction import write_json, write_reproduction

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


def test_the_command_tells_no_folder_of_the_machine():
    given = ["--work_dir=runs/a", "--data_dir=/mnt/disk/data/", "--gin_param=A.b = 1"]
    given += ["--document_only", "--document=/tmp/r.md"]
    assert facts.command("reproduce", given) == (
        "decoupled reproduce --work_dir=runs/a --data_dir=data '--gin_param=A.b = 1'"
    )


def test_data(tmp_path):
    train = {
        "de": {"sentences": 1200, "characters": 1_000_000},
        "fr": {"sentences": 300, "characters": 260_000},
    }
    write_json(tmp_path / "manifest.json", {"splits": {"train": train}})
    assert facts.data(str(tmp_path), ["catalogs:django", "/a/enwiki.xml"]) == (
        "Text: 1,500 sentences (1.3 million characters) in 2 languages, from "
        "catalogs:django, enwiki.xml."
    )


def test_scale(tmp_path):
    runs = write_reproduction(tmp_path / "runs", ("coupled",), (0,))
    evidence = read_evidence(str(runs))
    text = facts.scale(SWEEP, SCALE, evidence)
    model = evidence.rows["coupled"].model
    assert "every width divided by 8 and every depth by 4" in text
    assert f"H = {model.hidden_size}, 3 layers" in text
    # 1500 * 64 * 32 tokens.
    assert "1,500 steps of 64 sequences of 32 tokens, 3,072,000 tokens" in text
    share = model.vocab_size * 16 / evidence.rows["coupled"].pretraining
    assert f"Word embeddings are {share:.0%} of the coupled model" in text

    unknown = dataclasses.replace(SWEEP, pretraining=())
    assert "Pre-training" not in facts.scale(unknown, SCALE, evidence)


def test_what_is_missing():
    given = {
        **dict.fromkeys(Folders._fields, "x"),
        **{"corpus": "C", "pairs": "P", "words": "W", "xtreme": "X"},
        "treebank": ["ud/en_ewt-ud-dev.conllu", "ud/en_ewt-ud-test.conllu"],
    }
    found = list(facts.missing(Folders(**given)))
    assert len(found) == 3 and "en_ewt-ud-dev.conllu" in found[0]
    nothing = {"pairs": "C/parallel", "words": None, "xtreme": None, "treebank": []}
    found = list(facts.missing(Folders(**{**given, **nothing})))
    assert [
        word in line
        for word, line in zip(
            ("--word_similarity_dir", "--tatoeba_dir", "Table 9", "catalogs"),
            found,
            strict=True,
        )
    ] == [True] * 4


def test_durations():
    assert facts.duration(29) == "0 min"
    assert facts.duration(600) == "10 min"
    assert facts.duration(3900) == "1 h 05 min"


def test_machine_names_its_cores():
    assert facts.machine().startswith(f"{usable_cores()} cores (")
