"""Programs of XLA beside TensorFlow's own kernels: the same numbers, files and ends.

JAX computes on virtual devices of the CPU. What several processes do is in
tests/training/xla/test_hosts.py.
"""

import contextlib
import dataclasses
import glob
import os
import re
import shutil
import signal
import sys
import threading
import time
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.data.array_input_fn import training_input_fn
from decoupled.model.variables import MASKED_LM, shapes
from decoupled.training.checkpoints import write_list
from decoupled.training.events import read_scalars
from decoupled.training.loop import predict
from decoupled.training.xla import adapter, kernels, loop
from decoupled.training.xla.programs import export, replica_mesh, training_program
from decoupled.training.xla.stablehlo import to_stablehlo
from tests.helpers import adamw, masked_lm_features, schedule, tiny_model
from tests.pretrained import write_weights
from tests.training import test_packing as packed
from tests.training.runs import (
    BOTH_AXES,
    DATA_AXIS,
    ONE_DEVICE,
    SMALL,
    SignalAtStep,
    assert_equal_values,
    checkpoint_names,
    checkpoint_values,
    graph_config,
    largest_difference,
    run_spec,
    said,
    step_features,
    stepping_input_fn,
    train_run,
    with_training,
)

pytestmark = pytest.mark.skipif(
    find_spec("jax") is None, reason="JAX needs Python 3.11"
)

CPU = Hardware("cpu")
EIGHT = dataclasses.replace(BOTH_AXES, mesh_shape="d:4;m:2")
DROPOUT = tiny_model(hidden_dropout=0.1, attention_dropout=0.1)
STEPS = 6


def config(**changes):
    return graph_config(schedule=schedule(STEPS), **changes)


def trained(graph, spec):
    return train_run(graph, spec), spec


def scalars(spec, name):
    return np.array(list(read_scalars(spec.model_dir, name).values()))


# A key's bias shifts all scores of a query, and the head's bias and the last beta shift
# all positions of a question's text. A softmax does not change with them, so that their
# gradient is zero but for rounding, which Adam takes for a direction.
WITHOUT_GRADIENT = ("self/key/bias", "output_bias", "layer_0/output/LayerNorm/beta")


def with_gradients(values, without=WITHOUT_GRADIENT):
    return {n: v for n, v in values.items() if not any(part in n for part in without)}


# That of most tests here, so that it is compiled once. Of each kind of variable some
# are trained, one of a stack at its own rate: programs of all take twice as long.
TRAINED = (
    "word_embeddings", "query/kernel", "key/kernel", "value/kernel", "query/bias",
    "output/LayerNorm/gamma", "output_embedding", "output_bias",
)  # fmt: skip
USUAL_MODEL = tiny_model(hidden_dropout=0.1, attention_dropout=0.1, **SMALL)
USUAL = {
    "mesh": BOTH_AXES,
    "model": USUAL_MODEL,
    "gradient_accumulation": 2,
    "frozen": tuple(
        n for n in shapes(USUAL_MODEL, MASKED_LM) if not n.endswith(TRAINED)
    ),
    "optimizer": adamw(rates={"*query/kernel": 0.5}),
}

# Change of the graph, and the largest relative difference of losses and of norms, and
# the largest difference of a weight or slot.
EXACT = (1e-6, 2e-6, 1e-6)
VARIANTS = {
    "one device": ({}, EXACT),
    "data": ({"mesh": DATA_AXIS}, EXACT),
    "data and model": ({"mesh": BOTH_AXES}, EXACT),
    "eight devices": ({"mesh": EIGHT}, EXACT),
    "output embedding": (
        {"mesh": MeshConfig("m:2", "output_embedding:m")}, EXACT
    ),
    "sequence": ({"mesh": MeshConfig("d:2;m:2", "batch:d;sequence:m")}, EXACT),
    "dropout": ({"mesh": EIGHT, "model": DROPOUT}, EXACT),
    "usual": (USUAL, EXACT),
    "dropout, microbatches": (
        {"mesh": BOTH_AXES, "model": DROPOUT, "gradient_accumulation": 2}, EXACT
    ),
    "dropout, gradient checkpointing": (
        {"mesh": BOTH_AXES, "model": DROPOUT, "recompute_layers": True}, EXACT
    ),
    "no stacks": (
        {"mesh": dataclasses.replace(BOTH_AXES, stack_mib=0)}, EXACT
    ),
    "bfloat16 activations": (
        {"mesh": dataclasses.replace(BOTH_AXES, activation_dtype="bfloat16")},
        (2e-3, 2e-2, 2e-2),
    ),
    "bfloat16 slices": (
        {"mesh": dataclasses.replace(BOTH_AXES, slice_dtype="bfloat16")},
        # One weight of 0.002 is rounded the other way, by a last place of bfloat16.
        (1e-6, 2e-6, 2**-16),
    ),
    "coupled": ({"mesh": BOTH_AXES, "model": "coupled"}, EXACT),
    "rates": (
        {"mesh": BOTH_AXES, "optimizer": adamw(rates={"*query/kernel": 0.5,
                                                      "*output_embedding": 4})}, EXACT
    ),
}  # fmt: skip


