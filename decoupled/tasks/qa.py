"""Extractive question answering: the answer to a question is a span of a text.

Windows are made in `decoupled.tasks.qa_features`; answers are chosen in
`decoupled.tasks.qa_answers`.
"""

import functools
import re
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from decoupled.configs import QuestionAnsweringConfig
from decoupled.configs.finetuning import AUTO
from decoupled.core import console, files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import quoted
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import Dims, labels_dim
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward, span_logits
from decoupled.model.layers import Builder
from decoupled.model.variables import SPANS
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.tasks.description import TaskDescription
from decoupled.tasks.qa_answers import scored_answers
from decoupled.tasks.qa_features import (
    FEATURES_VERSION,
    check_room,
    question_features,
)
from decoupled.tasks.qa_files import Question, read_questions
from decoupled.tasks.task import (
    Features,
    FinetuningTask,
    Task,
    example_layout,
    weighted_loss,
    with_weights,
)
from decoupled.xtreme.files import LanguageFile

_START, _END = 0, 1
# Subtracted from the logits of padding; far above the magnitude of any logit.
_FAR_BELOW = 1e9
# A translation of an answer may be longer than the English one.
_LONGER_THAN_IN_TRAINING = 1.5
# Words on either side of the span that are compared with the question.
_AROUND = 10
# A character of a script without spaces, or a word with its marks.
_WORD = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|\w[\w\u0300-\u036f\u0900-\u0dff]*"
)


class ExtractiveQA(Task):
    """Finds the first and last token of an answer (Devlin et al. 2019, section 4.2).

    Both are chosen among the tokens of the example; padding has no part in the loss.
    Position 0, that of [CLS], means that the window does not contain the answer.
    """

    metrics = {"span_accuracy": ("hits", "weight")}
    head = SPANS
    predicts_tokens = True

    def __init__(self, name: str, sequence_length: int, dropout: float):
        super().__init__(name, sequence_length, dropout)
        self._ends = labels_dim(SPANS.labels)

    def extra_dims(self) -> list[mtf.Dimension]:
        return [self._ends]

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        spans = [*self.example_dims(dims), self._ends]
        return {**example_layout(self, dims), "span_positions": spans}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Joins the positions, which become those of the packed row; adds weights."""
        features = dict(features)
        starts, ends = features.pop("start_positions"), features.pop("end_positions")
        if self.examples is not None:
            first = features["first_positions"]
            starts, ends = starts + first, ends + first
        features["span_positions"] = tf.stack([starts, ends], axis=-1)
        return with_weights(features, starts)

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        layers = encode(build, features)
        logits = span_logits(build, layers[-1], self._dropout)
        losses, correct = self._losses_of_tokens(build, features, logits)
        weights = features["example_weights"]
        losses = mtf.reduce_mean(losses, output_shape=weights.shape) * weights
        # Correct if start and end both are.
        correct = mtf.reduce_min(correct, output_shape=weights.shape) * weights
        predictions = {
            "start_logits": self._logits_of(_START, logits),
            "end_logits": self._logits_of(_END, logits),
        }
        scale = features["loss_scale"]
        return weighted_loss(losses, correct, weights, scale, predictions)

    def _losses_of_tokens(
        self, build: Builder, features: dict[str, mtf.Tensor], logits: mtf.Tensor
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """[..., labels] each. An example's softmax is over its tokens alone."""
        positions, sequence = features["span_positions"], build.dims.sequence
        mask = self._tokens_of_examples(build, features["input_mask"])
        logits = mtf.add(
            logits,
            (mask - 1.0) * _FAR_BELOW,
            output_shape=[*positions.shape.dims, sequence],
        )
        return softmax_cross_entropy(logits, positions, sequence)

    def _tokens_of_examples(self, build: Builder, mask: mtf.Tensor) -> mtf.Tensor:
        """1 at the tokens of an example: float32 [batch, sequence], or, of packed rows,
        [batch, examples, sequence]."""
        mask = mtf.cast(mask, tf.float32)
        if self.examples is None:
            return mask
        numbers = mtf.range(build.mesh, self.examples, tf.float32) + 1.0
        shape = [build.dims.batch, self.examples, build.dims.sequence]
        return mtf.cast(mtf.equal(numbers, mask, output_shape=shape), tf.float32)

    def _logits_of(self, end: int, logits: mtf.Tensor) -> mtf.Tensor:
        # A product with a one-hot: a split dimension of labels cannot be sliced.
        index = mtf.constant(logits.mesh, end, dtype=tf.int32)
        return mtf.einsum(
            [logits, mtf.one_hot(index, self._ends)],
            output_shape=[dim for dim in logits.shape.dims if dim != self._ends],
        )


