"""Attention by name: whoever replaces it, training and predictions stay the same.

On virtual devices of the CPU, where splash attention runs in Pallas' interpreter. Its
compilation for TPUs is in tests/interop/test_jax_step.py.
"""

import dataclasses
import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.configs.hardware import Hardware
from decoupled.core.compat import tf
from decoupled.core.errors import in_one_line
from decoupled.data.array_input_fn import training_input_fn
from decoupled.training.loop import predict
from decoupled.training.xla import adapter, kernels, loop
from decoupled.training.xla.programs import (
    attention_kernel,
    export,
    training_program,
)
from decoupled.training.xla.stablehlo import to_stablehlo
from tests.helpers import MASKING, masked_lm_features, schedule, tiny_model
from tests.training import test_packing as packed
from tests.training.runs import (
    BOTH_AXES,
    ONE_DEVICE,
    SMALL,
    graph_config,
    largest_difference,
    run_spec,
    said,
    train_run,
    with_training,
)

jax = pytest.importorskip("jax", reason="JAX needs Python 3.12")
jnp = jax.numpy

STEPS = 4
EIGHT = dataclasses.replace(BOTH_AXES, mesh_shape="d:4;m:2")
MODEL = {"num_layers": 2, **SMALL}
HEAD_OF_8 = {"num_heads": 2, "head_size": 8}


def refuse(*_, **__):
    raise NotImplementedError("Not this shape. Another one")


# Way of a kernel -> the pairs of functions that are tried for splash attention.
WAYS = {
    "plain": [(refuse, refuse)],
    "splash": kernels._PAIRS[kernels.SPLASH],
    "public": kernels._PAIRS[kernels.SPLASH][1:],
}


@pytest.fixture
def by_name(monkeypatch):
    """Attention is called by name on CPUs too, and replaced in one of the `WAYS`."""

    def choose(way):
        chosen = (kernels.SPLASH, "of the test")
        monkeypatch.setattr(loop, "attention_kernel", lambda *_, **__: chosen)
        monkeypatch.setitem(kernels._PAIRS, kernels.SPLASH, WAYS[way])

    return choose


def trained(folder, graph, batches=None, **settings):
    """Values of a finished run on CPU devices, and its lines."""
    spec = run_spec(folder)._replace(hardware=Hardware("cpu"))
    more = () if batches is None else (batches,)
    return train_run(with_training(graph, **settings), spec, *more), said(spec)


# Gradients flow through every layer to these, in programs that are compiled in half
# the time.
TRAINED = ("word_embeddings", "query/kernel", "key/kernel", "value/kernel")


def config(**changes):
    model = tiny_model(**{**MODEL, **changes.pop("model", {})})
    graph = graph_config(schedule=schedule(STEPS), model=model, **changes)
    names = graph.network.variables
    return graph._replace(frozen=tuple(n for n in names if not n.endswith(TRAINED)))


BFLOAT16 = dataclasses.replace(ONE_DEVICE, activation_dtype="bfloat16")
CASES = {
    "one device": {},
    "data and model": {"mesh": BOTH_AXES},
    "eight devices, microbatches": {"mesh": EIGHT, "gradient_accumulation": 2},
    "recomputed, hidden dropout": {
        "recompute_layers": True, "model": {"hidden_dropout": 0.1}
    },
    "stacks": {"model": {"num_layers": 3}},
    "no stacks": {"mesh": dataclasses.replace(BOTH_AXES, stack_mib=0)},
    "bfloat16": {"mesh": BFLOAT16},
}  # fmt: skip


# In `make test`, the kernels' numbers stand for it, and the calls in the program.
@pytest.mark.interop
@pytest.mark.parametrize(
    "case, way",
    [
        (case, way)
        for case in CASES
        for way in WAYS
        if way == "plain" or case in ("one device", "data and model", "bfloat16")
    ],
)
def test_training_by_name_is_training(case, way, tmp_path, by_name):
    graph = config(**CASES[case])
    expected, _ = trained(tmp_path / "whole", graph)
    by_name(way)
    values, lines = trained(tmp_path / "named", graph)
    difference, variable = largest_difference(expected, values)
    assert difference <= (2e-2 if case == "bfloat16" else 1e-6), variable
    refused = "attention by plain products instead: Not this shape"
    assert lines.count(refused) == (way == "plain")


