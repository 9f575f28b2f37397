"""The core alone, installed by a current pip and by uv into an empty environment.

With each supported Python that this machine has, and once with the oldest TensorFlow.
There setuptools is the newest that the limits allow, and no extra has brought what a
command could need. The environments take 2 GB each below pytest's temporary folder, one
after the other.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from decoupled.core.installed import requirements
from tests.pretrained import make_pretrained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = pathlib.Path(__file__).parent.parent
# Brought by what was once always installed.
UNWANTED = {"google-api-python-client", "oauth2client", "pyarrow", "scikit-learn"}
SENTENCES = (
    "the\tDET\nword\tNOUN\nholds\tVERB\ntext\tNOUN\n\nevery\tDET\nword\tNOUN\n\n"
)
TINY = (
    "--gin_param=FinetuningConfig.max_sequence_length = 12",
    "--gin_param=FinetuningConfig.learning_rates = ()",
    "--gin_param=TrainingConfig.batch_size = 2",
    "--gin_param=TrainingConfig.eval_every_steps = 0",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What a package is built from, so that nothing is built in the checkout."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("requirements.txt", "setup.py", "pyproject.toml", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in ("decoupled", "gin"):
        shutil.copytree(ROOT / name, folder / name, ignore=leave_out)
    return folder


class Environment:
    """An environment outside of the checkout, and a folder that commands run in."""

    def __init__(self, folder, cwd):
        self.python = str(folder / "bin" / "python")
        self.cwd = cwd

    def start(self, *arguments, **options):
        """Starts its Python, without the paths that this one was given."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        return subprocess.Popen(
            [self.python, *arguments],
            cwd=self.cwd,
            env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, *arguments, code=0):
        """Runs it; returns the finished process, which must have ended with `code`."""
        process = self.start(*arguments)
        output, errors = process.communicate()
        done = subprocess.CompletedProcess(
            arguments, process.returncode, output, errors
        )
        assert done.returncode == code, f"{output}\n{errors}"
        return done

    def command(self, name, *arguments, code=0):
        """Runs a command of the package."""
        return self.run("-m", "decoupled", name, *arguments, code=code)


def install_with_pip(folder, python, source, *limits):
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip"]
    subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
    subprocess.run([*pip, "install", source, *limits], check=True)
    subprocess.run([*pip, "check"], check=True)


def install_with_uv(folder, python, source, *limits):
    tools = folder.parent / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run([tools / "bin" / "python", "-m", "pip", "install", "uv"], check=True)
    uv = tools / "bin" / "uv"
    subprocess.run([uv, "venv", "--python", python, folder], check=True)
    into = ["--python", folder / "bin" / "python"]
    subprocess.run([uv, "pip", "install", *into, source, *limits], check=True)
    subprocess.run([uv, "pip", "check", *into], check=True)


