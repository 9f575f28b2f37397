"""The objects that are saved: modules with TF Hub's attributes and signatures.

A root is traced for dynamic shapes when it is made, so that the SavedModel does not
need this code.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
)
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary, WordPiece
from decoupled.exports.serving.encoder import (
    FEATURES,
    Classifier,
    Encoder,
    MaskedLm,
)

# Nothing here branches on a tensor; converting the Python code would double the time.
graph_function = functools.partial(tf.function, autograph=False)
# For functions that contain the network. They are not inlined: inlined constants would
# wait for the caller's inputs, and the graph rewriter of TF 2.15 does not fuse
# operations that wait.
network_function = functools.partial(
    graph_function, experimental_attributes={"_noinline": True}
)


def trace(function: Callable, *args: Any, **kwargs: Any) -> None:
    """Makes a `tf.function` ready for arguments of this kind."""
    function.get_concrete_function(*args, **kwargs)


def feature_spec(*more_features: str) -> dict[str, tf.TensorSpec]:
    """int32 [batch, length] specs of the encoder's inputs, and of `more_features`."""
    return {
        name: tf.TensorSpec([None, None], tf.int32, name=name)
        for name in FEATURES + more_features
    }


def only_tensors(outputs: dict) -> dict:
    """The outputs without a list, which a signature cannot return."""
    return {name: value for name, value in outputs.items() if name != "encoder_outputs"}


def graph_signature(call: Callable, *more_features: str) -> Callable:
    """A signature with named inputs around a callable that takes a dict."""

    @graph_function
    def signature(**inputs):
        return only_tensors(call(inputs))

    return signature.get_concrete_function(**feature_spec(*more_features))


class Root(tf.train.Checkpoint):
    """The attributes of every reusable SavedModel.

    The file of a vocabulary is an asset, which moves with the SavedModel.
    `regularization_losses` is empty: the optimizer does weight decay.
    """

    def __init__(self, *modules: tf.Module, vocabulary: Vocabulary | None = None):
        super().__init__()
        by_id = {id(v): v for module in modules for v in module.variables}
        self.variables = list(by_id.values())
        self.trainable_variables = [v for v in self.variables if v.trainable]
        self.regularization_losses = []
        if vocabulary:
            asset = tf.saved_model.Asset(vocabulary.path)
            if isinstance(vocabulary, WordPiece):
                self.wordpiece_file = asset
            else:
                self.sp_model_file = asset
            self.do_lower_case = tf.Variable(vocabulary.lower, trainable=False)


class MaskedLmRoot(Root):
    """The encoder's outputs and `mlm_logits` at `masked_lm_positions`."""

    def __init__(self, root: "EncoderRoot", encoder: Encoder, head: MaskedLm):
        super().__init__(encoder, head)
        # The traced encoder, so that its graph is saved once.
        self._encoder, self._head = root, head
        for training in (False, True):
            trace(self.__call__, feature_spec("masked_lm_positions"), training=training)

    @network_function
    def __call__(self, inputs, training=False):
        outputs = self._encoder(inputs, training)
        positions = inputs["masked_lm_positions"]
        return outputs | {
            "mlm_logits": self._head(outputs["sequence_output"], positions)
        }


class EncoderRoot(Root):
    """A TF Hub text encoder; has `mlm` if it is exported with its MLM head."""

    def __init__(self, encoder: Encoder, head: MaskedLm | None, vocabulary: Vocabulary):
        super().__init__(encoder, vocabulary=vocabulary)
        self._encoder = encoder
        for training in (False, True):
            trace(self.__call__, feature_spec(), training=training)
        if head is not None:
            self.mlm = MaskedLmRoot(self, encoder, head)

    @network_function
    def __call__(self, inputs, training=False):
        return self._encoder(inputs, training)

    def signatures(self) -> dict:
        signatures = {"serving_default": graph_signature(self.__call__)}
        if hasattr(self, "mlm"):
            signatures["mlm"] = graph_signature(
                self.mlm.__call__, "masked_lm_positions"
            )
        return signatures


