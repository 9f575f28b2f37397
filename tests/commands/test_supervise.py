"""`decoupled supervise`: what it refuses, and what it passes on."""

import sys

import pytest

from tests.command_line import in_process_of_its_own, mistake


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--processes=2"], "no command: write it after --"),
        (["--processes=2", "--"], "no command: write it after --"),
        (["--processes=0", "--", "true"], "flag --processes=0: 0 is not a positive"),
        (["--max_restarts=-1", "--", "true"], "flag --max_restarts=-1: -1 is not"),
        (["--processes=2", "--", "x", "--accelerator=gpu"], "one process has all dev"),
        (
            ["--processes=2", "--", "x", "-accelerator", "tpu"],
            "beside -accelerator tpu",
        ),
        (
            ["--workers=a:1,b:2", "--", "true"],
            "--workers is gone (CHANGELOG.md);",
        ),
        (["--accept_open_ports", "--", "true"], "--accept_open_ports is gone"),
    ],
)
def test_mistakes_end_in_one_line(words, problem):
    assert problem in mistake("supervise", *words)


def test_a_worker_is_refused_with_what_took_its_place():
    message = mistake("worker", "--index=1")
    assert "worker is gone (CHANGELOG.md); run the same pretrain or finetune" in message


def test_the_command_gets_its_own_flags_and_its_code_is_passed_on():
    code = "import sys; print(sys.argv[1:]); sys.exit(3)"
    done = in_process_of_its_own(
        *["supervise", "--", sys.executable, "-c", code, "--help", "--x=1"]
    )
    assert (done.returncode, done.stdout) == (3, "['--help', '--x=1']\n")
