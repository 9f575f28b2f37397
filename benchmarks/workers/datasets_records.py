"""Worker: sentences to an Arrow file of ids, with datasets and tokenizers.

The tokenizer is the SentencePiece vocabulary in the form that transformers' converter
gives it: the same pieces, scores and normalization.
"""

import os
import pathlib

# One process each, as `datasets` starts several.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import datasets  # noqa: E402
import protocol  # noqa: E402
import tokenizers  # noqa: E402
from sentencepiece import sentencepiece_model_pb2  # noqa: E402


def make_tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
    """The tokenizer of a SentencePiece model file."""
    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    unknown = model.trainer_spec.unk_id
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=unknown))
    charsmap = model.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Precompiled(charsmap),
            tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return tokenizer


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "folder", with "text.txt" and "pieces.model", and "processes"; a
    step writes all ids."""
    folder = pathlib.Path(case["folder"])
    datasets.disable_progress_bars()
    tokenizer = make_tokenizer(folder / "pieces.model")
    text = datasets.load_dataset(
        "text",
        data_files=str(folder / "text.txt"),
        split="train",
        cache_dir=str(folder / "cache"),
    )

    def encode(batch):
        encoded = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [encoding.ids for encoding in encoded]}

    def step() -> float:
        written = text.map(
            encode,
            batched=True,
            num_proc=case["processes"],
            remove_columns=["text"],
            load_from_cache_file=False,
        )
        return float(len(written))

    written = text.map(
        encode, batched=True, num_proc=case["processes"], remove_columns=["text"]
    )
    tokens = sum(map(len, written["ids"]))
    return step, {
        "tokens": tokens,
        "versions": protocol.versions("datasets", "pyarrow", "tokenizers"),
    }


if __name__ == "__main__":
    protocol.serve(build)
