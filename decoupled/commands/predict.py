"""Predicts labels, numbers, tags or answers for strings, with an exported model.

Reads the folder that `decoupled export` wrote, and a file in the format of the task's
own files (docs/own_data.md). But for those of catalogs, they may lack labels or have
others than the model (tags between blanks only with --texts):

  text, or pair of texts   .jsonl, .csv or .tsv with the columns of training, or
                           --texts; .txt with a text a line
  words to tag             a word a line, an empty line after each sentence
  questions                .json in the form of SQuAD

Writes a prediction for each text, sentence or question to --output: in the form of the
prediction files of `decoupled finetune`, or, if the name ends in .jsonl, a JSON object
a line, with scores.

  decoupled predict --export_dir=demo_run/export \\
      --input=demo_run/corpus/tasks/catalogs/test-de.tsv --output=predictions.jsonl

  decoupled predict --export_dir=exports/pairs --input=pairs.csv \\
      --texts=premise,hypothesis --output=labels.tsv

Models of vectors (encoder, sentence_encoder) are loaded with TensorFlow instead. A
SavedModel runs as a program: use only exports from a source that you trust.
"""

import os

from absl import flags

from decoupled.core.errors import UserError


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("export_dir", None, "Folder that decoupled export wrote.")
    flags.DEFINE_string("input", None, "File of texts, words or questions.")
    flags.DEFINE_string("output", None, "File to write; .jsonl has scores.")
    flags.DEFINE_list(
        "texts",
        [],
        "The column with the text or the word, or the two of a pair: names, or numbers "
        "from 1 if there is no header. Default: those of training.",
    )
    flags.mark_flags_as_required(["export_dir", "input", "output"])


def main() -> None:
    """Opens the model, reads, predicts, writes."""
    options = flags.FLAGS
    input_path, output_path, export_path = map(
        os.path.realpath, (options.input, options.output, options.export_dir)
    )
    if input_path == output_path:
        raise UserError("--output: is the file of --input; name another")
    if os.path.commonpath([output_path, export_path]) == export_path:
        raise UserError("--output: lies in --export_dir; name a file elsewhere")
    if len(set(options.texts)) < len(options.texts):
        raise UserError("--texts: names a column twice")
    from decoupled.core import console, files
    from decoupled.exports.serving.prediction import open_predictor

    model = open_predictor(options.export_dir)
    examples = model.read(options.input, _columns(options.texts, options.input))
    files.check_output("--output", options.output)
    answers = model.answers(examples, progress=True)
    model.write(options.output, examples, answers)
    console.say(f"{options.output}: {len(answers):,} predictions")


def _columns(names: list[str], path: str) -> list[str | int]:
    """Numbers are columns of files without a header; JSON has names only."""
    are_numbers = all(name.isdecimal() for name in names)
    if path.endswith(".jsonl") or not are_numbers:
        return names
    columns = [int(name) for name in names]
    if 0 in columns:
        raise UserError("--texts: columns count from 1")
    return columns
