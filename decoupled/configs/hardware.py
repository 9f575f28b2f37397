"""What a command computes on, as its flags say it (`decoupled.launch.hardware_flags`).

Unlike settings in gin files it is no part of a run: the same run may go on elsewhere.
"""

from typing import NamedTuple

from decoupled.core.joining import Hosts

ACCELERATORS = ("gpu", "tpu", "cpu")


class TpuAddress(NamedTuple):
    """Which TPU, for TPUEstimator's own session.

    name: of the node, "local", or grpc://IP:8470. zone, project: of a node; None asks
      the machine that this runs on. job_name: of TensorFlow's workers, or None.
    """

    name: str
    zone: str | None = None
    project: str | None = None
    job_name: str | None = None


class Hardware(NamedTuple):
    """Neither is TensorFlow's own kernels on this host's CPU.

    accelerator: one of ACCELERATORS, whose devices run programs of XLA.
    tpu: the TPU of TPUEstimator's own session.
    hosts: the processes that have the accelerators together; None is this one, or
      those that a scheduler or the TPU names. patience_seconds: after which one that
      others wait for is taken for lost.
    """

    accelerator: str | None = None
    tpu: TpuAddress | None = None
    hosts: Hosts | None = None
    patience_seconds: float = 1800.0


HOST = Hardware()
