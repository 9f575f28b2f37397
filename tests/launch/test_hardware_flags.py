"""--accelerator, --tpu and its companions: what they give, and what is wrong."""

import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from decoupled.configs.hardware import HOST, Hardware, TpuAddress
from decoupled.core.errors import UserError
from decoupled.core.joining import Hosts
from decoupled.launch import hardware_flags


@pytest.fixture
def parse():
    """Parses a command line of these flags alone."""
    before = flagsaver.save_flag_values()
    hardware_flags.define()

    def parse(*arguments):
        flags.FLAGS(["command", *arguments])
        return hardware_flags.parse()

    yield parse
    flagsaver.restore_flag_values(before)


HOSTS = ("--coordinator=a:1", "--processes=2", "--process=1")
NODE = ("--tpu=n", "--tpu_zone=z", "--gcp_project=p")


@pytest.mark.parametrize(
    "arguments, hardware",
    [
        ((), HOST),
        (NODE, Hardware(tpu=TpuAddress("n", "z", "p"))),
        (["--accelerator=gpu"], Hardware("gpu")),
        (
            ["--accelerator=cpu", *HOSTS, "--patience_seconds=9"],
            Hardware("cpu", hosts=Hosts("a:1", 2, 1, 9.0), patience_seconds=9.0),
        ),
    ],
)
def test_what_the_flags_give(parse, arguments, hardware):
    assert parse(*arguments) == hardware


@pytest.mark.parametrize(
    "arguments, message",
    [
        (HOSTS, "--coordinator, --processes: are for --accelerator; give it$"),
        (["--tpu=local", *HOSTS], "are for --accelerator; give it instead of --tpu"),
        (["--accelerator=cpu", *HOSTS[:1]], "--processes, --process: must be given"),
        (["--accelerator=cpu", *HOSTS, "--process=2"], "--process: 2 is not one of 2"),
        (["--accelerator=cpu", *HOSTS, "--coordinator=a"], "'a' is not HOST:PORT"),
        (
            ["--tpu=local", "--accelerator=tpu"],
            "--tpu: is for .* --accelerator=tpu",
        ),
        (["--tpu_zone=z"], "--tpu_zone: has no effect without --tpu"),
    ],
)
def test_flags_that_do_not_fit_are_refused(parse, arguments, message):
    with pytest.raises(UserError, match=message):
        parse(*arguments)


@pytest.mark.parametrize("seconds", ["0", "inf", "1e10"])
def test_patience_is_what_timers_can_hold(parse, seconds):
    with pytest.raises(flags.IllegalFlagValueError, match="patience_seconds"):
        parse(f"--patience_seconds={seconds}")


def test_a_node_s_name_needs_the_client_of_the_tpu_api(parse, monkeypatch):
    """TensorFlow would say so later, on a machine that is paid for."""
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    with pytest.raises(UserError, match=r"for --tpu with .*'decoupled\[tpu\]'"):
        parse("--tpu=node-1")
    for address in ("local", "grpc://10.0.0.2:8470"):
        assert parse(f"--tpu={address}").tpu.name == address
