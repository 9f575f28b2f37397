"""Names and sizes of the dimensions: what layout rules can speak of."""

import dataclasses

from decoupled.core.compat import tf
from decoupled.model.dims import NAMES, Dims, labels_dim, make_dims, predictions_dim
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from decoupled.ops.gather import gather_positions
from tests.helpers import tiny_model
from tests.model.graphs import build_only


def test_every_dimension_is_explained_and_every_explanation_is_of_one():
    dims = make_dims(tiny_model(), 1, 2)
    made = {getattr(dims, field.name).name for field in dataclasses.fields(Dims)}
    assert made | {predictions_dim(1).name, labels_dim(1).name} == set(NAMES)


def test_the_graph_has_these_dimensions_and_no_others():
    """A rule for a name that the graph lacks would split nothing, silently."""

    def outputs(build, tensors):
        encoded = encode(build, tensors)[-1]
        cls = gather_positions(encoded, cls_positions(build), build.dims.sequence)
        sequence_logits(build, cls, 3, 0.0)
        positions = tensors["masked_lm_positions"]
        masked = gather_positions(encoded, positions, build.dims.sequence)
        OutputEmbedding(build).logits(masked)

    with tf.Graph().as_default():
        graph = build_only(tiny_model(), outputs)
    tensors = [t for operation in graph.operations for t in operation.outputs]
    result = {dim.name for tensor in tensors for dim in tensor.shape.dims}
    # Of size 1: a layer norm's means and deviations.
    assert result - {"moment"} == set(NAMES)
