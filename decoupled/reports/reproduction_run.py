"""The steps of a reproduction: data, jobs, and what its document tells of the run."""

import dataclasses
import datetime
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from decoupled.configs import ScaleConfig, SweepConfig, SweepRoot, sweep
from decoupled.core import console, files
from decoupled.core.machine import processor, usable_cores
from decoupled.data.vocabulary import Vocabulary
from decoupled.launch import gin_files, start
from decoupled.launch.steps import seconds_of_steps
from decoupled.reports.reproduction_data import (
    XTREME_TASK,
    Folders,
    check_installed,
    find_folders,
    make_data,
    vocabulary_file,
)
from decoupled.reports.results import Results
from decoupled.sweeps.jobs import RECORD, Inputs, Job, Row, describe
from decoupled.sweeps.rows import make_rows, read_model
from decoupled.sweeps.runner import JobRunner, show_failures
from decoupled.sweeps.study import Analysis, Study, larger, make_study_jobs

GIN_FILES = ["runs/sweep.gin", "sweeps/mini.gin", "sweeps/reproduce.gin"]
TABLES = ("table2", "table3", "table4", "table5", "table6")
SOURCE = "catalogs:django"
# Models of Table 9 and Figure 1; layers that are dropped at most.
E_OUT_ROWS = ("e_out_128", "e_out_768", "e_out_3072")
MOST_DROPPED = 2
# Fine-tuned after a single step of pre-training, too: what do scores owe to it?
CONTROL_ROWS = ("e_out_128",)
_LENGTH = (
    "ScheduleConfig.train_steps",
    "TrainingConfig.batch_size",
    "MaskingConfig.sequence_length",
)


class Options(NamedTuple):
    """Flags of `decoupled reproduce`, which tells what they mean."""

    work_dir: str
    document: str = "docs/reproduction.md"
    jobs: int = 1
    size: float = 1.0
    data_dir: str | None = None
    tatoeba_dir: str | None = None
    word_similarity_dir: str | None = None
    languages: Sequence[str] = ()
    gin_file: Sequence[str] = ()
    gin_param: Sequence[str] = ()
    gin_location_prefix: Sequence[str] = ()

    def folders(self) -> Folders:
        """Where the data lie; see `find_folders`."""
        given = self.data_dir, self.tatoeba_dir, self.word_similarity_dir
        return find_folders(self.work_dir, self.size, *given)


def reproduce(options: Options, arguments: Sequence[str]) -> bool:
    """Makes the data, runs the jobs, writes the document; False where a job failed.

    Args:
      options: the flags. arguments: of the command, as they were given.

    Raises:
      UserError: a setting is wrong, a package is missing, or the data cannot be made.
    """
    folders = options.folders()
    root = configure(options, folders)
    check_installed(folders)
    start.save_start(options.work_dir)
    make_data(folders, options.languages)
    jobs, rows = plan(root, folders, options.languages)
    describe(folders.runs, root.sweep, root.scale, "mini", rows, jobs)
    console.say("")
    console.say(announcement(jobs, options.jobs))
    failures = JobRunner(jobs, options.jobs, console.say).run()
    write(options, arguments)
    if failures:
        show_failures(failures, len(jobs))
    return not failures