# The others run with `make test-interop`.
FAST = ("usual",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.interop)
        for name in VARIANTS
    ],
)
def test_training_equals_that_of_tensorflow_s_kernels(name, whole, tmp_path):
    changes, (of_losses, of_norms, of_values) = VARIANTS[name]
    changes = dict(changes)
    if changes.get("model") == "coupled":
        changes["model"] = tiny_model(coupled=True, output_embedding_size=8)
    graph = config(**changes)
    expected, host = trained(graph, run_spec(tmp_path / "host"))
    if changes == USUAL:
        values, xla = checkpoint_values(whole.model_dir), whole
    else:
        values, xla = trained(graph, run_spec(tmp_path / "xla")._replace(hardware=CPU))
    for scalar, tolerance in (("loss", of_losses), ("gradient_norm", of_norms)):
        np.testing.assert_allclose(
            scalars(xla, scalar), scalars(host, scalar), tolerance
        )
    assert len(scalars(xla, "loss")) == STEPS
    kept = [with_gradients(v, WITHOUT_GRADIENT[:1]) for v in (expected, values)]
    difference, variable = largest_difference(*kept)
    assert difference <= of_values, variable
    assert {n: v.dtype for n, v in values.items()} == {
        n: v.dtype for n, v in expected.items()
    }


@pytest.mark.interop
@pytest.mark.parametrize("kind", packed.TASKS)
def test_packed_fine_tuning_equals_that_of_tensorflow_s_kernels(kind, tmp_path):
    packing = packed.PACKING
    task = packed.TASKS[kind].packed(packing.examples)
    features = packed.features(kind)

    def batches(step):
        return training_input_fn(features, packed.BATCH, 3, step, packing)

    graph = config(task=task, mesh=BOTH_AXES)
    trained = []
    for name, hardware in (("host", HOST), ("xla", CPU)):
        spec = run_spec(tmp_path / name)
        spec = spec._replace(hardware=hardware)
        trained.append((train_run(graph, spec, batches), scalars(spec, "loss")))
    (expected, expected_losses), (values, losses) = trained
    np.testing.assert_allclose(losses, expected_losses, 1e-6)
    difference, variable = largest_difference(*map(with_gradients, (expected, values)))
    assert difference <= 2e-6, variable


SPECS = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in masked_lm_features().items()}


@pytest.fixture(scope="module")
def usual_program():
    program = training_program(config(**USUAL), SPECS)
    return program, export(program)


@contextlib.contextmanager
def built_once(program, exported):
    """In its context the loop takes this program for the usual graph, unchanged."""
    usual = config(**USUAL)

    def build(graph, features, kernel, device):
        kept = usual.training
        saved = dict(
            save_checkpoints_steps=kept.save_checkpoints_steps,
            keep_checkpoint_max=kept.keep_checkpoint_max,
        )
        assert with_training(graph, **saved) == usual
        assert (features, kernel, device) == (SPECS, "plain", "cpu")
        return program

    with (
        mock.patch.object(loop, "training_program", build),
        mock.patch.object(loop, "export", lambda _: exported),
    ):
        yield usual


