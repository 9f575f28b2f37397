"""Preprocessor and encoder or classifier in one: raw strings in, vectors out."""

from decoupled.core.release import tf
from decoupled.exports.serving.preprocessor import Packed, Preprocessor, text_signatures
from decoupled.exports.serving.roots import (
    ClassifierRoot,
    EncoderRoot,
    Root,
    graph_function,
    trace,
)


def trim(packed: Packed) -> Packed:
    """Cuts columns that are padding in every row: short texts cost less."""
    longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], axis=1))
    longest = tf.maximum(longest, 1)  # the maximum over no rows is the least integer
    return {name: value[:, :longest] for name, value in packed.items()}


class TextRoot(Root):
    """The model's outputs, and its packed inputs, for a batch of strings.

    Sequences are as long as the longest text of the batch, at most the length that the
    preprocessor was made for. `input_word_ids` and `input_mask` among the outputs tell
    which position holds which piece.

    Args:
      preprocessor, model: as saved by themselves.
      pairs: whether two segments are possible (the model has two type embeddings).
      vocabulary_path: of the asset.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        model: EncoderRoot | ClassifierRoot,
        pairs: bool,
        vocabulary_path: str,
    ):
        super().__init__(vocabulary_path=vocabulary_path)
        self.variables = list(model.variables)
        self.trainable_variables = list(model.trainable_variables)
        self.preprocessor, self.model = preprocessor, model
        self._pairs = pairs
        sentences = tf.TensorSpec([None], tf.string, name="sentences")
        for spec in [sentences] + ([[sentences, sentences]] if pairs else []):
            for training in (False, True):
                trace(self.__call__, spec, training=training)

    @graph_function
    def __call__(self, sentences, training=False):
        """string [batch], or a list of two for two segments, -> outputs and inputs."""
        packed = trim(self.preprocessor(sentences))
        return self.model(packed, training) | packed

    def signatures(self) -> dict:
        """`serving_default` (sentences) and `sentence_pairs` (+ second_sentences)."""
        return text_signatures(self.__call__, self._pairs)
