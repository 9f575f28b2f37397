"""Worker: training steps of transformers' BERT and RemBERT on a GPU, at their best.

bfloat16 by autocast over float32 weights, `torch.compile`, fused AdamW, PyTorch's own
attention where the model can have it (RemBERT cannot), and the masked-LM head at the
masked positions alone. CUDA graphs launch BERT's kernels where all batches have one
shape and PyTorch can capture them; RemBERT's layers and its head are compiled one by
one. With "unpadded", the examples of a fine-tuning batch are one row of tokens without
padding, and attention is a kernel for rows of several lengths, as ModernBERT trains.
"""

from collections.abc import Iterator

import numpy as np
import protocol
import synthetic
import torch
import transformers
import transformers_pretraining
from transformers_pretraining import encoder_fields, rembert_config

_ATTENTION = "unpadded"
_NUM_LABELS = 3
# Before the classifier, as in ours.
DROPOUT = 0.1


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds the fields of a `ModelConfig` as "model" and of an `OptimizerConfig`
    as "optimizer", "architecture" (bert or rembert), "unpadded", and "block", the steps
    between two readings of the loss; and either the sizes of a batch (see `synthetic`)
    or "features", the file of packed rows of examples whose labels are learned."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if "features" in case:
        model, compile_loss, batches = _classifier(case)
    else:
        model, compile_loss, batches = _masked_lm(case)
    uses_cpu = case["quick"] and not torch.cuda.is_available()
    device = torch.device("cpu" if uses_cpu else "cuda")
    model.to(device).train()
    batches = [
        {
            name: torch.as_tensor(x).to(device) if isinstance(x, np.ndarray) else x
            for name, x in batch.items()
        }
        for batch in batches
    ]
    steps = 0

    def step():
        nonlocal steps
        for _ in range(case["block"]):
            torch.compiler.cudagraph_mark_step_begin()
            loss = update(**batches[steps % len(batches)])
            steps += 1
        return loss.item()

    is_padded = "features" in case and not case["unpadded"]
    takes_graphs = case["architecture"] == "bert" and not is_padded
    modes = ["reduce-overhead"] * takes_graphs + ["default"]
    for mode in modes:
        compute_loss = compile_loss(mode)
        update = transformers_pretraining.update_of(model, compute_loss, case)
        try:
            # Graphs are captured in the second and third.
            for _ in range(3):
                step()
            break
        except RuntimeError:
            if mode == modes[-1]:
                raise
            model.zero_grad(set_to_none=True)
            torch.compiler.reset()
    facts = transformers_pretraining.facts(model) | {"mode": mode}
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name()
        facts["device_bytes"] = torch.cuda.max_memory_allocated()
    return step, facts


def _masked_lm(case):
    batch = synthetic.masked_lm_batch(case)
    if case["architecture"] == "rembert":
        model = transformers.RemBertForMaskedLM(rembert_config(case["model"]))
        encoder = model.rembert
    else:
        config = _bert_config(case)
        model = transformers.BertForMaskedLM(config)
        encoder = model.bert

    def encode(ids):
        # Without a mask: no token is padding, which is the kernels' fastest case.
        return encoder(input_ids=ids).last_hidden_state

    def head(hidden, positions, labels):
        index = positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        logits = model.cls(torch.gather(hidden, 1, index)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits.float(), labels.flatten())

    def compile_loss(mode):
        if case["architecture"] == "bert":
            return torch.compile(
                lambda ids, **options: head(encode(ids), **options), mode=mode
            )
        for layer in encoder.encoder.layer:
            layer.compile()
        compiled_head = torch.compile(head)
        return lambda ids, **options: compiled_head(encode(ids), **options)

    names = {
        "ids": "input_word_ids", "positions": "masked_lm_positions",
        "labels": "masked_lm_ids",
    }  # fmt: skip
    batch = {name: batch[of].astype(np.int64) for name, of in names.items()}
    return model, compile_loss, [batch]


