"""A fine-tuning task's files as examples and as features, tokenised once.

The cache of features is one file of arrays for each key, FOLDER/DIGEST.npz. DIGEST is a
hash of the key: all that the features depend on. The file holds the key, too. A damaged
file is replaced, and a line says so.
"""

import importlib.metadata
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoupled.core import console, files, gfile, hosts
from decoupled.core.errors import Mistakes, UserError
from decoupled.core.made_from import hash_files
from decoupled.corpora.locales import ENGLISH
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs.run_folder import SPLITS
from decoupled.tasks.qa_files import Question
from decoupled.tasks.task import Features, FinetuningTask
from decoupled.xtreme import official

# Examples that are turned into features at once, between two progress lines.
_CHUNK = 2000
# Not the name of a feature.
_KEY = "__key__"


def cached_features(
    folder: str,
    key: dict[str, Any],
    build: Callable[[], Features],
    say: Callable[[str], None],
) -> Features:
    """The features of `key`: read from `folder`, or else built and stored there.

    `key` has all that they depend on, as JSON. What `build` returned comes back bit for
    bit. Processes may share a folder, even while they write.
    """
    path, text = cache_path(folder, key), _canonical(key)
    if files.exists(path):
        try:
            features = files.read_arrays(path)
            if features.pop(_KEY, "") == text:
                return features
            problem = "made of other inputs than its name says"
        except UserError:
            problem = "damaged"
        say(f"{path}: {problem}; these features are built anew")
    _make_folder(folder)
    features = build()
    _store(path, {**features, _KEY: np.array(text)}, say)
    return features


# A process finds features that another has just stored, or builds them itself.
@hosts.only_first
def _make_folder(folder):
    files.make_folder(folder)


@hosts.only_first
def _store(path, arrays, say):
    try:
        files.write_arrays(path, arrays)
    except gfile.OpError as error:
        say(
            f"{path}: cannot write ({files.reason(error)}); the next start builds "
            "these features anew"
        )


def cache_path(folder: str, key: dict[str, Any]) -> str:
    """The file of a key."""
    return os.path.join(folder, files.fingerprint(_canonical(key))[:32] + ".npz")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


