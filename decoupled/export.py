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
from decoupled.memory import readable_bytes

# TF Hub's text preprocessors pack to this length by default.
_HUB_SEQUENCE_LENGTH = 128


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
        "Length that texts are packed to by default, longer ones are cut; default: "
        f"{_HUB_SEQUENCE_LENGTH} as on TF Hub, or the model's positions if fewer.",
    )
    flags.DEFINE_bool("overwrite", False, "Replace an earlier export in --export_dir.")
    flags.mark_flags_as_required(["model_dir", "export_dir"])


def report(export_dir: str, description: dict) -> None:
    """Prints what was written and how to load it."""
    step, kind = description["checkpoint"]["global_step"], description["kind"]
    console.table(
        f"{export_dir} (checkpoint {description['checkpoint']['name']}, step {step})",
        ["SavedModel", "size"],
        [[name, readable_bytes(size)] for name, size in description["bytes"].items()],
    )
    text_model = os.path.join(export_dir, f"text_{kind}")
    console.say("Load it anywhere:")
    console.say("  import tensorflow as tf, tensorflow_text")
    console.say(f"  model = tf.saved_model.load({text_model!r})")
    output = "label" if kind == "classifier" else "pooled_output"
    console.say(f"  model(['A sentence.', 'Ein Satz.'])[{output!r}]")


def main() -> None:
    """Reads, checks, writes, reports."""
    options = flags.FLAGS
    from decoupled.exports import saved_model
    from decoupled.exports.trained_model import read_model_dir

    trained = read_model_dir(options.model_dir, options.checkpoint)
    length = options.sequence_length
    if length is None:
        length = min(_HUB_SEQUENCE_LENGTH, trained.config.max_positions)
    description = saved_model.export(
        trained,
        options.export_dir,
        sequence_length=length,
        mlm=options.mlm,
        overwrite=options.overwrite,
    )
    report(options.export_dir, description)


if __name__ == "__main__":
    define_flags()
    launch.run(main, __doc__)
