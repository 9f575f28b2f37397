"""--accelerator, --tpu and its companions: what they give, and what is wrong."""

import sys

import pytest
from absl import flags

from decoupled.configs.hardware import HOST, Hardware, TpuAddress
from decoupled.core.errors import UserError
from decoupled.core.joining import Hosts
from decoupled.launch import hardware_flags


@pytest.fixture
def parse(monkeypatch):
    """Parses a command line of these flags alone."""

    def parse(*arguments):
        values = flags.FlagValues()
        monkeypatch.setattr(flags, "FLAGS", values)
        monkeypatch.setattr(hardware_flags, "FLAGS", values)
        for name in ("tpu", "tpu_zone", "gcp_project", "tpu_job_name", "accelerator"):
            flags.DEFINE_string(name, None, "", flag_values=values)
        flags.DEFINE_string("coordinator", None, "", flag_values=values)
        for name in ("processes", "process"):
            flags.DEFINE_integer(name, None, "", flag_values=values)
        flags.DEFINE_float("patience_seconds", 1800.0, "", flag_values=values)
        values(["command", *arguments])
        return hardware_flags.parse()

    return parse


def test_without_flags_it_is_this_host(parse):
    assert parse() == HOST


def test_a_node_has_name_zone_and_project(parse):
    address = TpuAddress("n", "z", "p")
    assert parse("--tpu=n", "--tpu_zone=z", "--gcp_project=p") == Hardware(tpu=address)


def test_an_accelerator_is_a_kind_of_device(parse):
    assert parse("--accelerator=gpu") == Hardware("gpu")


HOSTS = ("--coordinator=a:1", "--processes=2", "--process=1")


def test_several_processes_have_an_address_and_numbers(parse):
    hosts = Hosts("a:1", 2, 1, 9.0)
    found = parse("--accelerator=cpu", *HOSTS, "--patience_seconds=9")
    assert found == Hardware("cpu", hosts=hosts, patience_seconds=9.0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (HOSTS, "--coordinator, --processes: are for --accelerator"),
        (["--accelerator=cpu", *HOSTS[:1]], "--processes, --process: must be given"),
        (["--accelerator=cpu", *HOSTS, "--process=2"], "--process: 2 is not one of 2"),
        (["--accelerator=cpu", *HOSTS, "--coordinator=a"], "'a' is not HOST:PORT"),
    ],
)
def test_processes_that_do_not_fit_are_refused(parse, arguments, message):
    with pytest.raises(UserError, match=message):
        parse(*arguments)


def test_both_are_refused(parse):
    with pytest.raises(UserError, match="--tpu: is for .* --accelerator=tpu for"):
        parse("--tpu=local", "--accelerator=tpu")


def test_a_zone_alone_is_refused(parse):
    with pytest.raises(UserError, match="--tpu_zone: has no effect without --tpu"):
        parse("--tpu_zone=z")


def test_a_node_s_name_needs_the_client_of_the_tpu_api(parse, monkeypatch):
    """TensorFlow would say so later, on a machine that is paid for."""
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    with pytest.raises(UserError, match=r"for --tpu with .*'decoupled\[tpu\]'"):
        parse("--tpu=node-1")
    for address in ("local", "grpc://10.0.0.2:8470"):
        assert parse(f"--tpu={address}").tpu.name == address
