"""Conversions hold one copy of one large tensor at a time, in either direction."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from decoupled.exports.interop.huggingface import huggingface_name, huggingface_shape
from decoupled.exports.interop.huggingface_config import MASKED_LM, REMBERT, make_config
from decoupled.exports.interop.safetensors_files import write_safetensors
from decoupled.model.variables import MASKED_LM as WITH_MLM_HEAD
from decoupled.model.variables import shapes
from tests.exports.models import model_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.path.exists("/proc/self/status"), reason="no /proc to read a peak from"
    ),
]

# The output embedding is 400 MB, everything else together 5 MB.
CONFIG = model_config(vocab_size=100_000, output_embedding_size=1000)
LARGEST = 4 * 100_000 * 1000

# Prints how much the peak grew after the imports, in bytes.
SCRIPT = r"""
import re, sys
from decoupled.core.release import tf
from decoupled.exports.interop.huggingface import from_huggingface, to_huggingface
from decoupled.exports.interop.from_original import from_original
from decoupled.data.vocabulary import vocabulary_path
from decoupled.runs import run_folder as model_dir
from decoupled.runs.saved_run import open_model
tf.zeros(1)
def peak():
    # Not getrusage: its peak begins with that of the process that started this one.
    status = open("/proc/self/status").read()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
# The peak of the imports is above what they leave: it would hide the conversion's.
open("/proc/self/clear_refs", "w").write("5")
before = peak()
direction, source, target = sys.argv[1:]
if direction == "from_hf":
    from_huggingface(source, target, None, [])
else:
    prefix = open_model(source, verify=False).weights.path
    if direction == "to_hf":
        to_huggingface(source, prefix, target, False)
    else:
        path = vocabulary_path(source)
        from_original(prefix, target, model_dir.read(source).model, path, [])
print(peak() - before)
"""


def growth(direction, source, target):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, direction, str(source), str(target)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return int(result.stdout.splitlines()[-1])


@pytest.fixture
def huggingface_folder(tmp_path, vocabulary):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "sentencepiece.model").write_bytes(vocabulary.content)
    config = make_config(CONFIG, vocabulary, REMBERT, MASKED_LM, None, None)
    (folder / "config.json").write_text(json.dumps(config))
    theirs = {
        huggingface_name(name, REMBERT, MASKED_LM): huggingface_shape(
            name, shape, REMBERT
        )
        for name, shape in shapes(CONFIG, WITH_MLM_HEAD).items()
    }
    path = folder / "model.safetensors"
    write_safetensors(
        str(path), theirs, lambda name: np.full(theirs[name], 0.5, np.float32)
    )
    return folder


def test_peak_memory_is_that_of_the_largest_tensor(huggingface_folder, tmp_path):
    ours, again = tmp_path / "ours", tmp_path / "again"
    assert LARGEST < growth("from_hf", huggingface_folder, ours) < 1.5 * LARGEST
    assert LARGEST < growth("from_tf", ours, tmp_path / "copy") < 1.5 * LARGEST
    assert LARGEST < growth("to_hf", ours, again) < 1.5 * LARGEST
    assert (again / "model.safetensors").read_bytes() == (
        huggingface_folder / "model.safetensors"
    ).read_bytes()
