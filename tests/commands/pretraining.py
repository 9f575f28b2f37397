"""Pre-training in processes: small records, the command, and its checkpoints."""

import os
import time

from decoupled.core.compat import tf
from decoupled.data.records_build import build_records
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import tiny_model
from tests.training import runs

# The tests' tiny model, of few variables, for the pieces of `make_records`.
MODEL = tiny_model(vocab_size=54, **runs.SMALL)
# It and its training as bindings.
PARAMS = [
    *(f"ModelConfig.{name} = {value!r}" for name, value in vars(MODEL).items()),
    "ModelConfig.hidden_dropout = 0.1",
    "MaskingConfig.sequence_length = 12",
    "MaskingConfig.max_predictions = 4",
    "OptimizerConfig.learning_rate = 1e-2",
    "ScheduleConfig.train_steps = 400",
    "ScheduleConfig.warmup_steps = 10",
    "TrainingConfig.batch_size = 8",
    "TrainingConfig.save_checkpoints_steps = 50",
    "TrainingConfig.log_steps = 1",
    "TrainingConfig.eval_batch_size = 8",
]


def make_records(folder):
    """Makes records with held-out text; returns (their folder, vocabulary)."""
    make_corpus(folder / "corpus", evaluation=(("en", 20), ("sw", 10)))
    vocabulary = make_vocabulary(folder / "sentencepiece.model").path
    build_records(str(folder / "corpus"), vocabulary, str(folder / "records"), 2000)
    return str(folder / "records"), vocabulary


def pretrain_words(data, folder, *bindings, mode="train"):
    """`decoupled pretrain` for the records and vocabulary of `data`.

    Args:
      bindings: further ones, beside `PARAMS`.
    """
    return [
        "decoupled", "pretrain", f"--mode={mode}",
        *(f"--gin_param={param}" for param in (*PARAMS, *bindings)),
        f"--records_dir={data[0]}", f"--vocabulary={data[1]}", f"--model_dir={folder}",
    ]  # fmt: skip


def wait_for(path, process):
    """Waits until a running process has written a file.

    A checkpoint is complete once the folder's `checkpoint` lists it: the Saver writes
    `model.ckpt-N.index` before the list.
    """
    end = time.monotonic() + 120
    while not os.path.exists(path):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def finish(process):
    """Waits for the end; returns exit code, stdout and stderr."""
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def checkpoint(folder):
    """Name -> array of all that a folder's newest checkpoint holds."""
    reader = tf.train.load_checkpoint(str(folder))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
