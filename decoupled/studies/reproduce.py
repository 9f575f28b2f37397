"""A reproduction from its flags to its document: data, checks, jobs, results."""

import os
import platform
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from decoupled import configs
from decoupled.core import console, files, installed, plots
from decoupled.core.errors import UserError, close_names
from decoupled.core.machine import processor, usable_cores
from decoupled.launch import gin_files, start
from decoupled.launch.supervision import seconds_of_steps
from decoupled.studies.claims import MEASURES, RULES, Contrast
from decoupled.studies.data import (
    LANGUAGES,
    Folders,
    check_source,
    check_test_files,
    choose_languages,
    describe_text,
    find_folders,
    make_data,
    omissions,
)
from decoupled.studies.jobs import check_jobs, finetuning_settings, seed_of
from decoupled.studies.runner import JobRunner, show_failures
from decoupled.studies.study_jobs import StudyJobs, sized, step_factor, train_steps

if TYPE_CHECKING:
    from decoupled.studies.study import EarlierStudy

GIN_FILES = ["sweeps/reproduce.gin"]
DESCRIPTION = "reproduction.json"
# The most parallel jobs by default; each takes about 1 GB of memory.
_MOST_JOBS = 4


class Options(NamedTuple):
    """The flags of `decoupled reproduce`, which documents them."""

    work_dir: str
    document: str = "docs/reproduction/results.md"
    jobs: int = 0
    size: float = 1.0
    data_dir: str | None = None
    languages: Sequence[str] = LANGUAGES
    gin_file: Sequence[str] = ()
    gin_param: Sequence[str] = ()
    gin_location_prefix: Sequence[str] = ()
    rates: bool = False
    measured: str | None = None

    def folders(self, text: Sequence[str] = ()) -> Folders:
        """The folders of the data; see `find_folders`."""
        factor = step_factor(self.size)
        runs = "runs" if factor == 1 else f"runs_{factor:g}"
        return find_folders(self.work_dir, self.data_dir, runs, text)

    def parallel(self) -> int:
        """The number of parallel jobs: the given one, or one per core."""
        return self.jobs or min(usable_cores(), _MOST_JOBS)


def run(options: Options, arguments: Sequence[str]) -> bool:
    """Makes the data, runs the jobs, writes the page; False if a job failed.

    Raises:
      UserError: a setting is wrong, a package is missing, or the data cannot be made.
    """
    root = configure(options)
    folders = options.folders(root.study.text)
    start.keep_settings()
    start.save_start(options.work_dir)
    if not folders.is_parallel:
        installed.need("django", "polib", purpose="the text")
    languages = choose_languages(folders, options.languages)
    make_data(folders, languages, root.study.text, root.study.pieces)
    maker, _ = plan(root, folders, options.measured)
    jobs = maker.rates() if options.rates else maker.all()
    if options.rates and not jobs:
        raise UserError("--rates: StudyConfig.tried_rates has no rate to try")
    if not options.rates:
        check_test_files(maker.tasks)
    plots.can_draw()
    for sentence in omissions(
        folders, options.languages, maker.pieces, root.sweep.tasks
    ):
        console.say(sentence)
    console.say("")
    seeds = dict.fromkeys(str(seed_of(job.name)) for job in jobs)
    console.say(f"{len(jobs)} jobs; seeds: {', '.join(seeds) or 'none'}")
    failures = JobRunner(jobs, options.parallel()).run()
    if len(failures) < len(jobs) or not jobs:
        write(options, arguments)
    if failures:
        show_failures(failures, len(jobs))
    return not failures


def write(options: Options, arguments: Sequence[str]) -> None:
    """Writes the page and its files from the complete jobs, and prints the verdicts.

    Raises:
      UserError: the data do not exist yet, or the files of a finished job are damaged.
    """
    root = configure(options)
    folders = options.folders(root.study.text)
    maker, earlier_study = plan(root, folders, options.measured)
    # Imported here: they load TensorFlow, which this process needs only at the end.
    from decoupled.studies.study import load, read_study, save
    from decoupled.studies.study_page import write_page

    facts = {
        "command": document_command(arguments),
        **facts_of(maker),
        "machine": machine(),
        "seconds": sum(filter(None, seconds_of_steps(folders.work_dir).values())),
        "left_out": omissions(
            folders, options.languages, maker.pieces, root.sweep.tasks
        ),
    }
    study, item_sums, curves = read_study(maker, facts, earlier_study)
    if not study.numbers:
        raise UserError(
            f"{folders.work_dir}: no job of this study is complete, as where a folder "
            f"was moved or named in other words; {options.document} stays as it is"
        )
    folder = files.make_folder(os.path.splitext(options.document)[0])
    save(study, item_sums, folder)
    # From the files, so that the page never has more than these.
    verdicts = write_page(options.document, load(folder), curves)
    console.say("")
    console.table(
        "Verdicts",
        ["", "claim", "verdict", "not measured"],
        [
            [*claim.title(), claim.verdict, ", ".join(claim.missing())]
            for claim in verdicts
        ],
    )
    console.say(f"document: {options.document}")


