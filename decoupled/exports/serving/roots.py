"""The objects that are saved: modules with TF Hub's attributes and signatures.

A root is traced for dynamic shapes when it is made, so that the SavedModel does not
need this code.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from decoupled.core.release import tf
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


def feature_spec(*more: str) -> dict[str, tf.TensorSpec]:
    """int32 [batch, length] specs of the encoder's inputs, and of `more`."""
    return {
        name: tf.TensorSpec([None, None], tf.int32, name=name)
        for name in FEATURES + more
    }


def only_tensors(outputs: dict) -> dict:
    """The outputs without the list `encoder_outputs`; a signature returns tensors
    only."""
    return {name: value for name, value in outputs.items() if name != "encoder_outputs"}


def graph_signature(call: Callable, *more: str) -> Callable:
    """A signature with named inputs around a callable that takes a dict."""

    @graph_function
    def signature(**inputs):
        return only_tensors(call(inputs))

    return signature.get_concrete_function(**feature_spec(*more))


class Root(tf.train.Checkpoint):
    """The attributes of every reusable SavedModel.

    Attributes:
      variables, trainable_variables: lists of tf.Variable.
      regularization_losses: an empty list; the optimizer does weight decay.
      sp_model_file, do_lower_case: the vocabulary as an asset, and False; only if
        `vocabulary_path` is given.
    """

    def __init__(self, *modules: tf.Module, vocabulary_path: str = ""):
        super().__init__()
        unique = {id(v): v for module in modules for v in module.variables}
        self.variables = list(unique.values())
        self.trainable_variables = [v for v in self.variables if v.trainable]
        self.regularization_losses = []
        if vocabulary_path:
            self.sp_model_file = tf.saved_model.Asset(vocabulary_path)
            self.do_lower_case = tf.Variable(False, trainable=False)


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

    def __init__(self, encoder: Encoder, head: MaskedLm | None, vocabulary_path: str):
        super().__init__(encoder, vocabulary_path=vocabulary_path)
        self._encoder = encoder
        for training in (False, True):
            trace(self.__call__, feature_spec(), training=training)
        if head is not None:
            self.mlm = MaskedLmRoot(self, encoder, head)

    @network_function
    def __call__(self, inputs, training=False):
        return self._encoder(inputs, training)

    def signatures(self) -> dict:
        """`serving_default` and, with the MLM head, `mlm`."""
        signatures = {"serving_default": graph_signature(self.__call__)}
        if hasattr(self, "mlm"):
            signatures["mlm"] = graph_signature(
                self.mlm.__call__, "masked_lm_positions"
            )
        return signatures


class _TaskRoot(Root):
    """A fine-tuned model.

    Attributes:
      encoder: the encoder alone, a TF Hub text encoder.
    """

    def __init__(self, encoder: Encoder, head: Classifier, vocabulary_path: str):
        super().__init__(encoder, head, vocabulary_path=vocabulary_path)
        self.encoder = EncoderRoot(encoder, None, vocabulary_path)
        self._head = head

    def _trace(self, spec: dict[str, tf.TensorSpec]) -> None:
        for training in (False, True):
            trace(self.__call__, spec, training=training)

    def signatures(self) -> dict:
        """`serving_default`."""
        return {"serving_default": graph_signature(self.__call__)}


class _LabelRoot(_TaskRoot):
    """A model that gives labels.

    Attributes:
      labels: function without arguments -> string [labels], in the order of the logits.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Classifier,
        labels: Sequence[str],
        vocabulary_path: str,
    ):
        super().__init__(encoder, head, vocabulary_path)
        self._label_names = tuple(labels)
        trace(self.labels)

    @graph_function
    def labels(self):
        """string [labels]."""
        return tf.constant(self._label_names)

    def named(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits [..., labels], `default`, `probabilities` and `label` string [...]."""
        return {
            "logits": logits,
            "default": logits,
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(self.labels(), tf.argmax(logits, axis=-1)),
        }


class _PooledRoot(_TaskRoot):
    """A model whose head reads the pooled vector alone."""

    def __init__(self, encoder: Encoder, *arguments):
        super().__init__(encoder, *arguments)
        self._network = encoder
        self._trace(feature_spec())
        trace(self.predict, feature_spec())

    def _found(self, pooled: tf.Tensor) -> dict[str, tf.Tensor]:
        """The head's outputs of float32 [batch, H]."""
        raise NotImplementedError

    @network_function
    def __call__(self, inputs, training=False):
        outputs = self.encoder(inputs, training)
        return outputs | self._found(outputs["pooled_output"])

    @network_function
    def predict(self, inputs):
        """The head's outputs only; computes the last layer only at [CLS]."""
        return self._found(self._network.pooled_output(inputs))

    def signatures(self) -> dict:
        """`serving_default` and `predict`."""
        return super().signatures() | {"predict": graph_signature(self.predict)}


class ClassifierRoot(_PooledRoot, _LabelRoot):
    """A fine-tuned sequence classifier.

    Its outputs are the encoder's and `logits`, `probabilities` float32 [batch, labels]
    and `label` string [batch]; `default` is `logits`.
    """

    def _found(self, pooled):
        return self.named(self._head(pooled))


class RegressorRoot(_PooledRoot):
    """A fine-tuned regression.

    Its outputs are the encoder's and `value` float32 [batch], which is also `default`.
    """

    def _found(self, pooled):
        value = self._head(pooled)[:, 0]
        return {"value": value, "default": value}


class TaggerRoot(_LabelRoot):
    """A fine-tuned tagger.

    Its outputs are the encoder's and, at every piece, `logits`, `probabilities` float32
    [batch, length, labels] and `label` string [batch, length]. The label of a word is
    that of its first piece.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._trace(feature_spec())

    @network_function
    def __call__(self, inputs, training=False):
        outputs = self.encoder(inputs, training)
        return outputs | self.named(self._head(outputs["sequence_output"]))


class SpanRoot(_TaskRoot):
    """A model that finds answers.

    Its outputs are the encoder's and `start_logits`, `end_logits` float32 [batch,
    length]: how likely each piece is to be the first and the last of the answer.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._trace(feature_spec())

    @network_function
    def __call__(self, inputs, training=False):
        outputs = self.encoder(inputs, training)
        starts, ends = tf.unstack(self._head(outputs["sequence_output"]), axis=-1)
        return outputs | {"start_logits": starts, "end_logits": ends}
