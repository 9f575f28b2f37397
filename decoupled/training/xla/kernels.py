"""JAX's functions, which replace the custom calls of attention.

`decoupled.ops.attention` says what is called. Each kernel has a pair of functions, for
the call and for its gradient, from JAX's private functions, and where these are gone or
changed a pair from public ones, which runs the forward kernel again for the gradient.

Like `stablehlo` without TensorFlow and the rest of this package.
"""

import functools
import inspect
import json
from typing import Any

import numpy as np

PLAIN, SPLASH, CUDNN = "plain", "splash", "cudnn"
NAMES = {
    PLAIN: "plain products",
    SPLASH: "splash attention",
    CUDNN: "cuDNN's kernel",
}
# XLA's flag for GPUs, without which equal runs may differ in the last bits, because
# the order of atomic additions is nondeterministic.
DETERMINISTIC = {"xla_gpu_exclude_nondeterministic_ops": True}
_FORWARD, _BACKWARD = "decoupled.attention", "decoupled.attention_gradient"
_VERSION = 1
# The number of a TPU's lanes; splash attention takes multiples of it.
_LANES = 128
# Sizes of splash attention's blocks of queries and keys; their speed was not compared.
_BLOCKS = (128, 256, 384, 512)
_MASK_BIAS = -1e9

Array = Any


def replace(module: Any, kernel: str, platform: str, deterministic: bool) -> str:
    """Replaces the calls of a StableHLO module. `platform` is JAX's, e.g. "cuda".

    Returns why it was done with plain products instead of the kernel, or "".
    """
    with module.context:
        calls = [_Call(operation) for operation in _calls(module)]
        refusal = ""
        for pair in _PAIRS[kernel]:
            try:
                functions = _lower_calls(calls, pair, platform)
            except Exception as error:
                # A kernel refuses shapes, devices and versions in many ways.
                reason = " ".join(str(error).split()).partition(". ")[0]
                refusal = f"{refusal}; {reason}" if refusal else reason
            else:
                refusal = ""
                break
        else:
            functions = _lower_calls(calls, _PLAIN_PAIR, platform)
        _put(module, calls, functions)
        if deterministic:
            _order_sums(module)
    return refusal


def _calls(module):
    from jax._src.lib.mlir import ir

    calls = []

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target.startswith("decoupled."):
                calls.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return calls


class _Call:
    """An operation of the module, and what it calls."""

    def __init__(self, operation: Any):
        from jax._src.lib.mlir import ir

        self.operation = operation
        attributes = operation.attributes
        self.target = ir.StringAttr(attributes["call_target_name"]).value
        self.config = ir.StringAttr(attributes["backend_config"]).value
        version = json.loads(self.config).get("version")
        if self.target not in (_FORWARD, _BACKWARD) or version != _VERSION:
            raise ValueError(f"{self.target}, version {version}: nothing replaces it")
        # HLO has one result, a tuple, of which other operations take the elements.
        (result,) = operation.results
        results = ir.TupleType(result.type)
        self.results = [results.get_type(i) for i in range(results.num_types)]
        self.operands = [x.type for x in operation.operands]
        self.key = (self.target, self.config, *map(str, self.operands + self.results))


def _lower_calls(calls, pair, platform):
    """Key of a call -> text of the module that computes it."""
    import jax

    functions = {}
    for call in calls:
        if call.key not in functions:
            scale = json.loads(call.config)["scale"]
            function = functools.partial(
                pair[call.target == _BACKWARD], scale=scale, platform=platform
            )
            # Kernels for TPUs have indices of 32 bits.
            with jax.enable_x64(False):
                traced = jax.jit(function, keep_unused=True).trace(
                    *map(_shape, call.operands)
                )
                lowered = traced.lower(lowering_platforms=(platform,))
            results = [(x.shape, x.dtype) for x in jax.tree.leaves(lowered.out_info)]
            expected = [(x.shape, x.dtype) for x in map(_shape, call.results)]
            if results != expected:
                raise ValueError(f"{call.target}: has {results}, expected {expected}")
            text = lowered.compiler_ir("stablehlo").operation.get_asm(
                large_elements_limit=None
            )
            functions[call.key] = text
    return functions


def _shape(kind):
    import jax
    from jax._src.lib.mlir import ir

    tensor = ir.RankedTensorType(kind)
    names = {"f32": "float32", "bf16": "bfloat16", "i32": "int32"}
    return jax.ShapeDtypeStruct(tensor.shape, names[str(tensor.element_type)])


def _put(module, calls, functions):
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func

    names = {}
    for number, (key, text) in enumerate(functions.items()):
        prefix = f"attention_{number}_"
        names[key] = f"{prefix}main"
        kernel = ir.Module.parse(text)
        for function in list(kernel.body.operations):
            name = ir.StringAttr(function.attributes["sym_name"]).value
            new_name = prefix + name
            ir.SymbolTable.replace_all_symbol_uses(name, new_name, kernel.operation)
            ir.SymbolTable.set_symbol_name(function, new_name)
            ir.SymbolTable.set_visibility(function, "private")
        for function in list(kernel.body.operations):
            module.body.append(function)
    for call in calls:
        operation = call.operation
        with operation.location, ir.InsertionPoint(operation):
            kernel_call = func.CallOp(
                call.results,
                ir.FlatSymbolRefAttr.get(names[call.key]),
                list(operation.operands),
            )
        for use in list(operation.results[0].uses):
            element = use.owner
            index = ir.IntegerAttr(element.attributes["index"]).value
            element.results[0].replace_all_uses_with(kernel_call.results[index])
            element.operation.erase()
        operation.erase()
    module.operation.verify()


