"""How a command starts, is helped, fails and ends: seen from its shell."""

import json
import subprocess
import sys

import pytest

from tests.processes import python, run_python

COMMAND = '''
"""Reads nothing and writes a number.

Example:
  decoupled command --count=3
"""
import dataclasses
import sys
from absl import flags
from decoupled.configs import SamplingConfig
from decoupled.configs.checks import Settings, bound, configurable
from decoupled.launch import gin_files, start
from decoupled.core import endings
from decoupled.core.errors import Interrupted, UserError

def define_flags():
    start.define_gin_flags()
    flags.DEFINE_string("folder", None, "A folder\\n  for the records.")
    flags.DEFINE_multi_string("input", [], "Several.")
    flags.DEFINE_list("layouts", [], "A list.")
    flags.DEFINE_string("topology", None, "No path.")
    flags.DEFINE_list("model_dir", [], "Folders.")
    flags.DEFINE_string("label_folder", None, "A folder.")
    flags.DEFINE_boolean("quick", True, "Whether it is quick.")
    ends = ["well", "user", "defect", "saved", "paths", "folders", "lost"]
    flags.DEFINE_enum("end", "well", ends, "How it ends.")

@configurable()
@dataclasses.dataclass(frozen=True)
class command(Settings):
    size: int
    sampling: SamplingConfig = bound(SamplingConfig)

def main():
    end = flags.FLAGS.end
    if end == "paths":
        given = flags.FLAGS
        print(given.folder, given.input, given.layouts, given.topology, sep="\\n")
        return
    if end == "folders":
        print(flags.FLAGS.model_dir, flags.FLAGS.label_folder)
        return
    if end == "user":
        raise UserError("corpus: is empty;\\n   build it again")
    if end == "defect":
        raise ValueError("a defect")
    if end == "lost":
        import os, shutil
        from decoupled.core import files
        folder = flags.FLAGS.folder
        for name in ("one", "two"):
            files.write_text(os.path.join(files.make_folder(folder), name), "text")
        shutil.rmtree(folder)
        return
    print(start.parse_gin(command).sampling)
    # As a sweep reads the settings of its jobs.
    gin_files.configure(SamplingConfig, [], ["SamplingConfig.alpha = 0.9"])
    if flags.FLAGS.folder:
        start.save_start(flags.FLAGS.folder)
    if end == "saved":
        raise Interrupted("Ctrl-C: saved at step 3")

if __name__ == "__main__":
    sys.argv.insert(1, "command")
    endings.end(lambda: start.run(sys.modules[__name__]))
'''
GOOD = """
command.size = 3
SamplingConfig.alpha = 0.5
"""
# Runs the command of each line in a fork, which need not import the package again.
FORKS = """
import json, os, runpy, sys
import decoupled.configs
from decoupled.launch import start
for line in sys.stdin:
    folder, environment, arguments = json.loads(line)
    process = os.fork()
    if not process:
        os.chdir(folder)
        os.environ.update(environment)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["command.py", *arguments]
        runpy.run_path("command.py", run_name="__main__")
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forks():
    """A process that has imported the package; it ends with its input."""
    with subprocess.Popen(
        python(FORKS),
        env={"PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.fixture
def run(forks, tmp_path):
    """Runs the command with the given flags."""
    (tmp_path / "command.py").write_text(COMMAND)
    (tmp_path / "good.gin").write_text(GOOD)

    def run_command(*arguments, environment=()):
        environment = {"HOME": str(tmp_path)} | dict(environment)
        print(
            json.dumps([str(tmp_path), environment, arguments]),
            file=forks.stdin,
            flush=True,
        )
        code = int(forks.stdout.readline())
        printed = [(tmp_path / name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(arguments, code, *printed)

    return run_command


def test_help_teaches_the_command_and_lists_its_own_flags_only(run):
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("Reads nothing and writes a number.\n\nExample:")
    assert "  --folder=...\n      A folder for the records.\n" in done.stdout
    assert "  --[no]quick\n      Whether it is quick. (default: True)\n" in done.stdout
    assert "--gin_file=..." in done.stdout
    assert "--gin_bindings=..." in done.stdout
    assert "pdb" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 88


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--fodler=x"], "Unknown command line flag 'fodler'. Did you mean: folder"),
        (["--end=badly"], "flag --end=badly: value should be one of <well|user|"),
        (["x"], "unexpected argument 'x'; write --flag=value (--help lists them)"),
        (["--end=user"], "corpus: is empty; build it again"),
        ([], "gin: command needs size; give a --gin_file that sets them or"),
        (["--gin_file=no.gin"], "no.gin: no such gin file in ., "),
        (["--gin_param=x.y=1"], "--gin_param='x.y=1': no configurable named 'x'"),
        (
            ["--gin_file=good.gin", "--gin_param=SamplingConfig.alpha=7.0"],
            "SamplingConfig.alpha: 7.0 is not in [0, 1]",
        ),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(run, arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"decoupled command: error: {message}")
    assert done.stderr.count("\n") == 1


def test_a_flag_that_is_given_twice_is_named(run):
    files = ["--gin_file=good.gin", "--gin_file=good.gin"]
    done = run(*files, "--folder=a", "--end=well", "--folder=b")
    assert done.returncode == 0
    assert done.stderr == "--folder is given 2 times; only the last counts\n"


@pytest.fixture
def run_with_required_flags(run, tmp_path):
    text = COMMAND.replace(
        "@configurable()",
        """    flags.mark_flag_as_required("folder")
    flags.DEFINE_multi_string("other", None, "Also needed.", required=True)

