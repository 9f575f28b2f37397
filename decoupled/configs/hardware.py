"""What a command computes on: the mesh of devices, and where these devices are.

The mesh belongs to the settings of a run. `Hardware`, which flags give
(`decoupled.launch.hardware_flags`), does not: the same run may go on elsewhere.
"""

import dataclasses
from typing import NamedTuple

from decoupled.configs.checks import (
    Settings,
    check_choice,
    check_not_negative,
    configurable,
)
from decoupled.core.joining import Hosts

ACTIVATION_DTYPES = ("float32", "bfloat16")
PRECISIONS = ("highest", "high", "default")
SLICE_DTYPES = ("float32", "bfloat16")
ATTENTION_KERNELS = ("auto", "plain")
ACCELERATORS = ("gpu", "tpu", "cpu")


@configurable()
@dataclasses.dataclass(frozen=True)
class MeshConfig(Settings):
    """The mesh of devices, and how the graph is laid out on it.

    mesh_shape: axes and their sizes, e.g. "all:1" or "data:2;vocab:4"; the sizes
      multiply to the number of devices.
    layout_rules: which dimension is split over which mesh axis, e.g.
      "batch:data;vocab:vocab"; `decoupled.model.dims` lists the dimensions. Dimensions
      without a rule are replicated.
    activation_dtype: "float32" or "bfloat16"; optimizer slots and the loss are always
      float32.
    slice_dtype: dtype of the weights on the devices, "float32" or "bfloat16", which
      halves their memory; updates then use stochastic rounding
      (`decoupled.ops.rounding`). Vectors (biases, layer norms) and the variables in
      checkpoints are always float32.
    stack_mib: on TPUs and with --accelerator, slices of equal shape share a variable,
      as long as its float32 gradients take at most so many MiB
      (`decoupled.ops.meshes.simd`); from TPU v5 on, at most 1. 0 gives each slice its
      own variable. Results and checkpoints are equal.
    matmul_precision: of products of float32 numbers with --accelerator: "highest" is
      float32; "high" and "default" are faster and less exact, as each device has it
      (TensorFloat-32 on GPUs, passes in bfloat16 on TPUs).
    deterministic: with --accelerator=gpu, no nondeterministic operations, so that
      a resumed run equals an uninterrupted one to the bit.
    attention_kernel: with --accelerator: "auto" computes attention by a kernel of the
      device (cuDNN's on GPUs, splash attention on TPUs) where it has one for dtype and
      shape, and a line says which; "plain" by matrix products and a softmax, as CPUs
      do. Results differ by the rounding of bfloat16.
    """

    # One device, no splitting.
    mesh_shape: str = "all:1"
    layout_rules: str = ""
    activation_dtype: str = "float32"
    slice_dtype: str = "float32"
    stack_mib: int = 128
    matmul_precision: str = "highest"
    deterministic: bool = True
    attention_kernel: str = "auto"

    def _check(self):
        check_not_negative(self, "stack_mib")
        check_choice(self, "activation_dtype", ACTIVATION_DTYPES)
        check_choice(self, "slice_dtype", SLICE_DTYPES)
        check_choice(self, "matmul_precision", PRECISIONS)
        check_choice(self, "attention_kernel", ATTENTION_KERNELS)


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
    """The devices of a command; by default TensorFlow's own kernels on this host's CPU.

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
