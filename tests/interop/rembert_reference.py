"""Runs transformers' RemBERT on given weights: logits, loss, gradients.

    python rembert_reference.py INPUT.npz OUTPUT.npz

Stands alone: it runs in an environment with PyTorch and Transformers, without
TensorFlow. Arithmetic is float64, so that what differs is the other side's rounding.

INPUT.npz: `config` (JSON of the model's sizes), `weight:NAME` (checkpoint names and
shapes), `feature:NAME`. The model is RemBertForMaskedLM, or with `output_weights` a
RemBertForTokenClassification; features are those of the task.
OUTPUT.npz: `logits` [batch, predictions, V] or [batch, length, labels], `loss` (the
weighted mean over masked positions or tokens), `hidden_states` [layers, batch, length,
H], `gradient:NAME` of the loss.
"""

import json
import re
import sys

import numpy as np
import torch
import transformers

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
_HEADS = {
    "cls/predictions/output_embedding": "cls.predictions.decoder.weight",
    "cls/predictions/output_bias": "cls.predictions.decoder.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
_NOT_COUNTED = -100


def torch_name(name: str) -> str:
    """The parameter that holds a checkpoint's variable."""
    if name in _HEADS:
        return _HEADS[name]
    name = re.sub(r"^bert/", "rembert/", name)
    name = name.replace("predictions/transform/", "predictions/")
    name = re.sub(r"layer_(\d+)", r"layer/\1", name)
    *parts, last = name.split("/")
    if last.endswith("_embeddings"):
        return ".".join([*parts, last, "weight"])
    last = "weight" if last == "kernel" else _LAYER_NORM.get(last, last)
    return ".".join([*parts, last])


def to_torch(name: str, value: np.ndarray) -> np.ndarray:
    """Kernels are [inputs, outputs] in TensorFlow, the reverse in PyTorch."""
    return value.T if name.endswith("/kernel") else value


def build_model(sizes: dict, weights: dict) -> torch.nn.Module:
    """The model in float64 and evaluation mode, every parameter replaced."""
    config = transformers.RemBertConfig(
        vocab_size=sizes["vocab_size"],
        input_embedding_size=sizes["input_embedding_size"],
        output_embedding_size=sizes["output_embedding_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["intermediate_size"],
        max_position_embeddings=sizes["max_positions"],
        type_vocab_size=sizes["type_vocab_size"],
        hidden_act=_ACTIVATIONS[sizes["activation"]],
        layer_norm_eps=sizes["layer_norm_epsilon"],
        tie_word_embeddings=False,
        # Else the embedding of padding would get no gradient.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    kind = transformers.RemBertForMaskedLM
    if "output_bias" in weights:
        kind = transformers.RemBertForTokenClassification
        config.num_labels = len(weights["output_bias"])
    model = kind(config).double().eval()
    state = {
        torch_name(name): torch.from_numpy(np.ascontiguousarray(to_torch(name, value)))
        for name, value in weights.items()
    }
    model.load_state_dict(state, strict=True)
    return model


def compute(model: torch.nn.Module, features: dict) -> dict:
    """Everything but the gradients; runs the backward pass."""
    ids, mask, types = (
        torch.from_numpy(features[name]).long()
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    )
    output = model(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=types,
        output_hidden_states=True,
    )
    logits, prefix = output.logits, "label"
    if "masked_lm_ids" in features:
        positions = torch.from_numpy(features["masked_lm_positions"]).long()
        rows = torch.arange(len(ids))[:, None]
        logits, prefix = logits[rows, positions], "masked_lm"
    labels = torch.from_numpy(features[f"{prefix}_ids"]).long()
    weights = torch.from_numpy(features[f"{prefix}_weights"]).double()
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2),
        torch.where(weights > 0, labels, _NOT_COUNTED),
        reduction="none",
    )
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()
    return {
        "logits": logits.detach().numpy(),
        "loss": loss.detach().numpy(),
        "hidden_states": torch.stack(output.hidden_states[1:]).detach().numpy(),
    }


def main(input_path: str, output_path: str) -> None:
    """Reads, computes, writes."""
    with np.load(input_path, allow_pickle=False) as archive:
        arrays = dict(archive)
    sizes = json.loads(str(arrays["config"]))
    weights, features = (
        {
            key.removeprefix(f"{kind}:"): value
            for key, value in arrays.items()
            if key.startswith(f"{kind}:")
        }
        for kind in ("weight", "feature")
    )
    model = build_model(sizes, {n: w.astype(np.float64) for n, w in weights.items()})
    results = compute(model, features)
    parameters = dict(model.named_parameters())
    for name in weights:
        gradient = parameters[torch_name(name)].grad
        results[f"gradient:{name}"] = to_torch(name, gradient.numpy())
    np.savez(output_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
