"""Finds translations with sentence vectors: search in Tatoeba, mining in BUCC.

The folder of a run gets one language after another:

    results.json    settings; the metrics of each language and the fingerprint of its
                    files ("data"); means
    predictions/TASK/test-LANGUAGE.tsv
                    for `decoupled score` and XTREME's own script

Languages that XTREME does not list for the task are marked and excluded from means.
"""

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import (
    check_lengths,
    layer_vectors,
    open_models,
    pooling_function,
)
from decoupled.configs import RetrievalConfig
from decoupled.core import accelerators, console, files
from decoupled.core.errors import Mistakes, UserError
from decoupled.metrics.neighbours import Matches, best_matches, best_threshold, mine
from decoupled.runs.saved_run import Model
from decoupled.xtreme import official, parallel_sentences
from decoupled.xtreme.parallel_sentences import (
    DEV,
    TEST,
    Bucc,
    Pair,
    Tatoeba,
    Text,
    language_files,
    read_bucc,
    read_tatoeba,
)

# Languages of Tatoeba are encoded together, up to about this many sentences.
_SENTENCES_AT_ONCE = 1 << 15
_MEAN = "mean"
# Columns that are not in percent.
_OTHER_UNITS = ("threshold", "pairs", "examples")

# Sentences -> float32 [sentences, H].
Encode = Callable[[Sequence[str]], np.ndarray]


class Mined(NamedTuple):
    """Pairs of ids, the best first, and their scores, float [pairs]."""

    pairs: list[Pair]
    scores: np.ndarray


class MinedTest(NamedTuple):
    """The predictions for BUCC: the pairs of the test set above the threshold.

    threshold: tuned on the dev set. dev_f1: the F1 score there, in percent.
    """

    test: Bucc
    pairs: list[Pair]
    threshold: float
    dev_f1: float


def search(
    first: np.ndarray, second: np.ndarray, config: RetrievalConfig, description: str
) -> Matches:
    """Best matches in both directions by the configured scoring, with progress.

    With config.centre the vectors, float32 [sentences, H], are changed in place, so
    that millions of them need no second copy.
    """
    if config.centre:
        first -= first.mean(axis=0)
        second -= second.mean(axis=0)
    return best_matches(
        first,
        second,
        config.scoring,
        config.num_neighbours,
        progress=lambda blocks: console.track(blocks, description),
    )


def find_translations(
    languages: Sequence[Tatoeba], encode: Encode, config: RetrievalConfig
) -> dict[str, list[int]]:
    """Language -> for each of its sentences, the index of the best English candidate.

    Equal sentences, even of different languages, are encoded once.
    """
    texts = {
        text: None for pair in languages for text in [*pair.sources, *pair.candidates]
    }
    places = {text: place for place, text in enumerate(texts)}
    vectors = encode(list(places))
    translations = {}
    for pair in languages:
        sides = (
            vectors[[places[text] for text in side]]
            for side in (pair.sources, pair.candidates)
        )
        matches = search(*sides, config, f"searching blocks of {pair.language}")
        translations[pair.language] = matches.forward.tolist()
    return translations


def mine_test(
    dev: Bucc, read_test: Callable[[], Bucc], encode: Encode, config: RetrievalConfig
) -> MinedTest:
    """Mines both splits and keeps the test pairs above the threshold of the dev set.

    The test set is read after the dev set is done.
    """
    if not dev.gold:
        raise UserError(
            f"bucc2018 dev (language {dev.language}): no gold pairs; the threshold is "
            "tuned on them"
        )
    mined = mine_pairs(dev, encode, config)
    are_right = np.array([pair in dev.gold for pair in mined.pairs], bool)
    threshold = best_threshold(mined.scores, are_right, len(dev.gold))
    test = read_test()
    mined = mine_pairs(test, encode, config)
    kept = int(np.sum(mined.scores >= threshold.score))
    return MinedTest(test, mined.pairs[:kept], threshold.score, threshold.f1)


def mine_pairs(split: Bucc, encode: Encode, config: RetrievalConfig) -> Mined:
    """Candidates for translations (`decoupled.metrics.neighbours`), no sentence twice.

    A sentence that occurs several times is searched once. Its pairs are left out
    afterwards, because it is unknown which of its ids is meant. XTREME's baseline does
    the same.
    """
    sides = [_ids_by_sentence(text) for text in (split.source, split.english)]
    vectors = [encode(list(side)) for side in sides]
    matches = search(*vectors, config, f"searching blocks of {split.language}")
    candidates = mine(matches)
    ids = [list(side.values()) for side in sides]
    pairs, kept = [], []
    for index, (left, right) in enumerate(candidates.pairs):
        pair = (ids[0][left], ids[1][right])
        if None not in pair:
            pairs.append(pair)
            kept.append(index)
    if not pairs:
        raise UserError(
            f"bucc2018 (language {split.language}): every sentence occurs several "
            "times; remove the copies"
        )
    return Mined(pairs, candidates.scores[kept])


