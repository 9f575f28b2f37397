"""What one release of TensorFlow writes, another reads, in both directions.

DECOUPLED_OTHER_PYTHON names the interpreter of an environment with another release and
what else the package requires. Results agree to the tolerances below; that they are the
same, to the bit, is promised within one release alone.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.training.events import read_scalars
from tests.data.small_corpus import make_corpus, make_vocabulary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = pathlib.Path(__file__).parent.parent
OTHER = os.environ.get("DECOUPLED_OTHER_PYTHON")
# Of losses and of probabilities' logarithms, after up to 40 steps of training.
STEPS, TOLERANCE = 20, 1e-4
SETTINGS = """
ModelConfig.vocab_size = 54
ModelConfig.hidden_size = 32
ModelConfig.input_embedding_size = 16
ModelConfig.output_embedding_size = 48
ModelConfig.num_layers = 2
ModelConfig.num_heads = 4
ModelConfig.head_size = 8
ModelConfig.intermediate_size = 64
ModelConfig.hidden_dropout = 0.1
MaskingConfig.sequence_length = 12
MaskingConfig.max_predictions = 4
OptimizerConfig.learning_rate = 1e-2
ScheduleConfig.warmup_steps = 10
ScheduleConfig.decay = "constant"
TrainingConfig.batch_size = 8
TrainingConfig.log_steps = 1
TrainingConfig.eval_batch_size = 8
"""
TEXTS = ["the record holds text", "rekodi ina maandishi", "every word neno moja"]
SERVE = """
import json, sys
import numpy as np
import tensorflow as tf
folder, kind, *texts = sys.argv[1:]
if kind == "text_encoder":
    import tensorflow_text
    outputs = tf.saved_model.load(f"{folder}/{kind}")(texts)
else:
    ids = tf.constant([[2, 7, 8, 9, 3, 0], [2, 10, 3, 0, 0, 0]])
    outputs = tf.saved_model.load(f"{folder}/encoder").mlm({
        "input_word_ids": ids, "input_mask": tf.cast(ids != 0, tf.int32),
        "input_type_ids": tf.zeros_like(ids), "masked_lm_positions": [[1, 2], [1, 1]],
    })
