"""The flags that say what a command computes on.

They are separate from `decoupled.launch.start`, which every command imports, because
finding a TPU by its node's name needs an extra that only these commands need.
"""

from absl import flags

from decoupled.configs.hardware import ACCELERATORS, Hardware, TpuAddress
from decoupled.core import installed
from decoupled.core.errors import UserError
from decoupled.core.joining import Hosts

FLAGS = flags.FLAGS
_NUMBERS = ("processes", "process")
# JAX counts seconds in 32 bits, and a socket nanoseconds in 64.
_MOST_SECONDS = 1e9


def define_accelerator(what: str) -> None:
    """Defines --accelerator; `what` begins its help."""
    flags.DEFINE_enum(
        "accelerator",
        None,
        ACCELERATORS,
        f"{what}: this host's GPUs, its TPU, or virtual devices of its CPU, as many as "
        "a mesh has. None: TensorFlow's own kernels on the CPU.",
    )


def define() -> None:
    """Defines --accelerator, --tpu, and the flags that go with each of them."""
    define_accelerator("Run programs of XLA on these devices")
    flags.DEFINE_string(
        "tpu",
        None,
        "A TPU v2 to v4 for TPUEstimator's own session: its node's name, "
        "grpc://IP:8470, or local. None: no TPU.",
    )
    flags.DEFINE_string("tpu_zone", None, "The node's zone; default: this machine's.")
    flags.DEFINE_string("gcp_project", None, "Its project; default: this machine's.")
    flags.DEFINE_string("tpu_job_name", None, "Job of the TPU's TensorFlow workers.")
    flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT of process 0, where several processes train together with "
        "--accelerator. Each runs the same command; --process is its own number. TPU "
        "slices and Slurm need none of the three.",
    )
    flags.DEFINE_integer("processes", None, "How many processes train together.")
    flags.DEFINE_integer("process", None, "The number of this process, from 0.")
    flags.DEFINE_float(
        "patience_seconds",
        1800.0,
        "After so many seconds, a process that others wait for is taken for lost.",
        lower_bound=1.0,
        upper_bound=_MOST_SECONDS,
    )


def parse() -> Hardware:
    """The hardware of the flags."""
    names = {"tpu_zone": "zone", "gcp_project": "project", "tpu_job_name": "job_name"}
    values = {names[flag]: FLAGS[flag].value for flag in names}
    if FLAGS.tpu and FLAGS.accelerator:
        raise UserError(
            f"--tpu: is for TPUEstimator's own session, --accelerator="
            f"{FLAGS.accelerator} for programs of XLA; give one of the two"
        )
    hosts = _hosts()
    if FLAGS.tpu:
        if FLAGS.tpu != "local" and "://" not in FLAGS.tpu:
            installed.need("cloud_tpu_client", purpose="--tpu with a node's name")
        return Hardware(tpu=TpuAddress(FLAGS.tpu, **values))
    for flag in names:
        if FLAGS[flag].value is not None:
            raise UserError(f"--{flag}: has no effect without --tpu; give the TPU")
    return Hardware(
        accelerator=FLAGS.accelerator,
        hosts=hosts,
        patience_seconds=FLAGS.patience_seconds,
    )


def _hosts() -> Hosts | None:
    values = {name: FLAGS[name].value for name in ("coordinator", *_NUMBERS)}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    if FLAGS.accelerator is None:
        instead = " instead of --tpu" if FLAGS.tpu else ""
        raise UserError(
            f"--coordinator, --processes: are for --accelerator; give it{instead}"
        )
    if missing:
        raise UserError(f"--{', --'.join(missing)}: must be given beside the others")
    host, _, port = FLAGS.coordinator.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--coordinator: {FLAGS.coordinator!r} is not HOST:PORT")
    if not 0 <= FLAGS.process < FLAGS.processes:
        raise UserError(
            f"--process: {FLAGS.process} is not one of {FLAGS.processes} processes, "
            "from 0"
        )
    return Hosts(
        FLAGS.coordinator, FLAGS.processes, FLAGS.process, FLAGS.patience_seconds
    )
