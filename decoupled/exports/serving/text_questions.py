"""From questions and contexts to answers: windows, model and choice in one graph.

The answer is the likeliest of all windows of a question, as in `tasks.qa_answers`.
"""

from typing import NamedTuple

from decoupled.configs import QuestionAnsweringConfig
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.question_windows import (
    Characters,
    ContextPieces,
    Windows,
    character_class,
    characters,
    question_windows,
)
from decoupled.exports.serving.roots import Root, SpanRoot, graph_function, trace
from decoupled.tasks.qa_answers import CLOSING_SIGNS, PARTNERS

# Windows that run at once, so that a long context does not need memory for all of it.
_WINDOWS_AT_ONCE = 32

_STRINGS = [
    tf.TensorSpec([None], tf.string, name=name) for name in ("questions", "contexts")
]
_LOWEST = float("-inf")
# The last code point that is white space.
_LAST_SPACE = 0x3000


class TextQuestionsRoot(Root):
    """Answers questions about texts of any length.

    A context that does not fit into one window is cut into overlapping windows. The
    windows and the choice of the answer are the same as in the evaluation of
    fine-tuning.

    Args:
      model: the model for ids.
      vocabulary: of the model.
      sequence_length: tokens of a window.
      settings: of windows and answers.
      max_characters: most characters of an answer, instead of a number of pieces.
    """

    def __init__(
        self,
        model: SpanRoot,
        vocabulary: Vocabulary,
        sequence_length: int,
        settings: QuestionAnsweringConfig,
        max_characters: int | None = None,
    ):
        super().__init__(vocabulary_path=vocabulary.path)
        self.variables = list(model.variables)
        self.trainable_variables = list(model.trainable_variables)
        self.model = model
        self._tokenizer = vocabulary.tokenizer()
        self._vocabulary, self._length = vocabulary, sequence_length
        self._settings, self._max_characters = settings, max_characters
        self._context_pieces = ContextPieces(vocabulary, self._tokenizer)
        self._trim = Trim()
        trace(self.__call__, *_STRINGS)

    @graph_function
    def __call__(self, questions, contexts):
        """Answers a question about each context.

        Args:
          questions, contexts: string [batch], UTF-8.

        Returns:
          `answer` string [batch], cut from the original context; `start`, `end` int64
          [batch], its characters (code points) in the context; `start_byte`, `end_byte`
          int64 [batch], its bytes; `score` float32 [batch], the sum of the logits of
          its first and last piece. A context without text has the answer "" and the
          score -inf.
        """
        batch = tf.size(contexts, tf.int64)
        asked = tf.size(questions, tf.int64)
        # The plain operation: `tf.debugging.Assert` adds a branch, and beside the loop
        # below the graph rewriter warns of branches.
        as_many = tf.raw_ops.Assert(
            condition=asked == batch,
            data=["questions: there are not as many as contexts", asked, batch],
        )
        with tf.control_dependencies([as_many]):
            questions, contexts = tf.identity(questions), tf.identity(contexts)
        text = characters(contexts)
        windows = question_windows(
            self._vocabulary,
            self._tokenizer.tokenize(questions),
            self._context_pieces(contexts, text),
            self._length,
            self._settings,
        )
        logits = self._logits(windows.packed)
        spans = best_spans(
            windows, *logits, batch, self._settings, self._max_characters
        )
        start, end = self._trim(spans, text)
        return self._described(contexts, text, start, end) | {"score": spans.score}

    def _logits(self, packed: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Logits of starts and ends, [windows, length] each, some windows at a time."""
        count = tf.shape(packed["input_mask"])[0]
        blocks = tf.maximum(-(-count // _WINDOWS_AT_ONCE), 1)
        arrays = [
            tf.TensorArray(tf.float32, blocks, infer_shape=False) for _ in range(2)
        ]

        def run(block, starts, ends):
            rows = slice(block * _WINDOWS_AT_ONCE, (block + 1) * _WINDOWS_AT_ONCE)
            outputs = self.model({name: x[rows] for name, x in packed.items()})
            starts = starts.write(block, outputs["start_logits"])
            return block + 1, starts, ends.write(block, outputs["end_logits"])

        _, *arrays = tf.while_loop(
            lambda block, *_: block < blocks, run, [tf.constant(0), *arrays]
        )
        return [array.concat() for array in arrays]

    def _described(
        self, contexts: tf.Tensor, text: Characters, start: tf.Tensor, end: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """The outputs for the answers at the characters [start, end) of all texts."""
        firsts = text.splits[:-1]
        # The last character of a context is followed by the first of the next context.
        sizes = tf.cast(tf.strings.length(contexts), tf.int64)
        offsets = tf.concat([text.offsets, [0]], axis=0)
        behind = end == text.splits[1:]
        start_byte = tf.where(start < end, tf.gather(offsets, start), 0)
        end_byte = tf.where(behind, sizes, tf.gather(offsets, end))
        end_byte = tf.where(start < end, end_byte, 0)
        return {
            "answer": tf.strings.substr(contexts, start_byte, end_byte - start_byte),
            "start": tf.where(start < end, start - firsts, 0),
            "end": tf.where(start < end, end - firsts, 0),
            "start_byte": start_byte,
            "end_byte": end_byte,
        }

    def signatures(self) -> dict:
        """`serving_default` (questions, contexts)."""

        @graph_function(input_signature=_STRINGS)
        def serving_default(questions, contexts):
            return self(questions, contexts)

        return {"serving_default": serving_default}


class Spans(NamedTuple):
    """Answers before they are trimmed, one for each question.

    start, end: int64 [batch], characters of the contexts. head_end: end of the first
    piece. tail_start: start of the last piece. score: float32 [batch], the sum of two
    logits. If the context has no text, the score is -inf and the span is empty.
    """

    start: tf.Tensor
    end: tf.Tensor
    head_end: tf.Tensor
    tail_start: tf.Tensor
    score: tf.Tensor


def best_spans(
    windows: Windows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    batch: tf.Tensor,
    settings: QuestionAnsweringConfig,
    max_characters: int | None = None,
) -> Spans:
    """The best span of the best window of each question.

    Args:
      windows: of `batch` questions.
      start_logits, end_logits: float32 [windows, length].
      batch: int64, the number of questions.
      settings: of the task.
      max_characters: most characters of an answer, instead of a number of pieces.
    """
    has_text = windows.ends > windows.starts
    starts = tf.where(has_text, start_logits, _LOWEST)
    limits = tf.where(has_text, end_logits, _LOWEST)
    first, last, scores = _best_of_windows(
        starts, limits, windows, settings, max_characters
    )
    owner, rows = windows.question, tf.range(tf.size(scores, tf.int64))
    # A maximum over a segment is never less than this.
    finite = tf.maximum(scores, tf.float32.min)
    best = tf.gather(tf.math.unsorted_segment_max(finite, owner, batch), owner)
    # The first of equally good windows.
    candidates = tf.where(finite == best, rows, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(candidates, owner, batch)
    score = tf.gather(scores, chosen)
    found = tf.math.is_finite(score)

    def at(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        values = tf.gather(values, chosen)
        value = tf.gather(values, tf.gather(places, chosen), batch_dims=1)
        return tf.where(found, value, 0)

    return Spans(
        at(windows.starts, first),
        at(windows.ends, last),
        at(windows.ends, first),
        at(windows.starts, last),
        score,
    )


def _best_of_windows(
    starts: tf.Tensor,
    limits: tf.Tensor,
    windows: Windows,
    settings: QuestionAnsweringConfig,
    max_characters: int | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(first piece, last piece, score) of each window; see `tasks.qa_answers`."""
    may_be_middle = windows.may_be_middle
    length = tf.shape(starts)[1]
    count = tf.minimum(settings.n_best, length)
    first_scores, firsts = tf.math.top_k(starts, count)
    last_scores, lasts = tf.math.top_k(limits, count)
    sums = first_scores[:, :, tf.newaxis] + last_scores[:, tf.newaxis, :]
    begin, end = firsts[:, :, tf.newaxis], lasts[:, tf.newaxis, :]
    if max_characters is None:
        sizes, most = end - begin + 1, settings.max_answer_length
    else:
        sizes = tf.gather(windows.ends, lasts, batch_dims=1)[:, tf.newaxis, :]
        sizes -= tf.gather(windows.starts, firsts, batch_dims=1)[:, :, tf.newaxis]
        most = max_characters
    possible = (end >= begin) & (sizes <= most)
    possible &= tf.gather(may_be_middle, (begin + end + 1) // 2, batch_dims=1)
    sums = tf.reshape(tf.where(possible, sums, _LOWEST), [-1, count * count])
    best = tf.argmax(sums, axis=1, output_type=tf.int32)
    # If no pair is possible, the best single piece is the answer.
    singles = tf.where(may_be_middle, starts + limits, _LOWEST)
    single = tf.argmax(singles, axis=1, output_type=tf.int32)
    score = tf.gather(sums, best, batch_dims=1)
    found = tf.math.is_finite(score)
    return (
        tf.where(found, tf.gather(firsts, best // count, batch_dims=1), single),
        tf.where(found, tf.gather(lasts, best % count, batch_dims=1), single),
        tf.where(found, score, tf.gather(singles, single, batch_dims=1)),
    )


class Trim:
    """As `tasks.qa_answers.trim`, for a batch of spans."""

    def __init__(self):
        spaces = (c for c in range(_LAST_SPACE + 1) if chr(c).isspace())
        self._is_space = character_class(list(spaces))
        self._is_closing_sign = character_class(sorted(map(ord, set(CLOSING_SIGNS))))
        self._opening = tf.constant([ord(sign) for sign in PARTNERS], tf.int32)
        self._closing = tf.constant([ord(sign) for sign in PARTNERS.values()], tf.int32)

    def __call__(self, spans: Spans, text: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """int64 [batch] each: the characters [start, end) that are the answer."""
        lengths = spans.end - spans.start
        longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        columns = tf.range(longest)[tf.newaxis, :]
        inside = columns < lengths[:, tf.newaxis]
        codes = tf.concat([text.codes, [0]], axis=0)
        places = tf.where(inside, spans.start[:, tf.newaxis] + columns, 0)
        codes = tf.where(inside, tf.gather(codes, places), 0)
        begin, end = self._trimmed(
            codes, spans.head_end - spans.start, spans.tail_start - spans.start, lengths
        )
        return spans.start + begin, spans.start + end

    def _trimmed(
        self, codes: tf.Tensor, head: tf.Tensor, tail: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(begin, end) among the columns of `codes`; head and tail are columns, too."""
        filled = ~self._is_space(codes)
        end = self._without_closing_signs(codes, filled, tail, end)
        begin = _first(filled, tf.zeros_like(end), end)
        tail = tf.maximum(tail, begin)
        opening = self._partner(codes, begin, end, self._opening, self._closing)
        closing = self._partner(codes, end - 1, end, self._closing, self._opening)
        last = _code_at(codes, end - 1)
        may_open = (opening > 0) & _any(filled, begin + 1, tf.minimum(head, end))
        may_close = (closing > 0) & _any(filled, tail, end - 1)
        encloses = may_open & may_close & (opening == last)
        closed = _any(codes == opening[:, tf.newaxis], begin, end)
        begin += tf.cast(encloses | (may_open & ~closed), tf.int64)
        opened = _any(codes == closing[:, tf.newaxis], begin, end)
        end -= tf.cast(encloses | (may_close & ~opened), tf.int64)
        tail = tf.maximum(tail, begin)
        end = self._without_closing_signs(codes, filled, tail, end)
        begin = _first(filled, begin, end)
        return begin, _last(filled, begin, end)

    def _without_closing_signs(
        self, codes: tf.Tensor, filled: tf.Tensor, tail: tf.Tensor, end: tf.Tensor
    ) -> tf.Tensor:
        kept = _last(~self._is_closing_sign(codes), tail, end)
        return tf.where(_any(filled, tail, kept), kept, end)

    def _partner(
        self,
        codes: tf.Tensor,
        place: tf.Tensor,
        end: tf.Tensor,
        signs: tf.Tensor,
        partners: tf.Tensor,
    ) -> tf.Tensor:
        """The partner of the bracket at a column before `end`, or 0."""
        code = _code_at(codes, place)
        same = (code[:, tf.newaxis] == signs) & ((place >= 0) & (place < end))[:, None]
        return tf.reduce_sum(tf.where(same, partners, 0), axis=1)


def _code_at(codes: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """The code point at a column, or at the nearest column if there is none."""
    longest = tf.shape(codes, tf.int64)[1]
    return tf.gather(codes, tf.clip_by_value(place, 0, longest - 1), batch_dims=1)


def _within(begin: tf.Tensor, end: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    columns = tf.range(tf.shape(mask, tf.int64)[1])
    return (columns >= begin[:, tf.newaxis]) & (columns < end[:, tf.newaxis]) & mask


def _any(mask: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """bool [batch]: whether any column of [begin, end) is set."""
    return tf.reduce_any(_within(begin, end, mask), axis=1)


def _first(mask: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """The first column of [begin, end) that is set; `end` if none is."""
    columns = tf.range(tf.shape(mask, tf.int64)[1])
    found = tf.where(_within(begin, end, mask), columns, tf.int64.max)
    return tf.minimum(tf.reduce_min(found, axis=1), end)


def _last(mask: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """The column after the last one of [begin, end) that is set; `begin` if none is."""
    columns = tf.range(tf.shape(mask, tf.int64)[1])
    found = tf.where(_within(begin, end, mask), columns + 1, 0)
    return tf.maximum(tf.reduce_max(found, axis=1), begin)
