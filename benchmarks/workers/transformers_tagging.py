"""Worker: words to tags with transformers' token-classification pipeline."""

import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import protocol  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case is that of `benchmarks/tagging.py` and "at_once", the pipeline's
    size of a batch."""
    folder = pathlib.Path(case["folder"])
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        folder / "theirs"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "theirs")
    pipeline = transformers.TokenClassificationPipeline(
        model=model.eval(), tokenizer=tokenizer, ignore_labels=[]
    )
    ids = model.config.label2id

    @torch.inference_mode()
    def step():
        tagged = pipeline(words, is_split_into_words=True, batch_size=case["at_once"])
        tags = [
            tag
            for sentence, pieces in zip(words, tagged, strict=True)
            for tag in word_tags(sentence, pieces)
        ]
        return float(sum(ids[tag] * place for place, tag in enumerate(tags, start=1)))

    return step, {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def word_tags(words: list[str], pieces: list[dict]) -> list[str]:
    """The tag at the first piece of each word; the pipeline joined them by spaces."""
    first = {}
    for piece in pieces:
        first.setdefault(piece["start"], piece["entity"])
    starts, position = [], 0
    for word in words:
        starts.append(position)
        position += len(word) + 1
    return [first[start] for start in starts]


if __name__ == "__main__":
    protocol.serve(build)