def _ids_by_sentence(text: Text) -> dict[str, str | None]:
    times = Counter(text.sentences)
    return {
        sentence: name if times[sentence] == 1 else None
        for name, sentence in zip(text.ids, text.sentences, strict=True)
    }


class LanguageResults(NamedTuple):
    """A language's predictions, as lines, and its results."""

    language: str
    lines: list[str]
    results: dict[str, float]


def _cell(column, value):
    if value is None or column in _OTHER_UNITS:
        return value
    return f"{value:.2f}"


def tatoeba_results(pair: Tatoeba, places: list[int]) -> dict[str, float]:
    """Metrics in percent; accuracy only if the translations are known.

    `places` has for each source the index of the candidate that was found.
    """
    results = {}
    if pair.gold is not None:
        labels, answers = ([*map(str, side)] for side in (pair.gold, places))
        results = official.score_language("tatoeba", pair.language, labels, answers)
    count = len(pair.sources)
    return {**results, "random_accuracy": 100 / count, "examples": count}


def bucc_results(test: Bucc, pairs: list[Pair]) -> dict[str, float]:
    """Metrics of the pairs that were found, in percent; none without gold pairs."""
    if not test.gold:
        return {}
    results = official.score_language("bucc2018", test.language, test.gold, pairs)
    # The expected score of as many random pairs as there are gold pairs.
    possible = len(test.source.ids) * len(test.english.ids)
    return {**results, "random_f1": 100 * len(test.gold) / possible}


class RetrievalResults:
    """The folder of a run; a run that was stopped resumes with the missing languages.

    `description` of the run, as JSON, has at least "task", "global_step" and
    "settings". `content` is that of results.json, whose path is `path`.
    """

    def __init__(self, folder: str, description: dict[str, Any]):
        self._folder = files.make_folder(folder)
        self.path = os.path.join(folder, "results.json")
        self.content = {**description, "languages": {}}
        if files.exists(self.path):
            saved = files.read_json(self.path)
            self._check(saved, description)
            self.content["languages"] = saved["languages"]

    def _check(self, saved, description):
        if not isinstance(saved, dict) or not isinstance(saved.get("languages"), dict):
            raise UserError(f"{self.path}: not results of retrieval; delete it")
        differing = [
            "the checkpoint has changed"
            if key == "checkpoint_fingerprint"
            else f"{key} is {saved.get(key)!r}, not {value!r}"
            for key, value in description.items()
            if saved.get(key) != value
        ]
        if differing:
            raise UserError(
                f"{self.path}: of another run: {'; '.join(differing)}; use another "
                "--output_dir"
            )

    def has(self, language: str, fingerprint: str) -> bool:
        """Whether a language is done, with the data of this fingerprint."""
        entry = self.content["languages"].get(language, {})
        return entry.get("data") == fingerprint and files.exists(
            self._predictions(language)
        )

    @property
    def languages(self) -> list[str]:
        """The languages that have results, perhaps of other files."""
        return list(self.content["languages"])

    def add(
        self,
        language: str,
        fingerprint: str,
        lines: list[str],
        results: dict[str, float],
    ) -> None:
        """Writes a language's predictions, one per line, then its results."""
        path = self._predictions(language)
        files.make_folder(os.path.dirname(path))
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        done = {
            **self.content["languages"],
            language: {**results, "data": fingerprint},
        }
        self.content["languages"] = {name: done[name] for name in sorted(done)}
        files.write_json(self.path, self.content)

    def finish(self) -> None:
        """Writes the means; prints the table."""
        rows = {
            name: {key: value for key, value in entry.items() if key != "data"}
            for name, entry in self.content["languages"].items()
        }
        columns = list(dict.fromkeys(key for row in rows.values() for key in row))
        task = self.content["task"]
        averaged = {
            name: row for name, row in rows.items() if official.is_official(task, name)
        }
        outside = [name for name in rows if name not in averaged]
        means = {}
        for column in columns:
            if values := [row[column] for row in averaged.values() if column in row]:
                means[column] = sum(values) / len(values)
        self.content[_MEAN], self.content["outside_xtreme"] = means, outside
        files.write_json(self.path, self.content)
        ordered = {**averaged, _MEAN: means, **{name: rows[name] for name in outside}}
        table = [[name, *map(row.get, columns)] for name, row in ordered.items()]
        cells = [
            [name + " (outside XTREME)" * (name in outside), *map(_cell, columns, row)]
            for name, *row in table
        ]
        self._show(columns, cells)

    def _show(self, columns, table):
        settings = self.content["settings"]
        console.table(
            f"{self.content['task']} at step {self.content['global_step']}: layer "
            f"{settings['layer']}, {settings['scoring']}; in percent",
            ["language", *(column.replace("_", " ") for column in columns)],
            table,
        )
        folder = os.path.join(self._folder, "predictions")
        if not set(official.TASKS[self.content["task"]].headline) <= set(columns):
            console.say("the data do not tell what is right: no score")
        console.say(f"wrote {self.path} and {folder}")

    def _predictions(self, language):
        return os.path.join(
            self._folder,
            "predictions",
            official.prediction_file(self.content["task"], language),
        )


