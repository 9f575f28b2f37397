"""Installing on a host: the image's TensorFlow stays, and a replaced one is noticed; or
an environment of its own, with JAX."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.tpu_scripts.cloud import SCRIPTS, UV

# A python3 whose pip only notes its arguments; `installs` runs at the second call.
PYTHON = """#!/bin/sh
if [ "$2" = pip ]; then
  echo "$*" >>{folder}/pip.log
  case "$*" in *--requirement*) {installs} ;; esac
elif [ "$2 $3" = "decoupled doctor" ]; then
  echo doctor
else
  PYTHONPATH={folder} exec {python} -S -E -c '
import sys
sys.path[:0] = ["{folder}"]
exec(sys.stdin.read())'
fi
"""
REQUIRES = """Name: decoupled
Version: 1
Requires-Dist: tensorflow<2.22,>=2.15
Requires-Dist: tensorflow-text<2.22,>=2.15
Requires-Dist: numpy<3,>=1.26
Requires-Dist: pytest>=8; extra == 'dev'
Requires-Dist: cloud-tpu-client==0.10; extra == 'tpu'
Requires-Dist: matplotlib>=3.10; extra == "plots"
"""


def program(home, name, text):
    path = home / name
    path.write_text(text)
    path.chmod(0o755)


def run_install(home, *arguments):
    return subprocess.run(
        ["bash", SCRIPTS / "host_install.sh", "decoupled.tar.gz", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home)},
    )


def distribution(folder, name, version, metadata):
    path = folder / f"{name}-{version}.dist-info"
    path.mkdir()
    (path / "METADATA").write_text(metadata)
    (path / "RECORD").write_text("a,sha256=1,2\n")


@pytest.fixture
def host(tmp_path):
    """The home folder of a TPU VM with TensorFlow 2.15.0, and how to install there."""
    distribution(
        tmp_path, "tensorflow", "2.15.0", "Name: tensorflow\nVersion: 2.15.0\n"
    )
    distribution(tmp_path, "decoupled", "1", REQUIRES)

    def install(installs="true"):
        paths = {"folder": tmp_path, "python": sys.executable}
        program(tmp_path, "python3", PYTHON.format(installs=installs, **paths))
        return run_install(tmp_path)

    return tmp_path, install


def test_core_and_tpu_client_are_installed_under_the_image_s_tensorflow(host):
    folder, install = host
    finished = install()
    assert finished.returncode == 0, finished.stderr
    package, requirements = (folder / "pip.log").read_text().splitlines()
    assert package.endswith(
        "install --user --no-deps --force-reinstall ./decoupled.tar.gz"
    )
    assert "--constraint decoupled_constraints.txt" in requirements
    constraints = (folder / "decoupled_constraints.txt").read_text()
    assert constraints == "tensorflow==2.15.0\nnumpy<2\n"
    assert (folder / "decoupled_requirements.txt").read_text().splitlines() == [
        "tensorflow-text<2.22,>=2.15",
        "numpy<3,>=1.26",
        "cloud-tpu-client==0.10",
    ]
    assert finished.stdout.endswith("doctor\n")


def test_another_build_of_the_same_version_is_noticed(host):
    folder, install = host
    record = folder / "tensorflow-2.15.0.dist-info" / "RECORD"
    finished = install(installs=f"echo b,sha256=2,3 >{record}")
    assert finished.returncode == 1
    assert "TensorFlow was 2.15.0 of the image" in finished.stderr
    assert "doctor" not in finished.stdout


@pytest.mark.parametrize(
    "version, said",
    [
        ("", "no TensorFlow in this image; use tpu-vm-tf-2.15.1-se"),
        # The package runs on it, but was never tried on a TPU.
        ("2.21.0", "has TensorFlow 2.21.0; these scripts need 2.15"),
    ],
)
def test_another_image_is_refused_before_anything_is_installed(host, version, said):
    folder, install = host
    (folder / "tensorflow-2.15.0.dist-info").rename(folder / "elsewhere")
    if version:
        metadata = f"Name: tensorflow\nVersion: {version}\n"
        distribution(folder, "tensorflow", version, metadata)
    finished = install()
    assert finished.returncode == 1
    assert said in finished.stderr
    assert not (folder / "pip.log").exists()


@pytest.fixture
def host_with_jax(tmp_path):
    """The home folder of a TPU VM with four chips."""
    shutil.copy(SCRIPTS / "host_job.sh", tmp_path)
    for name, text in {
        "uv": UV,
        "find": "printf '/dev/vfio/%s\\n' 0 1 2 3",
        "python3": 'echo "python $*"',
    }.items():
        program(tmp_path, name, f"#!/bin/sh\n{text}\n")
    return tmp_path


@pytest.mark.parametrize(
    "hosts, doctor", [("1", "python -m decoupled doctor\n"), ("4", "")]
)
def test_jax_is_installed_into_an_environment_of_its_own(host_with_jax, hosts, doctor):
    finished = run_install(host_with_jax, "4", hosts)
    assert (finished.returncode, finished.stdout) == (0, doctor), finished.stderr
    create, packages = (host_with_jax / "decoupled_uv.log").read_text().splitlines()
    assert create.split()[1:] == [
        "venv", "--quiet", "--no-project", "--python", "3.13", "decoupled_env"
    ]  # fmt: skip
    package = f"file://{host_with_jax}/decoupled.tar.gz"
    assert packages.endswith(f"decoupled[tpu_vm] @ {package}")


def test_a_host_without_all_of_its_chips_installs_nothing(host_with_jax):
    finished = run_install(host_with_jax, "8", "1")
    assert finished.returncode == 1
    assert "has 4 of 8 TPU chips: delete the slice and create it" in finished.stderr
    assert not (host_with_jax / "decoupled_uv.log").exists()
