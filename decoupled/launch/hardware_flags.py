"""The flags that say what a command computes on.

They are separate from `decoupled.launch.start`, which every command imports, because
finding a TPU by its node's name needs an extra that only these commands need.
"""

from absl import flags

from decoupled.configs.hardware import ACCELERATORS, Hardware, TpuAddress
from decoupled.core import installed
from decoupled.core.errors import UserError

FLAGS = flags.FLAGS


def define() -> None:
    """Defines --accelerator, --tpu, --tpu_zone, --gcp_project and --tpu_job_name."""
    flags.DEFINE_enum(
        "accelerator",
        None,
        ACCELERATORS,
        "Run programs of XLA on these devices: this host's GPUs, its TPU (v4 and "
        "later), or as many virtual CPU devices as the mesh has. None: TensorFlow's "
        "own kernels on the CPU.",
    )
    flags.DEFINE_string(
        "tpu",
        None,
        "A TPU v2 to v4 for TPUEstimator's own session: its node's name, "
        "grpc://IP:8470, or local. None: no TPU.",
    )
    flags.DEFINE_string("tpu_zone", None, "The node's zone; default: this machine's.")
    flags.DEFINE_string("gcp_project", None, "Its project; default: this machine's.")
    flags.DEFINE_string("tpu_job_name", None, "Job of the TPU's TensorFlow workers.")


def parse() -> Hardware:
    """The hardware of the flags.

    Raises:
      UserError: flags that do not go together, or --tpu is a node's name and the client
        of the TPU API is not installed.
    """
    names = {"tpu_zone": "zone", "gcp_project": "project", "tpu_job_name": "job_name"}
    values = {names[flag]: FLAGS[flag].value for flag in names}
    if FLAGS.tpu and FLAGS.accelerator:
        raise UserError(
            f"--tpu: is for TPUEstimator's own session, --accelerator="
            f"{FLAGS.accelerator} for programs of XLA; give one of the two"
        )
    if FLAGS.tpu:
        if FLAGS.tpu != "local" and "://" not in FLAGS.tpu:
            installed.need("cloud_tpu_client", purpose="--tpu with a node's name")
        return Hardware(tpu=TpuAddress(FLAGS.tpu, **values))
    for flag in names:
        if FLAGS[flag].value is not None:
            raise UserError(f"--{flag}: has no effect without --tpu; give the TPU")
    return Hardware(accelerator=FLAGS.accelerator)
