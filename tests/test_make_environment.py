"""Which Python the Makefile's environments get, shown with stand-ins on PATH."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from decoupled.commands import doctor

ROOT = pathlib.Path(__file__).parent.parent
PROGRAMS = "bash cp env grep head make mkdir sh touch".split()
# Says that it is Python of a version, with the module for environments or without. What
# it is given to install is noted; an installed uv is a copy of another stand-in.
PYTHON = """#!/bin/sh
case "$*" in
--version) echo Python {version}.0 ;;
-c*) shift; exec {python} -I -c 'import sys
sys.version_info = ({minor_version}, 0)
sys.modules.update({modules})
exec(sys.argv.pop(1))' "$@" ;;
"-m venv"*)
  for folder; do :; done
  mkdir -p "$folder/bin"
  cp "$0" "$folder/bin/python" ;;
"-m pip"*)
  [ -e {home}/no_network ] && exit 1
  [ "$*" = "-m pip install uv" ] && cp {home}/uv .venv-uv/bin/uv
  echo "$0 {version} $*" >>{home}/log ;;
esac
"""
UV = """#!/bin/sh
echo "$0 $*" >>{home}/log
for folder; do :; done
if [ -e {home}/no_download ]; then
  printf 'error: Request failed\\n  cause: Failed to download `https://x`\\n' >&2
  exit 2
