"""Worker: fine-tuning steps of transformers' RemBertForSequenceClassification."""

import protocol
import synthetic
import torch
import transformers
from transformers_pretraining import (
    encoder_inputs,
    facts,
    rembert_config,
    training_step,
)


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds what that of `decoupled_finetuning` holds, and "dtype"."""
    torch.manual_seed(0)
    config = rembert_config(
        case["model"],
        classifier_dropout_prob=case["dropout"],
        num_labels=case["labels"],
    )
    model = transformers.RemBertForSequenceClassification(config).train()
    batch = {
        name: torch.as_tensor(value)
        for name, value in synthetic.classification_batch(case).items()
    }
    inputs, labels = encoder_inputs(batch), batch["label_ids"].long()

    def compute_loss():
        return model(**inputs, labels=labels).loss

    return training_step(model, compute_loss, case), facts(model)


if __name__ == "__main__":
    protocol.serve(build)