print(json.dumps({name: np.array(value).tolist() for name, value in outputs.items()}))
"""


def run(python, *arguments):
    done = subprocess.run(
        [python, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module", params=["here to there", "there to here"])
def between(request):
    """(interpreter that writes, interpreter that reads)."""
    if not OTHER:
        pytest.skip("DECOUPLED_OTHER_PYTHON names no environment with another release")
    release = "import tensorflow; print(tensorflow.__version__)"
    assert run(OTHER, "-c", release).strip() != tf.__version__
    pair = (sys.executable, OTHER)
    return pair if request.param == "here to there" else pair[::-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("releases")


@pytest.fixture(scope="module")
def records(between, folder):
    """A function of an interpreter: the records that it builds, and the vocabulary."""
    made = tmp = folder / f"by {between.index(OTHER)}"
    make_corpus(tmp / "corpus", evaluation=(("en", 20), ("sw", 10)))
    vocabulary = make_vocabulary(tmp / "sentencepiece.model").path

    def build(python):
        target = made / f"records {between.index(python)}"
        run(
            python, "-m", "decoupled", "build_records", f"--corpus_dir={tmp}/corpus",
            f"--vocabulary={vocabulary}", f"--output_dir={target}",
        )  # fmt: skip
        return target, vocabulary

    return build


@pytest.fixture(scope="module")
def written(records, between):
    """The records folder that the writer built, and the vocabulary."""
    return records(between[0])


def pretrain(python, data, run_folder, steps, mode="train"):
    settings = run_folder.with_suffix(".gin")
    settings.write_text(f"{SETTINGS}ScheduleConfig.train_steps = {steps}\n")
    run(
        python, "-m", "decoupled", "pretrain", f"--records_dir={data[0]}",
        f"--vocabulary={data[1]}", f"--model_dir={run_folder}", f"--mode={mode}",
        "--gin_file=models/decoupled.gin", f"--gin_file={settings}",
    )  # fmt: skip
    return run_folder


@pytest.fixture(scope="module")
def trained(written, between):
    """A run of 20 steps by the writer."""
    return pretrain(between[0], written, written[0].parent / "run", STEPS)


@pytest.fixture(scope="module")
def exported(trained, between):
    """Its export, with the MLM head."""
    target = trained.with_name("export")
    run(
        between[0], "-m", "decoupled", "export", f"--model_dir={trained}",
        f"--export_dir={target}", "--mlm",
    )  # fmt: skip
    return target


def variables(run_folder):
    reader = tf.train.load_checkpoint(str(run_folder))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


def test_records_are_the_same_and_pass_the_others_check(records, written, between):
    again, vocabulary = records(between[1])
    files = sorted(path.name for path in again.rglob("*") if path.is_file())
    assert files == sorted(p.name for p in written[0].rglob("*") if p.is_file())
    for path in again.rglob("*.tfrecord*"):
        other = written[0] / path.relative_to(again)
        assert path.read_bytes() == other.read_bytes()
    run(
        between[1], "-m", "decoupled", "verify_records", f"--records_dir={written[0]}",
        f"--vocabulary={vocabulary}",
    )  # fmt: skip


def test_a_run_goes_on_with_the_other_release(trained, written, between, capsys):
    folders = []
    for name, python in (("stays", between[0]), ("moves", between[1])):
        copy = shutil.copytree(trained, trained.with_name(name))
        folders.append(pretrain(python, written, copy, 2 * STEPS))
    stays, moves = (read_scalars(str(folder), "loss") for folder in folders)
    assert set(stays) == set(moves) == set(range(1, 2 * STEPS + 1))
    steps = range(STEPS + 1, 2 * STEPS + 1)
    apart = max(abs(stays[step] - moves[step]) for step in steps)
    report(capsys, f"losses of steps {steps[0]} to {steps[-1]} differ by up to", apart)
    assert apart < TOLERANCE
    here, there = map(variables, folders)
    assert here.keys() == there.keys()
    assert here["global_step"] == there["global_step"] == 2 * STEPS


def test_predictions_of_a_checkpoint_agree(trained, written, between, capsys):
    losses = []
    for name, python in zip(("writer", "reader"), between, strict=True):
        copy = shutil.copytree(trained, trained.with_name(name))
        pretrain(python, written, copy, STEPS, "predict")
        lines = (copy / "predictions.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss_sum"] for line in lines])
    apart = np.abs(np.subtract(*losses)).max()
    report(capsys, f"losses of {len(losses[0])} held-out rows differ by up to", apart)
    assert apart < TOLERANCE


@pytest.mark.parametrize("kind", ["encoder", "text_encoder"])
def test_saved_models_load_and_agree(kind, exported, between, capsys):
    arguments = ("-c", SERVE, exported, kind, *TEXTS)
    one, other = (json.loads(run(python, *arguments)) for python in between)
    assert one.keys() == other.keys() and one
    apart = max(np.abs(np.subtract(one[name], other[name])).max() for name in one)
    report(capsys, f"outputs of {kind} differ by up to", apart)
    assert apart < TOLERANCE


def test_folders_for_transformers_give_the_same_weights_back(trained, between):
    folder, back = trained.with_name("transformers"), trained.with_name("back")
    convert = ("-m", "decoupled", "convert")
    # The head of this model has no counterpart there.
    run(
        between[0], *convert, "to_hf", f"--model_dir={trained}", f"--hf_dir={folder}",
        "--encoder_only",
    )  # fmt: skip
    run(between[1], *convert, "from_hf", f"--model_dir={back}", f"--hf_dir={folder}")
    before, after = variables(trained), variables(back)
    weights = after.keys() - {"global_step"}
    assert len(weights) > 30
    for name in weights:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)


def report(capsys, what, apart):
    with capsys.disabled():
        print(f"\n{what} {apart:.1e}")