class QuestionAnsweringTask(FinetuningTask):
    """The span of a text that answers a question; an answer is a text."""

    prediction_suffix = "json"
    graph_features = (
        "input_word_ids",
        "input_mask",
        "input_type_ids",
        "start_positions",
        "end_positions",
    )

    def __init__(
        self,
        description: TaskDescription,
        data_dir: str,
        max_sequence_length: int,
        config: QuestionAnsweringConfig,
    ):
        # XLM-R has one more, see `check_vocabulary`.
        check_room(max_sequence_length, config, special=3)
        settings = {
            "max_sequence_length": max_sequence_length,
            "max_question_length": config.max_question_length,
            "doc_stride": config.doc_stride,
            "version": FEATURES_VERSION,
        }
        super().__init__(description, data_dir, settings)
        self._length, self._config = max_sequence_length, config
        # Files whose repairs were reported; a file is read several times.
        self._noted_files: set[str] = set()

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        check_room(self._length, self._config, vocabulary.pairs.special)

    def read_file(self, path: str, language: str, split: str) -> list[Question]:
        """The questions; for training, only those whose context contains the answer."""
        file = LanguageFile(path, self.name, language)
        content = read_questions(file, ids_may_repeat=split == "train")
        examples = [q for q in content.questions if q.trained_answer]
        if not examples and split != "test":
            raise file.error("no question has an answer, which only tests may lack")
        unanswered_ids = [q.identifier for q in content.questions if not q.answers]
        is_partly_answered = 0 < len(unanswered_ids) < len(content.questions)
        if split == "dev" and unanswered_ids or split == "test" and is_partly_answered:
            raise file.error(
                f"question {quoted(unanswered_ids[0])} has no answer; only tests may "
                "lack answers, and then all of them"
            )
        notes = [content.repairs()] if content.repairs() else []
        if split == "train":
            lost_count = len(content.questions) - len(unanswered_ids) - len(examples)
            for count, reason in (
                (len(unanswered_ids), "have no answer"),
                (lost_count, "have no answer in the context"),
            ):
                if count:
                    notes.append(f"{count:,} questions {reason} and are left out")
        if notes and path not in self._noted_files:
            self._noted_files.add(path)
            console.say(f"{path}: {'; '.join(notes)}")
        return examples if split == "train" else content.questions

    def answer_settings(self) -> dict[str, Any]:
        return {
            "max_answer_length": self._config.max_answer_length,
            "max_characters": self._max_characters,
            "n_best": self._config.n_best,
        }

    @functools.cached_property
    def _max_characters(self) -> int | None:
        """The limit for a max_answer_length of "auto", from the longest answer."""
        if self._config.max_answer_length != AUTO:
            return None
        lengths = [len(a.text.strip()) for q in self.training for a in q.answers]
        return int(_LONGER_THAN_IN_TRAINING * max(lengths))

    @property
    def answer_limit(self) -> str:
        name = "QuestionAnsweringConfig.max_answer_length"
        if self._max_characters is None:
            return f"{self._config.max_answer_length} pieces ({name})"
        return (
            f"{self._max_characters} characters, {_LONGER_THAN_IN_TRAINING} times the "
            f"longest one in training ({name} = {AUTO!r})"
        )

    def share_beyond_limit(
        self, vocabulary: Vocabulary, examples: list[Question]
    ) -> float | None:
        """To count its pieces, an answer is encoded without its context."""
        texts = [[a.text.strip() for a in q.answers] for q in examples if q.answers]
        if not texts:
            return None
        all_texts = [text for answers in texts for text in answers]
        if self._max_characters is not None:
            limit, lengths = self._max_characters, map(len, all_texts)
        else:
            limit = self._config.max_answer_length
            lengths = map(len, vocabulary.encode_batch(all_texts))
        lengths = iter(lengths)
        shortest_lengths = [min(next(lengths) for _ in answers) for answers in texts]
        return sum(length > limit for length in shortest_lengths) / len(texts)

    def features(self, vocabulary: Vocabulary, examples: list[Question]) -> Features:
        return question_features(vocabulary, examples, self._length, self._config)

    def network(self, dropout: float) -> ExtractiveQA:
        return ExtractiveQA(self.name, self._length, dropout)

    def answers(
        self, examples: list[Question], features: Features, outputs: Features
    ) -> list[str]:
        logits = outputs["start_logits"], outputs["end_logits"]
        answers = scored_answers(
            examples, features, *logits, self._config, self._max_characters
        )
        return [answer.text for answer in answers]

    def score(
        self, language: str, examples: list[Question], answers: list[str]
    ) -> dict[str, float] | None:
        if not all(question.answers for question in examples):
            return None
        questions = [(q.identifier, [a.text for a in q.answers]) for q in examples]
        predictions = _by_identifier(examples, answers)
        return self.description.score(language, questions, predictions)

    def trivial_answers(self, examples: list[Question]) -> list[str]:
        """The words that are surrounded by most of the question's words."""
        length = usual_length(self.training)
        return [sliding_window_answer(question, length) for question in examples]

    def write(self, path: str, examples: list[Question], answers: list[str]) -> None:
        files.write_json(path, _by_identifier(examples, answers))

    def _find_files(self, split: str) -> dict[str, str]:
        """XTREME's script removes the answers from test files. If such a file is also
        the dev file, as in TyDi QA, there is no dev file."""
        paths = super()._find_files(split)
        if split != "dev":
            return paths
        test_paths = super()._find_files("test")
        return {
            language: path
            for language, path in paths.items()
            if test_paths.get(language) != path or self._has_answers(path, language)
        }

    def _has_answers(self, path, language):
        content = read_questions(LanguageFile(path, self.name, language))
        return any(question.answers for question in content.questions)


