"""Worker: batches of transformers' masked-LM collator behind a torch DataLoader.

The same documents, joined and cut into sequences beforehand, as transformers' example
for masked language modelling does, and held in memory as lists, which is what its
collator turns everything else into.
"""

import itertools
import time

import numpy as np
import protocol
import synthetic
import tokenizers
import torch
import transformers

SPECIAL = {
    "pad_token": synthetic.PAD_ID,
    "unk_token": synthetic.UNK_ID,
    "cls_token": synthetic.CLS_ID,
    "sep_token": synthetic.SEP_ID,
    "mask_token": synthetic.MASK_ID,
}


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "vocab_size", "batch", "sequence_length", "languages" (see
    `synthetic`), "batches", how many a step takes, and "loader_processes"."""
    torch.manual_seed(0)
    examples = sequences(case)
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer(case["vocab_size"]), mlm_probability=0.15
    )
    loader = torch.utils.data.DataLoader(
        examples,
        case["batch"],
        shuffle=True,
        collate_fn=collator,
        num_workers=case["loader_processes"],
        drop_last=True,
        persistent_workers=case["loader_processes"] > 0,
    )
    started = time.perf_counter()
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    seconds = time.perf_counter() - started

    def step():
        for _ in range(case["batches"]):
            batch = next(batches)
        return float((batch["labels"] >= 0).sum())

    return step, {
        "first_batch": {"0": [seconds]},
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def sequences(case: dict) -> list[dict[str, list[int]]]:
    """[CLS] piece [SEP] for each piece of the documents, joined by language."""
    width = case["sequence_length"] - 2
    examples = []
    for _, texts in synthetic.documents(case):
        joined = np.concatenate([[*text, synthetic.SEP_ID] for text in texts])
        body = joined[: len(joined) // width * width].reshape(-1, width)
        rows = np.pad(body, [[0, 0], [1, 1]], constant_values=synthetic.SEP_ID)
        rows[:, 0] = synthetic.CLS_ID
        special = rows < synthetic.FIRST_ID
        for row, mask in zip(rows.tolist(), special.astype(int).tolist(), strict=True):
            ones = [1] * len(row)
            examples.append(
                {"input_ids": row, "attention_mask": ones, "special_tokens_mask": mask}
            )
    return examples


def tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of so many invented words, the special ones in their places."""
    names = {number: name for name, number in SPECIAL.items()}
    words = {names.get(number, str(number)): number for number in range(vocab_size)}
    model = tokenizers.models.WordLevel(words, unk_token="unk_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(model), **{name: name for name in SPECIAL}
    )


if __name__ == "__main__":
    protocol.serve(build)