@pytest.mark.interop
@pytest.mark.parametrize("way", ["plain", "splash"])
@pytest.mark.parametrize("kind", ["tags", "pairs"])
def test_packed_rows(kind, way, tmp_path, by_name):
    """Tags are read at every token, by an attention by name in the last layer too."""
    features = packed.features(kind)
    task = packed.TASKS[kind].packed(packed.PACKING.examples)

    def batches(step):
        return training_input_fn(features, packed.BATCH, 3, step, packed.PACKING)

    graph = config(task=task, mesh=BOTH_AXES)
    settings = {"batch_size": packed.BATCH}
    expected, _ = trained(tmp_path / "whole", graph, batches, **settings)
    by_name(way)
    values, _ = trained(tmp_path / "named", graph, batches, **settings)
    difference, variable = largest_difference(expected, values)
    assert difference <= 2e-6, variable


@pytest.mark.interop
def test_predictions(tmp_path, by_name):
    """Also of rows that are all padding, which are finite."""
    graph = config(mesh=BOTH_AXES)
    trained(tmp_path, graph)
    batch = masked_lm_features()
    batch["input_word_ids"][-1] = 0
    signature = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in batch.items()}

    def input_fn(params=None):
        return tf.data.Dataset.from_generator(
            lambda: iter([batch]), output_signature=signature
        )

    spec = run_spec(tmp_path)._replace(hardware=Hardware("cpu"))
    expected = list(predict(graph.network, spec, 8, input_fn))
    by_name("splash")
    rows = list(predict(graph.network, spec, 8, input_fn))
    assert len(rows) == len(expected) == 8
    for row, of_plain in zip(rows[:-1], expected[:-1], strict=True):
        for name, value in of_plain.items():
            np.testing.assert_allclose(row[name], value, 1e-5, 1e-6)
    assert all(np.isfinite(value).all() for value in rows[-1].values())


def calls_of(exported):
    module, _ = to_stablehlo(exported.hlo, "highest")
    return module, kernels._calls(module)


def exported(graph, kernel, tokens=12):
    shape = [8, tokens]
    specs = {"input_word_ids": tf.TensorSpec(shape, tf.int32)}
    wide = [8, MASKING.max_predictions]
    for name in ("masked_lm_positions", "masked_lm_ids"):
        specs[name] = tf.TensorSpec(wide, tf.int32)
    specs["masked_lm_weights"] = tf.TensorSpec(wide, tf.float32)
    return export(training_program(graph, specs, kernel))


@functools.cache
def usual_program(name):
    """A program that several tests read."""
    changes, kernel = {
        "splash": ({}, kernels.SPLASH),
        "cudnn": ({"mesh": BFLOAT16, "model": HEAD_OF_8}, kernels.CUDNN),
    }[name]
    return exported(config(**changes), kernel)


def test_each_layer_but_the_last_calls_by_name():
    """A program of plain products has no such call: test_runtime.py."""
    program = usual_program("splash")
    module, calls = calls_of(program)
    # Forward and backward of the first of two layers.
    assert len(calls) == 2
    assert program.attention == kernels.SPLASH
    assert kernels.replace(module, kernels.SPLASH, "cpu", False) == ""
    assert kernels._calls(module) == []


def test_a_call_that_nobody_replaced_fails_by_its_name(monkeypatch):
    program = usual_program("splash")
    client = adapter.Client("cpu", [1], print)
    monkeypatch.setattr(adapter, "replace", lambda *_: "")
    with pytest.raises(Exception, match=r"decoupled\.attention"):
        client.compile(program, False, "highest")


def test_a_call_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "_VERSION", 2)
    module, _ = calls_of(usual_program("splash"))
    with pytest.raises(ValueError, match=r"decoupled\.attention, version 1"):
        kernels.replace(module, kernels.SPLASH, "cpu", False)


