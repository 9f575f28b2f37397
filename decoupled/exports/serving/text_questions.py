"""Questions and contexts in, answers out: windows, model and choice in one graph."""

from decoupled.configs import QuestionAnsweringConfig
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.answer_spans import Trim, best_spans
from decoupled.exports.serving.question_windows import (
    ContextPieces,
    characters,
    question_windows,
)
from decoupled.exports.serving.roots import Root, SpanRoot, graph_function, trace

# Windows that run at once, so that a long context does not need memory for all of it.
_WINDOWS_AT_ONCE = 32

_STRINGS = [
    tf.TensorSpec([None], tf.string, name=name) for name in ("questions", "contexts")
]


class TextQuestionsRoot(Root):
    """Answers questions about texts of any length.

    A context that does not fit into one window is cut into overlapping ones. Windows,
    and the choice of the answer, are those of the evaluation of fine-tuning.

    Args:
      model: as saved by itself.
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
          `answer` string [batch], cut from the context as it is; `start`, `end` int64
          [batch], its characters (code points) in the context; `start_byte`, `end_byte`
          int64 [batch], its bytes; `score` float32 [batch], the sum of the logits of
          its first and last piece. A context without text has the answer "" and the
          score -inf.
        """
        batch = tf.size(contexts, tf.int64)
        asked = tf.size(questions, tf.int64)
        # The plain operation: a guard around it is a branch, which the rewriter of
        # graphs warns of beside the loop below.
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

    def _logits(self, packed):
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

    def _described(self, contexts, text, start, end):
        """The answers between the characters [start, end) of all texts, as text."""
        firsts = text.splits[:-1]
        # Behind the last character of a context the first of the next one begins.
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
