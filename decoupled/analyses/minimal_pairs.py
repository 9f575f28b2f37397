"""Does a masked LM give the acceptable sentence of a pair the higher probability?

A sentence's score is its pseudo-log-likelihood (Salazar et al. 2020, "Masked Language
Model Scoring"): the sum over its tokens of log p(token | the sentence with [MASK] in
its place), in nats. [CLS] and [SEP] are given and not scored. If a word has several
tokens, each is easily predicted from the tokens after it, so rare words get too high
scores. With "word_left_to_right" the later tokens of the word are masked too (Kauf and
Ivanova 2023, "A Better Way to Do Masked Language Model Scoring"). `data.words` defines
words.

A pair is right if the acceptable sentence has the higher score; equal scores are wrong.
Nothing is trained.

Pairs are read from two kinds of files. A line of BLiMP (Warstadt et al. 2020),
`*.jsonl`:

  {"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps.",
   "field": "syntax", "linguistics_term": "agreement", "UID": "regular_plural"}

A file of MultiBLiMP (Jumelet et al. 2025), `LANGUAGE/data.tsv` or `LANGUAGE.tsv`,
begins with a line of column names. The columns `sen`, `wrong_sen` and `phenomenon` are
read. Quotes are read by `core.tab_separated`. Other entries and columns of either kind
are ignored.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel
from decoupled.configs.analyses import MinimalPairSettings
from decoupled.core import console, files, gfile, plots
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader
from decoupled.core.release import tf
from decoupled.core.tab_separated import Row, read_rows
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import word_pieces, word_starts
from decoupled.exports.serving.encoder import FEATURES, Encoder, MaskedLm
from decoupled.metrics.neighbours import wilson_interval

ALL = "all"
# The most rows of the plot.
_SHOWN_ROWS = 40
_COLUMNS = ("sen", "wrong_sen", "phenomenon")
_ENTRIES = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence.

    field: of linguistics, or the language. phenomenon: within the field. paradigm:
    within the phenomenon; the phenomenon itself if there is no finer division.
    where: file and line.
    """

    good: str
    bad: str
    field: str
    phenomenon: str
    paradigm: str
    where: str


def find_files(paths: Sequence[str]) -> list[str]:
    """The given files, and the files in the given folders and one level below them.

    Raises:
      UserError: a path is missing, of another kind or given twice, or a folder has no
        file of minimal pairs.
    """
    found = []
    for path in paths:
        own = [path]
        if gfile.isdir(path):
            patterns = ("*.jsonl", "*.tsv", "*/*.jsonl", "*/*.tsv")
            own = [
                name for pattern in patterns for name in gfile.glob(f"{path}/", pattern)
            ]
            if not own:
                raise UserError(f"{path}: has neither *.jsonl nor *.tsv")
        found += own
    for path in found:
        if not path.endswith((".jsonl", ".tsv")):
            raise UserError(f"{path}: is neither .jsonl (BLiMP) nor .tsv (MultiBLiMP)")
        if found.count(path) > 1:
            raise UserError(f"{path}: is given twice")
    return found


def read_pairs(path: str) -> list[MinimalPair]:
    """Reads a file.

    Raises:
      UserError: the file is missing, empty or not UTF-8; a line lacks an entry or is
        malformed. File, line and column are named.
    """
    read = _read_lines if path.endswith(".jsonl") else _read_table
    pairs = list(read(path, files.read_text(path)))
    if not pairs:
        raise UserError(f"{path}: holds no minimal pairs")
    return pairs


def _read_lines(path: str, text: str) -> Iterator[MinimalPair]:
    known = LabelReader()
    for number, line in enumerate(files.split_lines(text), start=1):
        where = f"{path}:{number}"
        if not line.strip(BLANKS):
            continue
        entry = files.parse_json_line(line, where)
        if not isinstance(entry, dict):
            raise UserError(f"{where}: not an object with {', '.join(_ENTRIES)}")
        for name in _ENTRIES:
            if not isinstance(entry.get(name), str) or not entry[name].strip():
                raise UserError(f'{where}: "{name}" is missing, empty or no text')
        good, bad, *kinds = (entry[name] for name in _ENTRIES)
        kinds = [known.read(kind, where) for kind in kinds]
        yield _checked(MinimalPair(good, bad, *kinds, where))