@pytest.fixture
def usual(usual_program):
    """The usual graph, whose program is built once for all tests of the loop."""
    with built_once(*usual_program) as graph:
        yield graph


@pytest.fixture(scope="module")
def whole(usual_program, tmp_path_factory):
    """A run of the usual graph, not disturbed; saved every second step."""
    folder = tmp_path_factory.mktemp("whole")
    spec = run_spec(folder)._replace(hardware=CPU)
    with built_once(*usual_program) as graph:
        saved = dict(save_checkpoints_steps=2, keep_checkpoint_max=2)
        train_run(with_training(graph, **saved), spec)
    return spec


def test_only_the_newest_checkpoints_are_kept(whole):
    assert checkpoint_names(whole.model_dir) == [4, 6]
    assert [name for name in os.listdir(whole.model_dir) if "_temp" in name] == []


def copy_of(whole, folder, step):
    """The folder of the run as it was at a step."""
    os.makedirs(folder)
    prefix = f"{whole.model_dir}/model.ckpt-{step}"
    for path in glob.glob(f"{prefix}.*"):
        shutil.copy(path, folder)
    write_list(str(folder), [f"{folder}/model.ckpt-{step}"])
    return folder


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(whole, usual, tmp_path):
    folder = copy_of(whole, tmp_path / "copy", 4)
    spec = run_spec(folder)._replace(hardware=CPU)
    values = train_run(usual, spec)
    assert_equal_values(values, checkpoint_values(whole.model_dir))
    assert "resuming from" in said(spec)[0] and "at step 4" in said(spec)[0]


@pytest.mark.interop
@pytest.mark.parametrize(
    "hardware, mesh",
    [(HOST, ONE_DEVICE), (HOST, BOTH_AXES), (CPU, EIGHT), (CPU, ONE_DEVICE)],
)
def test_a_run_moves_between_meshes_and_runtimes(hardware, mesh, tmp_path):
    """From 2 x 2 devices to others, and back."""
    graph = config(mesh=BOTH_AXES, save_checkpoints_steps=2)
    spec = run_spec(tmp_path / "whole")
    expected = train_run(graph, spec._replace(hardware=CPU))
    folder = copy_of(spec, tmp_path / "moved", 2)
    there = run_spec(folder)._replace(hardware=hardware)
    until_4 = SimpleNamespace(first=0, last=4)
    train_run(config(mesh=mesh), there, phase=until_4)
    assert checkpoint_names(folder) == [2, 4]
    values = train_run(graph, run_spec(folder)._replace(hardware=CPU))
    assert largest_difference(expected, values)[0] <= 1e-6


@pytest.mark.parametrize(
    "number, error, message",
    [
        (signal.SIGTERM, Terminated, "SIGTERM: saved at step 3; run again to go on"),
        pytest.param(
            *(signal.SIGINT, Interrupted, "Ctrl-C: saved at step 3"),
            marks=pytest.mark.interop,
        ),
    ],
)
def test_a_signal_ends_training_after_it_has_saved(
    usual, number, error, message, tmp_path
):
    before = signal.getsignal(number)
    stop = SignalAtStep(number, 3)
    spec = run_spec(tmp_path)._replace(hardware=CPU, stop=stop)
    with pytest.raises(error, match=message):
        train_run(usual, spec)
    assert checkpoint_names(tmp_path) == [3]
    assert signal.getsignal(number) == before


