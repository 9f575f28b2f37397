"""The vocabulary folder of a corpus: sample, training, fertility, report, plot.

Fertility is the number of tokens per word. In the plot, each language has a row with it
and, beside it, the share of unknown tokens (of single bytes, if the vocabulary has byte
fallback). Languages that write without spaces are in separate columns, with tokens per
character.
"""

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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
from decoupled.data.vocabulary import (
    FILE_NAME,
    WORDPIECE_FILE,
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
from decoupled.data.words import UNSPACED

FORMAT = "decoupled-vocabulary-1"
REPORT = "vocabulary.json"
PLOT = "fertility"
# A file that exists while a vocabulary is built; the outputs beside it may be removed.
_BUILDING = "building_vocabulary.txt"
_SHOWN_LANGUAGES = 12
_ENCODED_AT_ONCE = 1000
_ROWS = 35
_ROW_INCHES, _INCHES = 0.19, 2.2
# A language and its measures.
_Row = tuple[str, Mapping[str, Any]]
_LABELS = {
    "tokens_per_word": ("tokens per word", "o", plots.BLUE),
    "tokens_per_character": ("tokens per character", "s", plots.GREEN),
    "unknown_rate": ("unknown tokens, %", "D", plots.ORANGE),
    "byte_rate": ("single bytes, %", "D", plots.ORANGE),
}


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
    others = [] if files.exists(marker) else _outputs(output_dir)
    # Who reads the folder takes this file for its vocabulary.
    others += filter(files.exists, [os.path.join(output_dir, WORDPIECE_FILE)])
    if others:
        raise UserError(
            f"{others[0]}: no build_vocabulary that was stopped left this file; "
            "choose another --output_dir or move it away"
        )
    sizes = _plan(corpus, settings)
    can_draw = plots.can_draw()
    folder_existed = gfile.isdir(output_dir)
    files.make_folder(output_dir)
    files.write_text(marker, "A vocabulary is being built here; not complete.\n")
    try:
        _remove_outputs(output_dir)
        report = _train(corpus, sizes, output_dir, settings)
        report["inputs"] = inputs
        if can_draw:
            plot_fertility(report, os.path.join(output_dir, PLOT))
    except BaseException:
        _remove_outputs(output_dir)
        gfile.remove(marker)
        if not folder_existed:
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
    if change := difference(report["inputs"], inputs):
        raise UserError(
            f"{output_dir}: holds a vocabulary of other inputs ({change}); {cure}"
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
    counts, start_time = corpus.counts("train"), time.monotonic()
    sample = draw_sample(
        counts,
        lambda language: corpus.sentences("train", language),
        sizes,
        settings.seed,
    )
    tracked_sentences = console.track(sample, "reading sentences", sum(sizes.values()))
    lines = TrainingLines(tracked_sentences)
    path = vocabulary_path(output_dir)
    vocabulary = train_vocabulary(lines, path, settings.vocabulary)
    console.say(f"trained in {time.monotonic() - start_time:,.0f} s")
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
    measures = {}
    for language in console.track(corpus.languages("train"), "measuring fertility"):
        split = "eval" if language in held_out else "train"
        sentences = itertools.islice(
            corpus.sentences(split, language), report_sentences
        )
        fertility = measure_fertility(vocabulary, sentences)._asdict()
        if fertility["byte_rate"] is None:
            del fertility["byte_rate"]
        measures[language] = {"split": split, **fertility}
    return measures


def _print_table(output_dir: str, report: dict[str, Any]) -> None:
    languages = report["languages"]
    columns = ["tokens_per_word", "tokens_per_character", "unknown_rate"]
    if any("byte_rate" in measures for measures in languages.values()):
        columns.append("byte_rate")
    rows = [
        [language, *(measures[column] for column in columns)]
        for language, measures in languages.items()
    ]
    # The last column is the unknown rate, or the byte rate if there is one.
    rows.sort(key=lambda row: (-row[-1], -row[2], row[0]))
    shown_rows, other_rows = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if other_rows:
        shown_rows.append([f"{len(other_rows)} more, mean", *_column_means(other_rows)])
    shown_rows.append(["mean", *_column_means(rows)])
    heads = ["tokens/word", "tokens/character", "unknown", "single bytes"]
    console.table(
        f"{vocabulary_path(output_dir)}: {report['vocab_size']:,} pieces",
        ["language", *heads[: len(columns)]],
        shown_rows,
    )


def _column_means(rows: list[list[Any]]) -> list[float | None]:
    """The means over languages with a value; those without words have none per word."""
    columns = list(zip(*rows, strict=True))[1:]
    values = [[x for x in column if x is not None] for column in columns]
    return [sum(column) / len(column) if column else None for column in values]


class Fertility(NamedTuple):
    """How a vocabulary tokenises the text of a language.

    tokens_per_word: words are separated by spaces; None if most characters belong to
      scripts without spaces.
    tokens_per_character: spaces count as characters.
    unknown_rate: share of the tokens that are <unk>.
    byte_rate: share of the tokens that are single bytes; None if the vocabulary has no
      such pieces.
    """

    sentences: int
    tokens: int
    tokens_per_word: float | None
    tokens_per_character: float
    unknown_rate: float
    byte_rate: float | None


def measure_fertility(vocabulary: Vocabulary, sentences: Iterable[str]) -> Fertility:
    """Encodes some sentences of one language and counts."""
    sentences = iter(sentences)
    byte_ids = set(vocabulary.byte_ids)
    count = words = characters = unspaced_letters = tokens = unknowns = single_bytes = 0
    while batch := list(itertools.islice(sentences, _ENCODED_AT_ONCE)):
        count += len(batch)
        words += sum(len(sentence.split()) for sentence in batch)
        characters += sum(map(len, batch))
        unspaced_letters += sum(len(UNSPACED.findall(sentence)) for sentence in batch)
        for ids in vocabulary.encode_batch(batch):
            tokens += len(ids)
            unknowns += ids.count(vocabulary.unk_id)
            single_bytes += sum(piece in byte_ids for piece in ids) if byte_ids else 0
    is_spaced = 2 * unspaced_letters <= characters
    return Fertility(
        sentences=count,
        tokens=tokens,
        tokens_per_word=round(tokens / max(words, 1), 4) if is_spaced else None,
        tokens_per_character=round(tokens / max(characters, 1), 4),
        unknown_rate=round(unknowns / max(tokens, 1), 6),
        byte_rate=round(single_bytes / max(tokens, 1), 6) if byte_ids else None,
    )


def plot_fertility(report: Mapping[str, Any], stem: str) -> list[str]:
    """Draws the picture of a report; returns the paths `stem`.png and `stem`.svg."""
    languages = report["languages"]
    size, count = report["vocab_size"], len(languages)
    title = f"{size:,} pieces, {count} language{'s' if count > 1 else ''}"
    blocks = _blocks(languages)
    rate = (
        "byte_rate" if "byte_rate" in next(iter(languages.values())) else "unknown_rate"
    )
    tallest = max(4, *(len(rows) for _, rows in blocks))
    figure, [axes] = plots.grid(
        1,
        2 * len(blocks),
        _INCHES,
        0.5 + _ROW_INCHES * tallest,
        width_ratios=[2, 1] * len(blocks),
    )
    for index, (key, rows) in enumerate(blocks):
        for side, name in zip(axes[2 * index :], (key, rate), strict=False):
            all_rows = [r for k, block in blocks if name in (k, rate) for r in block]
            _draw(side, rows, name, max(_values(all_rows, name)))
            # Blocks of fewer rows keep the distance between rows, the first on top.
            side.set_ylim(tallest - 0.4, -0.6)
        side.set_yticks([])
    plots.title_and_legend(figure, axes[0], title)
    return plots.save(figure, stem)


def _blocks(languages) -> list[tuple[str, list[_Row]]]:
    """Columns of languages: those with words, most tokens first, then the others. Each
    has the key of the measure on its left."""
    blocks = []
    for key, is_spaced in (("tokens_per_word", True), ("tokens_per_character", False)):
        rows = [
            (name, measures)
            for name, measures in languages.items()
            if (measures["tokens_per_word"] is not None) == is_spaced
        ]
        rows.sort(key=lambda row: (-row[1][key], row[0]))
        columns = -(-len(rows) // _ROWS)
        height = -(-len(rows) // columns) if columns else 1
        blocks += [(key, rows[i : i + height]) for i in range(0, len(rows), height)]
    return blocks


def _values(rows: list[_Row], key: str) -> list[float]:
    scale = 100 if key.endswith("rate") else 1
    return [scale * measures[key] for _, measures in rows]


def _draw(axes, rows: list[_Row], key: str, highest: float) -> None:
    label, marker, colour = _LABELS[key]
    values, places = _values(rows, key), range(len(rows))
    axes.hlines(places, 0, values, color=plots.GREY, linewidth=1)
    style = {"color": colour, "markersize": 4.5, "linestyle": "none"}
    axes.plot(values, places, marker, clip_on=False, **style)
    axes.set_yticks(places, [name for name, _ in rows], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label, fontsize=9)
    axes.set_xlim(0, 1.05 * highest if highest else 1)
    plots.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
