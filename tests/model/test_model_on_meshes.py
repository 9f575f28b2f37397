"""Whatever dimension is split, loss and gradients are those of one device."""

import numpy as np
import pytest

from decoupled.model.dims import NAMES
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    classifier_gradients,
    masked_lm_gradients,
    random_weights,
)

# Labels and the pooler belong to classifiers, the rest of these to both.
OF_CLASSIFIERS = ("labels", "pooled", "batch", "hidden", "heads")
SPLIT = [name for name in NAMES if name not in ("labels", "pooled")]
# What touches a table that two parts of the graph share.
SPLIT_COUPLED = ("batch", "predictions", "vocab", "input_embedding", "output_embedding")
TWO_BY_TWO = "batch:d;vocab:m;heads:m;intermediate:m"

# Biases must not be 0 here: one that is added on every processor would not be seen.
DECOUPLED = tiny_model(num_layers=1)
COUPLED = tiny_model(num_layers=1, coupled=True, output_embedding_size=8)
TWO_LAYERS = tiny_model(input_embedding_size=16, mlm_transform="projection")


def loss_and_gradients(run, config, mesh_shape="all:1", layout=""):
    """{"loss": ..., name of a variable: the loss's gradient}."""
    weights = random_weights(config, lambda *a: run.outputs(*a))
    return run(config, masked_lm_features(batch_size=4), weights, mesh_shape, layout)