@configurable()""",
    )
    (tmp_path / "command.py").write_text(text)
    return run


def test_a_tilde_in_a_path_is_the_home_folder(run, tmp_path):
    """Wherever it begins a path; a shell leaves it as it is after "=" and in quotes."""
    done = run(
        "--end=paths", "--folder=~/a b", "--input=en=~/*.txt,de=~root/b,fr=c~/d",
        "--input=~", "--input=aligned:~/e", "--layouts=~/x.gin,y,./~/z",
        "--topology=~ 5%",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{tmp_path}/a b",
        str(
            [
                f"en={tmp_path}/*.txt,de=/root/b,fr=c~/d",
                f"{tmp_path}",
                f"aligned:{tmp_path}/e",
            ]
        ),
        str([f"{tmp_path}/x.gin", "y", "./~/z"]),
        "~ 5%",
    ]
    (tmp_path / "include.gin").write_text("include '~/good.gin'")
    done = run("--gin_file=~/include.gin", "--folder=~/out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "command.1").exists()
    assert not (tmp_path / "~").exists()


def test_a_slash_at_the_end_of_a_folder_is_left_out(run, tmp_path):
    """A shell completes names with one. On gs:// run//a is another file than run/a."""
    given = ("--model_dir=gs://b/run/,~/,/", "--label_folder=a//")
    done = run("--end=folders", *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{['gs://b/run', str(tmp_path), '/']} a\n"
    assert run("--end=folders").stdout == "[] None\n"


def test_a_tilde_of_an_unknown_user_is_refused(run, tmp_path):
    done = run("--gin_file=good.gin", "--folder=~nobody-here/a")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "decoupled command: error: --folder=~nobody-here/a: no home folder of "
        "~nobody-here; ./~nobody-here/a is a local path\n"
    )
    assert not (tmp_path / "~nobody-here").exists()


@pytest.mark.parametrize(
    "given, lacking",
    [((), "--folder, --other"), (("--folder=", "--other=x"), "--folder")],
)
def test_flags_that_must_be_given_are_named(run_with_required_flags, given, lacking):
    done = run_with_required_flags(*given)
    assert done.returncode == 2
    assert done.stderr == (
        f"decoupled command: error: {lacking} must be given; --help lists the flags\n"
    )


