"""Shows what a pre-trained model predicts at [MASK] (XLM-R: <mask>).

  decoupled fill_mask --model_dir=runs/decoupled \\
      "Paris is the [MASK] of France."

Reads the folder of a pre-training run or of a conversion. Fine-tuned models have no MLM
head any more.
"""

from absl import flags

from decoupled.core.errors import UserError
from decoupled.launch import start

# The words are the texts.
TAKES_WORDS = True
GONE = {
    "--export_dir": "give --model_dir, the folder that was exported; the `mlm` of a "
    "SavedModel gives logits"
}


def define_flags() -> None:
    """The command's flags; all other words are texts."""
    flags.DEFINE_string(
        "model_dir",
        None,
        "Folder of a pre-training run or of a conversion.",
        required=True,
    )
    flags.DEFINE_string(
        "checkpoint",
        None,
        "Prefix, or name in --model_dir. Default: the newest checkpoint.",
    )
    flags.DEFINE_integer("top_k", 5, "How many pieces to show.", lower_bound=1)


def main() -> None:
    """Opens the model and prints a table per mask."""
    options, texts = flags.FLAGS, start.words()
    if not texts:
        raise UserError(
            'give a text with a mask, e.g. "Paris is the [MASK] of France."'
        )
    from decoupled.exports.serving.masked_words import open_checkpoint, show_predictions

    model = open_checkpoint(options.model_dir, options.checkpoint)
    show_predictions(model, texts, options.top_k)