class TranslationSearch:
    """A run of `decoupled retrieve`: a task's languages, with results in a folder.

    Raises:
      UserError: checkpoint, settings, data and folder do not fit each other. All
        mistakes in the first three are named.
    """

    def __init__(
        self,
        config: RetrievalConfig,
        task: str,
        data_dir: str,
        init_checkpoint: str,
        output_dir: str,
        languages: Sequence[str] | None = None,
        accelerator: str | None = None,
    ):
        self._config, self._task, self._data_dir = config, task, data_dir
        mistakes = Mistakes()
        model = _open_model(init_checkpoint, config, mistakes)
        self._languages = _wanted_languages(task, data_dir, languages, mistakes)
        mistakes.raise_all()
        self._model = model
        layer = config.layer_of(model.config.num_layers, model.name)
        if accelerator is not None:
            accelerators.check(accelerator, console.say)
        self._pool = pooling_function(model, [layer], config, accelerator)
        self._results = RetrievalResults(output_dir, self._description())

    def run(self) -> dict[str, Any]:
        """Runs the missing languages; returns the content of results.json."""
        results = self._results
        data = {name: self._fingerprint(name) for name in self._languages}
        missing = [name for name in data if not results.has(name, data[name])]
        if changed := [name for name in missing if name in results.languages]:
            console.say(
                f"{results.path}: searched again: the files of {', '.join(changed)} or "
                "their predictions have changed"
            )
        if done := len(data) - len(missing):
            console.say(f"{results.path}: has {done} of {len(data)} languages, reused")
        find = self._tatoeba if self._task == "tatoeba" else self._bucc
        for language, lines, metrics in find(missing):
            results.add(language, data[language], lines, metrics)
        results.finish()
        return results.content

    def _description(self) -> dict[str, Any]:
        """Everything except the data that the results of a language depend on."""
        model, config = self._model, self._config
        return {
            "task": self._task,
            "checkpoint": os.path.basename(model.weights.path),
            "global_step": model.weights.global_step,
            # The index of a checkpoint holds the checksum of every variable.
            "checkpoint_fingerprint": files.file_fingerprint(
                f"{model.weights.path}.index"
            ),
            "settings": {
                **dataclasses.asdict(config),
                "layer": config.layer_of(model.config.num_layers, model.name),
            },
        }

    def _fingerprint(self, language: str) -> str:
        paths = language_files(self._task, self._data_dir, language)
        return files.fingerprint("".join(map(files.file_fingerprint, paths)))

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        return layer_vectors(self._model, texts, self._config, self._pool)

    def _tatoeba(self, languages: Sequence[str]) -> Iterator[LanguageResults]:
        pairs = [read_tatoeba(self._data_dir, language) for language in languages]
        while pairs:
            group, sentences = [], 0
            while pairs and (not group or sentences < _SENTENCES_AT_ONCE):
                group.append(pairs.pop(0))
                sentences += 2 * len(group[-1].sources)
            translations = find_translations(group, self._encode, self._config)
            for pair in group:
                places = translations[pair.language]
                results = tatoeba_results(pair, places)
                yield LanguageResults(pair.language, [*map(str, places)], results)

    def _bucc(self, languages: Sequence[str]) -> Iterator[LanguageResults]:
        for language in languages:
            dev = read_bucc(self._data_dir, DEV, language)
            read_test = functools.partial(read_bucc, self._data_dir, TEST, language)
            mined = mine_test(dev, read_test, self._encode, self._config)
            results = {
                **bucc_results(mined.test, mined.pairs),
                "dev_f1": mined.dev_f1,
                "threshold": mined.threshold,
                "pairs": len(mined.pairs),
            }
            yield LanguageResults(
                language, ["\t".join(pair) for pair in mined.pairs], results
            )


def _open_model(path: str, config: RetrievalConfig, mistakes: Mistakes) -> Model | None:
    """The model, checked against the settings; None after a mistake."""
    model = None
    with mistakes.noted():
        [model] = open_models([path])
        with mistakes.noted():
            check_lengths(model, config)
        config.layer_of(model.config.num_layers, model.name)
    return model


def _wanted_languages(
    task: str, data_dir: str, languages: Sequence[str] | None, mistakes: Mistakes
) -> list[str]:
    """The languages of a run; all of their files are read as a check."""
    known = []
    with mistakes.noted():
        known = parallel_sentences.languages(task, data_dir)
        if lost := [name for name in languages or () if name not in known]:
            folder = parallel_sentences.task_folder(task, data_dir)
            raise UserError(
                f"--languages: no {', '.join(map(repr, lost))} in {folder}; it has "
                f"{', '.join(known)}"
            )
    chosen = [name for name in known if languages is None or name in languages]
    for language in chosen:
        with mistakes.noted():
            parallel_sentences.check_language(task, data_dir, language)
    return chosen
