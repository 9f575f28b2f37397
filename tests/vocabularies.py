"""Small SentencePiece vocabularies that tests train."""

import pathlib

import sentencepiece


def train_vocabulary(path: pathlib.Path, sentences: list[str], **changes) -> str:
    """Trains a vocabulary in `path` (NAME.model); returns the path as a string.

    Args:
      changes: of the trainer's settings, which are those of the package, for few words.
    """
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(path.with_suffix("")),
        **{
            "vocab_size": 60,
            "hard_vocab_limit": False,
            "character_coverage": 1.0,
            "pad_id": 0,
            "eos_id": 1,
            "unk_id": 2,
            "bos_id": -1,
            "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
            "minloglevel": 2,
        }
        | changes,
    )
    return str(path)
