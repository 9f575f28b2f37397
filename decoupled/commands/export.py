"""Writes SavedModels that need neither this project nor Mesh-TensorFlow.

Reads a model folder (config.json, sentencepiece.model, its best or else newest
checkpoint) that `decoupled pretrain`, `finetune` or `convert` made. Writes
below --export_dir

  preprocessor/     strings -> packed ids   (import tensorflow_text)

and two SavedModels, the first from packed ids (plain TensorFlow), the second from
strings (import tensorflow_text):

  encoder/          text_encoder/           vectors, of a pre-trained model
  classifier/       text_classifier/        a label, of a text or a pair of texts
  tagger/           text_tagger/            a tag for every word
  span_model/       text_qa/                the answer to a question, cut from a context

The output embedding stays out, as the paper discards it after pre-training, unless
--mlm asks for it.

  decoupled export --model_dir=runs/decoupled --export_dir=exports/decoupled
"""

import dataclasses
import os
from typing import TYPE_CHECKING

from absl import flags

from decoupled.core import console
from decoupled.core.memory import readable_bytes

if TYPE_CHECKING:
    from decoupled.exports.trained_model import TrainedModel


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("model_dir", None, "Folder of a pre-training or fine-tuning.")
    flags.DEFINE_string("export_dir", None, "Folder to write; new, or empty.")
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Prefix, or name in --model_dir; default: the best that fine-tuning kept, else "
        "the newest.",
    )
    flags.DEFINE_bool("mlm", False, "Keep output embedding and MLM head (encoder.mlm).")
    flags.DEFINE_integer(
        "sequence_length",
        None,
        "Length that texts are packed to; longer texts are cut. Default: the length "
        "that the model was trained at. Longer inputs have positions that no step "
        "trained. A conversion does not know its length: 128, as on TF Hub, or the "
        "model's positions if fewer.",
    )
    flags.DEFINE_integer(
        "max_answer_length",
        None,
        "Most pieces of an answer; for models that answer questions. Default: the "
        "limit of the last evaluation in --model_dir.",
    )
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --export_dir.")
    flags.mark_flags_as_required(["model_dir", "export_dir"])


# How each model is called on strings, and which of its outputs is shown.
_CALLS = {
    "text_encoder": "(['A sentence.', 'Ein Satz.'])['pooled_output']",
    "text_classifier": "(['A sentence.', 'Ein Satz.'])['label']",
    "text_tagger": "(['A sentence .', 'Ein Satz .'])['tags']",
    "text_qa": "(['A question?'], ['A text that holds the answer.'])['answer']",
}


def report(export_dir: str, description: dict) -> None:
    """Prints what was written and how to load it."""
    step = description["checkpoint"]["global_step"]
    console.table(
        f"{export_dir} (checkpoint {description['checkpoint']['name']}, step {step})",
        ["SavedModel", "size"],
        [[name, readable_bytes(size)] for name, size in description["bytes"].items()],
    )
    [name] = set(description["bytes"]) & set(_CALLS)
    console.say("Load it anywhere:")
    console.say("  import tensorflow as tf, tensorflow_text")
    console.say(f"  model = tf.saved_model.load({os.path.join(export_dir, name)!r})")
    console.say(f"  model{_CALLS[name]}")


def say_length(length: int, trained_length: int | None) -> None:
    """Says how the length of packing compares to that of training."""
    if trained_length is None:
        console.say(
            f"texts are packed to {length} pieces; the model's folder does not say how "
            "long its inputs were in training (--sequence_length)"
        )
    elif length > trained_length:
        console.say(
            f"texts are packed to {length} pieces, but the model was trained at "
            f"{trained_length}: no step trained positions {trained_length} to "
            f"{length - 1} with this task, and what it says about longer texts may be "
            "worse"
        )
    else:
        console.say(
            f"texts are packed to {length} pieces; the model was trained at "
            f"{trained_length}"
        )


def say_assumed(trained: "TrainedModel") -> None:
    """Names the settings of a reader that its folder does not say."""
    if trained.assumed:
        values = dataclasses.asdict(trained.answers)
        told = ", ".join(f"{name} = {values[name]}" for name in trained.assumed)
        console.say(
            f"the model's folder does not say how its answers are chosen; usual "
            f"settings were taken: {told}"
        )


def main() -> None:
    """Reads, checks, writes, reports."""
    options = flags.FLAGS
    from decoupled.exports.serving import saved_model
    from decoupled.exports.trained_model import read_model_dir

    trained = read_model_dir(options.model_dir, options.checkpoint)
    if options.max_answer_length is not None:
        trained = trained.with_max_answer_length(options.max_answer_length)
    length = options.sequence_length
    if length is None:
        length = trained.default_length
    description = saved_model.export(
        trained,
        options.export_dir,
        sequence_length=length,
        mlm=options.mlm,
        overwrite=options.overwrite,
    )
    report(options.export_dir, description)
    say_length(length, trained.trained_length)
    say_assumed(trained)