def _read_table(path: str, text: str) -> Iterator[MinimalPair]:
    stem = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.basename(os.path.dirname(path))
    language = folder if folder and stem == "data" else stem
    header, *rows = read_rows(text, label="phenomenon") or [Row(1, [])]
    names = [name.strip(BLANKS) for name in header.cells]
    for name in _COLUMNS:
        if names.count(name) != 1:
            raise UserError(
                f"{path}:1: must have one column {name!r}; its columns are "
                f"{quoted(', '.join(names))}"
            )
    places = [names.index(name) for name in _COLUMNS]
    known = LabelReader()
    for line, cells in rows:
        where = f"{path}:{line}"
        if cells == [""]:
            continue
        if len(cells) != len(names):
            raise UserError(
                f"{where}: {len(cells)} columns, but the first line has {len(names)}"
            )
        good, bad, phenomenon = (cells[place] for place in places)
        for name, cell in zip(_COLUMNS, (good, bad, phenomenon), strict=True):
            if not cell.strip():
                raise UserError(f"{where}: column {name!r} is empty")
        kind = known.read(phenomenon, where)
        yield _checked(MinimalPair(good, bad, language, kind, kind, where))


def _checked(pair: MinimalPair) -> MinimalPair:
    if pair.good == pair.bad:
        raise UserError(f"{pair.where}: both sentences are {quoted(pair.good)}")
    return pair


def measure(
    models: Sequence[AnalysedModel],
    pairs: Sequence[MinimalPair],
    settings: MinimalPairSettings,
) -> dict[str, Any]:
    """Accuracies of all models on the same pairs.

    Args:
      models: with their MLM heads; their vocabularies may differ.
      pairs: in the order of the result.

    Returns:
      `settings`; `left_out`, the number of pairs that are too long for a model;
      `items`: file and line of every other pair; `arrays`: "MODEL NUMBER/good" and
      "/bad", float64 [items], the scores. `models`: the entries of
      `AnalysedModel.describe`, with `unknown_tokens`, the share of the sentences'
      tokens that are <unk>, and `accuracies`, a list of entries with `field`,
      `phenomenon`, `paradigm`, `pairs`, `right`, `accuracy` and the bounds `low` and
      `high` of its 95% interval (Wilson's). "all" stands for all phenomena of a field
      and all paradigms of a phenomenon.

    Raises:
      UserError: a sentence has no tokens or is too long.
    """
    kept = np.ones(len(pairs), bool)
    encoded = []
    for model in models:
        sentences, fits = _encode(model, pairs, settings)
        encoded.append(sentences)
        kept &= fits
    places = np.flatnonzero(kept)
    if not len(places):
        raise UserError(
            "every pair has a sentence that is longer than minimal_pairs.max_tokens or "
            "the model's positions; raise max_tokens"
        )
    pairs = [pairs[place] for place in places]
    results, arrays = [], {}
    for number, (model, sentences) in enumerate(zip(models, encoded, strict=True)):
        chosen = [sentences[2 * place + side] for place in places for side in (0, 1)]
        good, bad = _scores(model, chosen, settings).reshape(-1, 2).T
        arrays[f"{number}/good"], arrays[f"{number}/bad"] = good, bad
        tokens = np.concatenate(chosen)
        results.append(
            {
                **model.describe(),
                "unknown_tokens": float((tokens == model.vocabulary.unk_id).mean()),
                "accuracies": _accuracies(pairs, good > bad),
            }
        )
    return {
        "analysis": "minimal_pairs",
        "settings": settings._asdict(),
        "left_out": int((~kept).sum()),
        "models": results,
        "items": [pair.where for pair in pairs],
        "arrays": arrays,
    }


