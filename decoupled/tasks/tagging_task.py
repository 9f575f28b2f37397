"""XTREME's tagging tasks for fine-tuning: parts of speech (udpos), entities (panx)."""

from collections import Counter, defaultdict
from typing import Any

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.tasks.finetuning_task import Features, FinetuningTask
from decoupled.tasks.tagged_sentences import (
    TaggedSentence,
    files_by_language,
    find_file,
    read_sentences,
)
from decoupled.tasks.tagging import Tagging
from decoupled.tasks.tagging_features import VERSION, tagging_features, word_tags
from decoupled.xtreme.files import PARTS_OF_SPEECH, LanguageFile
from decoupled.xtreme.official import TASKS, score_language

LABELS = {
    "udpos": tuple(PARTS_OF_SPEECH),
    "panx": ("B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O"),
}
_METRICS = {
    "udpos": ("f1", "precision", "recall", "accuracy", "f1_seqeval_1_2_2"),
    "panx": ("f1", "precision", "recall", "f1_strict_iob2"),
}
# [CLS], a piece, [SEP].
_SHORTEST = 3

Tags = list[str]


class TaggingTask(FinetuningTask):
    """UD-POS or PAN-X (Hu et al. 2020, XTREME). An answer is a list with a tag a word.

    Args:
      name: "udpos" or "panx".
      max_sequence_length: tokens of a row, [CLS] and [SEP] included.

    Raises:
      UserError: a row has no room for a piece.
    """

    graph_features = (
        "input_word_ids",
        "input_mask",
        "input_type_ids",
        "word_starts",
        "label_ids",
    )

    def __init__(self, name: str, max_sequence_length: int):
        if max_sequence_length < _SHORTEST:
            raise UserError(
                f"FinetuningConfig.max_sequence_length: {max_sequence_length} leaves "
                f"no room for text; {_SHORTEST} or more"
            )
        self.name = name
        self.labels = LABELS[name]
        self.metrics = _METRICS[name]
        self.headline = TASKS[name].headline
        self.prediction_suffix = TASKS[name].suffix
        self._length = max_sequence_length

    def languages(self, data_dir: str, split: str) -> list[str]:
        """The languages that have a file: English, XTREME's others, then the rest."""
        return list(files_by_language(self.name, data_dir, split))

    def path(self, data_dir: str, split: str, language: str) -> str:
        """`NAME/SPLIT-LANGUAGE.tsv`, or else what XTREME's preprocessing made of it."""
        return find_file(self.name, data_dir, split, language)

    def read(self, data_dir: str, split: str, language: str) -> list[TaggedSentence]:
        """The sentences; only those of test files may lack tags."""
        path = self.path(data_dir, split, language)
        return read_sentences(LanguageFile(path, self.name, language), split == "test")

    def settings(self) -> dict[str, Any]:
        """Length, labels and version of the features."""
        return {
            "max_sequence_length": self._length,
            "labels": list(self.labels),
            "version": VERSION,
        }

    def features(
        self, vocabulary: Vocabulary, examples: list[TaggedSentence]
    ) -> Features:
        """See `tagging_features`."""
        return tagging_features(vocabulary, examples, self.labels, self._length)

    def network(self, dropout: float, label_smoothing: float) -> Tagging:
        """The graph's side of the task."""
        return Tagging(self.name, self.labels, self._length, dropout, label_smoothing)

    def answers(
        self, examples: list[TaggedSentence], features: Features, outputs: Features
    ) -> list[Tags]:
        """The tags of all words, from `best_labels` int32 [rows, sequence_length]."""
        return word_tags(
            examples, features["word_starts"], outputs["best_labels"], self.labels
        )

    def score(
        self, language: str, examples: list[TaggedSentence], answers: list[Tags]
    ) -> dict[str, float] | None:
        """Metrics in percent, as XTREME's script has them; None without tags."""
        if any(sentence.tags is None for sentence in examples):
            return None
        labels = [sentence.tags for sentence in examples]
        return score_language(self.name, language, labels, answers)

    def trivial_answers(
        self, training: list[TaggedSentence], examples: list[TaggedSentence]
    ) -> list[Tags]:
        """A word's most frequent tag in training, or of new words that of all words.

        Of equally frequent ones it is the one that training has first.
        """
        by_word, overall = defaultdict(Counter), Counter()
        for sentence in training:
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                by_word[word][tag] += 1
                overall[tag] += 1
        default = overall.most_common(1)[0][0]
        best = {word: tags.most_common(1)[0][0] for word, tags in by_word.items()}
        return [[best.get(word, default) for word in s.words] for s in examples]

    def write(
        self, path: str, examples: list[TaggedSentence], answers: list[Tags]
    ) -> None:
        """Writes a tag a line and an empty line after each sentence."""
        lines = (f"{tag}\n" for tags in answers for tag in [*tags, ""])
        files.write_text(path, "".join(lines))