# How to install, the versions of Python that do, and limits beside the package's own.
# What pip and uv do differently does not depend on the version of Python.
ENVIRONMENTS = {
    f"pip-{version}": (install_with_pip, (version,))
    for version in ("3.10", "3.11", "3.12", "3.13")
}
ENVIRONMENTS["uv-3.13"] = install_with_uv, ("3.13",)
ENVIRONMENTS["pip-tensorflow-2.15"] = (
    install_with_pip,
    ("3.11", "3.10"),
    "tensorflow<2.16",
)


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def environment(request, source, tmp_path_factory):
    install, versions, *limits = ENVIRONMENTS[request.param]
    find = [ROOT / "make_environment.sh", "--find", *versions]
    found = subprocess.run(find, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"no Python {' or '.join(versions)} on this machine")
    folder = tmp_path_factory.mktemp("installed")
    install(folder / "venv", found.stdout.strip(), source, *limits)
    yield Environment(folder / "venv", folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return make_pretrained(tmp_path_factory.mktemp("pretrained") / "made")


def test_no_extra_is_there(environment):
    listing = (
        "import importlib.metadata as m; print(*{d.name for d in m.distributions()})"
    )
    found = {name.lower() for name in environment.run("-c", listing).stdout.split()}
    extras = {entry.name.lower() for entry in requirements() if entry.extras}
    # Of these, the core brings google-api-core's neighbours but not itself.
    assert found & (extras | UNWANTED) == set()


def test_setuptools_has_what_tensorboard_and_the_tpu_client_import(environment):
    """In silence: from 80.9 on it warns, and from 82 on it is gone."""
    code = (
        "import warnings; warnings.simplefilter('default'); "
        "import pkg_resources, tensorboard.main, tensorflow_text"
    )
    problem = "pkg_resources package is slated for removal"
    assert problem not in environment.run("-c", code).stderr


def test_tensorflow_and_tensorflow_text_are_of_one_release(environment):
    code = (
        "from importlib.metadata import version as v; "
        "print(*(v(n).rsplit('.', 1)[0] for n in ('tensorflow', 'tensorflow-text')))"
    )
    tensorflow, text = environment.run("-c", code).stdout.split()
    assert tensorflow == text


def test_the_doctor_says_what_can_run(environment):
    lines = environment.command("doctor").stdout.splitlines()
    assert "  all can run, some of them with an extra:" in lines
    cures = [line.rpartition(": ")[2] for line in lines if ": needs " in line]
    assert "pip install 'decoupled[demo]'" in cures
    assert "pip install 'decoupled[tpu]'" in cures
    assert not any("make install" in line for line in lines)
    for path in (ROOT / "decoupled" / "commands").glob("[!_]*.py"):
        environment.command(path.stem, "--help")


@pytest.mark.parametrize(
    "arguments, extra",
    [
        (("demo",), "demo"),
        (("tpu_health", "--tpu=n"), "tpu"),
        (("build_corpus", "--source=catalogs:django", "--output_dir=c"), "data"),
        (("build_corpus", "--input=en=x.xml", "--output_dir=c"), "data"),
        (
            (
                "build_corpus",
                "--input=en=x.txt",
                "--output_dir=c",
                "--runner=FlinkRunner",
            ),
            "beam",
        ),
    ],
)
def test_what_is_missing_is_one_line(environment, arguments, extra):
    (environment.cwd / "x.xml").write_text("<mediawiki/>")
    (environment.cwd / "x.txt").write_text("A sentence.")
    errors = environment.command(*arguments, code=2).stderr.splitlines()
    assert len(errors) == 1
    assert f"pip install 'decoupled[{extra}]'" in errors[0]
    assert not (environment.cwd / "c").exists()


def test_text_becomes_records(environment):
    words = "quick brown foxes jump over lazy dogs beside every river".split()
    lines = (f"some {one} {two}\n\n" for one in words for two in words)
    (environment.cwd / "en.txt").write_text("".join(lines))
    environment.command("build_corpus", "--input=en=en.txt", "--output_dir=corpus")
    pieces = "--gin_param=VocabularyConfig.vocab_size = 40"
    inputs = ("--corpus_dir=corpus", "--output_dir=vocabulary")
    done = environment.command("build_vocabulary", *inputs, pieces)
    assert "no plots: matplotlib is not installed" in done.stdout
    model = "--vocabulary=vocabulary/sentencepiece.model"
    inputs = ("--corpus_dir=corpus", "--output_dir=records")
    environment.command("build_records", *inputs, model)
    checked = environment.command("verify_records", "--records_dir=records", model)
    assert "en" in checked.stdout


def test_a_tagger_is_trained_and_scored(environment, pretrained):
    """Its scores come after its training: a missing package must not end that."""
    data = environment.cwd / "xtreme" / "udpos"
    data.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (data / f"{split}-en.tsv").write_text(SENTENCES)
    done = environment.command(
        "finetune",
        "--task=udpos",
        "--gin_file=tasks/table_10.gin",
        *TINY,
        "--data_dir=xtreme",
        f"--init_checkpoint={pretrained}",
        "--model_dir=tagger",
    )
    assert "no plots: matplotlib is not installed" in done.stdout
    scored = environment.command(
        "score",
        "--prediction_folder=tagger/predictions",
        "--label_folder=xtreme",
        "--languages=en",
    )
    assert "udpos f1" in scored.stdout


def test_an_export_takes_raw_text(environment, pretrained):
    made = ("--export_dir=exported", "--sequence_length=16")
    done = environment.command("export", f"--model_dir={pretrained}", *made)
    assert "pkg_resources" not in done.stderr
    code = (
        "import tensorflow as tf, tensorflow_text; "
        "model = tf.saved_model.load('exported/text_encoder'); "
        "print(model(tf.constant(['the word']))['pooled_output'].shape)"
    )
    assert environment.run("-c", code).stdout.startswith("(1, ")


def test_tensorboard_shows_a_run(environment, pretrained):
    process = environment.start(
        "-m", "tensorboard.main", f"--logdir={pretrained.parent}", "--port=0"
    )
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r"http://localhost:\d+", line):
                break
        assert address, "".join(lines)
        with urllib.request.urlopen(f"{address[0]}/data/logdir", timeout=60) as answer:
            assert str(pretrained.parent) in answer.read().decode()
        assert "pkg_resources" not in "".join(lines)
    finally:
        process.kill()
        process.communicate()