def show(result: dict[str, Any]) -> None:
    """Prints a row for each phenomenon and field, and a column for each model."""
    models = result["models"]
    rows = []
    for entries in zip(*(model["accuracies"] for model in models), strict=True):
        first = entries[0]
        if first["paradigm"] == ALL:
            cells = [_with_interval(entry) for entry in entries]
            rows.append([first["field"], first["phenomenon"], first["pairs"], *cells])
    columns = ["field", "phenomenon", "pairs", *(model["name"] for model in models)]
    console.table("Acceptable sentence preferred, % [95% interval]", columns, rows)
    for model in models:
        if model["unknown_tokens"]:
            console.say(
                f"{model['name']}: {model['unknown_tokens']:.2%} unknown tokens"
            )
    if result["left_out"]:
        console.say(f"left out {result['left_out']:,} pairs with a long sentence")


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """A row for each phenomenon, or for the largest fields if there are too many."""
    models = result["models"]
    rows = [e for e in models[0]["accuracies"] if e["paradigm"] == ALL]
    if len(rows) > _SHOWN_ROWS:
        rows = [entry for entry in rows if entry["phenomenon"] == ALL]
    rows = sorted(rows, key=lambda entry: -entry["pairs"])[:_SHOWN_ROWS]
    kept = {(entry["field"], entry["phenomenon"]) for entry in rows}
    figure, [[panel]] = plots.grid(1, 1, 4.6, 0.6 + 0.26 * len(kept))
    panel.axvline(50, color=plots.GREY, linewidth=1)
    for number, model in enumerate(models):
        found = [
            entry
            for entry in model["accuracies"]
            if entry["paradigm"] == ALL
            and (entry["field"], entry["phenomenon"]) in kept
        ]
        shift = 0.5 * ((number + 0.5) / len(models) - 0.5)
        middles = [100 * entry["accuracy"] for entry in found]
        ends = [[100 * entry[bound] for entry in found] for bound in ("low", "high")]
        widths = np.abs(np.array(ends) - middles)
        places = np.arange(len(found)) + shift
        style = {**plots.look(number), "linestyle": ""}
        panel.errorbar(middles, places, xerr=widths, label=model["name"], **style)
    names = [_name(entry) for entry in found]
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlabel("acceptable sentence preferred, %", fontsize=9)
    plots.tidy(panel, grid="x")
    plots.title_and_legend(figure, panel, "Minimal pairs; bars: 95% intervals")
    return plots.save(figure, stem)


def _encode(
    model: AnalysedModel, pairs: Sequence[MinimalPair], settings: MinimalPairSettings
) -> tuple[list[np.ndarray], np.ndarray]:
    """The ids of good, bad, good, ...; bool [pairs], which pairs are short enough."""
    if settings.max_tokens is not None:
        model.check_length(settings.max_tokens, "minimal_pairs.max_tokens")
    longest = (settings.max_tokens or model.config.max_positions) - 2
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    sentences = [np.array(s, np.int32) for s in model.vocabulary.encode_batch(texts)]
    lengths = np.array([len(ids) for ids in sentences]).reshape(-1, 2)
    if not lengths.all():
        place = int(np.argmin(lengths.min(axis=1)))
        raise UserError(f"{pairs[place].where}: a sentence without text")
    fits = lengths.max(axis=1) <= longest
    if not fits.all() and settings.long_pairs == "refuse":
        place = int(np.argmin(fits))
        raise UserError(
            f"{pairs[place].where}: a sentence has {lengths[place].max()} tokens, and "
            f"{model.name} takes {longest} beside [CLS] and [SEP]; leave such pairs "
            "out with minimal_pairs.long_pairs = 'leave_out'"
        )
    return sentences, fits


