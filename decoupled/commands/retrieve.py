"""Finds translations by the vectors of sentences: XTREME's Tatoeba and BUCC 2018.

Reads a model (--init_checkpoint: a folder that pretrain or finetune wrote, or one of
its checkpoints) and the sentences below --data_dir, in the layout of XTREME's download.
A sentence's vector is the mean over its tokens in one layer; its translation is the
nearest English sentence, by cosine or by a margin. Nothing is trained; for BUCC a
threshold is tuned on the dev set's gold pairs.

Writes to --output_dir: predictions/TASK/test-LANGUAGE.tsv, which `decoupled score` and
XTREME's own script take; results.json and results.csv, a language a row beside what
random pairs would give, as far as the data tell what is right. Languages that XTREME
does not list for the task are marked and in no mean. Started again it goes on
with the languages that are missing; a folder with other settings is refused.

  decoupled retrieve --task=tatoeba --data_dir=download \\
      --init_checkpoint=runs/decoupled --output_dir=runs/decoupled_tatoeba \\
      --gin_param='RetrievalConfig.layer = 8'

--gin_file=tasks/tatoeba.gin or tasks/bucc2018.gin: as XTREME's baseline, for 12 layers.
Files of a task: decoupled/xtreme/parallel_sentences.py lists them.
"""

import csv
import dataclasses
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from absl import flags

from decoupled.configs.finetuning import RetrieveConfig, retrieve
from decoupled.core import console, files, locks
from decoupled.core.errors import Mistakes, UserError
from decoupled.launch import start
from decoupled.xtreme import official

TASKS = ("tatoeba", "bucc2018")
# Languages of Tatoeba are encoded together up to about so many sentences.
_SENTENCES_AT_ONCE = 1 << 15
_MEAN = "mean"