def lines_of_compiling(monkeypatch, first, program):
    """What is said where `first` compiles a program at first, and nothing the next."""
    lines, called = [], []

    def compiled(client, *arguments):
        called.append(arguments)
        return first(client, *arguments) if len(called) == 1 else None

    monkeypatch.setattr(adapter.Client, "_compile_module", compiled)
    monkeypatch.setattr(adapter, "Executable", lambda *_: SimpleNamespace(memory=str))
    adapter.Client("cpu", [1], lines.append).compile(program, False, "highest")
    assert len(called) == 2
    return lines


def test_what_the_compiler_refuses_is_compiled_plain(monkeypatch):
    """cuDNN's call, which no compiler of CPUs has."""
    patch_cudnn(monkeypatch)
    program = usual_program("cudnn")
    monkeypatch.setattr(adapter, "_PLATFORMS", {"cpu": "cuda,cpu"})
    lines = lines_of_compiling(monkeypatch, adapter.Client._compile_module, program)
    # Other lines say how long it takes.
    assert any("attention by plain products instead: " in line for line in lines)


def test_an_error_of_c_plus_plus_is_also_a_refusal(monkeypatch):
    """As JAX 0.11.2 on a GPU: IndexError, raw_hash_map<>::at."""

    def fails(client, *arguments):
        raise IndexError("raw_hash_map<>::at")

    program = usual_program("splash")
    lines = lines_of_compiling(monkeypatch, fails, program)
    assert "attention by plain products instead: raw_hash_map<>::at" in lines


def patch_cudnn(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91002)


@pytest.mark.parametrize(
    "public, deterministic",
    [(False, True), pytest.param(True, False, marks=pytest.mark.slow)],
)
def test_lowered_for_gpus(monkeypatch, public, deterministic):
    """Without one: the compiler's calls are in the program, nothing is compiled."""
    patch_cudnn(monkeypatch)
    if public:
        pairs = kernels._PAIRS[kernels.CUDNN][1:]
        monkeypatch.setitem(kernels._PAIRS, kernels.CUDNN, pairs)
    program = usual_program("cudnn")
    module, _ = calls_of(program)
    assert kernels.replace(module, kernels.CUDNN, "cuda", deterministic) == ""
    text = module.operation.get_asm()
    # Only gradients add up in an order of chance.
    assert len(re.findall(r"force_deterministic\\22: true", text)) == deterministic
    assert text.count("@__cudnn$fmhaScaleBiasSoftmax(") == (2 if public else 1)
    assert text.count("@__cudnn$fmhaScaleBiasSoftmaxBackward(") == 1


@pytest.mark.parametrize(
    "has_cudnn, reason",
    [(True, "Unsupported dtype for inputs"), (False, "cuDNN is not detected")],
)
def test_what_a_kernel_refuses_is_said(has_cudnn, reason, monkeypatch):
    """Here heads in float32."""
    if has_cudnn:
        patch_cudnn(monkeypatch)
    module, _ = calls_of(usual_program("splash"))
    refused = kernels.replace(module, kernels.CUDNN, "cuda", True)
    assert reason in refused and in_one_line(refused) == refused
    assert kernels._calls(module) == []


BATCH, HEADS = 2, 2


def draw(tokens, memory, size, dtype):
    generator = np.random.default_rng(0)
    shapes = [(BATCH, HEADS, n, size) for n in (tokens, memory, memory, tokens)]
    return [jnp.asarray(generator.standard_normal(s), dtype) for s in shapes]


