"""Text -> corpus -> vocabulary -> records -> pre-training -> fine-tuning -> SavedModel.

The commands' own functions on a few hundred sentences that the test writes, with a tiny
model: seconds on a CPU.
"""

import json

import pytest

from decoupled.commands.build_corpus import build
from decoupled.commands.finetune import run_finetuning
from decoupled.configs import (
    FinetuningConfig,
    MeshConfig,
    PretrainConfig,
    SamplingConfig,
    VocabularyConfig,
)
from decoupled.configs.corpora import (
    CorpusSettings,
    VocabularySettings,
)
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.core.release import tf
from decoupled.data.records_build import build_records
from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.vocabulary_build import build_vocabulary
from decoupled.exports.serving.saved_model import export
from tests.exports.models import model_and_task, saving_only
from tests.helpers import MASKING, adamw, schedule, tiny_model, tiny_training
from tests.pretrained import run_pretraining

ANIMALS = "cat dog horse cow sheep goat duck hen fox wolf".split()
COLOURS = "red blue green black white brown grey pink gold teal".split()
WORDS = {
    "en": ("the", "is", "and"),
    "de": ("der", "ist", "und"),
}
PIECES = 42
MESH = MeshConfig()
SAMPLING = SamplingConfig()


def sentences(language):
    the, be, and_ = WORDS[language]
    for animal in ANIMALS:
        for colour in COLOURS:
            yield f"{the} {animal} {be} {colour} {and_} {the} {colour} {animal} {be}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("end_to_end")


@pytest.fixture(scope="module")
def records(folder):
    """Corpus, vocabulary and records of two languages."""
    inputs = []
    for language in WORDS:
        path = folder / f"{language}.txt"
        path.write_text("\n\n".join(sentences(language)) + "\n")
        inputs.append(f"{language}={path}")
    settings = CorpusSettings(eval_share=0.1, min_characters=1, split_json=False)
    build(None, inputs, str(folder / "corpus"), settings)
    vocabulary = VocabularySettings(
        VocabularyConfig(PIECES, 1.0, False, 1000, 10**6, 16), SAMPLING, 0, 100
    )
    build_vocabulary(str(folder / "corpus"), str(folder / "vocabulary"), vocabulary)
    model = str(folder / "vocabulary" / "sentencepiece.model")
    build_records(str(folder / "corpus"), model, str(folder / "records"), 500)
    return str(folder / "records"), model


@pytest.fixture(scope="module")
def pretrained(folder, records):
    config = PretrainConfig(
        model=tiny_model(vocab_size=open_vocabulary(records[1]).size),
        mesh=MESH,
        masking=MASKING,
        sampling=SAMPLING,
        optimizer=adamw(),
        schedule=schedule(train_steps=200, warmup_steps=20),
        training=tiny_training(save_checkpoints_steps=200, log_steps=50),
        whole_words=False,
        eval_masking_rate=0.15,
    )
    run_pretraining(config, *records, str(folder / "pretrained"), "train_and_evaluate")
    return folder / "pretrained"


def test_pretraining_learns_held_out_text(pretrained):
    evaluated = json.loads((pretrained / "eval.json").read_text())
    assert evaluated["global_step"] == 200
    assert set(evaluated["languages"]) == {"de", "en"}
    # A blind guess among the pieces costs log(42) = 3.7.
    assert evaluated["all"]["masked_lm_loss"] < 3.4


def test_finetuning_and_export_agree_on_raw_text(folder, pretrained):
    tasks = folder / "tasks" / "catalogs"
    tasks.mkdir(parents=True)
    (tasks / "labels.txt").write_text("bird\nmammal\n")

    def write(split, language, colours):
        lines = [
            f"{WORDS[language][0]} {animal} {WORDS[language][1]} {colour}.\t"
            + ("bird" if animal in ("duck", "hen") else "mammal")
            for animal in ANIMALS
            for colour in colours
        ]
        (tasks / f"{split}-{language}.tsv").write_text("\n".join(lines) + "\n")

    def write_long(split, language, colours):
        """Texts of more pieces than the model is trained at."""
        path = tasks / f"{split}-{language}.tsv"
        lines = [
            f"{colour} {text} {text} {colour}\tbird"
            for text in list(sentences(language))[:: len(COLOURS)]
            for colour in colours
        ]
        path.write_text(path.read_text() + "\n".join(lines) + "\n")

    write("train", "en", COLOURS[:8])
    for language in WORDS:
        write("dev", language, COLOURS[8:9])
        write("test", language, COLOURS[9:])
    write_long("test", "de", COLOURS)
    config = FinetuneConfig(
        FinetuningConfig(16.0, 12, 0.1),
        MESH,
        adamw(learning_rate=5e-3),
        tiny_training(save_checkpoints_steps=200),
    )
    tuned = folder / "tuned"
    folders = (str(folder / "tasks"), str(pretrained), str(tuned))
    run_finetuning(config, "catalogs", *folders, "train_and_evaluate")
    results = json.loads((tuned / "results.json").read_text())
    assert results["test"]["en"]["accuracy"] == 100
    assert results["test"]["en"]["trivial_accuracy"] == 80

    model, task = model_and_task(str(tuned))
    with saving_only("text_classifier"):
        export(
            model,
            task,
            str(folder / "export"),
            sequence_length=task.default_length(model.config),
            mlm=False,
            overwrite=False,
        )
    model = tf.saved_model.load(str(folder / "export" / "text_classifier"))
    for language in WORDS:
        lines = (tasks / f"test-{language}.tsv").read_text().splitlines()
        outputs = model([line.split("\t")[0] for line in lines])
        written = tuned / "predictions" / "catalogs" / f"test-{language}.tsv"
        predicted = written.read_text()
        labels, probabilities = zip(
            *(line.split("\t") for line in predicted.splitlines()), strict=True
        )
        assert [label.decode() for label in outputs["label"].numpy()] == list(labels)
        served = outputs["probabilities"].numpy().max(axis=-1)
        assert served == pytest.approx([float(p) for p in probabilities], abs=1e-5)