class TaskRoot(Root):
    """A fine-tuned model of one of the kinds of `configs.finetuning`.

    Its outputs are the encoder's and those of its head. A classifier has `logits`,
    `probabilities` float32 [batch, labels] and `label` string [batch]; `default` is
    `logits`. A tagger has the same for every piece; the label of a word is that of its
    first. A regression has `value` float32 [batch], which is also `default`. A model
    that finds answers has `start_logits` and `end_logits` float32 [batch, length]: how
    likely each piece is to be the first and the last of the answer.

    `encoder` is the encoder alone, a TF Hub text encoder. `labels()` of classifiers and
    taggers are in the order of the logits. `predict` of classifiers and regressions
    gives the head's outputs only, and computes the last layer only at [CLS].
    """

    def __init__(
        self,
        kind: str,
        encoder: Encoder,
        head: Classifier,
        labels: Sequence[str],
        vocabulary: Vocabulary,
    ):
        super().__init__(encoder, head, vocabulary=vocabulary)
        self.encoder = EncoderRoot(encoder, None, vocabulary)
        self._kind, self._head, self._label_names = kind, head, tuple(labels)
        if labels:
            self.labels = graph_function(lambda: tf.constant(self._label_names))
            trace(self.labels)
        self._is_pooled = kind in (CLASSIFICATION, REGRESSION)
        for training in (False, True):
            trace(self.__call__, feature_spec(), training=training)
        if self._is_pooled:
            self.predict = network_function(
                lambda inputs: self._outputs(encoder.pooled_output(inputs))
            )
            trace(self.predict, feature_spec())

    @network_function
    def __call__(self, inputs, training=False):
        outputs = self.encoder(inputs, training)
        name = "pooled_output" if self._is_pooled else "sequence_output"
        return outputs | self._outputs(outputs[name])

    def _outputs(self, vectors: tf.Tensor) -> dict[str, tf.Tensor]:
        """The head's outputs of float32 [..., H]."""
        logits = self._head(vectors)
        if self._kind == REGRESSION:
            return {"value": logits[:, 0], "default": logits[:, 0]}
        if self._kind == QUESTION_ANSWERING:
            starts, ends = tf.unstack(logits, axis=-1)
            return {"start_logits": starts, "end_logits": ends}
        return {
            "logits": logits,
            "default": logits,
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(self.labels(), tf.argmax(logits, axis=-1)),
        }

    def signatures(self) -> dict:
        signatures = {"serving_default": graph_signature(self.__call__)}
        if self._is_pooled:
            signatures["predict"] = graph_signature(self.predict)
        return signatures


class SentenceVectors(NamedTuple):
    """How the vectors are made; see `RetrievalConfig`."""

    layer: int
    pool_special_tokens: bool


class SentenceRoot(Root):
    """Packed ids of one segment -> `sentence_vector` float32 [batch, H], which is also
    `default`."""

    def __init__(
        self, encoder: Encoder, pool_special_tokens: bool, vocabulary: Vocabulary
    ):
        super().__init__(encoder, vocabulary=vocabulary)
        self._encoder, self._pool_special_tokens = encoder, pool_special_tokens
        for training in (False, True):
            trace(self.__call__, feature_spec(), training=training)

    @network_function
    def __call__(self, inputs, training=False):
        states = self._encoder.hidden_states(inputs, training)[-1]
        mask = inputs["input_mask"]
        vector = mean_over_tokens(states, mask, self._pool_special_tokens)
        return {"sentence_vector": vector, "default": vector}

    def signatures(self) -> dict:
        return {"serving_default": graph_signature(self.__call__)}


def mean_over_tokens(
    states: tf.Tensor, mask: tf.Tensor, pool_special_tokens: bool
) -> tf.Tensor:
    """The mean of the vectors of each text's tokens, zeros if none is in the mean.

    `states` are float32 [batch, length, H], and `mask` is 1 for tokens. [CLS], the
    first, and [SEP], the last, are in it with `pool_special_tokens`.
    """
    if not pool_special_tokens:
        last_column = tf.reduce_sum(mask, axis=1, keepdims=True) - 1
        column = tf.range(tf.shape(mask)[1])[tf.newaxis, :]
        mask *= tf.cast((column > 0) & (column < last_column), mask.dtype)
    shares = tf.cast(mask, tf.float32)
    shares /= tf.maximum(tf.reduce_sum(shares, axis=1, keepdims=True), 1.0)
    return tf.einsum("blh,bl->bh", states, shares)
