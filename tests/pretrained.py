"""Runs of pre-training, and a tiny model on disk to fine-tune from."""

import numpy as np

from decoupled.data.vocabulary import open_vocabulary
from decoupled.model.variables import MASKED_LM, shapes
from decoupled.runs import pretraining, pretraining_plan, run_folder
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.training.checkpoints import write_list
from tests.data.small_corpus import make_vocabulary
from tests.helpers import tiny_model

STEPS = 5


def run_pretraining(*arguments, record_start=lambda folder: None, **options):
    """What `decoupled pretrain` does; the arguments are those of a plan."""
    plan = pretraining_plan.plan_pretraining(*arguments, **options)
    pretraining.run_pretraining(plan, record_start)


def make_pretrained(folder, **model):
    """Writes a masked-LM run of a few steps with random weights; returns its folder.

    Training it would take seconds more.

    Args:
      folder: to make. model: fields of `tiny_model` to change.
    """
    folder.mkdir(parents=True)
    vocabulary = open_vocabulary(make_vocabulary(folder / "made.model").path)
    sizes = tiny_model(vocab_size=vocabulary.size, **model)
    description = run_folder.ModelDir(
        "pretrain", sizes, vocabulary.fingerprint, None, {}
    )
    run = folder / "run"
    run_folder.claim(str(run), description, vocabulary)
    write_list(str(run), [write_weights(run, sizes)])
    return run


def write_weights(folder, sizes, head=MASKED_LM):
    """Writes random weights with their slots; returns the checkpoint's prefix."""
    generator, prefix = np.random.default_rng(0), str(folder / f"model.ckpt-{STEPS}")
    with CheckpointWriter(prefix) as writer:
        for name, shape in shapes(sizes, head).items():
            mean = float(name.endswith("gamma"))
            value = generator.normal(mean, sizes.initializer_range, shape)
            for slot in ("", "/adam_m", "/adam_v"):
                writer.add(f"{name}{slot}", value.astype(np.float32))
        writer.add("global_step", np.array(STEPS, np.int64))
    return prefix
