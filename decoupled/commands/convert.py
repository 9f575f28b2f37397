"""Converts models from and to other formats, changes vocabularies, averages weights.

The first word after the command chooses the conversion.

  decoupled convert from_hf --hf_dir=google_rembert --model_dir=runs/rembert
  decoupled convert from_hf --help

A model folder can be used like that of a training run: it can be exported, fine-tuned,
or trained further.
"""

import math

from absl import flags

from decoupled.configs import ModelConfig
from decoupled.core.errors import UserError
from decoupled.launch import start
from decoupled.launch.start import Subcommand

_VOCABULARY = "A sentencepiece.model file."
_CHECKPOINT = (
    "Prefix, or name in --model_dir. Default: the checkpoint that fine-tuning "
    "selected, or else the newest."
)


def _text(name, text, required=True):
    flags.DEFINE_string(name, None, text, required=required)


def _allow_partial():
    flags.DEFINE_multi_string(
        "allow_partial",
        [],
        "Pattern of names of variables that may lack a use or a value.",
    )


def _from_tf_flags():
    start.define_gin_flags()
    _text("checkpoint", "Prefix of the checkpoint.")
    _text("vocabulary", _VOCABULARY)
    _text("model_dir", "Model folder to write.")
    _allow_partial()


def _from_hf_flags():
    _text("hf_dir", "Folder of transformers to read.")
    _text("model_dir", "Model folder to write.")
    _text("vocabulary", _VOCABULARY, required=False)
    _allow_partial()


def _to_hf_flags():
    _text("model_dir", "Model folder to read.")
    _text("hf_dir", "Folder of transformers to write.")
    _text("checkpoint", _CHECKPOINT, required=False)
    flags.DEFINE_bool("encoder_only", False, "Leave the head out.")


def _vocabulary_flags():
    _text("model_dir", "Model folder to read.")
    _text("new_model_dir", "Model folder to write.")
    _text("checkpoint", _CHECKPOINT, required=False)
    unused = "The sentencepiece.model to use. Default: unused pieces are removed."
    _text("vocabulary", unused, required=False)
    kept = "A corpus: pieces that its training text uses are kept."
    _text("corpus_dir", kept, required=False)
    flags.DEFINE_list("languages", [], "Languages of the corpus. Default: all.")
    flags.DEFINE_integer(
        "min_count", 1, "A piece is kept if a language has it at least this often.",
        lower_bound=1,
    )  # fmt: skip


def _average_flags():
    flags.DEFINE_multi_string(
        "checkpoint", None, "Prefix, or a run's folder.", required=True
    )
    flags.DEFINE_float(
        "half_life",
        math.inf,
        "A checkpoint that is so many steps older than the newest has half its weight. "
        "inf: all have the same weight.",
    )
    _text("model_dir", "Model folder to write.")


def from_tf() -> None:
    """Converts an original TensorFlow checkpoint to a model folder.

    The checkpoint is gs://gresearch/rembert or one of BERT. The sizes come from a gin
    file.

      decoupled convert from_tf --checkpoint=rembert/rembert.ckpt \\
          --vocabulary=rembert/sentencepiece.model --gin_file=models/rembert.gin \\
          --model_dir=runs/rembert

    Variables without a use or a value are an error unless --allow_partial allows them.
    """
    options = flags.FLAGS
    # Mistakes in settings are reported before TensorFlow is loaded.
    model = start.parse_gin(ModelConfig)

    from decoupled.exports.interop.from_original import from_original

    from_original(
        options.checkpoint,
        options.model_dir,
        model,
        options.vocabulary,
        options.allow_partial,
    )


def from_hf() -> None:
    """Converts a folder of transformers' save_pretrained to a model folder.

    The model is RemBERT, BERT or XLM-R, with or without the head of a task. It has
    config.json, safetensors files and its vocabulary.

      decoupled convert from_hf --hf_dir=google_rembert --model_dir=runs/rembert

    BERT's WordPieces are converted to the pieces of --vocabulary. Settings that change
    what a model computes, or which ids a text gets, are honoured or refused.

    Variables without a use or a value are an error unless --allow_partial allows them.
    """
    from decoupled.exports.interop.from_huggingface import from_huggingface

    options = flags.FLAGS
    from_huggingface(
        options.hf_dir, options.model_dir, options.vocabulary, options.allow_partial
    )


def to_hf() -> None:
    """Converts a model folder to one that transformers loads.

    The new folder has the tokenizer, too.

      decoupled convert to_hf --model_dir=runs/decoupled --hf_dir=hf/decoupled
    """
    from decoupled.exports.interop.to_huggingface import to_huggingface

    options = flags.FLAGS
    to_huggingface(
        options.model_dir, options.checkpoint, options.hf_dir, options.encoder_only
    )


def vocabulary() -> None:
    """Converts a model folder to one with another vocabulary.

    With a corpus alone, pieces that its text does not use are removed. A multilingual
    model that is trimmed to one language loses most of its word embeddings. A text
    whose pieces are all kept has the same pieces and the same vectors as before.

      decoupled convert vocabulary --model_dir=runs/rembert --corpus_dir=corpus \\
          --languages=sw --new_model_dir=runs/rembert_sw

    With --vocabulary, the new model has the pieces of that file. A new piece begins
    with the mean of the rows of the old pieces into which its text is cut.

      decoupled convert vocabulary --model_dir=runs/rembert \\
          --vocabulary=sw/sentencepiece.model --new_model_dir=runs/rembert_sw
    """
    options = flags.FLAGS
    if not (options.vocabulary or options.corpus_dir):
        raise UserError("--corpus_dir: give a corpus for trimming, or --vocabulary")
    if options.vocabulary and options.languages:
        raise UserError("--languages: is for trimming, not with --vocabulary")
    if options.vocabulary and options["min_count"].present:
        raise UserError("--min_count: is for trimming, not with --vocabulary")

    from decoupled.exports.interop.new_vocabulary import (
        replace_vocabulary,
        trim_vocabulary,
    )

    folders = options.model_dir, options.checkpoint, options.new_model_dir
    if options.vocabulary:
        replace_vocabulary(*folders, options.vocabulary, options.corpus_dir)
    else:
        trim_vocabulary(
            *folders, options.corpus_dir, options.languages, options.min_count
        )


def average() -> None:
    """Averages the weights of checkpoints of one model; slots are left out.

    The checkpoints are of one run, or of runs that began from the same weights.

      decoupled convert average --checkpoint=runs/decoupled/model.ckpt-9000 \\
          --checkpoint=runs/decoupled/model.ckpt-10000 --model_dir=runs/averaged

    --half_life=1000 gives older checkpoints less weight: the result is an exponential
    moving average over the saved checkpoints. The folder can be fine-tuned, analysed
    and exported like any other.
    """
    from decoupled.exports.interop import average as averaging

    options = flags.FLAGS
    averaging.average(options.checkpoint, options.model_dir, options.half_life)


SUBCOMMANDS = {
    "from_tf": Subcommand(_from_tf_flags, from_tf),
    "from_hf": Subcommand(_from_hf_flags, from_hf),
    "to_hf": Subcommand(_to_hf_flags, to_hf),
    "vocabulary": Subcommand(_vocabulary_flags, vocabulary),
    "average": Subcommand(_average_flags, average),
}
