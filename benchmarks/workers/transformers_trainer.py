"""Worker: steps of transformers' Trainer on real examples of a task.

A case holds "features", a file of NumPy that `peer_features` of
benchmarks/finetuning_runs.py made, "kind" of the head, "mode" (one of MODES), the
fields of a `ModelConfig` as "model" and of an `OptimizerConfig` as "optimizer",
"batch", "sequence_length", "labels", "dropout", "dtype" and "warmup". Instead of a loss
the worker gives the tokens, padding included, that were computed since the start.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import protocol  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers_pretraining import facts, rembert_config  # noqa: E402

# What a user writes: the order of the rows. Batches are padded to their longest row.
MODES = {"dynamic": "random", "grouped": "group_by_length"}
HEADS = {
    "classification": transformers.RemBertForSequenceClassification,
    "tagging": transformers.RemBertForTokenClassification,
    "question answering": transformers.RemBertForQuestionAnswering,
}
IGNORED_LABEL = -100


class FeatureRows(torch.utils.data.Dataset):
    """The rows of a file of features, each as long as its text."""

    def __init__(self, path: str):
        with np.load(path) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._arrays["lengths"])

    def __getitem__(self, index: int) -> dict:
        """A row under the names that Trainer and its samplers look for."""
        length = int(self._arrays["lengths"][index])
        row = {
            name: values[index][:length] if values.ndim == 2 else values[index]
            for name, values in self._arrays.items()
            if name != "lengths"
        }
        return row | {"attention_mask": np.ones(length, np.int64)}


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """[rows, longest] of each feature, [rows] of labels of whole rows."""
    max_length = max(len(row["input_ids"]) for row in rows)
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if np.ndim(values[0]):
            fill = IGNORED_LABEL if name == "labels" else 0
            array = np.full([len(rows), max_length], fill, np.int64)
            for row, value in zip(array, values, strict=True):
                row[: len(value)] = value
            values = array
        batch[name] = torch.as_tensor(np.asarray(values, np.int64))
    return batch


class CountingTrainer(transformers.Trainer):
    """Counts tokens where they are computed: batches are fetched before that."""

    tokens = 0

    def training_step(self, model, inputs, *args, **kwargs) -> torch.Tensor:
        """A step's loss."""
        self.tokens += inputs["input_ids"].numel()
        return super().training_step(model, inputs, *args, **kwargs)


class Turn(transformers.TrainerCallback):
    """Lets the suite's other workers have their turns between steps."""

    def __init__(self, take_turn: Callable[[], None]):
        self._take_turn = take_turn

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """After the update of the weights."""
        self._take_turn()


def main() -> None:
    """Trains until the suite has seen enough."""
    case = json.loads(sys.argv[1])
    model = None
    turns = protocol.Turns(case["warmup"], lambda: facts(model))
    torch.manual_seed(0)
    config = rembert_config(
        case["model"],
        classifier_dropout_prob=case["dropout"],
        num_labels=case["labels"],
    )
    model = HEADS[case["kind"]](config)
    optimizer = case["optimizer"]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=case["dtype"] == "bfloat16",
            per_device_train_batch_size=case["batch"],
            train_sampling_strategy=MODES[case["mode"]],
            max_steps=100_000,
            learning_rate=optimizer["learning_rate"],
            weight_decay=optimizer["weight_decay"],
            adam_beta1=optimizer["beta1"],
            adam_beta2=optimizer["beta2"],
            adam_epsilon=optimizer["epsilon"],
            max_grad_norm=optimizer["clip_norm"],
            optim="adamw_torch_fused",
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=0,
        )
        trainer = CountingTrainer(
            model=model,
            args=arguments,
            data_collator=collate,
            train_dataset=FeatureRows(case["features"]),
        )
        turn = Turn(lambda: turns.step_done(float(trainer.tokens)))
        trainer.add_callback(turn)
        trainer.train()


if __name__ == "__main__":
    main()