def test_a_signal_in_a_compilation_ends_without_waiting_for_it(monkeypatch):
    """At its own end, the interpreter would wait for the compiler, and crash."""
    released, ends = threading.Event(), []

    def interrupted(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(adapter, "_LINE_EVERY", 0.01)
    monkeypatch.setattr(adapter.endings, "end_at_once", lambda: ends.append("at once"))
    client = SimpleNamespace(
        _compile_module=lambda *_: released.wait(60), say=interrupted, describe=str
    )
    with pytest.raises(KeyboardInterrupt):
        adapter.Client._build(client, None, {}, 0.0)
    assert ends == ["at once"]
    released.set()


def test_a_step_that_is_not_finite_is_never_saved(usual, tmp_path):
    """Steps are read late, but before the checkpoint of the next one."""
    spec = run_spec(tmp_path)._replace(hardware=CPU)

    def features_of(step):
        # The weights of the fourth batch are no numbers.
        features = step_features(step)
        if step == 3:
            features["masked_lm_weights"][:] = np.nan
        return features

    def batches(start):
        return stepping_input_fn(start, features_of)

    message = r"training: .* at step 4; the last checkpoint"
    with pytest.raises(UserError, match=message):
        train_run(with_training(usual, save_checkpoints_steps=2), spec, batches)
    assert checkpoint_names(tmp_path) == [2]


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(ONE_DEVICE, marks=pytest.mark.interop),
        BOTH_AXES,
        pytest.param(EIGHT, marks=pytest.mark.interop),
    ],
)
def test_predictions_equal_those_of_tensorflow_s_kernels(whole, mesh):
    """Also the last batch, which nobody follows."""
    network, here = (
        config(mesh=m, model=USUAL_MODEL).network for m in (mesh, ONE_DEVICE)
    )
    batches = [masked_lm_features(seed=seed) for seed in range(3)]

    def input_fn(params=None):
        signature = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in batches[0].items()}
        return tf.data.Dataset.from_generator(
            lambda: iter(batches), output_signature=signature
        )

    spec = run_spec(whole.model_dir)
    expected = list(predict(here, spec, 8, input_fn))
    rows = list(predict(network, spec._replace(hardware=CPU), 8, input_fn))
    assert len(rows) == len(expected) == 3 * 8
    for row, of_host in zip(rows, expected, strict=True):
        assert sorted(row) == sorted(of_host)
        for name, value in of_host.items():
            np.testing.assert_allclose(row[name], value, 1e-5, 1e-6)


@pytest.mark.interop
def test_an_initial_checkpoint_gives_its_weights(tmp_path):
    task = packed.TASKS["pairs"].packed(packed.PACKING.examples)
    features = packed.features("pairs")
    # Adam's first step makes much of gradients that are nearly 0: here it is short.
    graph = graph_config(
        task=task, model=DROPOUT, schedule=schedule(1, 0), mesh=BOTH_AXES,
        optimizer=adamw(learning_rate=1e-3),
    )  # fmt: skip
    prefix, layer = write_weights(tmp_path, DROPOUT, task.head), "output_weights"
    values = []
    for name, hardware in (("host", HOST), ("xla", CPU)):
        spec = run_spec(tmp_path / name)
        spec = spec._replace(
            hardware=hardware, init_checkpoint=prefix, drawn_names=(layer,)
        )
        values.append(
            train_run(
                graph,
                spec,
                lambda step: training_input_fn(
                    features, packed.BATCH, 3, step, packed.PACKING
                ),
            )
        )
        assert f"  drawn from the seed: {layer}" in said(spec)
    assert largest_difference(*values)[0] <= 1e-6


def test_the_time_for_which_devices_wait_for_input_is_shown(usual, tmp_path):
    """Each batch takes 0.3 s, and a step some milliseconds."""

    def slowly(features):
        time.sleep(0.3)
        return features

    def input_fn(params=None):
        batches = stepping_input_fn(0)()
        name, spec = next(iter(batches.element_spec.items()))

        def slow(features):
            waited = tf.numpy_function(slowly, [features[name]], spec.dtype)
            return {**features, name: tf.ensure_shape(waited, spec.shape)}

        return batches.map(slow)

    spec = run_spec(tmp_path)._replace(hardware=CPU)
    train_run(usual, spec, lambda step: input_fn)
    [share] = re.findall(r"s left  waits for input (\d+)%", " ".join(said(spec)))
    assert 20 < int(share) <= 100


def test_batches_that_end_too_early_are_an_error(usual, tmp_path):
    """Without it, the loop of segments would begin again and again."""
    spec = run_spec(tmp_path)._replace(hardware=CPU)
    few = {n: tf.constant(x[None]) for n, x in masked_lm_features().items()}
    with pytest.raises(ValueError, match="the batches end at step 1, before step 6"):
        train_run(
            usual,
            spec,
            lambda step: lambda params=None: tf.data.Dataset.from_tensor_slices(few),
        )


# ---- The program -------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(usual_program):
    return usual_program[1]


