"""Converts models from and to the formats of others. The first word says which way.

from_tf: an original TensorFlow checkpoint (gs://gresearch/rembert, or BERT's) to a
model folder. The sizes come from a gin file.

  python -m decoupled.convert from_tf --checkpoint=rembert/rembert.ckpt \\
      --vocabulary=rembert/sentencepiece.model --gin_file=models/rembert.gin \\
      --model_dir=runs/rembert

from_hf: a folder of transformers' save_pretrained (RemBERT or BERT, with or without the
head of a task; config.json and safetensors) to a model folder.

  python -m decoupled.convert from_hf --hf_dir=google_rembert --model_dir=runs/rembert

to_hf: a model folder to one that transformers loads, tokenizer included.

  python -m decoupled.convert to_hf --model_dir=runs/decoupled --hf_dir=hf/decoupled

A model folder is used as that of a training run: it is exported, fine-tuned, or trained
on. Names without use or value are an error unless --allow_partial allows them.
"""

import sys

import gin
from absl import flags

from decoupled.configs import ModelConfig
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.launch import start

DIRECTIONS = ("from_tf", "from_hf", "to_hf")
# Flags that a direction needs; those that it does not know are refused.
_NEEDED = {
    "from_tf": ("checkpoint", "vocabulary", "model_dir"),
    "from_hf": ("hf_dir", "model_dir"),
    "to_hf": ("model_dir", "hf_dir"),
}
_ALSO = {
    "from_tf": ("gin_file", "gin_param", "gin_location_prefix", "allow_partial"),
    "from_hf": ("vocabulary", "allow_partial"),
    "to_hf": ("checkpoint", "encoder_only"),
}


@gin.configurable
def convert(*, model=gin.REQUIRED) -> ModelConfig:
    """The root of the gin configuration, for `from_tf`."""
    return model


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string(
        "checkpoint",
        None,
        "from_tf: prefix of the checkpoint. to_hf: a prefix, or a name in --model_dir; "
        "default: the best that fine-tuning kept, else the newest.",
    )
    flags.DEFINE_string("vocabulary", None, "from_tf, from_hf: a sentencepiece.model.")
    flags.DEFINE_string("model_dir", None, "Our folder, read by to_hf, else written.")
    flags.DEFINE_string("hf_dir", None, "transformers' folder, written by to_hf.")
    flags.DEFINE_bool("encoder_only", False, "to_hf: leave the head out.")
    flags.DEFINE_multi_string(
        "allow_partial",
        [],
        "from_tf, from_hf: pattern of names that may be without use or without value.",
    )


def take_direction(arguments: list[str]) -> str | None:
    """Takes the first word out of the command line; flags are all that is left."""
    if len(arguments) > 1 and not arguments[1].startswith("-"):
        return arguments.pop(1)
    return None


def main(direction: str | None) -> None:
    """Converts, and says what was taken and what was left."""
    if direction not in DIRECTIONS:
        given = f"not {direction!r}" if direction else "which way to convert"
        raise UserError(
            f"the first word must be one of {', '.join(DIRECTIONS)}, {given}"
        )
    _check_flags(direction)
    run = {"from_tf": _from_tf, "from_hf": _from_hf, "to_hf": _to_hf}[direction]
    run(flags.FLAGS)


def _check_flags(direction):
    known = _NEEDED[direction] + _ALSO[direction]
    for name in sorted(
        {n for names in (*_NEEDED.values(), *_ALSO.values()) for n in names}
    ):
        if name not in known and flags.FLAGS[name].value:
            raise UserError(f"--{name}: has no meaning for {direction}")


def _from_tf(options):
    # Mistakes in settings are told before TensorFlow is loaded.
    model = start.parse_gin(convert, "runs/convert.gin")

    from decoupled.exports.from_original import from_original

    report = from_original(
        options.checkpoint,
        options.model_dir,
        model,
        options.vocabulary,
        options.allow_partial,
    )
    _say_converted(report, options.model_dir)


def _from_hf(options):
    from decoupled.exports.from_huggingface import from_huggingface

    report = from_huggingface(
        options.hf_dir, options.model_dir, options.vocabulary, options.allow_partial
    )
    _say_converted(report, options.model_dir)


def _to_hf(options):
    from decoupled.exports.checkpoint_files import chosen_prefix
    from decoupled.exports.to_huggingface import to_huggingface

    written = to_huggingface(
        options.model_dir,
        chosen_prefix(options.model_dir, options.checkpoint),
        options.hf_dir,
        options.encoder_only,
    )
    for name in written["left_out"]:
        console.say(f"  left out: {name}")
    console.say(
        f"{options.hf_dir}: {written['architecture']}, {written['tensors']} tensors, "
        f"{written['parameters']:,} parameters"
    )


def _say_converted(report, folder):
    for theirs, ours in report["renamed"].items():
        console.say(f"  by its shape, {theirs} is {ours}")
    for name in report["unused"]:
        console.say(f"  not used: {name}")
    for name in report["unset"]:
        console.say(f"  drawn anew: {name}")
    if report["encoder_only"]:
        console.say("  no MLM head and no output embedding: an encoder to fine-tune")
    for name, count in (report.get("vocabulary") or {}).items():
        console.say(f"  pieces, {name.replace('_', ' ')}: {count:,}")
    slots = report.get("optimizer_slots", 0)
    also = f" and {slots} optimizer slots" if slots else ""
    console.say(
        f"{folder}: {report['kind']}, {report['variables']} variables, "
        f"{report['parameters']:,} parameters{also}"
    )


if __name__ == "__main__":
    define_flags()
    taken = take_direction(sys.argv)
    flags.mark_flags_as_required(_NEEDED.get(taken, ()))
    start.run(lambda: main(taken), __doc__)