def configure(options: Options) -> configs.ReproductionRoot:
    """The settings for the flags.

    Raises:
      UserError: a setting is wrong, or --size is impossible.
    """
    names = [*GIN_FILES, *options.gin_file]
    prefixes = options.gin_location_prefix
    params = options.gin_param
    root = gin_files.configure(configs.ReproductionRoot, names, params, prefixes)
    root.check()
    study = root.study
    for claim, texts in study.claims.items():
        if not texts:
            raise UserError(f"StudyConfig.claims: no contrast decides {claim!r}")
        for text in texts:
            if not _contrast(text, root).rule:
                raise UserError(
                    f"StudyConfig.claims: {text!r} of {claim!r} has no rule; end it "
                    f"with one of {', '.join(RULES)}"
                )
    for text in (*study.sensitivity.values(), *study.secondary):
        _contrast(text, root)
    if not os.path.splitext(options.document)[1]:
        raise UserError(
            f"--document={options.document}: end it with .md; the folder of that name "
            "is for the page's files"
        )
    return sized(root, options.size)


def _contrast(text: str, root: configs.ReproductionRoot) -> Contrast:
    """A contrast of known rows on a known measure."""
    contrast = Contrast.read(text)
    for name, names, where in (
        (contrast.measure, MEASURES, "measures"),
        *((row, root.known_rows(), "SweepConfig.models") for row in contrast.weights),
    ):
        if name not in names:
            raise UserError(
                f"StudyConfig: {text!r}: {name} is not among {where}"
                f"{close_names(name, names)}"
            )
    return contrast


def facts_of(maker: StudyJobs) -> dict[str, Any]:
    """The text of a study, and the settings of its pre-training.

    "steps" are those of the rows that train for longest.
    """
    training = maker.training()
    return {
        "training": training,
        "finetuning": finetuning_settings(maker.sweep),
        "text": describe_text(maker.folders),
        "steps": max(map(train_steps, training.values())),
        "activation_dtype": maker.activation_dtype,
    }


def plan(
    root: configs.ReproductionRoot, folders: Folders, measured_folder: str | None = None
) -> tuple[StudyJobs, "EarlierStudy | None"]:
    """The maker of all jobs, and the earlier study of `measured_folder`.

    Raises:
      UserError: the data do not exist or are not those of the flags, a job would refuse
        a setting, or as `read_published` and `check_published`.
    """
    if not files.exists(folders.vocabulary):
        raise UserError(
            f"{folders.work_dir}: no data here yet; run the command without "
            "--document_only"
        )
    check_source(folders)
    dtype = activation_dtype(folders.work_dir)
    maker = StudyJobs(root, folders, dtype)
    check_jobs([*maker.all(), *maker.rates()])
    if not measured_folder:
        return maker, None
    # Imported here: it loads TensorFlow.
    from decoupled.studies.study import check_published, read_published

    rows = {row.name: row for row in maker.rows}
    earlier_study = read_published(measured_folder, rows)
    check_published(earlier_study, facts_of(maker))
    return StudyJobs(root, folders, dtype, earlier_study.study.rows), earlier_study


def activation_dtype(work_dir: str) -> str:
    """The dtype of activations in pre-training, the same for the whole study.

    It is bfloat16 if the processor that begins the study can multiply in bfloat16. It
    is saved in work_dir/reproduction.json, so that a study that continues on another
    machine keeps its dtype.
    """
    path = os.path.join(work_dir, DESCRIPTION)
    if not files.exists(path):
        has_bfloat16 = processor().multiplies_bfloat16()
        content = {"activation_dtype": "bfloat16" if has_bfloat16 else "float32"}
        files.write_json(path, content)
    return files.read_json(path)["activation_dtype"]


def document_command(arguments: Sequence[str]) -> str:
    """The command line of the study, as the document shows it.

    Without the folders of this machine, and without flags of the document itself.
    """
    words = [
        _shorter(argument)
        for argument in arguments
        if not argument.startswith("--document")
    ]
    return shlex.join(["decoupled", "reproduce", *words])


def _shorter(argument):
    flag, equals, value = argument.rpartition("=")
    name = os.path.basename(os.path.normpath(value))
    return f"{flag}{equals}{name}" if os.path.isabs(value) else argument


def machine() -> str:
    """Cores, their model, and the version of Python."""
    version = platform.python_version()
    return f"{usable_cores()} cores ({processor().name}) with Python {version}"
