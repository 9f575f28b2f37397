"""The data of a reproduction: where they lie, what a user gives, and what is made."""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.analyses.probing.conversion import CONVERTERS
from decoupled.analyses.probing.task_files import write_examples
from decoupled.core import files, installed, plots
from decoupled.core.errors import UserError
from decoupled.launch.steps import Step, run_step
from decoupled.reports.demo import corpus_step, records_step, vocabulary_step
from decoupled.runs import run_folder

# A task of XTREME that is cheap to train.
XTREME_TASK = "udpos"
PROBING_TASKS = ("pos", "dependencies")

_SPLITS = ("train", "dev", "test")
_DUMP = re.compile(r"([a-z]{2,3})wiki\b.*\.xml(\.bz2|\.gz)?")
_TREEBANK = re.compile(r"en_(\w+)-ud-(train|dev|test)\.conllu")


class Folders(NamedTuple):
    """Where everything lies below the working folder, and what the user gave.

    corpus: text, tasks and pairs of the catalogs. text: that is trained on. dumps:
    (language, path). pairs: folder of parallel files. words: folder of pairs of words,
    None without. xtreme: folder of XTREME's tasks, None without. treebank: files for
    training, dev and perhaps test of probes; empty without. edges: what is made of it.
    """

    corpus: str
    text: str
    vocabulary: str
    records: str
    runs: str
    dumps: list[tuple[str, str]]
    pairs: str
    words: str | None
    xtreme: str | None
    treebank: list[str]
    edges: str


def find_folders(
    work_dir: str,
    size: float,
    data_dir: str | None,
    tatoeba_dir: str | None,
    word_similarity_dir: str | None,
) -> Folders:
    """The folders of a reproduction.

    Args:
      work_dir: of everything that is made. size: multiple of the default's. data_dir:
        may hold wikipedia/, xtreme/, tatoeba_parallel/, word_similarity/ and ud/.
      tatoeba_dir, word_similarity_dir: instead of two of these.

    Raises:
      UserError: a folder that was given is not there.
    """
    given = {
        "data_dir": data_dir,
        "tatoeba_dir": tatoeba_dir,
        "word_similarity_dir": word_similarity_dir,
    }
    for name, folder in given.items():
        if folder and not os.path.isdir(folder):
            raise UserError(f"--{name}: no folder {folder}")
    corpus = _below(work_dir, "data", "corpus")
    dumps = _dumps(_there(data_dir, "wikipedia"))
    pairs = tatoeba_dir or _there(data_dir, "tatoeba_parallel")
    more = "_more" if dumps else ""
    times = "" if size == 1 else f"_{size:g}"
    xtreme = _there(data_dir, "xtreme")
    return Folders(
        corpus=corpus,
        text=_below(work_dir, "data", "text") if dumps else corpus,
        vocabulary=_below(work_dir, "data", f"vocabulary{more}"),
        records=_below(work_dir, "data", f"records{more}"),
        runs=_below(work_dir, f"runs{more}{times}"),
        dumps=dumps,
        pairs=pairs or os.path.join(corpus, "parallel"),
        words=word_similarity_dir or _there(data_dir, "word_similarity"),
        xtreme=xtreme if _there(xtreme, XTREME_TASK) else None,
        treebank=_treebank(_there(data_dir, "ud")),
        edges=_below(work_dir, "data", "edges"),
    )


def check_installed(folders: Folders) -> None:
    """Checks what some of the steps need, so that none of them ends an hour later.

    Raises:
      UserError: a package is missing. Without matplotlib a line says that there are no
        plots.
    """
    if folders.dumps:
        installed.need("mwparserfromhell", "sentencex", purpose="MediaWiki dumps")
    plots.can_draw()


def make_data(folders: Folders, languages: Sequence[str]) -> None:
    """Makes what is missing of corpus, vocabulary, records and files for probing.

    Raises:
      UserError: one of the commands fails.
    """
    work_dir = os.path.dirname(folders.runs)
    run_step(work_dir, corpus_step(",".join(languages), folders.corpus))
    if folders.dumps:
        run_step(work_dir, _dumps_step(folders))
    for step in (
        vocabulary_step("reproduce", folders.text, folders.vocabulary),
        records_step(folders.text, vocabulary_file(folders), folders.records),
    ):
        run_step(work_dir, step)
    make_edges(folders)


def vocabulary_file(folders: Folders) -> str:
    """The model of SentencePiece."""
    return os.path.join(folders.vocabulary, run_folder.VOCABULARY)


def _dumps_step(folders):
    """Messages that are not held out, and dumps."""
    path = os.path.join(folders.corpus, "manifest.json")
    messages = [
        (language, files.path_below(folders.corpus, file["name"], path))
        for language, content in files.read_json(path)["splits"]["train"].items()
        for file in content["files"]
    ]
    command = [
        *("decoupled", "build_corpus"),
        *(f"--input={language}={path}" for language, path in messages + folders.dumps),
        # Enough words to guess that models can be told apart by them.
        "--gin_param=build_corpus.eval_share = 0.05",
        f"--output_dir={folders.text}",
    ]
    return Step("add the text of the dumps", "text", command)


def make_edges(folders: Folders) -> None:
    """Makes the files for probing that are not there yet, if there is a treebank.

    Without a file for training, dev is trained on.

    Raises:
      UserError: a file of the treebank is malformed.
    """
    for task in PROBING_TASKS if folders.treebank else ():
        folder = files.make_folder(os.path.join(folders.edges, task))
        for split, path in zip(_SPLITS, folders.treebank, strict=False):
            made = os.path.join(folder, f"{split}.jsonl")
            if not files.exists(made):
                write_examples(made, CONVERTERS[task](path))


def _below(*names):
    return os.path.normpath(os.path.join(*names))


def _there(folder, name):
    path = os.path.join(folder or "", name)
    return path if folder and os.path.isdir(path) else None


def _dumps(folder):
    names = sorted(os.listdir(folder)) if folder else []
    found = [(_DUMP.fullmatch(name), name) for name in names]
    return [(match[1], os.path.join(folder, name)) for match, name in found if match]


def _treebank(folder):
    """Files of the first English treebank with two at least, train before dev."""
    found: dict[str, dict[str, str]] = {}
    for name in sorted(os.listdir(folder)) if folder else []:
        match = _TREEBANK.fullmatch(name)
        if match:
            found.setdefault(match[1], {})[match[2]] = os.path.join(folder, name)
    for splits in found.values():
        if len(splits) > 1:
            return [splits[name] for name in _SPLITS if name in splits]
    return []
