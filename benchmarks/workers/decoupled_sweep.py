"""Worker: a step is a whole sweep of small jobs, each run as a user's would be."""

import os
import random
import tempfile

import protocol

from decoupled.configs import ScaleConfig, SweepConfig, VocabularyConfig
from decoupled.core import files
from decoupled.corpora.corpus_writer import write_corpus
from decoupled.data.records_build import build_records
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.sweeps.jobs import RECORD, Inputs, make_jobs, make_rows, read_model
from decoupled.sweeps.runner import JobRunner

LANGUAGE, TASK = "en", "catalogs"
LABELS = ("long", "short")
WORDS, PIECES, DOCUMENTS, EXAMPLES = 200, 200, 500, 320
# gin/sweeps/mini.gin
SCALE = ScaleConfig(width_divisor=8, head_size_divisor=4, depth_divisor=4)


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds

    "rows": files in gin/models. "seeds": of pre-training; every model of a row and seed
      is fine-tuned once.
    "pretraining_steps". "finetuning_epochs".
    "warm": whether jobs are forks of a process that has imported TensorFlow.
    "parallel": jobs at a time.
    """
    # Removed when the process ends; the step keeps it until then.
    folder = tempfile.TemporaryDirectory()
    sweep = _sweep(case)
    inputs = _make_inputs(folder.name)
    rows = make_rows(sweep, SCALE, PIECES, read_model)
    count = len(make_jobs(sweep, rows, inputs, folder.name))

    def step(kept=folder):
        with tempfile.TemporaryDirectory(dir=kept.name) as sweep_dir:
            jobs = make_jobs(sweep, rows, inputs, sweep_dir)
            runner = JobRunner(jobs, case["parallel"], lambda _: None, case["warm"])
            failures = runner.run()
            if failures:
                raise RuntimeError(str(failures[0]))
            return _checksum(jobs)

    return step, {"jobs": count, "versions": protocol.versions("tensorflow")}


def _sweep(case):
    shared = ("TrainingConfig.batch_size = 32", "TrainingConfig.eval_batch_size = 32")
    return SweepConfig(
        title="a sweep of small jobs",
        rows=tuple(case["rows"]),
        keep_layers={},
        tasks=(TASK,),
        seeds=tuple(case["seeds"]),
        finetuning_runs=1,
        task_files={"*": ""},
        pretraining=(
            *shared,
            "MaskingConfig.sequence_length = 32",
            "MaskingConfig.max_predictions = 5",
            f"ScheduleConfig.train_steps = {case['pretraining_steps']}",
            "ScheduleConfig.warmup_steps = 1",
        ),
        finetuning=(
            *shared,
            f"FinetuningConfig.num_epochs = {case['finetuning_epochs']}",
            "FinetuningConfig.max_sequence_length = 32",
            "FinetuningConfig.learning_rates = (5e-4,)",
            "TrainingConfig.eval_every_steps = 0",
        ),
        warm_processes=case["warm"],
    )


def _make_inputs(folder):
    """Records, a vocabulary and a task of invented words: is a sentence long?"""
    drawn = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(drawn.choices(syllables, k=3)) for _ in range(WORDS)]
    documents = [
        ("train" if number % 10 else "eval", [_sentence(drawn, words, 20)])
        for number in range(DOCUMENTS)
    ]
    corpus = os.path.join(folder, "corpus")
    write_corpus(corpus, "invented", {}, [(LANGUAGE, documents)], {}, {}, {})
    sentences = [sentence for _, document in documents for sentence in document]
    vocabulary = os.path.join(folder, "sentencepiece.model")
    settings = VocabularyConfig(PIECES, 1.0, False, 99, 10**6, 16)
    train_vocabulary(sentences, vocabulary, settings)
    records = os.path.join(folder, "records")
    build_records(corpus, vocabulary, records, 10_000, 1)
    task = files.make_folder(os.path.join(folder, "tasks", TASK))
    files.write_text(os.path.join(task, "labels.txt"), "\n".join(LABELS) + "\n")
    for split, count in (("train", EXAMPLES), ("dev", 64), ("test", 64)):
        lines = []
        for number in range(count):
            sentence = _sentence(drawn, words, 4 if number % 2 else 12)
            lines.append(f"{sentence}\t{LABELS[number % 2]}\n")
        files.write_text(os.path.join(task, f"{split}-{LANGUAGE}.tsv"), "".join(lines))
    return Inputs(records, vocabulary, {TASK: os.path.join(folder, "tasks")})


def _sentence(drawn, words, most):
    return " ".join(drawn.choices(words, k=drawn.randint(most // 2, most)))


def _checksum(jobs):
    """The accuracies of all fine-tuned models, which show that both ways agree."""
    total = 0.0
    for job in jobs:
        assert os.path.exists(os.path.join(job.folder, RECORD))
        results = os.path.join(job.folder, "results.json")
        if os.path.exists(results):
            total += files.read_json(results)["test"][LANGUAGE]["accuracy"]
    return total


if __name__ == "__main__":
    protocol.serve(build)