def numbers(kind, tokens, memory):
    if kind == "packed":
        return [
            np.sort(np.arange(BATCH * n).reshape(BATCH, n) % 3 + 1).astype(np.int32)
            for n in (tokens, memory)
        ]
    real = np.arange(memory) < np.array([[memory], [memory // 2]])
    return [np.ones((BATCH, tokens), np.int32), real.astype(np.int32)]


SQUARE, NARROW, ODD = (
    (256, 256, 64, "float32", 2e-6),
    (256, 256, 64, "bfloat16", 2e-2),
    (20, 100, 48, "float32", 2e-6),
)
KERNEL_CASES = [
    (way, kind, *sizes)
    for way in ("plain", "splash", "public")
    for kind in ("packed", "padded")
    for sizes in (SQUARE, NARROW, ODD)
]
QUICK = [
    (way, kind, *SQUARE) for way in ("plain", "splash") for kind in ("packed", "padded")
]
# These run with `make test-interop`.
IN_BFLOAT16 = [(way, "packed", *NARROW) for way in ("splash", "public")]


@pytest.mark.parametrize(
    "way, kind, tokens, memory, size, dtype, tolerance",
    [
        pytest.param(
            *case,
            marks=[]
            if case in QUICK
            else pytest.mark.interop
            if case in IN_BFLOAT16
            else pytest.mark.slow,
        )
        for case in KERNEL_CASES
    ],
)
def test_kernels_beside_a_softmax_in_float32(
    way, kind, tokens, memory, size, dtype, tolerance
):
    query, key, value, d_heads = draw(tokens, memory, size, dtype)
    queries, others = numbers(kind, tokens, memory)
    pair = kernels._PLAIN_PAIR if way == "plain" else WAYS[way][0]
    settings = {"scale": size**-0.5, "platform": "cpu"}
    forward, backward = (functools.partial(f, **settings) for f in pair)
    inputs = (query, key, value, queries, others)
    heads, log_sum = forward(*inputs)
    assert log_sum.dtype == jnp.float32 and heads.dtype == dtype

    def expected(query, key, value):
        bias = jnp.where(queries[:, None, :, None] == others[:, None, None], 0, -1e9)
        scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) * size**-0.5 + bias
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), value)

    wide = [x.astype(jnp.float32) for x in (query, key, value)]
    of_softmax, gradient = jax.vjp(expected, *wide)
    found = [heads, *backward(*inputs, heads, log_sum, d_heads)]
    correct = [of_softmax, *gradient(d_heads.astype(jnp.float32))]
    for computed, exact in zip(found, correct, strict=True):
        assert np.abs(computed.astype(jnp.float32) - exact).max() <= tolerance


@pytest.mark.parametrize(
    "kind, changes, tokens, kernel, reason",
    [
        ("gpu", {}, 512, kernels.CUDNN, "512 tokens in bfloat16"),
        ("tpu", {}, 128, kernels.SPLASH, "128 tokens in bfloat16"),
        ("cpu", {}, 512, kernels.PLAIN, "CPUs have no kernel of it"),
        ("gpu", {"attention_kernel": "plain"}, 512, kernels.PLAIN,
         "attention_kernel is plain"),
        ("tpu", {"activation_dtype": "float32"}, 512, kernels.PLAIN,
         "activations are float32"),
        ("TPU v3", {}, 512, kernels.PLAIN,
         "TPU v3 does not multiply bfloat16 in kernels"),
        ("tpu", {}, 64, kernels.PLAIN, "64 tokens are fewer than 128"),
        ("gpu", {}, 129, kernels.PLAIN, "129 is an odd number of tokens"),
        ("gpu", {"layout_rules": "sequence:m"}, 512, kernels.PLAIN,
         "the layout splits sequence"),
        ("gpu", {"dropout": 0.1}, 512, kernels.PLAIN, "attention_dropout is not 0"),
        ("gpu", {"head_size": 4}, 512, kernels.PLAIN,
         "head_size 4 is no multiple of 8"),
    ],
)  # fmt: skip
def test_the_choice_of_a_kernel(kind, changes, tokens, kernel, reason):
    changes = {"activation_dtype": "bfloat16", **changes}
    size = changes.pop("head_size", 8)
    model = tiny_model(
        num_heads=16 // size,
        head_size=size,
        attention_dropout=changes.pop("dropout", 0.0),
    )
    network = config(mesh=MeshConfig("m:2", **changes)).network._replace(model=model)
    features = {"input_word_ids": tf.TensorSpec([8, tokens], tf.int32)}
    device, kind = kind, kind[:3].lower()
    chosen = attention_kernel(kind, device, network, features, trains=True)
    assert chosen == (kernel, reason)
