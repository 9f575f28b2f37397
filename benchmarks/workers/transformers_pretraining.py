"""Worker: training steps of transformers' RemBertForMaskedLM.

As shipped its head runs on every position. With "masked" it runs on the masked
positions alone, which is what the other models of the comparison do.
"""

from collections.abc import Callable

import protocol
import synthetic
import torch
import transformers

NOT_MASKED = -100


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of a `ModelConfig` as
    "model", those of an `OptimizerConfig` as "optimizer", "dtype" and "masked"."""
    torch.manual_seed(0)
    model = transformers.RemBertForMaskedLM(rembert_config(case["model"])).train()
    batch = {k: torch.as_tensor(v) for k, v in synthetic.masked_lm_batch(case).items()}
    make_loss = _masked_positions if case["masked"] else _every_position
    update = update_of(model, make_loss(model, batch), case)
    return lambda: update().item(), facts(model)


def update_of(
    model: torch.nn.Module, compute_loss: Callable[..., torch.Tensor], case: dict
) -> Callable[..., torch.Tensor]:
    """A step of training: loss, gradients, clipping, update.

    It returns the loss and does not wait for a device.
    """
    optimizer = make_optimizer(model, case["optimizer"])
    clip_norm = case["optimizer"]["clip_norm"]
    is_bfloat16 = case["dtype"] == "bfloat16"
    device = next(model.parameters()).device.type

    def update(**batch):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=is_bfloat16):
            loss = compute_loss(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return loss.detach()

    return update


def facts(model: torch.nn.Module) -> dict:
    """The facts of the results about a model."""
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def encoder_fields(model: dict) -> dict:
    """The fields of a `ModelConfig` under the names of transformers' BERT."""
    return dict(
        vocab_size=model["vocab_size"],
        hidden_size=model["hidden_size"],
        num_hidden_layers=model["num_layers"],
        num_attention_heads=model["num_heads"],
        intermediate_size=model["intermediate_size"],
        max_position_embeddings=model["max_positions"],
        type_vocab_size=model["type_vocab_size"],
        hidden_dropout_prob=model["hidden_dropout"],
        attention_probs_dropout_prob=model["attention_dropout"],
        hidden_act="gelu",
        layer_norm_eps=model["layer_norm_epsilon"],
        initializer_range=model["initializer_range"],
        tie_word_embeddings=False,
    )


def rembert_config(model: dict, **changes) -> transformers.RemBertConfig:
    """The configuration for the fields of a `ModelConfig`, with `changes` in it."""
    widths = {n: model[n] for n in ("input_embedding_size", "output_embedding_size")}
    return transformers.RemBertConfig(**{**encoder_fields(model), **widths, **changes})


def make_optimizer(model: torch.nn.Module, config: dict) -> torch.optim.Optimizer:
    """AdamW; no decay of biases and layer norms, as transformers' trainer has it."""
    exempt_parameters = [p for p in model.parameters() if p.dim() < 2]
    decayed_parameters = [p for p in model.parameters() if p.dim() >= 2]
    return torch.optim.AdamW(
        [
            {"params": decayed_parameters, "weight_decay": config["weight_decay"]},
            {"params": exempt_parameters, "weight_decay": 0.0},
        ],
        lr=config["learning_rate"],
        betas=(config["beta1"], config["beta2"]),
        eps=config["epsilon"],
        # As in transformers' trainer; it is faster than the loop over tensors.
        fused=True,
    )


def _every_position(model, batch):
    positions = batch["masked_lm_positions"].long()
    labels = torch.full(batch["input_word_ids"].shape, NOT_MASKED)
    labels.scatter_(1, positions, batch["masked_lm_ids"].long())
    inputs = encoder_inputs(batch)
    return lambda: model(**inputs, labels=labels).loss


def _masked_positions(model, batch):
    inputs = encoder_inputs(batch)
    labels = batch["masked_lm_ids"].long().flatten()
    positions = batch["masked_lm_positions"].long().unsqueeze(-1)

    def compute_loss():
        hidden = model.rembert(**inputs).last_hidden_state
        index = positions.expand(-1, -1, hidden.shape[-1])
        logits = model.cls(torch.gather(hidden, 1, index)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    return compute_loss


def encoder_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch's tokens under the names of transformers."""
    return {
        "input_ids": batch["input_word_ids"].long(),
        "attention_mask": batch["input_mask"].long(),
        "token_type_ids": batch["input_type_ids"].long(),
    }


if __name__ == "__main__":
    protocol.serve(build)
