"""Converts models to other formats, vocabularies and embeddings.

The first word after the command chooses the conversion.

  decoupled convert from_hf --hf_dir=google_rembert --model_dir=runs/rembert
  decoupled convert from_hf --help

A model folder can be used like that of a training run: it can be exported, fine-tuned,
or trained further.
"""

from absl import flags

from decoupled.configs import ModelConfig
from decoupled.core.errors import UserError
from decoupled.launch import start
from decoupled.launch.start import Subcommand

GONE = {
    "average": "choose one checkpoint of a run; a schedule that decays to 0 "
    "(recipes/warmup_stable_decay.gin) ends with weights that need no mean"
}
# The functions of decoupled/exports/interop/surgery.py.
CHANGES = [
    "untie",
    "tie",
    "fold",
    "insert_projection",
    "factorise",
    "reset_slots",
]
_VOCABULARY = "A vocabulary: a file, or a folder of transformers."
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
    help_text = "The sentencepiece.model, if the folder has only its tokenizer.json."
    _text("vocabulary", help_text, required=False)
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
    help_text = f"{_VOCABULARY} Default: unused pieces are removed."
    _text("vocabulary", help_text, required=False)
    help_text = "A corpus: pieces that its training text uses are kept."
    _text("corpus_dir", help_text, required=False)
    flags.DEFINE_list("languages", [], "Languages of the corpus. Default: all.")
    flags.DEFINE_integer(
        "min_count", 1, "A piece is kept if a language has it at least this often.",
        lower_bound=1,
    )  # fmt: skip


def _embeddings_flags():
    _text("model_dir", "Model folder to read.")
    _text("new_model_dir", "Model folder to write.")
    _text("checkpoint", _CHECKPOINT, required=False)
    flags.DEFINE_enum("change", None, CHANGES, "What is done.", required=True)
    flags.DEFINE_enum(
        "keep", "input", ["input", "output"], "The table that --change=tie keeps."
    )
    flags.DEFINE_integer(
        "input_embedding_size", None, "E_in after --change=factorise.", lower_bound=2
    )


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

    The model keeps the folder's tokenizer: SentencePiece, BERT's or XLM-R's. Settings
    that change what a model computes, or which ids a text gets, are honoured or
    refused.

    Variables without a use or a value are an error unless --allow_partial allows them.
    """
    from decoupled.exports.interop.huggingface import from_huggingface

    options = flags.FLAGS
    from_huggingface(
        options.hf_dir, options.model_dir, options.vocabulary, options.allow_partial
    )


def to_hf() -> None:
    """Converts a model folder to one that transformers loads.

    The new folder has the tokenizer, too.

      decoupled convert to_hf --model_dir=runs/decoupled --hf_dir=hf/decoupled
    """
    from decoupled.exports.interop.huggingface import to_huggingface

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

    With --vocabulary, the new model has those pieces, of any kind. A new piece begins
    with the mean of the rows of the old pieces into which its text is cut.

      decoupled convert vocabulary --model_dir=runs/rembert \\
          --vocabulary=sw/sentencepiece.model --new_model_dir=runs/rembert_sw
    """
    options = flags.FLAGS
    if not (options.vocabulary or options.corpus_dir):
        raise UserError("--corpus_dir: give a corpus for trimming, or --vocabulary")
    for name in ("corpus_dir", "languages", "min_count"):
        if options.vocabulary and options[name].present:
            raise UserError(f"--{name}: is for trimming, not with --vocabulary")

    from decoupled.exports.interop.new_vocabulary import (
        replace_vocabulary,
        trim_vocabulary,
    )

    folders = options.model_dir, options.checkpoint, options.new_model_dir
    if options.vocabulary:
        replace_vocabulary(*folders, options.vocabulary)
    else:
        trim_vocabulary(
            *folders, options.corpus_dir, options.languages, options.min_count
        )


def embeddings() -> None:
    """Converts a model folder to one with embeddings of another form.

      decoupled convert embeddings --change=untie --model_dir=runs/coupled \\
          --new_model_dir=runs/untied

    --change=untie: the output embedding becomes a copy of the input embedding.
    --change=tie: one of two tables of equal width, --keep, takes the place of both.
    --change=fold: the output embedding, its factors and the projection before it
    become one table [V, H]. The head must be linear.
    --change=insert_projection: a projection before an output embedding with E_out = H.
    It begins as the identity.
    --change=factorise: the input embedding becomes one of --input_embedding_size with a
    projection to H, by a singular value decomposition.
    --change=reset_slots: only the slots of the output embedding and its projection
    change: to zero, as after fold.

    untie, fold and insert_projection do not change what the model computes. tie and
    factorise print their error.

    Of a run of pretrain, step and optimizer slots are kept, and so is its description,
    with the new sizes. So it goes on in the new folder with the settings that it had
    and --gin_file=NEW_MODEL_DIR/model.gin. Slots of variables that are new are zero.
    Any other model is a conversion in the new folder, without slots.
    """
    options = flags.FLAGS
    for name, change in (("keep", "tie"), ("input_embedding_size", "factorise")):
        if options[name].present and options.change != change:
            raise UserError(f"--{name}: is for --change={change} only")
    if options.change == "factorise" and options.input_embedding_size is None:
        raise UserError("--input_embedding_size: give the new E_in")

    from decoupled.exports.interop import surgery

    make_change = getattr(surgery, options.change)
    arguments = {"tie": (options.keep,), "factorise": (options.input_embedding_size,)}
    surgery.change_embeddings(
        options.model_dir,
        options.checkpoint,
        options.new_model_dir,
        lambda model: make_change(model, *arguments.get(options.change, ())),
    )


SUBCOMMANDS = {
    "from_tf": Subcommand(_from_tf_flags, from_tf),
    "from_hf": Subcommand(_from_hf_flags, from_hf),
    "to_hf": Subcommand(_to_hf_flags, to_hf),
    "vocabulary": Subcommand(_vocabulary_flags, vocabulary),
    "embeddings": Subcommand(_embeddings_flags, embeddings),
}
