"""Shows a Cloud TPU's state, health and symptoms, and whether waiting can help.

Asks Google's TPU API through cloud_tpu_client, as TensorFlow itself does to find the
workers of a TPU. tpu_scripts/host_job.sh runs this command before a job starts and
after a job has failed.

  decoupled tpu_health --tpu=decoupled-1 --tpu_zone=us-central1-a

On a TPU VM, zone and project are found automatically. Exit code 0: healthy; 4: not
healthy, even after --wait_seconds; 3: it was preempted or terminated, or has just run
out of memory, and must be created anew; 2: no such TPU, or no access to it.
"""

import sys
import time
from typing import NamedTuple

from absl import flags

from decoupled.core import console, installed
from decoupled.core.errors import UserError

FLAGS = flags.FLAGS
UNKNOWN_HEALTH = (None, "HEALTH_UNSPECIFIED")
# Not 1, which is the exit code of a defect.
NOT_RECOVERABLE_CODE, NOT_HEALTHY_CODE = 3, 4
_SECONDS_BETWEEN_QUESTIONS = 30


class Health(NamedTuple):
    """What the API reports about a TPU; None for what it does not report.

    state: e.g. READY, PREEMPTED. health: e.g. HEALTHY, UNHEALTHY_MAINTENANCE.
    recoverable: whether training on it can continue, now or later. symptoms: one line
    each, the newest last.
    """

    state: str | None
    health: str | None
    recoverable: bool
    accelerator_type: str | None
    runtime_version: str | None
    symptoms: list[str]


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("tpu", None, "Name of the TPU.", required=True)
    flags.DEFINE_string("tpu_zone", None, "Its zone. Default: that of this machine.")
    flags.DEFINE_string(
        "gcp_project", None, "Its project. Default: that of this machine."
    )
    flags.DEFINE_integer(
        "wait_seconds", 0, "How long to wait until it is healthy.", lower_bound=0
    )


def main() -> None:
    """Prints the report and exits with its code."""
    installed.need("cloud_tpu_client", purpose="the TPU API")
    client = connect(FLAGS.tpu, FLAGS.tpu_zone, FLAGS.gcp_project)
    health = wait(client, FLAGS.wait_seconds)
    report(FLAGS.tpu, health)
    sys.exit(exit_code(health))


def connect(name: str, zone: str | None, project: str | None):
    """A client of the TPU API for one TPU.

    Zone and project that are None are those of this machine, by its metadata server.
    """
    import cloud_tpu_client

    try:
        return cloud_tpu_client.Client(name, zone, project)
    except OSError as error:
        raise UserError(
            f"{name}: no metadata server here to ask for zone and project; give "
            "--tpu_zone and --gcp_project"
        ) from error


def wait(client, seconds: int) -> Health:
    """The TPU's health when it is healthy or not recoverable, or after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        health = read_health(client)
        seconds_left = end - time.monotonic()
        if exit_code(health) != NOT_HEALTHY_CODE or seconds_left <= 0:
            return health
        console.say(f"{client.name()}: {health.state}, {health.health}; waiting")
        time.sleep(min(seconds_left, _SECONDS_BETWEEN_QUESTIONS))


def read_health(client) -> Health:
    """Asks the API once for all fields."""
    parts = ("createTime", "symptomType", "workerId", "details")
    try:
        symptoms = client.symptoms() or []
        return Health(
            client.state(),
            client.health(),
            client.recoverable(),
            client.accelerator_type(),
            client.runtime_version(),
            ["  ".join(str(s[part]) for part in parts if part in s) for s in symptoms],
        )
    except ValueError as error:
        raise _no_answer(client, error) from error


def report(name: str, health: Health) -> None:
    """Prints a line, and one per symptom."""
    hope = "recoverable" if health.recoverable else "must be created anew"
    console.say(
        f"{name}: {health.state}, {health.health}, {hope} "
        f"({health.accelerator_type}, {health.runtime_version})"
    )
    for line in health.symptoms:
        console.say(f"symptom: {line}")


def exit_code(health: Health) -> int:
    """0 healthy, 3 not recoverable, 4 not (yet) healthy.

    A ready TPU whose health is not reported counts as healthy.
    """
    if not health.recoverable:
        return NOT_RECOVERABLE_CODE
    ready = health.state == "READY" and health.health in UNKNOWN_HEALTH
    return 0 if ready or health.health == "HEALTHY" else NOT_HEALTHY_CODE


def _no_answer(client, error):
    # cloud_tpu_client raises the same kind of error for every failure of a request.
    reason = str(error).partition("Exception: ")[2] or str(error)
    return UserError(
        f"{client.name()}: the TPU API gave no answer ({reason}); check name, zone, "
        "project, and the role roles/tpu.viewer"
    )
