"""The paper's tables and figures at a small scale, on real text, with verdicts.

Builds a corpus from the message catalogs of installed packages, a vocabulary and
records; pre-trains every model of Tables 2 to 6 with three seeds, every width divided
by 8 and every depth by 4; fine-tunes them on English and tries them in all languages;
fine-tunes three of them without their last layers (Figure 1); measures word similarity
(Table 8), translation by nearest neighbours (Figure 2), what probes find in frozen
layers (Table 9) and the spectrum of the embeddings; and fine-tunes one of them after a
single step of pre-training, as a control. Writes a document with every table and
figure, the published numbers beside ours, and for each of the paper's claims whether it
is supported, with paired differences over seeds. No download; one to two hours on two
cores.

  decoupled reproduce --work_dir=reproduction

Killed at any time and started again, it goes on: complete jobs are not repeated. One
that fails does not stop the rest and is named at the end, with code 1.
--document_only writes the document from what is complete.

--data_dir is a folder that may hold
  wikipedia/         dumps like enwiki-*.xml.bz2: more text
  xtreme/udpos/      XTREME's parts of speech: a second task
  tatoeba_parallel/  XX-en.en and XX-en.XX: pairs for Figure 2, else held-out messages
  word_similarity/   men.tsv and others: Table 8, else left out
  ud/                en_*-ud-dev.conllu and others: Table 9, else left out

--size=2 doubles steps and widths; --gin_param='SweepConfig.seeds = (0, 1, 2, 3, 4)'
adds seeds to those that are complete.
"""

import dataclasses
import datetime
import os
import shlex
import sys

from absl import flags

from decoupled.configs import SweepRoot, sweep
from decoupled.core import console, files, installed, locks
from decoupled.core.processes import command_line
from decoupled.launch import gin_files, start
from decoupled.launch.supervision import SECONDS, run_step
from decoupled.reports.reproduction_inputs import (
    XTREME_TASK,
    Folders,
    find_folders,
    make_edges,
)
from decoupled.runs import run_folder

GIN_FILES = ["runs/sweep.gin", "sweeps/mini.gin", "sweeps/reproduce.gin"]
TABLES = ("table2", "table3", "table4", "table5", "table6")
SOURCE = "catalogs:django"
# Models of Table 9 and Figure 1; layers that are dropped at most.
E_OUT_ROWS = ("e_out_128", "e_out_768", "e_out_3072")
MOST_DROPPED = 2
# Fine-tuned after a single step of pre-training, too: what do scores owe to it?
CONTROL_ROWS = ("e_out_128",)
# Of the catalogs and of Figure 2: few enough for each to get its share of an hour.
LANGUAGES = "en,de,nl,sv,nb,da,fr,es,it,pt,pl,ru"


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("work_dir", "reproduction", "Folder for everything made.")
    flags.DEFINE_string("document", "docs/reproduction.md", "Markdown file to write.")
    flags.DEFINE_integer("jobs", 1, "Jobs that run at a time.", lower_bound=1)
    flags.DEFINE_float("size", 1.0, "Multiplies steps, and widths from 2 on.")
    flags.DEFINE_string("data_dir", None, "Folder of more data, see above.")
    flags.DEFINE_string("tatoeba_dir", None, "In the place of DATA/tatoeba_parallel.")
    flags.DEFINE_string(
        "word_similarity_dir", None, "In the place of DATA/word_similarity."
    )
    flags.DEFINE_list("languages", LANGUAGES, "Of the messages and of Figure 2.")
    flags.DEFINE_bool("document_only", False, "Write the document, run nothing.")


def main() -> None:
    """Makes the data, runs the jobs, writes the document."""
    installed.need("django", "polib", purpose="the text and the task")
    if flags.FLAGS.document_only:
        _reproduce()
        return
    with locks.hold(flags.FLAGS.work_dir):
        _reproduce()


def _reproduce():
    from decoupled.sweeps.runner import Runner, show_failures

    options = flags.FLAGS
    folders = find_folders(
        options.work_dir,
        options.size,
        options.data_dir,
        options.tatoeba_dir,
        options.word_similarity_dir,
    )
    root = configure(options, folders)
    if not options.document_only:
        check_installed(folders)
        start.save_start(options.work_dir)
        make_data(folders, options.languages)
    jobs, rows = plan(root, folders, options.languages)
    failures = []
    if not options.document_only:
        from decoupled.sweeps.grid import describe

        describe(folders.runs, root.sweep, root.scale, "mini", rows, jobs)
        console.say("")
        console.say(announcement(jobs, options.jobs))
        failures = Runner(jobs, options.jobs, console.say).run()
    write_document(options.document, root, folders, jobs, options.jobs)
    if failures:
        show_failures(failures, len(jobs))
        sys.exit(1)


def configure(options: flags.FlagValues, folders: Folders) -> SweepRoot:
    """The grid and the scale that the flags ask for, with the tasks at hand.

    Raises:
      UserError: a setting is wrong, or --size cannot be.
    """
    from decoupled.sweeps.study import larger

    names = [*GIN_FILES, *options.gin_file]
    prefixes = options.gin_location_prefix
    root = gin_files.configure(sweep, names, options.gin_param, prefixes)
    grid, scale = larger(root.sweep, root.scale, options.size)
    if not folders.xtreme:
        others = tuple(task for task in grid.tasks if task != XTREME_TASK)
        grid = dataclasses.replace(grid, tasks=others)
    return SweepRoot(grid, scale)


