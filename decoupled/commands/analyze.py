"""Measures and compares trained models.

  decoupled analyze NAME --model_dir=... --output_dir=...
  decoupled analyze NAME --help

Each analysis prints tables and writes NAME.json, NAME.png and NAME.svg to --output_dir.
Plots need matplotlib, which the [plots] extra installs. command.1 and config.1.gin have
the command and its settings. Only one analysis at a time writes to a folder.

--model_dir is a run's folder or the prefix of a checkpoint. In a folder, the checkpoint
that fine-tuning selected is used, or else the newest. Repeat --model_dir to compare
models.
"""

import ast
import importlib
import os
import pathlib
import textwrap
from collections.abc import Callable
from typing import Any

from absl import flags

from decoupled.configs import ANALYSES as SETTINGS
from decoupled.core import files, locks
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.launch.start import Subcommand

FLAGS = flags.FLAGS
# Name -> what measures something similar.
GONE = {
    "drift": "layer_drop and neighbours compare the layers of a model",
    "geometry": "masked_lm has the ranks of logits and embeddings",
    "minimal_pairs": "masked_lm compares what models predict of the same held-out text",
    "spectrum": "masked_lm has the effective rank of the embeddings",
    "--cache_dir": "the variable TMPDIR names the folder of temporary files",
    "--metric": "results.json of each run has all metrics",
    "--source": "give --data_dir, a folder of files XX-en.en and XX-en.XX",
    "--target": "give --data_dir, a folder of files XX-en.en and XX-en.XX",
    "--word_pairs": "give --data_dir, a folder of *.tsv",
    "weat": "word_similarity compares the embeddings with what people say of words",
    "word_translation": "neighbours finds translations of sentences, by layer",
}


def _text(name, text):
    return lambda: flags.DEFINE_string(name, None, text, required=True)


def _option(name, text):
    return lambda: flags.DEFINE_string(name, None, text)


def _texts(name, text):
    return lambda: flags.DEFINE_multi_string(name, None, text, required=True)


def _list(name, text, default=None):
    return lambda: flags.DEFINE_list(name, default, text)


_MODELS = _texts("model_dir", "A run's folder, or the prefix of a checkpoint.")
_LANGUAGES = _list("languages", "Only these languages, e.g. de,sw. Default: all.")


# Name -> functions that define its flags, in addition to --output_dir. The docstring of
# its module in `decoupled.analyses` is the help; `run(flags)`, with settings
# `run(flags, settings)`, measures; see `decoupled.analyses.output` for the rest.
ANALYSES: dict[str, list[Callable[[], Any]]] = {
    "word_similarity": [
        _MODELS,
        _text("data_dir", "Folder; all its *.tsv files are read."),
        lambda: flags.DEFINE_bool(
            "whole_words", False, "Only words that are one piece of the vocabulary."
        ),
    ],
    "masked_lm": [
        _MODELS,
        _text("records_dir", "Folder that build_records wrote."),
        _LANGUAGES,
    ],
    "probing": [
        _MODELS,
        _text("data_dir", "Folder with a folder per task."),
        _list("tasks", "Only these tasks, e.g. pos,dependencies. Default: all."),
        _list("variants", "Only mix, a probe on a mix of all layers.", "mix"),
    ],
    "neighbours": [
        _MODELS,
        _option("data_dir", "Folder of files XX-en.en and XX-en.XX."),
        _LANGUAGES,
        _option("sentences", "Folder of LANGUAGE.tsv: lines of id, tab, sentence."),
    ],
    "layer_drop": [
        _texts("finetuned_dir", "Folder of a fine-tuning run."),
        lambda: flags.DEFINE_enum(
            "split", "dev", ["dev", "test"], "Split of the scores."
        ),
    ],
}
_MODULES = {"probing": "probing.edge_probing"}


def _subcommand(name: str) -> Subcommand:
    module_name = f"decoupled.analyses.{_MODULES.get(name, name)}"
    root = SETTINGS.get(name)

    def define_flags():
        _text("output_dir", "Folder of results, created if missing.")()
        if root:
            start.define_gin_flags()
        for define in ANALYSES[name]:
            define()

    def main():
        with locks.hold(FLAGS.output_dir):
            # The folder comes first: an analysis of hours must not fail at its end.
            files.make_folder(FLAGS.output_dir)
            settings = [start.parse_gin(root)] if root else []
            from decoupled.analyses import output

            module = importlib.import_module(module_name)
            result = module.run(FLAGS, *settings)
            start.save_start(FLAGS.output_dir)
            output.write(FLAGS.output_dir, result, module.tables, module.picture)

    main.__doc__ = _docstring(module_name)
    if root:
        defaults = textwrap.indent(gin_files.defaults(root), "  ")
        main.__doc__ += f"\n\nSettings with their defaults:\n\n{defaults}"
    return Subcommand(define_flags, main)


def _docstring(module_name: str) -> str:
    """A module's docstring. The module is not imported: it would load TensorFlow."""
    package = pathlib.Path(__file__).parents[1]
    path = package.joinpath(*module_name.split(".")[1:]).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text[: text.index('"""', 3) + 3]))


def probing_data() -> None:
    """Makes a file of a probing task.

      pos            CoNLL-U -> the universal part of speech of each word
      dependencies   CoNLL-U -> span1 is a word, span2 its head, and the label their
                     relation

      decoupled analyze probing_data --task=pos \\
          --input=en_ewt-ud-dev.conllu --output=edges/pos/dev.jsonl
    """
    if os.path.realpath(FLAGS.input) == os.path.realpath(FLAGS.output):
        raise UserError("--output: is the file of --input; name another")
    files.check_output("--output", FLAGS.output)
    from decoupled.analyses.probing.task_files import convert

    convert(FLAGS.task, FLAGS.input, FLAGS.output)


def _probing_data_flags():
    kinds = ["pos", "dependencies"]
    flags.DEFINE_enum("task", None, kinds, "The labels to make.", required=True)
    _text("input", "CoNLL-U file.")()
    _text("output", "File to write, e.g. edges/pos/train.jsonl.")()


SUBCOMMANDS = {name: _subcommand(name) for name in ANALYSES}
SUBCOMMANDS["probing_data"] = Subcommand(_probing_data_flags, probing_data)
