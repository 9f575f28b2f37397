"""Matmul FLOPs against sums typed in by hand."""

import dataclasses

import pytest

from benchmarks.flops import (
    encoder_flops,
    logits_flops,
    pretraining_flops,
    transform_flops,
)
from benchmarks.sizes import REFERENCE, REFERENCE_BATCH, Batch
from tests.helpers import tiny_model

# V=48, E_in=8, E_out=24, H=16, F=32, 2 layers.
MODEL = tiny_model(num_layers=2)


def test_encoder():
    # 3 sequences of 5 tokens. A layer: 4 kernels [16, 16], scores and context over 5
    # tokens each, [16, 32] and [32, 16]; before the layers [8, 16].
    multiplications = 15 * (4 * 256 + 2 * 5 * 16 + 2 * 512) * 2 + 15 * 8 * 16
    assert encoder_flops(MODEL, 3, 5) == 2 * multiplications == 136_320


def test_encoder_whose_last_layer_is_read_at_two_tokens_of_a_sequence():
    # Keys and values of 15 tokens; for 6 of them two kernels [16, 16], scores and
    # context over 5 tokens, [16, 32] and [32, 16].
    spared = 9 * (2 * 256 + 2 * 5 * 16 + 2 * 512)
    assert encoder_flops(MODEL, 3, 5, outputs=2) == 136_320 - 2 * spared
    assert encoder_flops(MODEL, 3, 5, outputs=5) == 136_320


def test_encoder_without_input_projection():
    wide = dataclasses.replace(MODEL, input_embedding_size=16)
    assert encoder_flops(MODEL, 3, 5) - encoder_flops(wide, 3, 5) == 2 * 15 * 8 * 16


def test_head():
    assert transform_flops(MODEL, 7) == 2 * 7 * 16 * 24
    assert logits_flops(MODEL, 7) == 2 * 7 * 24 * 48


@pytest.mark.parametrize("output_size,flops", [(24, 2 * 7 * 16 * 24), (16, 0)])
def test_a_plain_projection_is_left_out_where_sizes_are_equal(output_size, flops):
    model = tiny_model(
        num_layers=2, mlm_transform="projection", output_embedding_size=output_size
    )
    assert transform_flops(model, 7) == flops


def test_a_step_is_three_times_forward():
    head = 2 * 12 * 16 * 24 + 2 * 12 * 24 * 48
    batch = Batch(3, 5, 4)
    assert pretraining_flops(MODEL, batch, whole=True) == 3 * (136_320 + head)
    last = encoder_flops(MODEL, 3, 5, outputs=4)
    assert pretraining_flops(MODEL, batch) == 3 * (last + head)


def test_a_split_vocabulary_repeats_all_but_the_logits():
    once = pretraining_flops(MODEL, Batch(3, 5, 4))
    logits = 3 * 2 * 12 * 24 * 48
    assert pretraining_flops(MODEL, Batch(3, 5, 4), 4) == 4 * (once - logits) + logits


def test_reference_step():
    whole = pretraining_flops(REFERENCE, REFERENCE_BATCH, whole=True)
    assert whole == pytest.approx(626e9, 1e-3)
