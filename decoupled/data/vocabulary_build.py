"""Builds a vocabulary folder from a corpus: sample, training, report, plot."""

import dataclasses
import itertools
import os
import time
from typing import Any

from decoupled.configs.corpora import NORMALIZATION, VocabularySettings
from decoupled.core import console, files, gfile, plots
from decoupled.core.errors import UserError
from decoupled.core.machine import available_memory, readable_bytes
from decoupled.corpora.corpus import Corpus, difference
from decoupled.corpora.sampling import (
    LanguageRow,
    as_json,
    draw_sample,
    language_rows,
    print_rows,
    sample_sizes,
)
from decoupled.data.fertility import measure_fertility, plot_fertility
from decoupled.data.vocabulary import (
    FILE_NAME,
    Vocabulary,
    open_vocabulary,
    vocabulary_path,
)
from decoupled.data.vocabulary_training import (
    TrainingLines,
    check_memory,
    train_vocabulary,
    training_memory,
    training_seconds,
)

FORMAT = "decoupled-vocabulary-1"
REPORT = "vocabulary.json"
PLOT = "fertility"
# A file that exists while a vocabulary is built; the outputs beside it may be removed.
_BUILDING = "building_vocabulary.txt"
_SHOWN_LANGUAGES = 12


def build_vocabulary(
    corpus_dir: str, output_dir: str, settings: VocabularySettings
) -> bool:
    """Trains the vocabulary; returns False if it was complete already."""
    corpus = Corpus(corpus_dir)
    inputs = {
        "corpus_fingerprint": corpus.fingerprint,
        "normalization": NORMALIZATION,
        "settings": dataclasses.asdict(settings),
    }
    report = _find(output_dir, inputs)
    marker = os.path.join(output_dir, _BUILDING)
    if report is not None:
        if files.exists(marker):
            gfile.remove(marker)
        console.say(f"{output_dir}: complete already, reused")
        _print_table(output_dir, report)
        return False
    outputs = _outputs(output_dir)
    if outputs and not files.exists(marker):
        raise UserError(
            f"{outputs[0]}: no build_vocabulary that was stopped left this file; "
            "choose another --output_dir or move it away"
        )
    sizes = _plan(corpus, settings)
    drawn = plots.can_draw()
    existed = gfile.isdir(output_dir)
    files.make_folder(output_dir)
    files.write_text(marker, "A vocabulary is being built here; not complete.\n")
    try:
        _remove_outputs(output_dir)
        report = _train(corpus, sizes, output_dir, settings)
        report["inputs"] = inputs
        if drawn:
            _plot(output_dir, report)
    except BaseException:
        _remove_outputs(output_dir)
        gfile.remove(marker)
        if not existed:
            gfile.rmtree(output_dir)
        raise
    files.write_json(os.path.join(output_dir, REPORT), report)
    gfile.remove(marker)
    _print_table(output_dir, report)
    return True


def _outputs(output_dir: str) -> list[str]:
    names = (FILE_NAME, *(f"{PLOT}.{kind}" for kind in plots.FORMATS))
    paths = [os.path.join(output_dir, name) for name in names]
    return [path for path in paths if files.exists(path)]


def _remove_outputs(output_dir: str) -> None:
    files.remove_temporaries(output_dir)
    for path in _outputs(output_dir):
        gfile.remove(path)


