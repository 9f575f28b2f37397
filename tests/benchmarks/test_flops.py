"""Matmul FLOPs against sums typed in by hand."""

import dataclasses

import pytest

from benchmarks.flops import encoder_flops, head_flops, pretraining_flops
from benchmarks.sizes import Batch
from tests.helpers import tiny_model

# V=48, E_in=8, E_out=24, H=16, F=32, 2 layers.
MODEL = tiny_model(num_layers=2)


def test_encoder():
    # 3 sequences of 5 tokens. A layer: 4 kernels [16, 16], scores and context over 5
    # tokens each, [16, 32] and [32, 16]; before the layers [8, 16].
    multiplications = 15 * (4 * 256 + 2 * 5 * 16 + 2 * 512) * 2 + 15 * 8 * 16
    assert encoder_flops(MODEL, 3, 5, outputs=5) == 2 * multiplications == 136_320
    # For 6 of them the last layer has more than keys and values: two kernels [16, 16],
    # scores and context over 5 tokens, [16, 32] and [32, 16].
    spared = 9 * (2 * 256 + 2 * 5 * 16 + 2 * 512)
    assert encoder_flops(MODEL, 3, 5, outputs=2) == 136_320 - 2 * spared
    wide = dataclasses.replace(MODEL, input_embedding_size=16)
    assert encoder_flops(wide, 3, 5, outputs=5) == 136_320 - 2 * 15 * 8 * 16


@pytest.mark.parametrize("width, projected", [(24, 2 * 7 * 16 * 24), (16, 0)])
def test_head(width, projected):
    """A plain projection is left out where sizes are equal."""
    sizes = {"output_embedding_size": width, "mlm_transform": "projection"}
    model = dataclasses.replace(MODEL, **sizes)
    assert head_flops(model, 7) == projected + 2 * 7 * width * 48


def test_a_step_is_three_times_forward():
    head = head_flops(MODEL, 12)
    batch = Batch(3, 5, 4)
    assert pretraining_flops(MODEL, batch, whole=True) == 3 * (136_320 + head)
    last = encoder_flops(MODEL, 3, 5, outputs=4)
    assert pretraining_flops(MODEL, batch) == 3 * (last + head)
