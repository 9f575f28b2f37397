"""What fine-tuning computes before it trains."""

import numpy as np
import pytest

from decoupled.runs.finetuning_session import class_weights


def test_every_class_weighs_the_same_in_all():
    weights = class_weights(np.array([0, 0, 0, 2], np.int32), num_labels=3)
    # 4 examples, 2 classes that occur: 4 / (2 * 3) and 4 / (2 * 1).
    assert weights.tolist() == pytest.approx([2 / 3, 0, 2])
    assert weights.dtype == np.float32
