"""What a forward pass gives to training and evaluation."""

from typing import NamedTuple

from decoupled.core.compat import mtf


class Forward(NamedTuple):
    """A task's forward pass.

    loss: float32 scalar; microbatches' losses add up to the batch's.
    sums: name -> float32 scalar that adds up over batches, e.g. hits and weights.
    predictions: name -> tensor [batch, ...].
    """

    loss: mtf.Tensor
    sums: dict[str, mtf.Tensor]
    predictions: dict[str, mtf.Tensor]
