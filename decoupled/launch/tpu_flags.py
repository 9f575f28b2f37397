"""The flags that select the Cloud TPU on which a command trains.

They are separate from `decoupled.launch.start`, which every command imports, because
finding a TPU by its node's name needs an extra that only these commands need.
"""

from absl import flags

from decoupled.core import installed
from decoupled.core.errors import UserError

FLAGS = flags.FLAGS


def define() -> None:
    """Defines --tpu, --tpu_zone, --gcp_project and --tpu_job_name."""
    flags.DEFINE_string(
        "tpu", None, "The TPU: its node's name, grpc://IP:8470, or local. None: no TPU."
    )
    flags.DEFINE_string("tpu_zone", None, "The node's zone; default: this machine's.")
    flags.DEFINE_string("gcp_project", None, "Its project; default: this machine's.")
    flags.DEFINE_string("tpu_job_name", None, "Job of the TPU's TensorFlow workers.")


def parse() -> dict[str, str | None] | None:
    """name, zone, project and job_name as values; None without --tpu.

    Raises:
      UserError: one of the other flags without --tpu, or --tpu is a node's name and the
        client of the TPU API is not installed.
    """
    names = {"tpu_zone": "zone", "gcp_project": "project", "tpu_job_name": "job_name"}
    values = {names[flag]: FLAGS[flag].value for flag in names}
    if FLAGS.tpu:
        if FLAGS.tpu != "local" and "://" not in FLAGS.tpu:
            installed.need("cloud_tpu_client", purpose="--tpu with a node's name")
        return {"name": FLAGS.tpu, **values}
    for flag in names:
        if FLAGS[flag].value is not None:
            raise UserError(f"--{flag}: has no effect without --tpu; give the TPU")
    return None