def _order_sums(module):
    """Asks cuDNN for gradients whose sums have an order.

    XLA would ask for it by itself, but so late that it does not find the kernel that it
    has built (JAX 0.11.2: IndexError; openxla/xla, pull request 46500).
    """
    from jax._src.lib.mlir import ir

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            attributes = operation.attributes
            target = ir.StringAttr(attributes["call_target_name"]).value
            if target.startswith("__cudnn$fmha") and target.endswith("Backward"):
                config = json.loads(ir.StringAttr(attributes["backend_config"]).value)
                config["cudnn_fmha_backend_config"]["force_deterministic"] = True
                attributes["backend_config"] = ir.StringAttr.get(json.dumps(config))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _scores(query, key, queries, memory, scale):
    import jax.numpy as jnp

    products = jnp.einsum("bhqd,bhkd->bhqk", query, key).astype(jnp.float32)
    return products * scale + jnp.where(_mask(queries, memory), 0.0, _MASK_BIAS)


def _mask(queries, memory):
    return queries[:, None, :, None] == memory[:, None, None, :]


def _plain(query, key, value, queries, memory, *, scale, platform):
    import jax
    import jax.numpy as jnp

    del platform
    scores = _scores(query, key, queries, memory, scale)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    heads = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return heads, jax.nn.logsumexp(scores, axis=-1)


def _plain_gradient(
    query, key, value, queries, memory, heads, log_sum, d_heads, *, scale, platform
):
    import jax.numpy as jnp

    del platform
    scores = _scores(query, key, queries, memory, scale)
    weights = jnp.exp(scores - log_sum[..., None])
    d_weights = jnp.einsum("bhqd,bhkd->bhqk", d_heads, value).astype(jnp.float32)
    inner_products = jnp.sum(
        heads.astype(jnp.float32) * d_heads.astype(jnp.float32), -1, keepdims=True
    )
    d_scores = (weights * (d_weights - inner_products) * scale).astype(query.dtype)
    return (
        jnp.einsum("bhqk,bhkd->bhqd", d_scores, key),
        jnp.einsum("bhqk,bhqd->bhkd", d_scores, query),
        jnp.einsum("bhqk,bhqd->bhkd", weights.astype(query.dtype), d_heads),
    )


def _padded(forward, backward):
    """Functions that take multiples of 128 tokens, as ones that take any number. What
    is added belongs to examples of its own."""

    def pad(x, axis, value=0):
        import jax.numpy as jnp

        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, -x.shape[axis] % _LANES)
        return jnp.pad(x, widths, constant_values=value)

    def pad_all(query, key, value, queries, memory):
        tensors = (pad(x, 2) for x in (query, key, value))
        return *tensors, pad(queries, 1, -1), pad(memory, 1, -2)

    def padded_forward(query, key, *others, **settings):
        heads, log_sum = forward(*pad_all(query, key, *others), **settings)
        tokens = query.shape[2]
        return heads[:, :, :tokens], log_sum[:, :, :tokens]

    def padded_gradient(query, key, value, queries, memory, *results, **settings):
        inputs = pad_all(query, key, value, queries, memory)
        results = (pad(x, 2) for x in results)
        d_query, *d_memory = backward(*inputs, *results, **settings)
        memory_gradients = (x[:, :, : key.shape[2]] for x in d_memory)
        return d_query[:, :, : query.shape[2]], *memory_gradients

    return padded_forward, padded_gradient


