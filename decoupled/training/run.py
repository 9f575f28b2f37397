"""Where a network is trained and predicts, and its bookkeeping."""

from collections.abc import Callable
from typing import NamedTuple

from decoupled.configs import TrainingConfig
from decoupled.configs.hardware import HOST, Hardware, TpuAddress
from decoupled.training.bookkeeping import StopOnSignal


class Run(NamedTuple):
    """Where a network is trained and predicts, and its bookkeeping.

    model_dir: where checkpoints and events go. training: bookkeeping.
    init_checkpoint: prefix that a new run starts from, or None.
    say: prints a line. stop: ends training on a signal.
    hardware: what computes.
    """

    model_dir: str
    training: TrainingConfig
    init_checkpoint: str | None
    say: Callable[[str], None]
    stop: StopOnSignal
    hardware: Hardware = HOST

    @property
    def accelerator(self) -> str | None:
        """The kind of device on which programs of XLA run, or None."""
        return self.hardware.accelerator

    @property
    def tpu(self) -> TpuAddress | None:
        """The TPU of TPUEstimator's own session, or None."""
        return self.hardware.tpu

    @property
    def can_use_generators(self) -> bool:
        """Whether Python code of this process may make the batches.

        "local" is a TPU of this host, whose session runs in this process. Any other TPU
        is reached through workers that run no Python.
        """
        return self.tpu is None or self.tpu.name == "local"

    @property
    def on_tpu(self) -> bool:
        """Whether lengths and layouts are those of TPUs."""
        return self.tpu is not None or self.accelerator == "tpu"

    def recorded(self, name: str) -> str | None:
        """The path through which batches reach the TPU; None if none is needed."""
        return None if self.can_use_generators else f"{self.model_dir}/batches/{name}"