def _classifier(case):
    is_unpadded = case["unpadded"]
    config = _bert_config(case, num_labels=_NUM_LABELS, classifier_dropout=DROPOUT)
    if is_unpadded:
        transformers.AttentionInterface.register(_ATTENTION, _attend_unpadded)
        transformers.AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)
        config._attn_implementation = _ATTENTION
    model = transformers.BertForSequenceClassification(config)

    def loss_of(vectors, labels):
        pooled = model.dropout(model.bert.pooler(vectors.unsqueeze(1)))
        return torch.nn.functional.cross_entropy(model.classifier(pooled), labels)

    def loss_of_rows(ids, mask, types, labels):
        hidden = model.bert(
            input_ids=ids, attention_mask=mask, token_type_ids=types
        ).last_hidden_state
        return loss_of(hidden[:, 0], labels)

    def loss_of_tokens(ids, positions, types, labels, bounds, first, longest):
        hidden = model.bert(
            input_ids=ids, position_ids=positions, token_type_ids=types, bounds=bounds,
            longest=longest,
        ).last_hidden_state  # fmt: skip
        return loss_of(hidden[0, first], labels)

    batches = list(_examples(case["features"]))
    if is_unpadded:
        size = max(sum(map(len, batch["ids"])) for batch in batches)
        size += -size % 64
        rows = [_one_row(batch, size) for batch in batches]
        longest = int(max(np.diff(row["bounds"]).max() for row in rows))
        batches = [{**row, "longest": longest} for row in rows]
    else:
        batches = [_padded(batch) for batch in batches]
    compute_loss = loss_of_tokens if is_unpadded else loss_of_rows
    return model, lambda mode: torch.compile(compute_loss, mode=mode), batches


def _bert_config(case, **changes):
    fields = encoder_fields(case["model"])
    return transformers.BertConfig(**fields, attn_implementation="sdpa", **changes)


def _attend_unpadded(module, query, key, value, mask, bounds, longest, **options):
    """Attention of one row [1, heads, tokens, size] whose examples end at `bounds`."""
    from torch.nn.attention.varlen import varlen_attn

    del module, mask, options
    if not query.is_cuda:
        places = torch.arange(query.shape[2])
        examples = torch.bucketize(places, bounds.long(), right=True)
        mask = examples[:, None] == examples
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, mask).transpose(1, 2), None
    tokens_first = (x[0].transpose(0, 1) for x in (query, key, value))
    output = varlen_attn(*tokens_first, bounds, bounds, longest, longest)
    return output.unsqueeze(0), None


def _examples(path) -> Iterator[dict[str, list]]:
    """The examples of each batch of packed rows: "ids", "types" and "labels"."""
    with np.load(path) as arrays:
        numbers = sorted({int(name.partition("-")[0]) for name in arrays.files})
        for number in numbers:
            names = ("input_word_ids", "input_type_ids", "input_mask", "label_ids")
            ids, types, mask, labels = (arrays[f"{number}-{name}"] for name in names)
            examples = [
                (row, mask[row] == example + 1, example)
                for row in range(len(mask))
                for example in range(mask[row].max())
            ]
            yield {
                "ids": [ids[row][tokens] for row, tokens, _ in examples],
                "types": [types[row][tokens] for row, tokens, _ in examples],
                "labels": [labels[row, example] for row, _, example in examples],
            }


def _padded(batch):
    """Rows as long as the longest example, in steps of 8 tokens."""
    shape = len(batch["ids"]), -(-max(map(len, batch["ids"])) // 8) * 8
    arrays = {name: np.zeros(shape, np.int64) for name in ("ids", "types", "mask")}
    for row, (ids, types) in enumerate(zip(batch["ids"], batch["types"], strict=True)):
        arrays["ids"][row, : len(ids)] = ids
        arrays["types"][row, : len(ids)] = types
        arrays["mask"][row, : len(ids)] = 1
    return {**arrays, "labels": np.array(batch["labels"], np.int64)}


def _one_row(batch, size):
    """All examples behind each other, in a row of `size` tokens; its rest is an example
    of its own, whose output is not read."""
    lengths = [len(ids) for ids in batch["ids"]]
    starts = np.cumsum([0, *lengths])
    row = {
        "ids": np.concatenate(batch["ids"]),
        "types": np.concatenate(batch["types"]),
        "positions": np.concatenate([np.arange(length) for length in lengths]),
    }
    padded_row = {
        name: np.pad(x, (0, size - len(x)))[None].astype(np.int64)
        for name, x in row.items()
    }
    bounds = np.array([*starts, size], np.int32)
    return {
        **padded_row,
        "labels": np.array(batch["labels"], np.int64),
        "bounds": bounds,
        "first": starts[:-1],
    }


if __name__ == "__main__":
    protocol.serve(build)
