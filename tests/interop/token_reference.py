"""Runs transformers' RemBertForTokenClassification on given weights.

    python token_reference.py INPUT.npz OUTPUT.npz

As `rembert_reference.py`, beside which it lies, but with a label for each token:
`feature:label_ids` [batch, length], and `feature:label_weights`, 1 where one counts and
0 elsewhere. OUTPUT.npz: `logits` [batch, length, labels], `loss`, `gradient:NAME`.
"""

import json
import sys

import numpy as np
import torch
import transformers
from rembert_reference import to_torch, torch_name

NOT_COUNTED = -100
CLASSIFIER = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}


def build_model(sizes: dict, state: dict) -> torch.nn.Module:
    """The model in float64 and evaluation mode, every parameter replaced."""
    config = transformers.RemBertConfig(
        vocab_size=sizes["vocab_size"],
        input_embedding_size=sizes["input_embedding_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["intermediate_size"],
        max_position_embeddings=sizes["max_positions"],
        hidden_act=sizes["activation"],
        layer_norm_eps=sizes["layer_norm_epsilon"],
        num_labels=len(state["classifier.bias"]),
        # Else the embedding of padding would get no gradient.
        pad_token_id=None,
    )
    model = transformers.RemBertForTokenClassification(config).double().eval()
    model.load_state_dict(
        {name: torch.from_numpy(value) for name, value in state.items()}, strict=True
    )
    return model


def main(input_path: str, output_path: str) -> None:
    """Reads, computes, writes."""
    with np.load(input_path, allow_pickle=False) as archive:
        arrays = dict(archive)
    weights = {
        key.removeprefix("weight:"): value.astype(np.float64)
        for key, value in arrays.items()
        if key.startswith("weight:")
    }
    names = {name: CLASSIFIER.get(name) or torch_name(name) for name in weights}
    state = {
        names[name]: np.ascontiguousarray(to_torch(name, value))
        for name, value in weights.items()
    }
    model = build_model(json.loads(str(arrays["config"])), state)
    ids, mask, types, labels = (
        torch.from_numpy(arrays[f"feature:{name}"]).long()
        for name in ("input_word_ids", "input_mask", "input_type_ids", "label_ids")
    )
    counted = torch.from_numpy(arrays["feature:label_weights"]) == 1
    output = model(
        input_ids=ids,
        attention_mask=mask,
        token_type_ids=types,
        labels=torch.where(counted, labels, NOT_COUNTED),
    )
    output.loss.backward()
    parameters = dict(model.named_parameters())
    gradients = {
        f"gradient:{name}": to_torch(name, parameters[names[name]].grad.numpy())
        for name in weights
    }
    np.savez(
        output_path,
        logits=output.logits.detach().numpy(),
        loss=output.loss.detach().numpy(),
        **gradients,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
