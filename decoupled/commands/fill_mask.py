"""Shows what a pre-trained model predicts at [MASK] (XLM-R: <mask>).

  decoupled fill_mask --model_dir=runs/decoupled \\
      "Paris is the [MASK] of France."

Reads the folder of a pre-training run or of a conversion, or (--export_dir) a
SavedModel that was exported with --mlm. Fine-tuned models have no MLM head any more.

A model folder is data. A SavedModel is a program, which TensorFlow runs with your
rights: it can read and write files. Load one only from a source that you trust.
"""

from absl import flags

from decoupled.core.errors import UserError
from decoupled.launch import start

# The words are the texts.
TAKES_WORDS = True


def define_flags() -> None:
    """The command's flags; all other words are texts."""
    flags.DEFINE_string(
        "model_dir", None, "Folder of a pre-training run or of a conversion."
    )
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Prefix, or name in --model_dir. Default: the newest checkpoint.",
    )
    flags.DEFINE_string(
        "export_dir",
        None,
        "A SavedModel instead of --model_dir. It runs as a program: only from a source "
        "that you trust.",
    )
    flags.DEFINE_integer("top_k", 5, "How many pieces to show.")


def main() -> None:
    """Opens the model and prints a table per mask."""
    options, texts = flags.FLAGS, start.words()
    if bool(options.model_dir) == bool(options.export_dir):
        raise UserError("give --model_dir or --export_dir, one of them")
    if not texts:
        raise UserError(
            'give a text with a mask, e.g. "Paris is the [MASK] of France."'
        )
    if options.top_k < 1:
        raise UserError(f"--top_k: {options.top_k} is less than 1")
    if options.checkpoint and options.export_dir:
        raise UserError("--checkpoint: belongs to --model_dir, not to --export_dir")
    from decoupled.exports.serving.masked_words import (
        open_checkpoint,
        open_export,
        show_filled,
    )

    if options.export_dir:
        model = open_export(options.export_dir)
    else:
        model = open_checkpoint(options.model_dir, options.checkpoint)
    show_filled(model, texts, options.top_k)
