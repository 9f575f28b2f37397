"""Makes, runs and trains transformers' models, for comparison with ours.

    python huggingface_reference.py make REQUEST.json FOLDER
    python huggingface_reference.py run REQUEST.json FOLDER
    python huggingface_reference.py tokenize REQUEST.json FOLDER
    python huggingface_reference.py activations REQUEST.json FOLDER
    python huggingface_reference.py count REQUEST.json FOLDER
    python huggingface_reference.py embed REQUEST.json FOLDER

Stands alone: it runs in an environment with PyTorch and Transformers, without
TensorFlow. See `reference.py` for what stands in a request.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

MEAN_NORMALIZED = ["Transformer", "Pooling", "Normalize"]


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
        model, loading_info = kind.from_pretrained(
            entry["folder"],
            output_loading_info=True,
            dtype=torch.float32,
            # Its dropout is a module, which can be turned off.
            attn_implementation="eager",
        )
        report = {key: sorted(map(str, loading_info[key])) for key in loading_info}
        report["config"] = config.to_dict()
        (folder / f"{name}.json").write_text(json.dumps(report, default=str))
        batch = request["batches"][entry["batch"]]
        write_outputs(model.eval(), batch, folder / f"{name}.npz")
        if "train" in entry:
            losses, gradients = train(model, entry["train"])
            (folder / f"{name}.losses.json").write_text(json.dumps(losses))
            np.savez(folder / f"{name}.gradients.npz", **gradients)


def tensors(batch: dict) -> dict[str, torch.Tensor]:
    """transformers' names for the encoder's inputs, and for answers in training."""
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "attention_mask",
        "input_type_ids": "token_type_ids",
        "label_ids": "labels",
        "targets": "labels",
        "start_positions": "start_positions",
        "end_positions": "end_positions",
    }
    return {names[name]: torch.tensor(value) for name, value in batch.items()}


def write_outputs(model, batch, path) -> None:
    """Writes hidden_states [layers, b, s, H], and pooled_output and logits if any."""
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
    """Losses of the first steps of AdamW, which does not decay biases and layer norms,
    and the gradients of the first step before they are clipped."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    decayed_parameters, exempt_parameters = [], []
    for name, parameter in model.named_parameters():
        is_plain = name.endswith(".bias") or "LayerNorm" in name or "layer_norm" in name
        (exempt_parameters if is_plain else decayed_parameters).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed_parameters, "weight_decay": request["weight_decay"]},
            {"params": exempt_parameters, "weight_decay": 0.0},
        ],
        lr=request["learning_rate"],
        betas=(request["beta1"], request["beta2"]),
        eps=request["epsilon"],
    )
    losses, gradients = [], {}
    for batch in request["batches"]:
        loss = model(**tensors(batch)).loss
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
    encoding = tokenizer(
        request["lines"], add_special_tokens=False, return_offsets_mapping=True
    )
    ids = encoding["input_ids"]
    pairs = tokenizer(*map(list, zip(*request["pairs"], strict=True)))
    result = {
        "ids": ids,
        "offsets": encoding["offset_mapping"],
        "pairs": dict(pairs),
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


def embed(request: dict, folder: pathlib.Path) -> None:
    """Vectors of texts as sentence-transformers defines them by a folder's files, and
    the hidden states of the first text."""
    path = pathlib.Path(request["folder"])
    modules = [entry["type"] for entry in read(path / "modules.json")]
    assert [kind.rpartition(".")[2] for kind in modules] == MEAN_NORMALIZED
    pooling = read(path / "1_Pooling" / "config.json")
    modes = {name for name, value in pooling.items() if value is True}
    assert modes == {"pooling_mode_mean_tokens"}
    max_length = read(path / "sentence_bert_config.json")["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["weights"])
    model = transformers.AutoModel.from_pretrained(request["weights"]).eval()
    vectors = []
    for start in range(0, len(request["texts"]), 16):
        batch = tokenizer(
            request["texts"][start : start + 16],
            padding=True,
            truncation=True,
            max_length=max_length,
            return_tensors="pt",
        )
        with torch.no_grad():
            output = model(**batch, output_hidden_states=True)
        if not start:
            length = int(batch["attention_mask"][0].sum())
            hidden = torch.stack(output.hidden_states[1:])[:, 0, :length].numpy()
        mask = batch["attention_mask"][..., None].float()
        means = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
        vectors.append(torch.nn.functional.normalize(means, dim=1).numpy())
    vectors = np.concatenate(vectors)
    np.savez(folder / "embed.npz", vectors=vectors, hidden_states=hidden)


def read(path: pathlib.Path):
    return json.loads(path.read_text())


def count(request: dict, folder: pathlib.Path) -> None:
    """The number of parameters of encoders, by name."""
    counts = {}
    for name, config in request["configs"].items():
        kind = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):
            counts[name] = transformers.AutoModel.from_config(kind).num_parameters()
    (folder / "count.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    action, request_path, output = sys.argv[1:]
    actions = {
        "make": make,
        "run": run,
        "tokenize": tokenize,
        "activations": activations,
        "count": count,
        "embed": embed,
    }
    text = pathlib.Path(request_path).read_text(encoding="utf-8")
    actions[action](json.loads(text), pathlib.Path(output))