def _by_identifier(examples: list[Question], answers: list[str]) -> dict[str, str]:
    pairs = zip(examples, answers, strict=True)
    return {question.identifier: answer for question, answer in pairs}


def usual_length(questions: Iterable[Question]) -> int:
    """The median number of words of the answers; 1 where there are none."""
    lengths = [
        len(_WORD.findall(answer.text))
        for question in questions
        for answer in question.answers
    ]
    return max(1, round(statistics.median(lengths))) if lengths else 1


def sliding_window_answer(question: Question, length: int) -> str:
    """The span of `length` words that is surrounded by most of the question's words.

    The span contains no word of the question. The first of equally good spans is taken.
    This is the sliding window of Richardson et al. 2013 (MCTest), which is also the
    simplest baseline in SQuAD's paper, with all spans of one length instead of
    candidates.
    """
    words = list(_WORD.finditer(question.context))
    if not words:
        return ""
    length = min(length, len(words))
    question_words = {word.lower() for word in _WORD.findall(question.text)}
    is_shared = np.array([word.group().lower() in question_words for word in words])
    # How many of the first i words are words of the question, for every i.
    counts = np.concatenate([[0], np.cumsum(is_shared)])
    firsts = np.arange(len(words) - length + 1)
    begins = np.maximum(firsts - _AROUND, 0)
    ends = np.minimum(firsts + length + _AROUND, len(words))
    repeats_question = counts[firsts + length] - counts[firsts] > 0
    scores = np.where(repeats_question, -1, counts[ends] - counts[begins])
    first = int(scores.argmax())
    return question.context[words[first].start() : words[first + length - 1].end()]