def _scores(
    model: AnalysedModel, sentences: Sequence[np.ndarray], settings: MinimalPairSettings
) -> np.ndarray:
    """Pseudo-log-likelihoods, float64 [sentences]."""
    encoder = Encoder(model.config, model.weights)
    head = MaskedLm(model.config, model.weights, encoder)

    def log_likelihoods(
        ids: tf.Tensor, mask: tf.Tensor, places: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        inputs = dict(zip(FEATURES, (ids, mask, tf.zeros_like(ids)), strict=True))
        output = encoder(inputs)["sequence_output"]
        logits = head(output, places[:, tf.newaxis])[:, 0]
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    specs = [tf.TensorSpec([None] * rank, tf.int32) for rank in (2, 2, 1, 1)]
    function = tf.function(log_likelihoods, specs, autograph=False)
    scores = np.zeros(len(sentences))
    batches = _masked_copies(model.vocabulary, sentences, settings)
    total = -(-sum(map(len, sentences)) // settings.batch_size)
    for owners, *arrays in console.track(batches, f"{model.name}: scores", total):
        found = function(*map(tf.constant, arrays)).numpy().astype(np.float64)
        np.add.at(scores, owners, found)
    return scores


def _masked_copies(
    vocabulary: Vocabulary,
    sentences: Sequence[np.ndarray],
    settings: MinimalPairSettings,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Batches with a copy of each sentence for each of its tokens, short ones first.

    Yields:
      the index of each copy's sentence, int64 [rows]; ids and mask, int32
      [rows, longest]; the position of the scored token and its id, int32 [rows].
    """
    lengths = np.array([len(ids) for ids in sentences])
    order = np.argsort(lengths, kind="stable")
    owners = np.repeat(order, lengths[order])
    firsts = np.repeat(np.cumsum(lengths[order]) - lengths[order], lengths[order])
    places = np.arange(len(owners)) - firsts + 1
    pieces = word_pieces(vocabulary)
    whole_word = settings.masking == "word_left_to_right"
    for begin in range(0, len(owners), settings.batch_size):
        rows = slice(begin, begin + settings.batch_size)
        owner, place = owners[rows], places[rows].astype(np.int32)
        columns = np.arange(lengths[owner].max() + 2)
        ids = np.full([len(owner), len(columns)], vocabulary.pad_id, np.int32)
        for row, sentence in enumerate(owner):
            text = sentences[sentence]
            ids[row, : len(text) + 2] = [vocabulary.cls_id, *text, vocabulary.sep_id]
        labels = ids[np.arange(len(owner)), place]
        hidden = columns == place[:, np.newaxis]
        if whole_word:
            starts = word_starts(*(table[ids] for table in pieces))
            words = np.pad(np.cumsum(starts, axis=1), ((0, 0), (1, 0)))
            own = words[np.arange(len(owner)), place][:, np.newaxis]
            hidden |= (columns > place[:, np.newaxis]) & (words == own)
        mask = (columns < lengths[owner][:, np.newaxis] + 2).astype(np.int32)
        yield owner, np.where(hidden, vocabulary.mask_id, ids), mask, place, labels


def _accuracies(
    pairs: Sequence[MinimalPair], right: np.ndarray
) -> list[dict[str, Any]]:
    """The entries of all pairs, fields, phenomena and paradigms; totals come first."""
    totals: Counter[tuple[str, ...]] = Counter()
    hits: Counter[tuple[str, ...]] = Counter()
    for pair, is_right in zip(pairs, right.tolist(), strict=True):
        names = (pair.field, pair.phenomenon, pair.paradigm)
        # A set, since a name may itself be "all".
        for key in {(*names[:depth], *[ALL] * (3 - depth)) for depth in range(4)}:
            totals[key] += 1
            hits[key] += is_right
    entries = []
    # "all" is sorted before the names that it stands for.
    for key in sorted(totals, key=lambda key: [(name != ALL, name) for name in key]):
        low, high = wilson_interval(hits[key], totals[key])
        entries.append(
            {
                **dict(zip(("field", "phenomenon", "paradigm"), key, strict=True)),
                "pairs": totals[key],
                "right": hits[key],
                "accuracy": hits[key] / totals[key],
                "low": low,
                "high": high,
            }
        )
    return entries


def _with_interval(entry) -> str:
    low, high = (f"{100 * entry[bound]:.1f}" for bound in ("low", "high"))
    return f"{100 * entry['accuracy']:.1f} [{low}, {high}]"


def _name(entry) -> str:
    if entry["phenomenon"] == ALL:
        return entry["field"]
    return f"{entry['field']}: {entry['phenomenon']}"
