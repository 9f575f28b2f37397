"""A fine-tuning task's files as examples and as features, tokenised once."""

import importlib.metadata
from typing import Any

import numpy as np

from decoupled import console, files
from decoupled.data.feature_cache import cached_features
from decoupled.data.vocabulary import Vocabulary

ENGLISH = "en"
SPLITS = ("dev", "test")
# Examples that become features together, between two lines of progress.
_CHUNK = 2000

Features = dict[str, np.ndarray]


class TaskData:
    """Reads a task's files and makes features of them.

    Args:
      task: a `decoupled.tasks.finetuning_task.FinetuningTask`.
      data_dir: the folder with a folder per task.
      vocabulary: of the model.
      cache: folder where features are kept.
    """

    def __init__(self, task: Any, data_dir: str, vocabulary: Vocabulary, cache: str):
        self.task = task
        self.data_dir = data_dir
        self.vocabulary = vocabulary
        self._cache = cache

    def languages(self, split: str) -> list[str]:
        """Languages that have a file of this split, English first."""
        return self.task.languages(self.data_dir, split)

    def has_english_dev(self) -> bool:
        """Whether checkpoints can be compared without a look at other languages."""
        return ENGLISH in self.languages("dev")

    def fingerprint(self, split: str, language: str) -> str:
        """SHA-256 of a file."""
        path = self.task.path(self.data_dir, split, language)
        return files.file_fingerprint(path)

    def examples(self, split: str, language: str) -> list[Any]:
        """What the task reads from a file."""
        return self.task.read(self.data_dir, split, language)

    def features(
        self, split: str, language: str, examples: list[Any], progress: bool = False
    ) -> Features:
        """The features of all examples of a file, from the cache where they are there.

        Args:
          split, language: of the file. examples: all that are in it.
          progress: whether the time left is shown, where they are not.
        """
        key = {
            "task": self.task.name,
            "split": split,
            "language": language,
            "settings": self.task.settings(),
            "file": self.fingerprint(split, language),
            "examples": len(examples),
            "vocabulary": self.vocabulary.fingerprint,
            # Another release may cut some texts otherwise.
            "sentencepiece": importlib.metadata.version("sentencepiece"),
        }
        return cached_features(
            self._cache, key, lambda: self._build(examples, progress), console.say
        )

    def for_graph(self, features: Features) -> Features:
        """Those features that the graph wants."""
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
