"""What all tests share: a quiet TensorFlow, a vocabulary, the folder of real data."""

import fcntl
import gc
import json
import os
import signal
import sys

import hypothesis
import pytest

from decoupled import __main__ as entry
from decoupled.core.machine import choose_kernels

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The package does so, too, but a test may import TensorFlow before it.
choose_kernels()

# Programs of tests run a few steps: to optimize them takes longer.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any speed",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any speed")

# Beam's tests load gRPC, whose handlers can end a process that is forked to start
# another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# What tests write need not outlive a loss of power, and a disk takes minutes of a run
# to promise that. Tests of the promise put their own function here.
os.fsync = lambda descriptor: None

# Garbage is collected ten times as rarely as in commands, also in commands that tests
# call: tests leave graphs, and to look through them takes 4% of the time.
entry.GARBAGE_THRESHOLDS = (1_000_000, *entry.GARBAGE_THRESHOLDS[1:])
gc.set_threshold(*entry.GARBAGE_THRESHOLDS)

# A background job of a script ignores Ctrl-C, and nohup ignores a closed terminal.
# Tests that send these signals need what a terminal gives; their processes inherit it.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)

# These files take ten seconds or more, and their names are among the last. They run
# first, or one process is left with the last of them.
LONG_FILES = (
    "test_attention.py",
    "test_runtime.py",
    "test_hosts.py",
    "test_end_to_end.py",
    "test_tpu_loop.py",
    "test_tpu_program.py",
)


def pytest_collection_modifyitems(items):
    """Puts the long files first; all else stays in its order."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


def pytest_collection_finish():
    """Leaves imports out of later garbage collections, and turns stack traces off."""
    gc.collect()
    gc.freeze()
    if "tensorflow.python.util.tf_stack" in sys.modules:
        without_stack_traces(sys.modules["tensorflow.python.util.tf_stack"])


def without_stack_traces(tf_stack):
    """Gives all operations one stack trace: below pytest, traces of their own take a
    tenth of the time that it takes to build a graph."""
    trace = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: trace


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """The tiny vocabulary of `tests.exports.models`."""
    # Not above: many tests need no TensorFlow.
    from decoupled.data.vocabulary import open_vocabulary
    from tests.exports.models import train_sentencepiece

    path = str(tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model")
    train_sentencepiece(path)
    return open_vocabulary(path)


@pytest.fixture(scope="session")
def django(tmp_path_factory):
    """Django's catalogs.

    It takes seconds to read them: the first process of a test run that wants them does
    it for all.
    """
    pytest.importorskip("django", reason="needs the [demo] extra")
    from decoupled.corpora.catalogs.catalog_files import (
        Catalogs,
        Message,
        read_catalogs,
    )

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / "django.json"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(read_catalogs(["django"])))
    messages, drop_counts = json.loads(path.read_text())
    return Catalogs([Message(*message) for message in messages], drop_counts)


@pytest.fixture(scope="session")
def data_dir() -> str:
    """The folder of real data, DECOUPLED_DATA_DIR; skips where that is unset."""
    folder = os.environ.get("DECOUPLED_DATA_DIR")
    if not folder:
        pytest.skip("DECOUPLED_DATA_DIR is unset: no real data to read")
    return folder


@pytest.fixture(autouse=True)
def every_text_is_in_its_picture(monkeypatch):
    """Titles, labels and legends of every picture that a test makes fit into it."""
    from decoupled.core import plots

    save = plots._save

    def save_checked(figure, stem, kind):
        if kind == plots.FORMATS[0]:
            cut_texts = texts_outside(figure)
            assert not cut_texts, f"{stem}: {cut_texts} reach beyond the picture"
            # All keeps its place: to lay it out again takes longer than to draw it.
            figure.set_layout_engine("none")
        return save(figure, stem, kind)

    monkeypatch.setattr(plots, "_save", save_checked)
    # Few pixels take less time to be drawn.
    monkeypatch.setattr(plots, "_DPI", 30)


@pytest.fixture
def empty_pictures(monkeypatch, every_text_is_in_its_picture):
    """Makes pictures empty files, for modules whose pictures other tests draw."""
    from decoupled.core import plots

    def save(figure, stem, kind):
        path = f"{stem}.{kind}"
        open(path, "w").close()
        return path

    monkeypatch.setattr(plots, "_save", save)


def texts_outside(figure):
    """Titles, labels and texts of legends that are cut off at a figure's edges."""
    figure.draw_without_rendering()
    texts = [
        figure._suptitle,
        *(t for legend in figure.legends for t in legend.get_texts()),
    ]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
    picture = figure.bbox.padded(1)
    cut_texts = []
    for text in filter(None, texts):
        box = text.get_window_extent()
        is_inside = picture.x0 <= box.x0 and box.x1 <= picture.x1
        is_inside = is_inside and picture.y0 <= box.y0 and box.y1 <= picture.y1
        if text.get_text() and not is_inside:
            cut_texts.append(text.get_text())
    return cut_texts
