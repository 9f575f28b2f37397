"""Health of a TPU, through cloud_tpu_client and a TPU API of our own."""

import datetime
import sys

import cloud_tpu_client
import pytest
from absl import flags

from decoupled.commands import tpu_health
from decoupled.core.errors import UserError

NAME = "projects/p/locations/z/nodes/n"


class FakeApi:
    """Stands for the service object of googleapiclient: projects().locations().nodes().

    Answers each question with the next of `answers`, and the last one from then on.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def projects(self):
        return self

    locations = nodes = projects

    def get(self, name):
        self.asked.append(name)
        return self

    def execute(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def node(state="READY", health="HEALTHY", **fields):
    return {"state": state, "health": health, "acceleratorType": "v3-8", **fields}


def out_of_memory(seconds_ago):
    # cloud_tpu_client compares with UTC without a time zone.
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    time = now - datetime.timedelta(seconds=seconds_ago)
    return {
        "symptomType": "OUT_OF_MEMORY",
        "createTime": time.isoformat() + "Z",
        "workerId": "0",
    }


@pytest.fixture(autouse=True)
def parsed_flags(monkeypatch):
    flags.FLAGS.mark_as_parsed()
    monkeypatch.setattr(tpu_health, "_SECONDS_BETWEEN_QUESTIONS", 0.1)


def connect(*answers):
    api = FakeApi(*answers)
    return cloud_tpu_client.Client("n", "z", "p", service=api), api


def test_what_the_api_says():
    client, api = connect(node(tensorflowVersion="tpu-vm-tf-2.15.0"))
    assert tpu_health.read_health(client) == tpu_health.Health(
        "READY", "HEALTHY", True, "v3-8", "tpu-vm-tf-2.15.0", []
    )
    assert set(api.asked) == {NAME}


@pytest.mark.parametrize(
    "answer, code",
    [
        (node(), 0),
        (node(health="UNHEALTHY_MAINTENANCE"), 4),
        (node("CREATING", None), 4),
        (node("READY", None), 0),
        (node("PREEMPTED", "HEALTHY"), 3),
        (node("TERMINATED", None), 3),
    ],
)
def test_the_exit_code_says_what_can_be_done(answer, code):
    client, _ = connect(answer)
    assert tpu_health.exit_code(tpu_health.read_health(client)) == code


@pytest.mark.parametrize("seconds_ago, code", [(5, 3), (3600, 0)])
def test_running_out_of_memory_just_now_is_beyond_help(seconds_ago, code):
    client, _ = connect(node(symptoms=[out_of_memory(seconds_ago)]))
    assert tpu_health.exit_code(tpu_health.read_health(client)) == code


def test_waiting_ends_when_it_is_healthy():
    bad, good = node(health="TIMEOUT"), node()
    # Seven questions a look: symptoms, state, health, recoverable (2), type, version.
    client, api = connect(*[bad] * 14, good)
    health = tpu_health.wait(client, seconds=60)
    assert health.health == "HEALTHY"
    assert len(api.asked) == 21


@pytest.mark.parametrize(
    "later, code", [(node("PREEMPTED", None), 3), (node("READY", None), 0)]
)
def test_waiting_ends_when_it_is_settled(later, code):
    client, api = connect(*[node(health="TIMEOUT")] * 7, later)
    assert tpu_health.exit_code(tpu_health.wait(client, seconds=5)) == code
    assert len(api.asked) < 20


def test_waiting_has_an_end(capsys):
    client, _ = connect(node(health="TIMEOUT"))
    health = tpu_health.wait(client, seconds=1)
    assert tpu_health.exit_code(health) == 4
    assert "n: READY, TIMEOUT; waiting\n" in capsys.readouterr().out


def test_nobody_waits_for_what_does_not_come_back():
    client, api = connect(node("PREEMPTED", "TIMEOUT"))
    assert tpu_health.wait(client, seconds=3600).recoverable is False
    assert len(api.asked) < 10


def test_the_report_shows_symptoms(capsys):
    symptom = {"symptomType": "LOW_MEMORY", "workerId": "3", "createTime": "2026-01-02"}
    client, _ = connect(node(symptoms=[symptom]))
    tpu_health.report("n", tpu_health.read_health(client))
    assert capsys.readouterr().out == (
        "n: READY, HEALTHY, recoverable (v3-8, None)\n"
        "symptom: 2026-01-02  LOW_MEMORY  3\n"
    )


def test_an_unknown_tpu_is_one_line():
    client, _ = connect(RuntimeError("404 not found"))
    with pytest.raises(UserError, match=r"n: the TPU API gave no answer \(404"):
        tpu_health.read_health(client)


def test_losing_the_api_while_waiting_is_one_line():
    client, _ = connect(*[node(health="TIMEOUT")] * 7, RuntimeError("503"))
    with pytest.raises(UserError, match="503"):
        tpu_health.wait(client, seconds=60)


def test_outside_of_google_cloud_zone_and_project_must_be_given(monkeypatch):
    def no_server(request):
        raise OSError("no such host")

    monkeypatch.setattr(cloud_tpu_client.client.request, "urlopen", no_server)
    with pytest.raises(UserError, match="--tpu_zone and --gcp_project"):
        tpu_health.connect("n", None, None)


def test_the_client_of_the_tpu_api_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    with pytest.raises(UserError, match=r"cloud_tpu_client .*'decoupled\[tpu\]'"):
        tpu_health.main()
