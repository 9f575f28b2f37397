"""Finds translations with sentence vectors: search in Tatoeba, mining in BUCC.

The folder of a run gets one language after another:

    results.json    settings; the metrics of each language and the fingerprint of its
                    files ("data"); means
    predictions/TASK/test-LANGUAGE.tsv
                    for `decoupled score` and XTREME's own script

Languages that XTREME does not list for the task, and those without a score beside
others that have one, are marked and excluded from means.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoupled.analyses.models import (
    LONGEST,
    layer_vectors,
    open_models,
    pooling_function,
)
from decoupled.configs import RetrievalConfig
from decoupled.configs.removed import without_gone
from decoupled.core import accelerators, console, files
from decoupled.core.errors import Mistakes, UserError
from decoupled.core.made_from import differences
from decoupled.metrics.neighbours import Matches, best_matches, best_threshold, mine
from decoupled.runs.run_folder import weights_sha256
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

_MEAN = "mean"
# Columns that are not in percent.
_OTHER_UNITS = ("threshold", "pairs", "examples")

# Sentences -> float32 [sentences, H].
Encode = Callable[[Sequence[str]], np.ndarray]
# A language's predictions, as lines, and its results.
LanguageResult = tuple[list[str], dict[str, float]]


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
    pair: Tatoeba, encode: Encode, config: RetrievalConfig
) -> list[int]:
    """For each sentence the index of the best English candidate.

    Equal sentences are encoded once, and so have equal vectors.
    """
    numbers: dict[str, int] = {}
    sides = [
        [numbers.setdefault(text, len(numbers)) for text in side]
        for side in (pair.sources, pair.candidates)
    ]
    vectors = encode(list(numbers))
    sides = [vectors[side] for side in sides]
    matches = search(*sides, config, f"searching blocks of {pair.language}")
    return matches.forward.tolist()


def mine_pairs(
    split: Bucc, encode: Encode, config: RetrievalConfig
) -> tuple[list[Pair], np.ndarray]:
    """Candidates for translations (`decoupled.metrics.neighbours`), the best first, and
    their scores.

    A sentence that occurs several times is searched once. Its pairs are left out
    afterwards, because it is unknown which of its ids is meant. XTREME's baseline does
    the same.
    """
    sides = [_ids_by_sentence(text) for text in (split.source, split.english)]
    vectors = [encode(list(side)) for side in sides]
    matches = search(*vectors, config, f"searching blocks of {split.language}")
    positions, scores = mine(matches)
    sources, english = (list(side.values()) for side in sides)
    pairs = [(sources[left], english[right]) for left, right in positions]
    kept_indices = [index for index, pair in enumerate(pairs) if None not in pair]
    if not kept_indices:
        raise UserError(
            f"bucc2018 (language {split.language}): each pair has a sentence that "
            "occurs several times, so that its id is unknown; remove the copies"
        )
    return [pairs[index] for index in kept_indices], scores[kept_indices]


def _ids_by_sentence(text: Text) -> dict[str, str | None]:
    times = Counter(text.sentences)
    return {
        sentence: name if times[sentence] == 1 else None
        for name, sentence in zip(text.ids, text.sentences, strict=True)
    }


def search_tatoeba(
    data_dir: str, language: str, encode: Encode, config: RetrievalConfig
) -> LanguageResult:
    """The index of each sentence's translation; its accuracy if there are labels."""
    pair = read_tatoeba(data_dir, language)
    lines = [*map(str, find_translations(pair, encode, config))]
    results = {}
    if pair.gold is not None:
        labels = [*map(str, pair.gold)]
        results = official.score_language("tatoeba", language, labels, lines)
    count = len(lines)
    return lines, {**results, "random_accuracy": 100 / count, "examples": count}