def write(options: Options, arguments: Sequence[str]) -> None:
    """Writes the document from what is complete, and prints the verdicts.

    Args:
      options: the flags. arguments: of the command, as they were given.
    """
    # They load TensorFlow, which the parent of the jobs needs at the end alone.
    from decoupled.reports.finished_runs import read_reproduction
    from decoupled.reports.reproduction import write_document

    folders = options.folders()
    root = configure(options, folders)
    jobs, _ = plan(root, folders, options.languages)
    results = read_reproduction(folders.runs)
    complete = sum(job.is_complete() for job in jobs)
    seconds = results.seconds + sum(seconds_of_steps(options.work_dir).values())
    told = [
        f"    {shown_command(arguments)}",
        f"{datetime.date.today().isoformat()}, on {machine()}. {complete} of "
        f"{len(jobs)} jobs complete; their times add up to {duration(seconds)}, with "
        f"{options.jobs} at a time.",
    ]
    if complete < len(jobs):
        told.append("**Not everything is complete: what follows has gaps.**")
    told += [
        about_data(folders.text, [SOURCE, *(path for _, path in folders.dumps)]),
        about_scale(root.sweep, root.scale, results),
    ]
    limits = list(left_out(folders))
    claims = write_document(
        options.document, results, list(_paper_tables()), told, limits
    )
    console.say("")
    console.table(
        "The paper's claims at this scale",
        ["claim", "", "verdict"],
        [[str(one.claim.number), one.claim.text, one.verdict] for one in claims],
    )
    console.say(f"document: {options.document}")


def _paper_tables():
    from decoupled.reports.reproduction import PaperTable

    for name in TABLES:
        names = [*GIN_FILES[:2], f"sweeps/{name}.gin"]
        table = gin_files.configure(sweep, names, []).sweep
        yield PaperTable(table.title, table.rows)


def configure(options: Options, folders: Folders) -> SweepRoot:
    """The grid and the scale that the flags ask for, with the tasks at hand.

    Raises:
      UserError: a setting is wrong, or --size cannot be.
    """
    names = [*GIN_FILES, *options.gin_file]
    prefixes = options.gin_location_prefix
    root = gin_files.configure(sweep, names, options.gin_param, prefixes)
    grid, scale = larger(root.sweep, root.scale, options.size)
    if not folders.xtreme:
        others = tuple(task for task in grid.tasks if task != XTREME_TASK)
        grid = dataclasses.replace(grid, tasks=others)
    return SweepRoot(grid, scale)


def plan(
    root: SweepRoot, folders: Folders, languages: Sequence[str]
) -> tuple[list[Job], list[Row]]:
    """All jobs in their order, and the models of the sweep.

    Args:
      languages: for Figure 2, those of them that have pairs with English.

    Raises:
      UserError: there is no vocabulary yet, or a model cannot be scaled.
    """
    vocabulary = vocabulary_file(folders)
    rows = make_rows(root.sweep, root.scale, Vocabulary(vocabulary).size, read_model)
    inputs = Inputs(folders.records, vocabulary, _data_dirs(root.sweep, folders))
    study = Study(E_OUT_ROWS, MOST_DROPPED, CONTROL_ROWS, _analyses(folders, languages))
    return make_study_jobs(root.sweep, rows, inputs, folders.runs, study), rows


def _data_dirs(sweep, folders):
    messages = os.path.join(folders.corpus, "tasks")
    return {
        task: folders.xtreme if task == XTREME_TASK else messages
        for task in sweep.tasks
    }


def _analyses(folders, languages):
    paired = [
        language
        for language in languages
        if os.path.exists(os.path.join(folders.pairs, f"{language}-en.{language}"))
    ]
    analyses = {
        "neighbours": Analysis(
            (
                "--gin_file=runs/reproduce_neighbours.gin",
                f"--data_dir={folders.pairs}",
                f"--languages={','.join(paired)}",
            )
        ),
        "spectrum": Analysis(),
    }
    if folders.words:
        analyses["word_similarity"] = Analysis((f"--data_dir={folders.words}",))
    if folders.treebank:
        settings = ("--gin_file=runs/reproduce_probing.gin", "--variants=mix")
        given = (*settings, f"--data_dir={folders.edges}")
        analyses["probing"] = Analysis(given, E_OUT_ROWS)
    return analyses


def announcement(jobs: Sequence[Job], parallel: int) -> str:
    """How many jobs there are, and how long is left where complete ones tell."""
    left = [job for job in jobs if not job.is_complete()]
    seconds: dict[str, list[float]] = {}
    for job in jobs:
        if job not in left:
            seconds.setdefault(job.kind, []).append(_seconds(job))
    known = [value for values in seconds.values() for value in values]
    line = f"{len(jobs)} jobs, {len(left)} to do"
    if left and known:
        means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
        average = sum(known) / len(known)
        expected = sum(means.get(job.kind, average) for job in left) / parallel
        line += f"; about {duration(expected)} left"
    return line