def test_help_marks_the_flags_that_must_be_given(run_with_required_flags):
    lines = run_with_required_flags("--help").stdout.splitlines()
    assert [line for line in lines if line.endswith("(required)")] == [
        "  --folder=...  (required)",
        "  --other=...  (required)",
    ]


def test_a_defect_keeps_its_traceback(run):
    done = run("--end=defect")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: a defect" in done.stderr


def test_a_command_whose_files_are_gone_does_not_end_well(run, tmp_path):
    done = run("--end=lost", f"--folder={tmp_path}/results")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"decoupled command: error: {tmp_path}/results/one and 1 more files are gone: "
        "something else removed what this command wrote while it ran, so that its "
        "results are incomplete; run it again\n"
    )


def test_ctrl_c_says_how_to_go_on_where_a_start_was_recorded(run, tmp_path):
    flags = ["--gin_file=good.gin", f"--folder={tmp_path}/a b", "--end=saved"]
    done = run(*flags)
    assert done.returncode == 130
    assert done.stderr == (
        "decoupled command: Ctrl-C: saved at step 3; go on with: decoupled command "
        f"--gin_file=good.gin '--folder={tmp_path}/a b' --end=saved\n"
    )


def test_each_start_is_recorded_under_the_next_number(run, tmp_path):
    folder = tmp_path / "out" / "model"
    arguments = ["--gin_file=good.gin", f"--folder={folder}"]
    first = run(*arguments, "--gin_param=SamplingConfig.alpha = 0.1")
    second = run(*arguments, "--gin_bindings=SamplingConfig.alpha = 0.2")
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert first.stdout.startswith("SamplingConfig(alpha=0.1, weights=None)")
    assert second.stdout.startswith("SamplingConfig(alpha=0.2, weights=None)")
    assert second.stderr == ""
    assert sorted(path.name for path in folder.iterdir()) == [
        "command.1",
        "command.2",
        "config.1.gin",
        "config.2.gin",
    ]
    third = run(*arguments, environment={"DECOUPLED_SUPERVISOR": "decoupled supervise"})
    assert third.returncode == 0, third.stderr
    assert (folder / "command.3").read_text().endswith("\ndecoupled supervise\n")
    heading, command = (folder / "command.1").read_text().splitlines()
    assert heading.startswith("# decoupled ")
    assert command == (
        f"decoupled command --gin_file=good.gin --folder={folder} "
        "'--gin_param=SamplingConfig.alpha = 0.1'"
    )
    again = run(f"--gin_file={folder / 'config.2.gin'}")
    assert again.stdout == second.stdout


FLAGS_WITH_TEXT = """
import importlib, json
from absl import flags
from decoupled.__main__ import COMMANDS
from decoupled.launch import start
kinds = ("string", "multi string", "comma separated list of strings")
found = set()
for command in {name for names in COMMANDS.values() for name in names} - {"doctor"}:
    module = importlib.import_module(f"decoupled.commands.{command}")
    for part in getattr(module, "SUBCOMMANDS", {command: module}).values():
        before = set(flags.FLAGS)
        part.define_flags()
        added = set(flags.FLAGS) - before
        found |= {name for name in added if flags.FLAGS[name].flag_type() in kinds}
        flags.FLAGS.remove_flag_values(added)
assert start._NO_PATHS <= found
print(json.dumps(sorted(found - start._NO_PATHS)))
"""


def test_it_is_known_which_flags_are_paths():
    """A new flag is added here, or to the flags of which `~` is no home folder."""
    done = run_python(FLAGS_WITH_TEXT)
    assert json.loads(done.stdout) == [
        *("branch_from", "checkpoint", "compiler"),
        *("corpus_dir", "data_dir", "document", "export_dir", "feature_dir"),
        *("finetuned_dir", "gin_file", "gin_location_prefix", "hf_dir"),
        *("init_checkpoint", "input", "json", "label_folder", "layouts"),
        *("measured", "model_dir", "new_model_dir", "output", "output_dir"),
        *("prediction_folder", "records_dir", "sentences", "source", "sweep_dir"),
        *("texts", "vocabulary", "work_dir"),
    ]