def check_installed(folders: Folders) -> None:
    """Checks what some of the steps need, so that none of them ends an hour later.

    Raises:
      UserError: a package is missing. Without matplotlib a line says that there are no
        plots.
    """
    from decoupled.core import plots

    if folders.dumps:
        installed.need("mwparserfromhell", "sentencex", purpose="MediaWiki dumps")
    plots.can_draw()


def make_data(folders: Folders, languages: list[str]) -> None:
    """Makes what is missing of corpus, vocabulary, records and files for probing.

    Raises:
      UserError: one of the commands fails.
    """
    work_dir = os.path.dirname(folders.runs)
    _run(
        work_dir,
        "corpus",
        "collect human-translated interface messages",
        [
            "build_corpus",
            f"--source={SOURCE}",
            f"--languages={','.join(languages)}",
            f"--output_dir={folders.corpus}",
        ],
    )
    if folders.dumps:
        inputs = [*_message_files(folders.corpus), *folders.dumps]
        _run(
            work_dir,
            "text",
            "add the text of the dumps",
            [
                "build_corpus",
                *(f"--input={language}={path}" for language, path in inputs),
                # Enough words to guess that models can be told apart by them.
                "--gin_param=build_corpus.eval_share = 0.05",
                f"--output_dir={folders.text}",
            ],
        )
    _run(
        work_dir,
        "vocabulary",
        "train a vocabulary that all languages share",
        [
            "build_vocabulary",
            "--gin_file=runs/reproduce_vocabulary.gin",
            f"--corpus_dir={folders.text}",
            f"--output_dir={folders.vocabulary}",
        ],
    )
    _run(
        work_dir,
        "records",
        "encode the text",
        [
            "build_records",
            f"--corpus_dir={folders.text}",
            f"--vocabulary={os.path.join(folders.vocabulary, run_folder.VOCABULARY)}",
            f"--output_dir={folders.records}",
        ],
    )
    make_edges(folders)


def _message_files(corpus):
    """(language, file) of the messages that are not held out."""
    path = os.path.join(corpus, "manifest.json")
    languages = files.read_json(path)["splits"]
    for language, content in languages["train"].items():
        for file in content["files"]:
            yield language, files.path_below(corpus, file["name"], path)


def _run(work_dir, name, title, arguments):
    """Runs a step of making data."""
    command = ["decoupled", *arguments]
    console.say(f"\n{title}\n$ {shlex.join(command)}")
    run_step(work_dir, name, command_line(*command))


def plan(root: SweepRoot, folders: Folders, languages: list[str]) -> tuple[list, list]:
    """All jobs in their order, and the models of the sweep.

    Args:
      languages: for Figure 2, those of them that have pairs with English.

    Raises:
      UserError: there is no vocabulary yet, or a model cannot be scaled.
    """
    from decoupled.data.vocabulary import Vocabulary
    from decoupled.sweeps.grid import make_rows, read_model
    from decoupled.sweeps.jobs import Inputs
    from decoupled.sweeps.study import Study, make_study_jobs

    vocabulary = os.path.join(folders.vocabulary, run_folder.VOCABULARY)
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
    from decoupled.sweeps.study import Analysis

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


def announcement(jobs: list, parallel: int) -> str:
    """How many jobs there are, and how long is left where complete ones tell."""
    from decoupled.reports import reproduction_facts as facts

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
        line += f"; about {facts.duration(expected)} left"
    return line


def _seconds(job):
    from decoupled.sweeps.jobs import RECORD

    return files.read_json(os.path.join(job.folder, RECORD)).get("seconds", 0.0)


def write_document(
    path: str, root: SweepRoot, folders: Folders, jobs: list, parallel: int
) -> None:
    """Writes the document from what is complete, and prints the verdicts.

    Args:
      path: of the document. root, folders, jobs: of the reproduction. parallel: jobs
        that ran at a time.
    """
    from decoupled.reports import reproduction_document as document
    from decoupled.reports import reproduction_facts as facts
    from decoupled.reports.reproduction_results import read_evidence

    evidence = read_evidence(folders.runs)
    complete = sum(job.is_complete() for job in jobs)
    known = document.Facts(
        command=facts.command("reproduce", sys.argv[2:]),
        machine=facts.machine(),
        date=datetime.date.today().isoformat(),
        duration=facts.duration(evidence.seconds + _data_seconds(folders)),
        complete=complete,
        jobs=len(jobs),
        parallel=parallel,
        paragraphs=[
            facts.data(folders.text, [SOURCE, *(path for _, path in folders.dumps)]),
            facts.scale(root.sweep, root.scale, evidence),
        ],
        missing=list(facts.missing(folders)),
    )
    claims = document.write_document(path, evidence, list(_paper_tables()), known)
    console.say("")
    console.table(
        "The paper's claims at this scale",
        ["claim", "", "verdict"],
        [[str(claim.number), claim.text, claim.verdict] for claim in claims],
    )
    console.say(f"document: {path}")


def _paper_tables():
    from decoupled.reports.reproduction_document import PaperTable

    for name in TABLES:
        names = [*GIN_FILES[:2], f"sweeps/{name}.gin"]
        table = gin_files.configure(sweep, names, []).sweep
        yield PaperTable(table.title, table.rows)


def _data_seconds(folders):
    path = os.path.join(os.path.dirname(folders.runs), SECONDS)
    return sum(files.read_json(path).values()) if files.exists(path) else 0.0
