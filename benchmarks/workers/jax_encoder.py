"""A hand-written JAX encoder's training step: run on a device, or compiled without one.

Not ours: what a user of JAX writes for these sizes, with every saving that our program
has: float32 weights that are cast where they are read, the last layer and the head only
at the masked positions. A worker of `benchmarks/accelerators.py`, in a Python with JAX.

A case has a batch's sizes (see `synthetic`), the fields of a `ModelConfig` as "model"
and "attention": plain, cudnn or splash. With "topology" the step is compiled for
devices that are not there, and what `decoupled/planning/jax_step.py` prints of a step
of ours is printed. Without, it runs, with "block" steps between readings of the loss.
"""

import functools
import json
import pathlib
import sys
import time

import protocol
import synthetic
import xla_step

sys.path.append(str(pathlib.Path(__file__).parents[2]))
from decoupled.planning import jax_step  # noqa: E402


def main() -> None:
    """Runs or compiles the case."""
    case = json.loads(sys.argv[1])
    if "topology" in case:
        print(
            json.dumps(compile_for(jax_step.DescribedDevices(case["topology"]), case))
        )
    else:
        protocol.serve(build)


def compile_for(described, case):
    """Compiles a step; returns what it needs and moves."""
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(described.devices[:1]), ["all"])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def described_array(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    weights, batch = weights_of(case["model"]), batch_of(case)
    state = {
        name: weights if name != "step" else jax.ShapeDtypeStruct((), np.float32)
        for name in ("weights", "mean", "variance", "step")
    }
    state, batch = jax.tree.map(described_array, (state, batch))
    start = time.monotonic()
    lowered = step_of(case).lower(state, batch)
    executable = lowered.compile().runtime_executable()
    result = {"compiler": described.compiler, "attention": case["attention"]}
    result |= described.judge(executable)
    return result | {"seconds": round(time.monotonic() - start, 1)}


def build(case):
    """The step on the first device, from random weights."""
    import jax
    import numpy as np

    shapes, tree = jax.tree_util.tree_flatten_with_path(weights_of(case["model"]))
    values = []
    for index, (path, leaf) in enumerate(shapes):
        value = synthetic.start_value(index, "", leaf.shape, "float32")
        if "norm" in jax.tree_util.keystr(path):
            value[0] += 1
        values.append(jax.device_put(value))
    weights = jax.tree.unflatten(tree, values)
    state = {
        "weights": weights,
        "mean": jax.tree.map(lambda x: 0 * x, weights),
        "variance": jax.tree.map(lambda x: 0 * x, weights),
        "step": jax.device_put(np.float32(0)),
    }
    batch = jax.tree.map(jax.device_put, batch_of(case))
    train_step = step_of(case)

    def step():
        nonlocal state
        for _ in range(case["block"]):
            state, loss, _ = train_step(state, batch)
        return float(loss)

    step()
    return step, xla_step.facts()


def step_of(case):
    """`train`, compiled; a new state takes the memory of the old one."""
    import jax

    return jax.jit(functools.partial(train, case), donate_argnums=0)


def weights_of(model):
    """The shapes of all weights, by name."""
    import jax
    import numpy as np

    vocab, inner = model["vocab_size"], model["intermediate_size"]
    hidden, out = model["hidden_size"], model["output_embedding_size"]
    width = model["input_embedding_size"]
    layer = {
        **{name: (hidden, hidden) for name in ("query", "key", "value", "output")},
        **{f"{name}_bias": (hidden,) for name in ("query", "key", "value", "output")},
        "up": (hidden, inner), "up_bias": (inner,),
        "down": (inner, hidden), "down_bias": (hidden,),
        "norm_1": (2, hidden), "norm_2": (2, hidden),
    }  # fmt: skip
    shapes = {
        "words": (vocab, width), "positions": (model["max_positions"], width),
        "types": (2, width), "norm": (2, width),
        "project": (width, hidden), "project_bias": (hidden,),
        "layers": [dict(layer) for _ in range(model["num_layers"])],
        "transform": (hidden, out), "transform_bias": (out,), "head_norm": (2, out),
        "table": (vocab, out), "table_bias": (vocab,),
    }  # fmt: skip
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def batch_of(case):
    """The batch that every framework trains on."""
    batch = synthetic.masked_lm_batch(case)
    names = {
        "ids": "input_word_ids", "mask": "input_mask", "places": "masked_lm_positions",
        "labels": "masked_lm_ids", "weights": "masked_lm_weights",
    }  # fmt: skip
    return {name: batch[of] for name, of in names.items()}


def norm(x, scale, epsilon):
    """Layer norm in float32."""
    import jax

    values = x.astype("float32")
    deviations = values - values.mean(-1, keepdims=True)
    variance = (deviations**2).mean(-1, keepdims=True)
    y = deviations * jax.lax.rsqrt(variance + epsilon) * scale[0] + scale[1]
    return y.astype(x.dtype)


def dense(x, kernel, bias):
    """A product in bfloat16."""
    return x @ kernel.astype("bfloat16") + bias.astype("bfloat16")


def attend(query, key, value, mask, kind):
    """Attention of a `kind`; all arrays are [batch, tokens, heads, size]."""
    import jax
    import jax.numpy as jnp

    scale = query.shape[-1] ** -0.5
    if kind == "cudnn":
        lengths = mask.sum(1).astype("int32")
        return jax.nn.dot_product_attention(
            query, key, value, scale=scale, implementation="cudnn",
            query_seq_lengths=jnp.full_like(lengths, query.shape[1]),
            key_value_seq_lengths=lengths,
        )  # fmt: skip
    if kind == "splash":
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        _, tokens, heads, _ = query.shape
        block = min(512, tokens)
        sizes = splash.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block,
            block_kv_dkv=block, block_kv_dkv_compute=block, use_fused_bwd_kernel=True,
        )  # fmt: skip
        kernel = splash.make_splash_mha_single_device(
            splash.MultiHeadMask([splash.FullMask((tokens, tokens))] * heads),
            block_sizes=sizes,
        )

        def of_sequence(query, key, value, mask):
            numbers = splash.SegmentIds(jnp.ones_like(mask), mask)
            return kernel(query, key, value, segment_ids=numbers)

        heads_first = (x.swapaxes(1, 2) for x in (query * scale, key, value))
        return jax.vmap(of_sequence)(*heads_first, mask).swapaxes(1, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype("float32") * scale
    scores += jnp.where(mask > 0, 0.0, -1e9)[:, None, None, :]
    weights = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def layer_of(case, weights, x, context, mask, kind):
    """One layer: `x` attends to `context`."""
    import jax

    model = case["model"]

    def heads(tokens, name):
        y = dense(tokens, weights[name], weights[f"{name}_bias"])
        return y.reshape(*y.shape[:2], model["num_heads"], model["head_size"])

    head_outputs = attend(
        heads(x, "query"), heads(context, "key"), heads(context, "value"), mask, kind
    )
    epsilon = model["layer_norm_epsilon"]
    y = dense(head_outputs.reshape(x.shape), weights["output"], weights["output_bias"])
    x = norm(x + y, weights["norm_1"], epsilon)
    inner = dense(x, weights["up"], weights["up_bias"])
    inner = jax.nn.gelu(inner, approximate=model["activation"] == "gelu_tanh")
    y = dense(inner, weights["down"], weights["down_bias"])
    return norm(x + y, weights["norm_2"], epsilon)


def loss_of(case, weights, batch):
    """The masked-LM loss."""
    import jax
    import jax.numpy as jnp

    model, epsilon = case["model"], case["model"]["layer_norm_epsilon"]
    length = batch["ids"].shape[1]
    x = weights["words"][batch["ids"]] + weights["positions"][:length]
    x = norm((x + weights["types"][0]).astype("bfloat16"), weights["norm"], epsilon)
    x = dense(x, weights["project"], weights["project_bias"])
    for layer in weights["layers"][:-1]:
        x = layer_of(case, layer, x, x, batch["mask"], case["attention"])
    masked_tokens = jnp.take_along_axis(x, batch["places"][..., None], 1)
    x = layer_of(case, weights["layers"][-1], masked_tokens, x, batch["mask"], "plain")
    x = dense(x, weights["transform"], weights["transform_bias"])
    if model["mlm_transform"] == "dense_activation_norm":
        x = jax.nn.gelu(x, approximate=model["activation"] == "gelu_tanh")
        x = norm(x, weights["head_norm"], epsilon)
    logits = (x @ weights["table"].astype("bfloat16").T).astype("float32")
    logits += weights["table_bias"]
    label_logits = jnp.take_along_axis(logits, batch["labels"][..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - label_logits
    return (losses * batch["weights"]).sum() / batch["weights"].sum()


def train(case, state, batch):
    """A step of AdamW with clipping: new state, loss, norm of the gradient."""
    import jax
    import jax.numpy as jnp

    loss, gradients = jax.value_and_grad(functools.partial(loss_of, case))(
        state["weights"], batch
    )
    squares = (jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients))
    gradient_norm = jnp.sqrt(sum(squares))
    scale = jnp.minimum(1.0, 1.0 / gradient_norm)
    step = state["step"] + 1
    mean = jax.tree.map(
        lambda m, g: 0.9 * m + 0.1 * scale * g, state["mean"], gradients
    )
    variance = jax.tree.map(
        lambda v, g: 0.999 * v + 0.001 * (scale * g) ** 2, state["variance"], gradients
    )

    def new_weight(weight, m, v):
        m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
        return weight - 1e-4 * (m / (jnp.sqrt(v) + 1e-6) + 0.01 * weight)

    weights = jax.tree.map(new_weight, state["weights"], mean, variance)
    state = {"weights": weights, "mean": mean, "variance": variance, "step": step}
    return state, loss, gradient_norm


if __name__ == "__main__":
    main()