def _find(output_dir: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The report of a complete vocabulary, which must have these inputs, or None."""
    path = os.path.join(output_dir, REPORT)
    if not files.exists(path):
        return None
    report = files.read_json(path)
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise UserError(f"{path}: not the report of a vocabulary ({FORMAT})")
    cure = "choose another --output_dir or remove the folder"
    if different := difference(report["inputs"], inputs):
        raise UserError(
            f"{output_dir}: holds a vocabulary of other inputs ({different}); {cure}"
        )
    fingerprint = open_vocabulary(vocabulary_path(output_dir)).fingerprint
    if fingerprint != report["fingerprint"]:
        raise UserError(f"{output_dir}: {FILE_NAME} is not the one of {REPORT}; {cure}")
    return report


def _plan(corpus: Corpus, settings: VocabularySettings) -> dict[str, int]:
    """Sentences of the sample by language; prints them and the cost of training."""
    counts, config = corpus.counts("train"), settings.vocabulary
    lengths = _sentence_bytes(corpus)
    sampling = settings.sampling
    sizes = sample_sizes(
        counts, sampling, config.max_sentences, lengths, config.max_bytes
    )
    total = sum(sizes.values())
    print_rows(
        f"{total:,} sentences in {len(counts)} languages, alpha {sampling.alpha}",
        _rows(counts, sizes),
    )
    size = sum(sizes[name] * lengths[name] for name in sizes)
    warning = check_memory(size, total, available_memory())
    minutes = training_seconds(size, config.vocab_size) / 60
    console.say(
        f"training {config.vocab_size:,} pieces on some {readable_bytes(size, 1)} of "
        f"text takes about {readable_bytes(training_memory(size), 1)} of memory and "
        f"{max(minutes, 1):,.0f} min on two cores"
    )
    if warning:
        console.say(f"warning: {warning}")
    return sizes


def _sentence_bytes(corpus: Corpus) -> dict[str, float]:
    languages = corpus.manifest["splits"]["train"]
    return {
        name: sum(file["bytes"] for file in entry["files"]) / max(entry["sentences"], 1)
        for name, entry in languages.items()
    }


def _rows(counts: dict[str, int], sizes: dict[str, int]) -> list[LanguageRow]:
    total = sum(sizes.values())
    shares = {name: size / total for name, size in sizes.items()}
    return language_rows(counts, shares, counts, total)


def _train(
    corpus: Corpus, sizes: dict[str, int], output_dir: str, settings: VocabularySettings
) -> dict[str, Any]:
    counts, started = corpus.counts("train"), time.monotonic()
    sample = draw_sample(
        counts,
        lambda language: corpus.sentences("train", language),
        sizes,
        settings.seed,
    )
    tracked = console.track(sample, "reading sentences", sum(sizes.values()))
    lines = TrainingLines(tracked)
    path = vocabulary_path(output_dir)
    vocabulary = train_vocabulary(lines, path, settings.vocabulary)
    console.say(f"trained in {time.monotonic() - started:,.0f} s")
    if lines.cut:
        console.say(f"{lines.cut:,} long sentences were cut; all parts were used")
    if lines.reserved:
        console.say(
            f'{lines.reserved:,} sentences held "▅", which SentencePiece reserves, and '
            "were used without it"
        )
    return {
        "format": FORMAT,
        "vocab_size": vocabulary.size,
        "fingerprint": vocabulary.fingerprint,
        "sample": {
            "lines": lines.lines,
            "characters": lines.characters,
            "bytes": lines.bytes,
            "long_sentences_cut": lines.cut,
            "sentences_with_reserved_character": lines.reserved,
            "languages": as_json(_rows(counts, sizes)),
        },
        "languages": _measure(corpus, vocabulary, settings.report_sentences),
    }


def _measure(
    corpus: Corpus, vocabulary: Vocabulary, report_sentences: int
) -> dict[str, dict[str, Any]]:
    held_out = set(corpus.languages("eval"))
    measured = {}
    for language in console.track(corpus.languages("train"), "measuring fertility"):
        split = "eval" if language in held_out else "train"
        sentences = itertools.islice(
            corpus.sentences(split, language), report_sentences
        )
        fertility = measure_fertility(vocabulary, sentences)._asdict()
        if fertility["byte_rate"] is None:
            del fertility["byte_rate"]
        measured[language] = {"split": split, **fertility}
    return measured


def _plot(output_dir: str, report: dict[str, Any]) -> None:
    size, count = report["vocab_size"], len(report["languages"])
    title = f"{size:,} pieces, {count} language{'s' if count > 1 else ''}"
    plot_fertility(report["languages"], title, os.path.join(output_dir, PLOT))


def _print_table(output_dir: str, report: dict[str, Any]) -> None:
    languages = report["languages"]
    columns = ["tokens_per_word", "tokens_per_character", "unknown_rate"]
    if any("byte_rate" in measured for measured in languages.values()):
        columns.append("byte_rate")
    rows = [
        [language, *(measured[column] for column in columns)]
        for language, measured in languages.items()
    ]
    # The last column is the unknown rate, or the byte rate if there is one.
    rows.sort(key=lambda row: (-row[-1], -row[2], row[0]))
    shown, rest = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if rest:
        shown.append([f"mean of {len(rest)} more", *_column_means(rest)])
    shown.append([f"mean of all {len(rows)}", *_column_means(rows)])
    heads = ["tokens/word", "tokens/character", "unknown", "single bytes"]
    console.table(
        f"{vocabulary_path(output_dir)}: {report['vocab_size']:,} pieces",
        ["language", *heads[: len(columns)]],
        shown,
    )


def _column_means(rows: list[list[Any]]) -> list[float | None]:
    columns = list(zip(*rows, strict=True))[1:]
    filled = [[value for value in column if value is not None] for column in columns]
    return [sum(column) / len(column) if column else None for column in filled]
