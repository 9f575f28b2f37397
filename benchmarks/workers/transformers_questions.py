"""Worker: questions to features with transformers' fast tokenizer.

Windows, offsets and the search for the answer's pieces as in transformers' example
script for question answering; arrays at the end, which that script leaves to others.
"""

import itertools
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import protocol  # noqa: E402
import transformers  # noqa: E402

CONTEXT = 1


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "folder", with "questions.json" and "tokenizer.json",
    "sequence_length", "overlap", pieces that windows share, and "at_once"; a step
    builds all features and gives the number of windows that hold an answer."""
    folder = pathlib.Path(case["folder"])
    rows = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.is_fast

    def features():
        parts = [
            encode(tokenizer, rows[first : first + case["at_once"]], case)
            for first in range(0, len(rows), case["at_once"])
        ]
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    def step() -> float:
        return float((features()["end_positions"] > 0).sum())

    built = features()
    return step, {
        "windows": len(built["input_ids"]),
        "tokens": int(built["attention_mask"].sum()),
        "versions": protocol.versions("numpy", "tokenizers", "transformers"),
    }


def encode(tokenizer, rows: list, case: dict) -> dict[str, np.ndarray]:
    """The windows of some questions."""
    texts, contexts, starts, ends = zip(*rows, strict=True)
    encoded = tokenizer(
        list(texts),
        list(contexts),
        truncation="only_second",
        max_length=case["sequence_length"],
        stride=case["overlap"],
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        padding="max_length",
    )
    owners = encoded["overflow_to_sample_mapping"]
    offsets = encoded["offset_mapping"]
    spans = [
        span(encoded.sequence_ids(window), offsets[window], starts[own], ends[own])
        for window, own in enumerate(owners)
    ]
    first, last = np.array(spans).T
    return {
        "input_ids": np.array(encoded["input_ids"], np.int32),
        "attention_mask": np.array(encoded["attention_mask"], np.int32),
        "token_type_ids": np.array(encoded["token_type_ids"], np.int32),
        "offset_mapping": np.array(offsets, np.int32),
        "example_index": np.array(owners, np.int32),
        "start_positions": first,
        "end_positions": last,
    }


def span(segments: list, offsets: list, start: int, end: int) -> tuple[int, int]:
    """First and last piece of the answer; 0 where a window does not hold all of it."""
    first = segments.index(CONTEXT) if CONTEXT in segments else 0
    last = len(segments) - 1
    while last > first and segments[last] != CONTEXT:
        last -= 1
    if not (offsets[first][0] <= start and offsets[last][1] >= end):
        return 0, 0
    places = range(first, last + 1)
    after = itertools.dropwhile(lambda i: offsets[i][1] <= start, places)
    before = itertools.dropwhile(lambda i: offsets[i][0] >= end, reversed(places))
    return next(after, 0), next(before, 0)


if __name__ == "__main__":
    protocol.serve(build)