def mine_bucc(
    data_dir: str, language: str, encode: Encode, config: RetrievalConfig
) -> LanguageResult:
    """Pairs of ids of the test set that are above the threshold of the dev set.

    The test set is read only after the search in the dev set.
    """
    dev = read_bucc(data_dir, DEV, language)
    if not dev.gold:
        raise UserError(
            f"bucc2018 dev (language {language}): no gold pairs; the threshold is "
            "tuned on them"
        )
    pairs, scores = mine_pairs(dev, encode, config)
    are_right = np.array([pair in dev.gold for pair in pairs], bool)
    threshold, dev_f1 = best_threshold(scores, are_right, len(dev.gold))
    test = read_bucc(data_dir, TEST, language)
    pairs, scores = mine_pairs(test, encode, config)
    pairs = pairs[: int(np.sum(scores >= threshold))]
    results = {}
    if test.gold:
        results = official.score_language("bucc2018", language, test.gold, pairs)
        # The expected score of as many random pairs as there are gold pairs.
        pair_count = len(test.source.ids) * len(test.english.ids)
        results["random_f1"] = 100 * len(test.gold) / pair_count
    tuning = {"dev_f1": dev_f1, "threshold": threshold, "pairs": len(pairs)}
    return ["\t".join(pair) for pair in pairs], {**results, **tuning}


FIND = {"tatoeba": search_tatoeba, "bucc2018": mine_bucc}


