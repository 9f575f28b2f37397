"""Writes SavedModels that need neither this project nor Mesh-TensorFlow.

Reads a model folder that `decoupled pretrain`, `finetune` or `convert` wrote:
config.json, its vocabulary, and the checkpoint that fine-tuning selected, or else
the newest. Writes below --export_dir

  preprocessor/     strings -> packed ids   (import tensorflow_text)

and a SavedModel that takes packed ids (plain TensorFlow). Models of texts have a second
one, which takes strings (import tensorflow_text). For tags and answers, `decoupled
predict` goes from strings to predictions:

  encoder/          text_encoder/           vectors (of a pre-trained model)
  classifier/       text_classifier/        a label for a text or a pair of texts
  regressor/        text_regressor/         a number for a text or a pair of texts
  tagger/           decoupled predict       a tag for every word
  span_model/       decoupled predict       the answer to a question, cut from a context

The output embedding is left out unless --mlm is given, because the paper discards it
after pre-training.

  decoupled export --model_dir=runs/decoupled --export_dir=exports/decoupled

--weights stores the matrices with fewer bits. Such a SavedModel cannot be trained
further.

A pre-trained model has no pooler: its pooled_output is the [CLS] vector of the last
layer, which is not trained to compare texts. For that, --sentence_vectors writes
sentence_encoder/ and text_sentence_encoder/ instead. They give a vector for each
sentence, with the settings of `decoupled retrieve`, and do not have the layers above
the chosen one. The command says which layer and mean it took.

  decoupled export --model_dir=runs/decoupled --export_dir=exports/sentences \\
      --sentence_vectors --gin_param='RetrievalConfig.layer = 8'
"""

from absl import flags

from decoupled.configs import RetrieveConfig
from decoupled.configs.checks import unused_settings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import start
from decoupled.xtreme.official import GROUPS

GONE = {
    "--centre_on": "subtract the mean vector of your sentences from the exported ones"
}
# The settings of retrieval that do not change the vector of a sentence.
_OF_SEARCH = ("scoring", "num_neighbours", "batch_size")


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("model_dir", None, "Folder of a run or of a conversion.")
    flags.DEFINE_string("export_dir", None, "Folder to write; new, or empty.")
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Prefix, or name in --model_dir. Default: the checkpoint that fine-tuning "
        "selected, or else the newest.",
    )
    flags.DEFINE_bool("mlm", False, "Keep output embedding and MLM head (encoder.mlm).")
    flags.DEFINE_integer(
        "sequence_length",
        None,
        "Length to which texts are packed; longer texts are truncated. Default: the "
        "length at which the model was trained, because later positions are untrained. "
        "For a conversion, whose training length is unknown: 128, as on TF Hub, or 384 "
        "for question answering. For --sentence_vectors: RetrievalConfig."
        "max_sequence_length. The model's positions if these are fewer.",
    )
    flags.DEFINE_integer(
        "max_answer_length",
        None,
        "Largest number of pieces of an answer, for models that answer questions. "
        "Default: the limit of the last evaluation in --model_dir.",
    )
    flags.DEFINE_enum(
        "weights",
        "float32",
        ["float32", "bfloat16", "float16", "int8"],
        "Type in which matrices are stored.",
    )
    flags.DEFINE_bool(
        "sentence_vectors", False, "Export a model of sentence vectors; see above."
    )
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --export_dir.")
    flags.mark_flags_as_required(["model_dir", "export_dir"])


def main() -> None:
    """Reads, checks, writes, reports."""
    options = flags.FLAGS
    retrieval = None
    if options.sentence_vectors:
        # Settings of a single task, as in tasks/retrieval.gin, have no part here.
        tasks = GROUPS["retrieval"]
        retrieval = start.parse_gin(RetrieveConfig, tasks=tasks).retrieval
        why = "an export searches nothing, and takes batches of any size"
        for line in unused_settings(retrieval, _OF_SEARCH, why):
            console.say(line)
    elif options.gin_file or options.gin_param:
        raise UserError(
            "--gin_file, --gin_param: are for --sentence_vectors; a whole model is "
            "exported with the settings of its training"
        )
    from decoupled.exports.serving.saved_model import export_folder

    export_folder(
        options.model_dir,
        options.export_dir,
        checkpoint=options.checkpoint,
        sequence_length=options.sequence_length,
        max_answer_length=options.max_answer_length,
        mlm=options.mlm,
        overwrite=options.overwrite,
        weights=options.weights,
        retrieval=retrieval,
    )
