"""From raw strings to the encoder's inputs and outputs, in the graph.

Attributes, names and defaults follow TF Hub's "common SavedModel APIs for text tasks".
The SavedModels need `import tensorflow_text` before they are loaded.
"""

from collections.abc import Callable, Sequence

from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.roots import (
    EncoderRoot,
    Root,
    TaskRoot,
    graph_function,
    only_tensors,
    trace,
)

Inputs = dict[str, tf.Tensor]

_SENTENCES = tf.TensorSpec([None], tf.string, name="sentences")
_SECOND_SENTENCES = tf.TensorSpec([None], tf.string, name="second_sentences")


def trace_texts(function: Callable, segments: Sequence[int], *training: bool) -> None:
    """Traces a function of `sentences`, or of them and `second_sentences`, or of both.

    A loaded model refuses whatever fits none of its traces.
    """
    for option in [{"training": value} for value in training] or [{}]:
        if 1 in segments:
            trace(function, _SENTENCES, **option)
        if 2 in segments:
            trace(function, _SENTENCES, second_sentences=_SECOND_SENTENCES, **option)


def texts_of(
    sentences: tf.Tensor, second_sentences: tf.Tensor | None
) -> list[tf.Tensor]:
    """One or two lists of texts, string [batch]; fails where their lengths differ."""
    if second_sentences is None:
        return [sentences]
    check = tf.debugging.assert_equal(
        tf.size(second_sentences),
        tf.size(sentences),
        "second_sentences: not as many as sentences",
    )
    with tf.control_dependencies([check]):
        return [tf.identity(sentences), tf.identity(second_sentences)]


def share_budget(lengths: list[tf.Tensor], budget: tf.Tensor | int) -> list[tf.Tensor]:
    """How many tokens of one or two segments are kept, int [batch] each.

    Two segments share the budget equally, the first gets the odd token, and what one
    does not need goes to the other: the result of BERT's "cut the longest first".
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], budget)]
    first, second = lengths
    half = budget - budget // 2
    kept_first = tf.minimum(first, tf.maximum(half, budget - second))
    return [kept_first, tf.minimum(second, budget - kept_first)]


def checked_utf8(sentences: tf.Tensor) -> tf.Tensor:
    """The same strings; fails if one is not UTF-8, which would lose its bytes."""
    decoded_texts = tf.strings.unicode_transcode(sentences, "UTF-8", "UTF-8")
    is_valid = tf.reduce_all(tf.equal(sentences, decoded_texts))
    check = tf.debugging.Assert(is_valid, ["sentences: a text is not UTF-8; decode it"])
    with tf.control_dependencies([check]):
        return tf.identity(sentences)


class Tokenize(Root):
    """string [batch] -> RaggedTensor int32 [batch, (tokens)], without specials."""

    def __init__(self, tokenizer, vocabulary: Vocabulary):
        super().__init__()
        self._tokenizer = tokenizer
        self._special_tokens = {
            "vocab_size": vocabulary.size,
            "start_of_sequence_id": vocabulary.cls_id,
            "end_of_segment_id": vocabulary.sep_id,
            "padding_id": vocabulary.pad_id,
            "mask_id": vocabulary.mask_id,
        }
        trace(self.__call__, _SENTENCES)
        trace(self.get_special_tokens_dict)

    @graph_function
    def __call__(self, sentences):
        return self._tokenizer.tokenize(checked_utf8(sentences))

    @graph_function
    def get_special_tokens_dict(self) -> dict[str, tf.Tensor]:
        return {
            name: tf.constant(value, tf.int32)
            for name, value in self._special_tokens.items()
        }


class BertPackInputs(Root):
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut and padded to one length.

    XLM-R has a second [SEP] between A and B, and one type. Segments that are too long
    are cut at their ends, see `share_budget`.
    """

    def __init__(self, vocabulary: Vocabulary, sequence_length: int):
        super().__init__()
        self._vocabulary = vocabulary
        self._sequence_length = sequence_length
        lengths = (tf.TensorSpec([], tf.int32, name="seq_length"), sequence_length)
        for ragged_rank in (1, 2):
            spec = tf.RaggedTensorSpec(
                [None] * (ragged_rank + 1), tf.int32, ragged_rank=ragged_rank
            )
            for num_segments in (1, 2):
                for length in lengths:
                    trace(self.__call__, [spec] * num_segments, seq_length=length)

    @graph_function
    def __call__(self, inputs, seq_length=None) -> Inputs:
        """Packs int32 [batch, (tokens)] or [batch, (words), (tokens)], one or two, to
        `input_word_ids`, `input_mask`, `input_type_ids`, int32 [batch, seq_length].
        """
        length = self._sequence_length if seq_length is None else seq_length
        return self._pack(inputs, length)

    def _pack(self, inputs: list[tf.RaggedTensor], length: tf.Tensor | int) -> Inputs:
        segments = [_join_words(s) if s.ragged_rank == 2 else s for s in inputs]
        pairs = self._vocabulary.pairs
        extra_separators = (len(segments) - 1) * (pairs.separators - 1)
        budget = length - len(segments) - 1 - extra_separators
        tf.debugging.assert_non_negative(
            budget, message="seq_length: no room for [CLS] and [SEP]"
        )
        lengths = [tf.cast(s.row_lengths(), tf.int32) for s in segments]
        counts = share_budget(lengths, budget)
        column = tf.range(length)[tf.newaxis, :]
        ids = tf.where(column == 0, self._vocabulary.cls_id, self._vocabulary.pad_id)
        types = tf.zeros_like(column)
        start = tf.ones_like(counts[0])[:, tf.newaxis]
        for index, (segment, count) in enumerate(zip(segments, counts, strict=True)):
            end = start + count[:, tf.newaxis]
            is_token = (column >= start) & (column < end)
            ids = tf.where(is_token, _tokens_at(segment, column - start, length), ids)
            last_column = end + extra_separators * (1 - index)
            is_separator = (column >= end) & (column <= last_column)
            ids = tf.where(is_separator, self._vocabulary.sep_id, ids)
            segment_type = index * pairs.second_type
            is_segment = (column >= start) & (column <= last_column)
            types = tf.where(is_segment, segment_type, types)
            start = last_column + 1
        return {
            "input_word_ids": ids,
            "input_mask": tf.cast(column < start, tf.int32),
            "input_type_ids": types,
        }