class TaskData:
    """Reads a task's files and makes features of them, which `cache` keeps.

    source, source_name: the language by whose dev file checkpoints are chosen.
    trained_on: the names of all training languages.

    Args:
      splits: of `files_to_answer`.
      type_vocab_size: type embeddings of the model; pairs and questions may need two.
    """

    def __init__(
        self,
        task: FinetuningTask,
        vocabulary: Vocabulary,
        cache: str,
        splits: Sequence[str] = SPLITS,
        type_vocab_size: int = 2,
    ):
        self.task = task
        self.source = task.training_languages[0]
        self.source_name = "English" if self.source == ENGLISH else self.source
        other_languages = task.training_languages[1:]
        self.trained_on = ", ".join([self.source_name, *other_languages])
        self.vocabulary = vocabulary
        self._cache, self._splits = cache, splits
        self._has_pairs = vocabulary.pairs.second_type < type_vocab_size

    def has_source_dev(self) -> bool:
        return self.source in self.task.languages("dev")

    def files_to_answer(self) -> list[tuple[str, str]]:
        """The splits and languages of the files that are evaluated and predicted."""
        splits = [split for split in SPLITS if split in self._splits]
        names = [
            (split, name) for split in splits for name in self.task.languages(split)
        ]
        if not names:
            patterns = self.task.description.files
            sought_names = dict.fromkeys(patterns[split][0] for split in splits)
            raise UserError(
                f"{self.task.data_dir}: holds no {' or '.join(splits)} file of "
                f"{self.task.name} in any language, as {', '.join(sought_names)}"
            )
        return names

    def say_what_is_missing(self) -> None:
        """Which files are missing for the selection of checkpoints and for XTREME's
        score."""
        name = self.task.name
        if not self.has_source_dev():
            console.say(
                f"{name}: no {self.source_name} dev file with labels; the last "
                "checkpoint is selected"
            )
        if name not in official.TASKS:
            return
        languages = self.task.languages("test")
        others = [x for x in languages if not official.is_official(name, x)]
        if others:
            console.say(
                f"{name}: {', '.join(others)}: not among XTREME's languages of the "
                "task; evaluated, and in no mean"
            )
        missing = [x for x in official.TASKS[name].languages if x not in languages]
        if languages and missing and "test" in self._splits:
            console.say(
                f"{name}: no test file of {', '.join(missing)}; XTREME's score of the "
                "task needs all of them"
            )

    def hashes(self, names: list[tuple[str, str]]) -> dict[str, str]:
        """Name below the data folder -> SHA-256, for splits and languages."""
        paths = [
            path
            for name in names
            for path in (*self.task.paths(*name), *self.task.indexes(*name))
        ]
        return hash_files(paths, self.task.data_dir)

    def fingerprint(self, split: str, language: str) -> str:
        """SHA-256 of a file; for several files, of their fingerprints."""
        hashes = [
            files.file_fingerprint(path) for path in self.task.paths(split, language)
        ]
        return hashes[0] if len(hashes) == 1 else files.fingerprint("\n".join(hashes))

    def check(self, training: list[Any], names: list[tuple[str, str]]) -> None:
        """Reads files, so that a malformed one ends a run before its first step; all
        such files are named.

        It also says how many right answers are longer than the task's answers can be.
        One file is in memory at a time, and no features are made.
        """
        shares = {f"train {self.source}": self._share_beyond_limit(training)}
        mistakes = Mistakes()
        for split, language in console.track(names, f"reading {self.task.name}"):
            with mistakes.noted():
                share = self._share_beyond_limit(self.examples(split, language))
                shares[f"{split} {language}"] = share
        mistakes.raise_all()
        if limit := self.task.answer_limit:
            console.say(f"{self.task.name}: {_limit_in_words(limit, shares)}")

    def _share_beyond_limit(self, examples):
        return self.task.share_beyond_limit(self.vocabulary, examples)

    def examples(self, split: str, language: str) -> list[Any]:
        examples = self.task.read(split, language)
        if not self._has_pairs and any(map(_has_two_texts, examples)):
            raise UserError(
                f"{self.task.paths(split, language)[0]}: holds pairs of "
                "texts, or questions, but the model has one type embedding; pre-train "
                "it with ModelConfig.type_vocab_size = 2"
            )
        return examples

    def features(
        self, split: str, language: str, examples: list[Any], progress: bool = False
    ) -> Features:
        """The features of all examples of a file, from the cache if it has them."""
        key = {
            "task": self.task.name,
            "split": split,
            "language": language,
            "settings": self.task.settings(),
            "file": self.fingerprint(split, language),
            # What was read from the file; another version may read it differently.
            "examples": files.fingerprint(repr(examples)),
            "vocabulary": self.vocabulary.fingerprint,
            # Another release may tokenise some texts differently.
            "sentencepiece": importlib.metadata.version("sentencepiece"),
        }
        return cached_features(
            self._cache, key, lambda: self._build(examples, progress), console.say
        )

    def for_graph(self, features: Features) -> Features:
        return {name: features[name] for name in self.task.graph_features}

    def _build(self, examples, progress):
        starts = range(0, len(examples), _CHUNK)
        if progress:
            starts = console.track(starts, f"tokenising, {_CHUNK:,} examples each")
        parts = []
        for start in starts:
            part = self.task.features(self.vocabulary, examples[start : start + _CHUNK])
            part["example_index"] = part["example_index"] + np.int32(start)
            parts.append(part)
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _has_two_texts(example: Any) -> bool:
    texts = getattr(example, "texts", ())
    return len(texts) > 1 or isinstance(example, Question)


def _limit_in_words(limit: str, shares: dict[str, float | None]) -> str:
    known_shares = {name: share for name, share in shares.items() if share is not None}
    long_answers = [f"{n} {share:.2%}" for n, share in known_shares.items() if share]
    start = f"an answer has at most {limit}; "
    if not long_answers:
        return f"{start}no right answer is longer"
    other_count = len(known_shares) - len(long_answers)
    ending = f"; none in the other files ({other_count})" if other_count else ""
    return f"{start}longer right answers are lost: {', '.join(long_answers)}{ending}"
