"""Small SentencePiece vocabularies that tests train."""

import json
import pathlib

import sentencepiece


def train_vocabulary(path: pathlib.Path, sentences: list[str], **changes) -> str:
    """Trains a vocabulary in `path` (NAME.model); returns the path as a string.

    Args:
      changes: of the trainer's settings; the others are the package's, for few words.
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


def xlm_r_folder(path: pathlib.Path, sentences: list[str], **changes) -> pathlib.Path:
    """A folder with XLM-R's sentencepiece.bpe.model, whose ids are fairseq's."""
    path.mkdir(parents=True, exist_ok=True)
    ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "control_symbols": []}
    model = train_vocabulary(path / "m.model", sentences, **ids | changes)
    pathlib.Path(model).rename(path / "sentencepiece.bpe.model")
    (path / "m.vocab").unlink()
    config = {"tokenizer_class": "XLMRobertaTokenizer"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path