def _splash_kernel(query, key, platform, **settings):
    """Splash attention (a Pallas kernel of TPUs) of a sequence; its module and itself.
    Elsewhere than on TPUs it is interpreted."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    heads, tokens, memory = *query.shape[1:3], key.shape[2]
    rows, columns = (
        max(block for block in _BLOCKS if size % block == 0)
        for size in (tokens, memory)
    )
    sizes = splash.BlockSizes(
        block_q=rows, block_kv=columns, block_kv_compute=columns,
        block_q_dkv=rows, block_kv_dkv=columns, block_kv_dkv_compute=columns,
        use_fused_bwd_kernel=True,
    )  # fmt: skip
    mask = splash.MultiHeadMask([splash.FullMask((tokens, memory))] * heads)
    kernel = splash.make_splash_mha_single_device(
        mask, block_sizes=sizes, interpret=platform != "tpu", **settings
    )
    return splash, kernel


def _scaled(query, scale):
    return query * np.asarray(scale, query.dtype)


def _splash(query, key, value, queries, memory, *, scale, platform):
    import jax

    splash, kernel = _splash_kernel(query, key, platform, save_residuals=True)

    def of_sequence(query, key, value, *numbers):
        return kernel(query, key, value, segment_ids=splash.SegmentIds(*numbers))

    heads, (log_sum,) = jax.vmap(of_sequence)(
        _scaled(query, scale), key, value, queries, memory
    )
    return heads, log_sum


def _splash_gradient(
    query, key, value, queries, memory, heads, log_sum, d_heads, *, scale, platform
):
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as private,
    )

    splash, kernel = _splash_kernel(query, key, platform)
    settings = kernel.kwargs

    def of_sequence(query, key, value, queries, memory, heads, log_sum, d_heads):
        numbers = splash.SegmentIds(queries, memory)
        residuals = (
            query, key, value, numbers, None, heads, log_sum,
            kernel.dq_mask_info, kernel.dkv_mask_info,
        )  # fmt: skip
        gradients = private._splash_attention_bwd(
            False,
            settings.get("mask_value", private.DEFAULT_MASK_VALUE),
            settings["is_mqa"],
            settings["block_sizes"],
            None,
            settings["mask_function"],
            settings.get("attn_logits_soft_cap"),
            settings["interpret"],
            residuals,
            d_heads,
        )
        return gradients[3:6]

    d_query, d_key, d_value = jax.vmap(of_sequence)(
        _scaled(query, scale), key, value, queries, memory, heads, log_sum, d_heads
    )
    d_query = _scaled(d_query, scale).astype(query.dtype)
    return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)


def _splash_gradient_public(
    query, key, value, queries, memory, heads, log_sum, d_heads, *, scale, platform
):
    import jax

    del heads, log_sum
    splash, kernel = _splash_kernel(query, key, platform)

    def of_sequence(query, key, value, *numbers):
        return kernel(query, key, value, segment_ids=splash.SegmentIds(*numbers))

    def heads_of(query, key, value):
        query = _scaled(query, scale)
        return jax.vmap(of_sequence)(query, key, value, queries, memory)

    return jax.vjp(heads_of, query, key, value)[1](d_heads)


def _cudnn(query, key, value, queries, memory, *, scale, platform):
    # The public function rounds log_sum to the activation dtype.
    from jax._src.cudnn import fused_attention_stablehlo as private

    del platform
    heads, log_sum = private.dot_product_attention(
        *_tokens_first(query, key, value), mask=_mask(queries, memory), scale=scale,
        qkv_layout="BTNH", return_residual=True,
    )  # fmt: skip
    return *_tokens_first(heads), log_sum


def _tokens_first(*tensors):
    """Swaps heads and tokens, in both directions. The program has just brought heads
    before tokens, so that both cancel."""
    return [x.swapaxes(1, 2) for x in tensors]


def _cudnn_gradient(
    query, key, value, queries, memory, heads, log_sum, d_heads, *, scale, platform
):
    import jax.numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as private

    del platform
    bias = private.combine_bias_and_mask(None, _mask(queries, memory), query.dtype)
    no_tensor = jnp.zeros(0, query.dtype)
    rule = private._dot_product_attention_bwd_rule
    # From JAX 0.12 on a function may change the scores; here none does.
    takes_function = "score_mod" in inspect.signature(rule).parameters
    function, function_inputs = ([None], [()]) if takes_function else ([], [])
    *inputs, heads, d_heads = _tokens_first(query, key, value, heads, d_heads)
    residuals = (*inputs, bias, *[no_tensor] * 6, *function_inputs, log_sum, heads)
    gradients = rule(
        scale, 42, 0.0, (True, False), private.MaskType.NO_MASK,
        private.AttentionLayout.BTNH.value, None, *function,
        private.check_cudnn_version(), False, residuals, d_heads,
    )  # fmt: skip
    return _tokens_first(*gradients[:3])


def _cudnn_public(query, key, value, queries, memory, *, scale, platform):
    import jax
    import jax.numpy as jnp

    del platform
    heads = jax.nn.dot_product_attention(
        *_tokens_first(query, key, value),
        mask=_mask(queries, memory),
        scale=scale,
        implementation="cudnn",
    )
    # The gradient by `_cudnn_gradient_public` does not read it.
    log_sum = jnp.zeros(query.shape[:3], jnp.float32)
    return *_tokens_first(heads), log_sum


def _cudnn_gradient_public(
    query, key, value, queries, memory, heads, log_sum, d_heads, *, scale, platform
):
    import jax

    del heads, log_sum

    def heads_of(*inputs):
        settings = {"scale": scale, "platform": platform}
        return _cudnn_public(*inputs, queries, memory, **settings)[0]

    return jax.vjp(heads_of, query, key, value)[1](d_heads)


_PLAIN_PAIR = (_plain, _plain_gradient)
_PAIRS = {
    PLAIN: [_PLAIN_PAIR],
    SPLASH: [
        _padded(_splash, _splash_gradient),
        _padded(_splash, _splash_gradient_public),
    ],
    CUDNN: [(_cudnn, _cudnn_gradient), (_cudnn_public, _cudnn_gradient_public)],
}