fi
mkdir -p "$folder/bin"
cp {home}/provided "$folder/bin/python"
"""
SUPPORTED = ["3.13", "3.12", "3.11", "3.10"]


class Machine:
    """A checkout's Makefile on a machine with a few programs and some Pythons."""

    def __init__(self, home):
        self.home = home
        self.checkout = home / "checkout"
        self.programs = home / "bin"
        for folder in (self.checkout, self.programs):
            folder.mkdir()
        for name in ("Makefile", "make_environment.sh"):
            shutil.copy(ROOT / name, self.checkout)
        for name in ("requirements.txt", "setup.py", "pyproject.toml"):
            (self.checkout / name).touch()
        copied = self.checkout / "tests/interop/requirements.txt"
        copied.parent.mkdir(parents=True)
        copied.touch()
        for name in PROGRAMS:
            (self.programs / name).symlink_to(shutil.which(name))
        self._write(home / "uv", UV.format(home=home))
        self.has("3.13", home / "provided")

    def _write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def has(self, version, path=None, modules="{}"):
        """Has a Python: python3.N on PATH where no path is given."""
        text = PYTHON.format(
            home=self.home,
            version=version,
            minor_version=version.replace(".", ", "),
            modules=modules,
            python=sys.executable,
        )
        self._write(self.programs / (path or f"python{version}"), text)

    def make(self, *arguments, code=0):
        """Runs make; returns what was run, and the lines of stderr but make's own."""
        environment = {
            "PATH": str(self.programs),
            "HOME": str(self.home),
            "PYENV_ROOT": str(self.home / "pyenv"),
        }
        done = subprocess.run(
            ["make", *arguments],
            cwd=self.checkout,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert bool(done.returncode) == bool(code), done.stdout + done.stderr
        errors = [
            line for line in done.stderr.splitlines() if not line.startswith("make: **")
        ]
        log = self.home / "log"
        return (log.read_text().splitlines() if log.exists() else []), errors


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def installed(version):
    what = "--requirement requirements.txt --editable ."
    return f".venv/bin/python {version} -m pip install {what}"


# A launcher that has nothing to launch, as pyenv's.
LAUNCHER = "#!/bin/sh\nexit 127\n"


@pytest.mark.parametrize(
    "versions, chosen",
    [
        (["3.10", "3.13", "3.11", "3.12", "3.14", "3.9"], "3.13"),
        (["3.9", "3.10", "3.12", "3.15"], "3.12"),
        (["3.10", "3.9"], "3.10"),
    ],
)
def test_the_newest_supported_python_is_taken(machine, versions, chosen):
    for version in versions:
        machine.has(version)
    assert machine.make("install") == ([installed(chosen)], [])


def test_a_python_is_found_without_its_version_in_its_name_and_behind_launchers(
    machine,
):
    machine._write(machine.programs / "python3.13", LAUNCHER)
    machine.has("3.12", modules='{"ensurepip": None}')
    machine.has("3.11", "python3")
    assert machine.make("install")[0] == [installed("3.11")]
    shutil.rmtree(machine.checkout / ".venv")
    (machine.checkout / "setup.py").touch()
    machine.has("3.13", machine.home / "pyenv/versions/3.13.0/bin/python")
    assert machine.make("install", "--always-make")[0][1:] == [installed("3.13")]


def test_the_user_names_a_python(machine):
    machine.has("3.13")
    machine.has("3.9")
    machine.has("3.11", machine.home / "named")
    ran, (line,) = machine.make("install", "PYTHON=python3.9", code=2)
    assert ran == []
    assert line.startswith(
        "make: error: PYTHON=python3.9 is not Python 3.13, 3.12, 3.11, 3.10"
    )
    python = f"PYTHON={machine.home}/named"
    assert machine.make("install", python)[0] == [installed("3.11")]


def test_an_interrupted_install_goes_on_in_the_same_environment(machine):
    machine.has("3.12")
    (machine.home / "no_network").touch()
    machine.make("install", code=2)
    (machine.home / "no_network").unlink()
    (machine.checkout / ".venv/bin/kept").touch()
    machine.has("3.13")
    assert machine.make("install")[0] == [installed("3.12")]
    assert (machine.checkout / ".venv/bin/kept").exists()


@pytest.mark.parametrize("version", ["3.14", "3.9"])
def test_without_a_supported_python_uv_provides_one(machine, version):
    machine.has(version)
    assert machine.make("install") == (
        [
            f".venv-uv/bin/python {version} -m pip install uv",
            ".venv-uv/bin/uv venv --quiet --no-project --seed --python 3.13 .venv",
            installed("3.13"),
        ],
        [],
    )
    shutil.copy(machine.home / "uv", machine.programs)
    ran, _ = machine.make(".venv-oldest/.installed")
    assert ran[3].startswith(f"{machine.programs}/uv venv ")
    assert ran[3].endswith("--python 3.11 .venv-oldest")


def test_a_python_that_cannot_be_downloaded_is_one_line_of_what_to_install(machine):
    machine.has("3.14")
    (machine.home / "no_download").touch()
    _, (line,) = machine.make("install", code=2)
    assert line.startswith(
        "make: error: no Python 3.13, 3.12, 3.11, 3.10 with its venv"
    )
    assert "uv cannot provide one (Failed to download `https://x`); " in line
    assert "install one (e.g. apt install python3.13-venv, " in line
    assert "make PYTHON=/path/to/python3.13" in line


@pytest.mark.parametrize("modules", [None, "{}", '{"ensurepip": None}'])
def test_where_uv_cannot_be_installed_one_line_says_what_to_install(machine, modules):
    """No Python at all, one without network, and one without its venv module."""
    if modules:
        machine.has("3.14", "python3", modules)
    (machine.home / "no_network").touch()
    ran, (line,) = machine.make("install", code=2)
    assert ran == []
    assert "no Python 3 that can install uv from PyPI to provide one" in line
    assert "install one (e.g. apt install python3.13-venv, or python3-venv)" in line


@pytest.mark.parametrize(
    "environment, versions, chosen",
    [
        (".venv-oldest", ["3.13", "3.11", "3.10"], "3.11"),
        (".venv-oldest", ["3.12", "3.10"], "3.10"),
        (".venv-interop", ["3.13", "3.11"], "3.11"),
        (".venv-interop", ["3.13", "3.12"], "3.12"),
    ],
)
def test_other_environments_have_an_older_python(
    machine, environment, versions, chosen
):
    for version in versions:
        machine.has(version)
    (ran,), _ = machine.make(f"{environment}/.installed")
    assert ran.startswith(f"{environment}/bin/python {chosen} -m pip install ")
    assert ("tensorflow<2.16" in ran) == (environment == ".venv-oldest")


def test_all_places_name_the_same_versions_of_python():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^SUPPORTED := (.+)$", makefile, re.MULTILINE)[1].split() == (
        SUPPORTED
    )
    lowest, above = doctor.SUPPORTED
    assert [f"3.{n}" for n in range(above[1] - 1, lowest[1] - 1, -1)] == SUPPORTED
    setup = (ROOT / "setup.py").read_text()
    assert f'python_requires=">=3.{lowest[1]},<3.{above[1]}"' in setup
    assert f"in range({lowest[1]}, {above[1]})" in setup
