"""Makes, runs and trains transformers' models, for comparison with ours.

    python huggingface_reference.py make REQUEST.json FOLDER
    python huggingface_reference.py run REQUEST.json FOLDER
    python huggingface_reference.py tokenize REQUEST.json FOLDER
    python huggingface_reference.py activations REQUEST.json FOLDER
    python huggingface_reference.py pad_rows REQUEST.json FOLDER

Stands alone: it runs in an environment with PyTorch and Transformers, without
TensorFlow. See `transformers_models.py` for what stands in a request.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers


def randomize(model: torch.nn.Module) -> None:
    """Every parameter moves the output, also those that start as 0 or 1."""
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.normal_(mean, 0.3)


def make(request: dict, folder: pathlib.Path) -> None:
    """Saves random models below `folder`, by name, and their outputs beside them."""
    torch.manual_seed(0)
    for name, entry in request["models"].items():
        config = getattr(transformers, entry["config"])(**entry["sizes"])
        model = getattr(transformers, entry["class"])(config).eval()
        randomize(model)
        model.save_pretrained(folder / name, **entry["save"])
        batch = request["batches"][entry["batch"]]
        write_outputs(model, batch, folder / f"{name}.npz")


def run(request: dict, folder: pathlib.Path) -> None:
    """Loads folders with the class that their config.json names; outputs and losses."""
    for name, entry in request["models"].items():
        config = transformers.AutoConfig.from_pretrained(entry["folder"])
        kind = getattr(transformers, config.architectures[0])
        model, loaded = kind.from_pretrained(
            entry["folder"], output_loading_info=True, dtype=torch.float32
        )
        report = {key: sorted(map(str, loaded[key])) for key in loaded}
        report["config"] = config.to_dict()
        (folder / f"{name}.json").write_text(json.dumps(report, default=str))
        batch = request["batches"][entry["batch"]]
        write_outputs(model.eval(), batch, folder / f"{name}.npz")
        if "train" in entry:
            losses, gradients = train(model, entry["train"])
            (folder / f"{name}.losses.json").write_text(json.dumps(losses))
            np.savez(folder / f"{name}.gradients.npz", **gradients)


def tensors(batch: dict) -> dict[str, torch.Tensor]:
    """transformers' names for the encoder's inputs."""
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "attention_mask",
        "input_type_ids": "token_type_ids",
    }
    return {theirs: torch.tensor(batch[ours]) for ours, theirs in names.items()}


def write_outputs(model, batch, path) -> None:
    """hidden_states [layers, b, s, H], and pooled_output and logits where there are."""
    with torch.no_grad():
        output = model(**tensors(batch), output_hidden_states=True)
    arrays = {"hidden_states": torch.stack(output.hidden_states[1:]).numpy()}
    if hasattr(output, "start_logits"):
        logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
        arrays["logits"] = logits.numpy()
    elif hasattr(output, "prediction_logits"):
        arrays["logits"] = output.prediction_logits.numpy()
    elif hasattr(output, "logits"):
        arrays["logits"] = output.logits.numpy()
    if getattr(output, "pooler_output", None) is not None:
        arrays["pooled_output"] = output.pooler_output.numpy()
    np.savez(path, **arrays)


def train(model, request) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of the first steps of AdamW, biases and layer norms not decayed; and the
    gradients of the first step, before they are clipped."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        plain = name.endswith(".bias") or "LayerNorm" in name or "layer_norm" in name
        (others if plain else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": request["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=request["learning_rate"],
        betas=(request["beta1"], request["beta2"]),
        eps=request["epsilon"],
    )
    losses, gradients = [], {}
    for batch in request["batches"]:
        # The targets of a regression are float32; the labels of a classifier are int32.
        labels = torch.tensor(batch.get("label_ids") or batch["targets"])
        loss = model(**tensors(batch), labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or {
            name: parameter.grad.numpy().copy()
            for name, parameter in model.named_parameters()
        }
        torch.nn.utils.clip_grad_norm_(model.parameters(), request["clip_norm"])
        optimizer.step()
    return losses, gradients


def tokenize(request: dict, folder: pathlib.Path) -> None:
    """Ids of each line, and of pairs with their types, through AutoTokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["folder"])
    whole = tokenizer(
        request["lines"], add_special_tokens=False, return_offsets_mapping=True
    )
    ids = whole["input_ids"]
    with_types = tokenizer(*map(list, zip(*request["pairs"], strict=True)))
    result = {
        "ids": ids,
        "offsets": whole["offset_mapping"],
        "pairs": dict(with_types),
        "special": {
            name: tokenizer.convert_tokens_to_ids(piece)
            for name, piece in tokenizer.special_tokens_map.items()
        },
        "decoded": tokenizer.batch_decode(ids[:100], skip_special_tokens=True),
        "class": type(tokenizer).__name__,
        "longest": tokenizer.model_max_length,
    }
    (folder / "tokens.json").write_text(json.dumps(result))


def activations(request: dict, folder: pathlib.Path) -> None:
    """The values of every function in ACT2FN at the points, in float64."""
    points = torch.tensor(request["points"], dtype=torch.float64)
    values = {}
    for name in transformers.activations.ACT2FN:
        with torch.no_grad():
            function = transformers.activations.ACT2FN[name]
            if isinstance(function, torch.nn.Module):
                function = function.double()
            values[name] = function(points).tolist()
    (folder / "activations.json").write_text(json.dumps(values))


def pad_rows(request: dict, folder: pathlib.Path) -> None:
    """Gradients of the word embeddings of a reader, by `pad_token_id`."""
    arrays = {}
    ends = {name: torch.tensor(request[name]) for name in ("starts", "ends")}
    for pad in (None, 0):
        model = transformers.RemBertForQuestionAnswering.from_pretrained(
            request["folder"], pad_token_id=pad
        ).eval()
        loss = model(
            **tensors(request["batch"]),
            start_positions=ends["starts"],
            end_positions=ends["ends"],
        ).loss
        loss.backward()
        words = model.get_input_embeddings().weight
        arrays[f"pad_token_id={pad}"] = words.grad.numpy()
    np.savez(folder / "pad_rows.npz", **arrays)


if __name__ == "__main__":
    action, request_path, output = sys.argv[1:]
    actions = {
        "make": make,
        "run": run,
        "tokenize": tokenize,
        "activations": activations,
        "pad_rows": pad_rows,
    }
    text = pathlib.Path(request_path).read_text(encoding="utf-8")
    actions[action](json.loads(text), pathlib.Path(output))