def _seconds(job):
    return files.read_json(os.path.join(job.folder, RECORD)).get("seconds", 0.0)


def shown_command(arguments: Sequence[str]) -> str:
    """The command line that makes what a document tells of.

    Absolute paths come without the folders of this machine, and flags of the document
    itself not at all.
    """
    told = [_shorter(one) for one in arguments if not one.startswith("--document")]
    return shlex.join(["decoupled", "reproduce", *told])


def _shorter(argument):
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{_name(value)}" if os.path.isabs(value) else argument


def _name(path):
    return os.path.basename(os.path.normpath(path))


def about_data(corpus_dir: str, sources: Sequence[str]) -> str:
    """The text that is trained on: how much, in how many languages, from where."""
    manifest = files.read_json(os.path.join(corpus_dir, "manifest.json"))
    languages = manifest["splits"]["train"]
    sentences = sum(one["sentences"] for one in languages.values())
    characters = sum(one["characters"] for one in languages.values())
    return (
        f"Text: {sentences:,} sentences ({characters / 1e6:.1f} million characters) in "
        f"{len(languages)} languages, from {', '.join(map(_name, sources))}."
    )


def about_scale(sweep: SweepConfig, scale: ScaleConfig, results: Results) -> str:
    """Sizes of models, length of pre-training, and the share of the embeddings."""
    row = next(iter(results.rows.values()))
    text = (
        f"Models: the paper's with every width divided by {scale.width_divisor} and "
        f"every depth by {scale.depth_divisor} ({row.name}: H = "
        f"{row.model.hidden_size}, {row.model.num_layers} layers), a vocabulary of "
        f"{row.model.vocab_size:,} pieces."
    )
    settings = dict(param.split(" = ", 1) for param in sweep.pretraining)
    if all(name in settings for name in _LENGTH):
        steps, batch, length = (int(settings[name]) for name in _LENGTH)
        tokens = steps * batch * length
        text += (
            f" Pre-training: {steps:,} steps of {batch} sequences of {length} tokens, "
            f"{tokens:,} tokens; the paper's is 26 billion."
        )
    if "coupled" in results.rows:
        coupled = results.rows["coupled"]
        table = coupled.model.vocab_size * coupled.model.input_embedding_size
        text += (
            f" Word embeddings are {table / coupled.pretraining:.0%} of the coupled "
            "model; in multilingual BERT they are 52%."
        )
    return text


def left_out(folders: Folders) -> Iterator[str]:
    """What was left out or is other than in the paper."""
    if not folders.words:
        yield (
            "Table 8 and half of claim 6 are left out: no files of word similarity "
            "were given (--word_similarity_dir)."
        )
    if folders.pairs.startswith(folders.corpus):
        yield (
            "Figure 2 takes some 150 held-out messages for each language, and not "
            "5,000 sentences of news (--tatoeba_dir takes other pairs)."
        )
    if folders.treebank:
        name = os.path.basename(folders.treebank[0])
        yield f"Probes learn from {name}, two of the ten tasks of Table 9."
    else:
        yield (
            "Table 9 and a part of claim 7 are left out: no treebank was given "
            "(ud/ in --data_dir)."
        )
    yield (
        "The task `catalogs` asks from which part of a program a message comes, "
        "in all languages. There is no task of questions, where the paper finds its "
        "largest differences."
    )
    if folders.xtreme:
        yield "The task `udpos` is tested in the languages with test files."


def machine() -> str:
    """Cores, their model, and the version of Python."""
    version = platform.python_version()
    return f"{usable_cores()} cores ({processor().name}) with Python {version}"


def duration(seconds: float) -> str:
    """Hours and minutes, e.g. "1 h 05 min"."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
