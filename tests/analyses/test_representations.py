"""All layers against the network in numpy, and how rows become batches."""

import numpy as np
import pytest

from decoupled.analyses.models import open_models
from decoupled.analyses.representations import LayerEncoder, batches
from tests.exports.models import random_batch
from tests.exports.reference import Reference


@pytest.mark.parametrize("folder", ["pretrained_dir", "coupled_dir"])
def test_all_layers_and_the_embedding(folder, request):
    [model] = open_models([request.getfixturevalue(folder)])
    reference = Reference(model.config, {n: model.weights[n] for n in model.weights})
    batch = random_batch(model.config, 3, 7)
    outputs = LayerEncoder(model)(batch | {"more": np.zeros(2)}).numpy()
    assert outputs.shape == (3, 3, 7, 8)
    real = batch["input_mask"].astype(bool)
    for layer, expected in enumerate(reference.encode(batch), start=1):
        np.testing.assert_allclose(outputs[layer][real], expected[real], atol=2e-5)
    embeddings = "bert/embeddings"
    x = reference.weights[f"{embeddings}/word_embeddings"][batch["input_word_ids"]]
    x = x + reference.weights[f"{embeddings}/position_embeddings"][:7]
    types = reference.weights[f"{embeddings}/token_type_embeddings"]
    x = reference.layer_norm(
        x + types[batch["input_type_ids"]], f"{embeddings}/LayerNorm"
    )
    x = reference.dense(x, "bert/encoder/embedding_hidden_mapping_in")
    np.testing.assert_allclose(outputs[0], x, atol=2e-5)


def test_batches_hold_every_row_once_without_empty_columns():
    lengths = [5, 2, 3, 1, 4]
    mask = (np.arange(6) < np.array(lengths)[:, np.newaxis]).astype(np.int32)
    arrays = {
        "input_mask": mask,
        "input_word_ids": mask * np.arange(1, 6)[:, np.newaxis],
        "number": np.arange(5),
    }
    found = list(batches(arrays, 2))
    assert [batch["number"].tolist() for batch in found] == [[3, 1], [2, 4], [0]]
    assert [batch["input_mask"].shape for batch in found] == [(2, 2), (2, 4), (1, 5)]
    assert found[1]["input_word_ids"].tolist() == [[3, 3, 3, 0], [5, 5, 5, 5]]
