"""Whole runs through the Estimator: resume, other meshes, evaluation, learning."""

import numpy as np
import pytest

from decoupled.training.checkpoints import write_list
from decoupled.training.events import read_scalars
from decoupled.training.loop import predict
from tests.helpers import (
    constant_input_fn,
    masked_lm_features,
    tiny_model,
)
from tests.pretrained import write_weights
from tests.training.runs import (
    MODEL_AXIS,
    SMALL,
    assert_equal_values,
    graph_config,
    run_spec,
    tile_everything,
    train_run,
)

SHALLOW = tiny_model(**SMALL)
DROPOUT = tiny_model(hidden_dropout=0.1, attention_dropout=0.1)


@pytest.mark.slow
def test_ten_steps_and_ten_more_equal_twenty(tmp_path, monkeypatch):
    """With dropout, on two devices, a few rows at a time."""
    config = graph_config(model=DROPOUT, mesh=MODEL_AXIS)
    tile_everything(monkeypatch)
    straight = train_run(config, run_spec(tmp_path / "straight"))
    spec, pauses = run_spec(tmp_path / "resumed"), []

    # One call with a pause after 10 steps: that makes a new graph and session.
    resumed = train_run(config, spec, every_steps=10, then=lambda: pauses.append("one"))

    assert pauses == ["one"]
    assert len(resumed) == 1 + 3 * 29
    assert_equal_values(resumed, straight)
    losses = [read_scalars(str(tmp_path / n), "loss") for n in ("straight", "resumed")]
    assert losses[0] == losses[1]
    assert sorted(losses[0]) == list(range(1, 21))


def shallow(**changes):
    return graph_config(model=SHALLOW, **changes)


def test_a_mesh_predicts_what_one_device_predicts(tmp_path):
    write_list(str(tmp_path), [write_weights(tmp_path, SHALLOW)])
    features = masked_lm_features(seed=77)
    spec, input_fn = run_spec(tmp_path), constant_input_fn(features, False)
    one, two = (
        list(predict(shallow(**mesh).network, spec, 8, input_fn))
        for mesh in ({}, {"mesh": MODEL_AXIS})
    )

    assert len(one) == len(two) == 8
    assert set(one[0]) == {"loss_sum", "hits", "weight"}
    assert [row["weight"] for row in one] == [4, 4, 3, 4, 4, 3, 4, 4]
    for name in one[0]:
        np.testing.assert_allclose(
            [row[name] for row in two], [row[name] for row in one], atol=1e-5
        )
