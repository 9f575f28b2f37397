"""Writes SavedModels that need neither this project nor Mesh-TensorFlow.

Reads a model folder (config.json, sentencepiece.model, its best or else newest
checkpoint) that `python -m decoupled.pretrain` or `python -m decoupled.finetune` made.
Writes below --export_dir:

  preprocessor/                        strings -> packed ids   (import tensorflow_text)
  encoder/ or classifier/              packed ids -> vectors   (plain TensorFlow)
  text_encoder/ or text_classifier/    both in one             (import tensorflow_text)

The output embedding stays out, as the paper discards it after pre-training, unless
--mlm asks for it. A sequence classifier is exported with its labels.

  python -m decoupled.export --model_dir=runs/decoupled --export_dir=exports/decoupled
"""

import os

from absl import flags

from decoupled import console, launch
from decoupled.errors import UserError


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("model_dir", None, "Folder of a pre-training or fine-tuning.")
    flags.DEFINE_string("export_dir", None, "Folder to write; it must not exist yet.")
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
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --export_dir.")


def report(export_dir: str, description: dict) -> None:
    """Prints what was written and how to load it."""
    step, kind = description["checkpoint"]["global_step"], description["kind"]
    console.table(
        f"{export_dir} (checkpoint {description['checkpoint']['name']}, step {step})",
        ["SavedModel", "MB"],
        [[name, f"{size / 1e6:.1f}"] for name, size in description["bytes"].items()],
    )
    text_model = os.path.join(export_dir, f"text_{kind}")
    console.say("Load it anywhere:")
    console.say("  import tensorflow as tf, tensorflow_text")
    console.say(f"  model = tf.saved_model.load({text_model!r})")
    output = "label" if kind == "classifier" else "pooled_output"
    console.say(f"  model(['A sentence.', 'Ein Satz.'])[{output!r}]")


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


def main() -> None:
    """Reads, checks, writes, reports."""
    options = flags.FLAGS
    for name in ("model_dir", "export_dir"):
        if not options[name].value:
            raise UserError(f"--{name}: is required")

    from decoupled.exports import saved_model
    from decoupled.exports.trained_model import read_model_dir

    trained = read_model_dir(options.model_dir, options.checkpoint)
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


if __name__ == "__main__":
    define_flags()
    launch.run(main, __doc__)