def test_everything_that_changes_is_donated(exported):
    _, updated = to_stablehlo(exported.hlo, "highest")
    first = len(exported.features)
    names = [re.split("(_and_.*)?_slice_", v.name)[0] for v in exported.variables]
    changed = [n for n, name in enumerate(names, first) if name not in USUAL["frozen"]]
    assert sorted(updated.values()) == changed
    # Stacks of kernels, tables, their biases and gammas with two moments each, and the
    # step.
    assert len(changed) == 3 * 5 + 1


def test_loops_have_the_same_names_in_every_process(exported):
    """Else the cache of compiled programs would not know a program again."""
    module, _ = to_stablehlo(exported.hlo, "highest")
    loops = re.findall(r"func private @while\w*", str(module))
    assert loops and not [name for name in loops if re.search(r"_(cond|body)_\d", name)]


@pytest.mark.parametrize("precision", ["highest", "high", "default"])
def test_every_product_of_float32_has_the_precision(exported, precision):
    """JAX's own setting reaches only what JAX traces."""
    module, _ = to_stablehlo(exported.hlo, precision)
    with module.context:
        products = re.findall(r"stablehlo.dot_general .*", str(module))
    assert len(products) > 20
    expected = "" if precision == "default" else precision.upper()
    for product in products:
        assert "f32" in product
        assert f"precision = [{expected or 'DEFAULT'}, " in product, product


def test_collectives_and_random_bits_are_those_that_every_device_has(exported):
    """Philox by its name: a device's own default draws other bits. Mesh-TensorFlow
    sends an all-to-all of float32 as bfloat16."""
    module, _ = to_stablehlo(exported.hlo, "highest")
    text = str(module)
    assert "all_reduce" in text
    drawn = re.findall(r"rng_bit_generator.*algorithm =\s+(\w+)", text)
    assert set(drawn) == {"PHILOX"}
    assert "stablehlo.rng " not in text and "all_to_all" not in text
    # Nor is attention called by name, where nobody would replace it.
    assert kernels._calls(module) == []


@pytest.mark.parametrize(
    ("device", "stacks"),
    [
        ("NVIDIA H100", [3, 3]),
        ("TPU v4", [3, 3]),
        ("TPU v5 lite", [1, 1, 1, 3]),
        ("TPU7x", [1, 1, 1, 3]),
    ],
)
def test_later_tpus_have_no_stacks_of_matrices(device, stacks):
    rows, columns = mtf.Dimension("rows", 512), mtf.Dimension("columns", 1024)
    with tf.Graph().as_default():
        mesh, graph = replica_mesh(ONE_DEVICE, device=device), mtf.Graph()
        for dims in ([rows, columns], [columns]):
            for index in range(3):
                name = f"{len(dims)}_{index}"
                mtf.get_variable(mtf.Mesh(graph, "mesh"), name, mtf.Shape(dims))
        members = mesh.stacks(graph.all_variables)
    assert [len(names) for names in members] == stacks


# ---- What is refused ---------------------------------------------------------------


def test_a_mesh_with_more_devices_than_there_are_is_refused():
    with pytest.raises(UserError, match="needs 16 devices, and there are 8 CPU dev"):
        adapter.Client("cpu", [16], print)


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(UserError, match=r"finds no TPU .*'decoupled\[tpu_vm\]'"):
        adapter.Client("tpu", [1], print)


def test_a_variable_of_the_environment_that_hides_the_devices_is_named(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(UserError, match="JAX_PLATFORMS=cpu, .* unset it"):
        adapter.Client("gpu", [1], print)


def test_without_jax_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UserError, match=r"needs JAX, .* 'decoupled\[cuda\]'"):
        adapter.Client("gpu", [1], print)


def test_a_program_that_does_not_fit_says_what_saves_memory(exported):
    client = adapter.Client("cpu", [2, 2], print)
    executable = client.compile(exported, False, "highest")
    memory = executable.memory()
    assert memory.needed >= memory.arguments + memory.temporary > 0
    executable.check_memory()
    executable.memory = lambda: memory._replace(available=memory.needed - 1)
    with pytest.raises(UserError, match="does not fit: .*recompute_layers"):
        executable.check_memory()