class TranslationSearch:
    """A run of `decoupled retrieve`: a task's languages, with results in a folder.

    A run that was stopped resumes with the missing languages. `content` is that of
    results.json.

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
        self._languages = _languages_of_run(task, data_dir, languages, mistakes)
        mistakes.raise_all()
        self._model = model
        layer = config.layer_of(model.config.num_layers, model.name)
        if accelerator is not None:
            accelerators.check(accelerator, console.say)
        self._pool = pooling_function(model, [layer], config, accelerator)
        # Everything except the data that the results of a language depend on.
        description = {
            "task": task,
            "checkpoint": os.path.basename(model.weights.path),
            "global_step": model.weights.global_step,
            "checkpoint_fingerprint": weights_sha256(model.weights.path),
            "model": vars(model.config),
            "vocabulary": model.vocabulary.fingerprint,
            "settings": {**dataclasses.asdict(config), "layer": layer},
        }
        self._folder = files.make_folder(output_dir)
        self._path = os.path.join(output_dir, "results.json")
        self.content: dict[str, Any] = {**description, "languages": {}}
        if files.exists(self._path):
            saved_results = files.read_json(self._path)
            _check_saved(self._path, saved_results, description)
            self.content["languages"] = saved_results["languages"]

        wanted = official.TASKS[task].languages if languages is None else ()
        if missing := [name for name in wanted if name not in self._languages]:
            console.say(
                f"{task}: no files of {', '.join(missing)}; XTREME's score of the task "
                "needs all of them"
            )

    def run(self) -> dict[str, Any]:
        """Runs the missing languages; returns the content of results.json."""
        data = {name: self._fingerprint(name) for name in self._languages}
        entries = self.content["languages"]
        # Of earlier commands, perhaps with other data.
        if names := [n for n in entries if n not in data and not self._is_current(n)]:
            raise UserError(
                f"{self._path}: has results of {', '.join(names)}, whose files in "
                f"{self._data_dir} are others or missing; give these --languages, too, "
                "or use another --output_dir"
            )
        missing = [name for name in data if not self._has(name, data[name])]
        if changed := [name for name in missing if name in self.content["languages"]]:
            console.say(
                f"{self._path}: searched again: the files of {', '.join(changed)} or "
                "their predictions have changed"
            )
        if count := len(data) - len(missing):
            console.say(f"{self._path}: has {count} of {len(data)} languages, reused")
        for name in missing:
            lines, results = FIND[self._task](
                self._data_dir, name, self._encode, self._config
            )
            path = self._predictions(name)
            files.make_folder(os.path.dirname(path))
            files.write_text(path, "".join(f"{line}\n" for line in lines))
            new_entries = self.content["languages"] | {
                name: {**results, "data": data[name]}
            }
            self.content["languages"] = dict(sorted(new_entries.items()))
            files.write_json(self._path, self.content)
        columns, rows = add_means(self.content)
        files.write_json(self._path, self.content)
        settings = self.content["settings"]
        console.table(
            f"{self._task} at step {self.content['global_step']}: layer "
            f"{settings['layer']}, {settings['scoring']}; in percent",
            ["language", *(column.replace("_", " ") for column in columns)],
            rows,
        )
        if not set(official.TASKS[self._task].headline) <= set(columns):
            console.say("the data do not tell what is right: no score")
        predictions = os.path.join(self._folder, "predictions")
        console.say(f"wrote {self._path} and {predictions}")
        return self.content

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        return layer_vectors(self._model, texts, self._config, self._pool)

    def _fingerprint(self, language: str) -> str:
        paths = language_files(self._task, self._data_dir, language)
        return files.fingerprint("".join(map(files.file_fingerprint, paths)))

    def _is_current(self, language: str) -> bool:
        try:
            return self._has(language, self._fingerprint(language))
        except UserError:
            return False

    def _has(self, language: str, fingerprint: str) -> bool:
        """Whether a language is done, with the data of this fingerprint."""
        entry = self.content["languages"].get(language, {})
        predictions = self._predictions(language)
        return entry.get("data") == fingerprint and files.exists(predictions)

    def _predictions(self, language: str) -> str:
        name = official.prediction_file(self._task, language)
        return os.path.join(self._folder, "predictions", name)


def _check_saved(path: str, results: Any, description: dict[str, Any]) -> None:
    is_table = isinstance(results, dict) and isinstance(results.get("languages"), dict)
    if not (is_table and isinstance(results.get("model", {}), dict)):
        raise UserError(f"{path}: not results of retrieval; delete it")
    # Earlier versions recorded neither model nor vocabulary.
    old_description = {"vocabulary": description["vocabulary"], **results}
    sizes = without_gone("ModelConfig", results.get("model", {}))
    old_description["model"] = description["model"] | sizes
    old_description = {name: old_description.get(name) for name in description}
    messages = [
        "the checkpoint has changed"
        if name == "checkpoint_fingerprint"
        else f"{name} is {old}, not {new}"
        for name, old, new in differences("", old_description, description)
    ]
    if messages:
        raise UserError(
            f"{path}: of another run: {'; '.join(messages)}; use another --output_dir"
        )


def add_means(content: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Adds `mean`, `outside_xtreme` and `without_score` to the content of results.json.

    Returns:
      columns and rows of its table.
    """
    task, entries = content["task"], content["languages"]
    columns = dict.fromkeys(key for entry in entries.values() for key in entry)
    columns = [key for key in columns if key != "data"]
    members = {k: v for k, v in entries.items() if official.is_official(task, k)}
    outsiders = [name for name in entries if name not in members]
    # All means are over the same languages.
    headline = set(official.TASKS[task].headline)
    basis = {k: v for k, v in members.items() if headline <= set(v)} or members
    unscored = [name for name in members if name not in basis]
    means = {}
    for column in columns:
        if values := [row[column] for row in basis.values() if column in row]:
            means[column] = sum(values) / len(values)
    content |= {_MEAN: means, "outside_xtreme": outsiders, "without_score": unscored}
    rows = {**members, _MEAN: means, **{name: entries[name] for name in outsiders}}
    marks = dict.fromkeys(outsiders, " (outside XTREME)")
    marks |= dict.fromkeys(unscored, " (no score, in no mean)")

    def cell(row, column):
        value = row.get(column)
        return value if value is None or column in _OTHER_UNITS else f"{value:.2f}"

    return columns, [
        [
            name + marks.get(name, ""),
            *(cell(row, c) for c in columns),
        ]
        for name, row in rows.items()
    ]


def _open_model(path: str, config: RetrievalConfig, mistakes: Mistakes) -> Model | None:
    """The model, checked against the settings; None after a mistake."""
    model = None
    with mistakes.noted():
        [model] = open_models([path])
        with mistakes.noted():
            model.check_length(config.max_sequence_length, LONGEST)
        config.layer_of(model.config.num_layers, model.name)
    return model


def _languages_of_run(
    task: str, data_dir: str, languages: Sequence[str] | None, mistakes: Mistakes
) -> list[str]:
    """The languages of a run; all of their files are read as a check."""
    names = []
    with mistakes.noted():
        if languages is not None and not languages:
            raise UserError("--languages: names none; leave it out for all")
        names = parallel_sentences.languages(task, data_dir)
        if unknown := [name for name in languages or () if name not in names]:
            folder = parallel_sentences.task_folder(task, data_dir)
            raise UserError(
                f"--languages: no {', '.join(map(repr, unknown))} in {folder}; it has "
                f"{', '.join(names)}"
            )
    choice = [name for name in names if languages is None or name in languages]
    for language in choice:
        with mistakes.noted():
            parallel_sentences.check_language(task, data_dir, language)
    return choice