def _join_words(words: tf.RaggedTensor) -> tf.RaggedTensor:
    """[batch, (words), (tokens)] -> [batch, (tokens)], without `merge_dims`' checks."""
    splits = tf.gather(words.values.row_splits, words.row_splits)
    return tf.RaggedTensor.from_row_splits(words.flat_values, splits, validate=False)


def _tokens_at(
    segment: tf.RaggedTensor, position: tf.Tensor, length: tf.Tensor | int
) -> tf.Tensor:
    """The tokens at `position` [batch, length], if there are any."""
    # Dense arithmetic, because graphs with ragged slicing take seconds to load.
    dense = segment.to_tensor(shape=tf.stack([-1, length]))
    return tf.gather(dense, tf.maximum(position, 0), batch_dims=1)


class Preprocessor(Root):
    """Strings to packed inputs, and the two steps by themselves.

    `segments` says how many texts an input may have: (1,), or (1, 2).
    """

    def __init__(
        self, vocabulary: Vocabulary, sequence_length: int, segments: Sequence[int]
    ):
        super().__init__(vocabulary=vocabulary)
        self._segments = tuple(segments)
        self.tokenize = Tokenize(vocabulary.tokenizer(), vocabulary)
        self.bert_pack_inputs = BertPackInputs(vocabulary, sequence_length)
        trace_texts(self.__call__, self._segments)

    @graph_function
    def __call__(self, sentences, second_sentences=None) -> Inputs:
        texts = texts_of(sentences, second_sentences)
        return self.bert_pack_inputs([self.tokenize(text) for text in texts])

    def signatures(self) -> dict:
        return text_signatures(self.__call__, self._segments)


def text_signatures(
    call: Callable,
    segments: Sequence[int],
    name: str = "serving_default",
    pair_name: str = "sentence_pairs",
) -> dict:
    """Signatures over a callable that takes strings and returns a dict.

    A model of pairs alone has both names, which are then equal.
    """

    @graph_function(input_signature=[_SENTENCES])
    def of_sentences(sentences):
        return only_tensors(call(sentences))

    @graph_function(input_signature=[_SENTENCES, _SECOND_SENTENCES])
    def of_pairs(sentences, second_sentences):
        return only_tensors(call(sentences, second_sentences=second_sentences))

    signatures = {name: of_sentences if 1 in segments else of_pairs}
    return signatures | ({pair_name: of_pairs} if 2 in segments else {})


def trim(inputs: Inputs) -> Inputs:
    """Removes columns that are padding in every row, so that short texts cost less."""
    length = tf.reduce_max(tf.reduce_sum(inputs["input_mask"], axis=1))
    length = tf.maximum(length, 1)  # the maximum over no rows is the least integer
    return {name: value[:, :length] for name, value in inputs.items()}


class TextRoot(Root):
    """The model's outputs, and its packed inputs, for a batch of strings.

    Sequences are padded to the longest text of the batch, at most to the length of the
    preprocessor.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        model: EncoderRoot | TaskRoot,
        segments: Sequence[int],
        vocabulary: Vocabulary,
    ):
        super().__init__(vocabulary=vocabulary)
        self.variables = list(model.variables)
        self.trainable_variables = list(model.trainable_variables)
        self.preprocessor, self.model = preprocessor, model
        self._segments = tuple(segments)
        trace_texts(self.__call__, self._segments, False, True)
        if hasattr(model, "predict"):
            trace_texts(self.predict, self._segments)

    @graph_function
    def __call__(self, sentences, training=False, second_sentences=None):
        inputs = self._inputs_of(sentences, second_sentences)
        return self.model(inputs, training) | inputs

    @graph_function
    def predict(self, sentences, second_sentences=None):
        return self.model.predict(self._inputs_of(sentences, second_sentences))

    def _inputs_of(self, sentences, second_sentences):
        return trim(self.preprocessor(sentences, second_sentences))

    def signatures(self) -> dict:
        signatures = text_signatures(self.__call__, self._segments)
        if hasattr(self.model, "predict"):
            names = ("predict", "predict_pairs")
            signatures |= text_signatures(self.predict, self._segments, *names)
        return signatures