class Found(NamedTuple):
    """A language's predictions, a line each, and its results."""

    language: str
    lines: list[str]
    results: dict[str, float]


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_enum("task", None, TASKS, "What to find.")
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_string(
        "init_checkpoint",
        None,
        "A run's folder (its best checkpoint where fine-tuning kept one, else the "
        "newest), or the prefix of one checkpoint.",
    )
    flags.DEFINE_string("output_dir", None, "Folder of results, made if missing.")
    flags.DEFINE_list("languages", None, "Only these, e.g. sw,th. Default: all.")
    flags.mark_flags_as_required(["task", "data_dir", "init_checkpoint", "output_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    config = start.parse_gin(retrieve, "runs/retrieve.gin")
    with locks.hold(flags.FLAGS.output_dir):
        run_retrieval(
            config,
            flags.FLAGS.task,
            flags.FLAGS.data_dir,
            flags.FLAGS.init_checkpoint,
            flags.FLAGS.output_dir,
            flags.FLAGS.languages,
        )


def run_retrieval(
    config: RetrieveConfig,
    task: str,
    data_dir: str,
    init_checkpoint: str,
    output_dir: str,
    languages: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Finds translations; see the module's docstring.

    Args:
      languages: only these; None for all that have files.

    Returns:
      what results.json holds.

    Raises:
      UserError: checkpoint, settings, data and folder do not fit each other; of the
        first three all mistakes are named.
    """
    mistakes = Mistakes()
    encoder = _open_encoder(init_checkpoint, config.retrieval, mistakes)
    wanted = _wanted_languages(task, data_dir, languages, mistakes)
    mistakes.raise_all()
    results = _Results(output_dir, _description(config, task, encoder))
    start.save_start(output_dir)
    session = _Session(config, encoder, data_dir)
    data = {language: session.fingerprint(task, language) for language in wanted}
    missing = [name for name in wanted if not results.has(name, data[name])]
    if len(missing) < len(wanted):
        count = len(wanted) - len(missing)
        console.say(f"{results.path}: has {count} of {len(wanted)} languages, reused")
    for found in session.find(task, missing):
        results.add(found, data[found.language])
    results.finish()
    return results.content


def _open_encoder(path, settings, mistakes):
    """The encoder, which has what the settings need; None after a mistake."""
    from decoupled.analyses.sentence_vectors import check_lengths, open_encoder

    encoder = None
    with mistakes.noted():
        encoder = open_encoder(path)
        with mistakes.noted():
            check_lengths(encoder, settings)
        encoder.layer(settings.layer)
    return encoder


def _wanted_languages(task, data_dir, languages, mistakes):
    """The languages of a run; all of their files were read."""
    from decoupled.xtreme import parallel_sentences

    known = []
    with mistakes.noted():
        known = parallel_sentences.languages(task, data_dir)
        if lost := [name for name in languages or () if name not in known]:
            folder = parallel_sentences.task_folder(task, data_dir)
            raise UserError(
                f"--languages: no {', '.join(map(repr, lost))} in {folder}; it has "
                f"{', '.join(known)}"
            )
    wanted = [name for name in known if languages is None or name in languages]
    for language in wanted:
        with mistakes.noted():
            parallel_sentences.check_language(task, data_dir, language)
    return wanted


def _description(config, task, encoder) -> dict[str, Any]:
    """What decides the results of a language beside its data."""
    return {
        "task": task,
        "checkpoint": os.path.basename(encoder.checkpoint),
        "global_step": encoder.step,
        # The index of a checkpoint holds the checksum of every variable.
        "checkpoint_fingerprint": files.file_fingerprint(f"{encoder.checkpoint}.index"),
        "settings": {
            **dataclasses.asdict(config.retrieval),
            "layer": encoder.layer(config.retrieval.layer),
            "activation_dtype": config.mesh.activation_dtype,
        },
    }


class _Session:
    """Model and data of a run."""

    def __init__(self, config, encoder, data_dir):
        self._config = config
        self._encoder = encoder
        self._data_dir = data_dir

    def fingerprint(self, task, language) -> str:
        """Of all files of a language.

        Raises:
          UserError: one is missing.
        """
        from decoupled.xtreme.parallel_sentences import language_files

        paths = language_files(task, self._data_dir, language)
        return files.fingerprint("".join(map(files.file_fingerprint, paths)))

    def find(self, task, languages) -> Iterator[Found]:
        """Translations for the languages."""
        if task == "tatoeba":
            yield from self._tatoeba(languages)
            return
        for language in languages:
            yield self._bucc(language)

    def _encode(self, texts):
        from decoupled.analyses.sentence_vectors import layer_vectors

        config = self._config
        return layer_vectors(self._encoder, texts, config.retrieval, config.mesh)

    def _tatoeba(self, languages):
        from decoupled.analyses.retrieval import find_translations
        from decoupled.xtreme.parallel_sentences import read_tatoeba

        pairs = [read_tatoeba(self._data_dir, language) for language in languages]
        while pairs:
            group, sentences = [], 0
            while pairs and (not group or sentences < _SENTENCES_AT_ONCE):
                group.append(pairs.pop(0))
                sentences += 2 * len(group[-1].sources)
            found = find_translations(group, self._encode, self._config.retrieval)
            for pair in group:
                lines = [str(place) for place in found[pair.language]]
                yield Found(pair.language, lines, _tatoeba_results(pair, lines))

    def _bucc(self, language):
        from decoupled.analyses.retrieval import mine_test
        from decoupled.xtreme.parallel_sentences import DEV, TEST, read_bucc

        dev = read_bucc(self._data_dir, DEV, language)
        test = []

        def read_test():
            test.append(read_bucc(self._data_dir, TEST, language))
            return test[0]

        mined = mine_test(dev, read_test, self._encode, self._config.retrieval)
        lines = ["\t".join(pair) for pair in mined.pairs]
        return Found(language, lines, _bucc_results(test[0], mined))


def _tatoeba_results(pair, lines) -> dict[str, float]:
    count = len(pair.sources)
    results = {}
    if pair.gold is not None:
        labels = [str(place) for place in pair.gold]
        results = official.score_language("tatoeba", pair.language, labels, lines)
    return {**results, "random_accuracy": 100 / count, "examples": count}


def _bucc_results(test, mined) -> dict[str, float]:
    results = {}
    if test.gold:
        results = official.score_language(
            "bucc2018", test.language, test.gold, mined.pairs
        )
        # As many pairs as there are right ones, each drawn from all: expected.
        possible = len(test.source.ids) * len(test.english.ids)
        results = {**results, "random_f1": 100 * len(test.gold) / possible}
    return {
        **results,
        "dev_f1": mined.dev_f1,
        "threshold": mined.threshold,
        "pairs": len(mined.pairs),
    }


class _Results:
    """results.json, results.csv and the predictions of a folder.

    Args:
      folder: made if missing.
      description: of the run; with another one the folder is refused.
    """

    def __init__(self, folder, description):
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
            f"{key} is {saved.get(key)!r}, not {value!r}"
            for key, value in description.items()
            if saved.get(key) != value
        ]
        if differing:
            raise UserError(
                f"{self.path}: of another run: {'; '.join(differing)}; use another "
                "--output_dir"
            )

    def has(self, language, fingerprint) -> bool:
        """Whether a language is done, with these data."""
        entry = self.content["languages"].get(language, {})
        return entry.get("data") == fingerprint and files.exists(
            self._predictions(language)
        )

    def add(self, found, fingerprint):
        """Writes a language's predictions, then its results."""
        path = self._predictions(found.language)
        files.make_folder(os.path.dirname(path))
        files.write_text(path, "".join(f"{line}\n" for line in found.lines))
        done = {
            **self.content["languages"],
            found.language: {**found.results, "data": fingerprint},
        }
        self.content["languages"] = {name: done[name] for name in sorted(done)}
        files.write_json(self.path, self.content)

    def finish(self):
        """Writes the means and the CSV; prints the table."""
        rows = {
            name: {key: value for key, value in entry.items() if key != "data"}
            for name, entry in self.content["languages"].items()
        }
        columns = list(dict.fromkeys(key for row in rows.values() for key in row))
        averaged = {
            name: row
            for name, row in rows.items()
            if official.is_official(self.content["task"], name)
        }
        outside = [name for name in rows if name not in averaged]
        means = _means(averaged, columns)
        self.content[_MEAN], self.content["outside_xtreme"] = means, outside
        files.write_json(self.path, self.content)
        ordered = {**averaged, _MEAN: means, **{name: rows[name] for name in outside}}
        table = [[name, *map(row.get, columns)] for name, row in ordered.items()]
        self._write_csv(columns, table, outside)
        for row in table:
            row[0] += " (outside XTREME)" * (row[0] in outside)
        self._show(columns, table)

    def _write_csv(self, columns, table, outside):
        rows = [[*row, "no" if row[0] in outside else "yes"] for row in table]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [["language", *columns, "official"], *rows]
        )
        files.write_text(os.path.join(self._folder, "results.csv"), text.getvalue())

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


def _means(rows, columns) -> dict[str, float]:
    """Over the languages that have a value."""
    means = {}
    for column in columns:
        values = [row[column] for row in rows.values() if column in row]
        if values:
            means[column] = sum(values) / len(values)
    return means
