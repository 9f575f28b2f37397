"""Steps on a GPU: their table from numbers typed in, and quick runs on a CPU."""

import json
import os
import subprocess

import numpy as np
import pytest

from benchmarks import accelerators, peers, results
from benchmarks.__main__ import main
from benchmarks.sizes import QUICK, REFERENCE, Batch, batch_fields, pretraining_case
from tests.benchmarks.toys import comparison, measured
from tests.interop.reference import PYTHON

H100 = "NVIDIA H100 80GB HBM3"
BATCH = Batch(128, 128, 20)
CASE = {**pretraining_case(REFERENCE, BATCH, "bfloat16"), "block": 10}


def test_a_step_is_a_block_s_share_and_the_peak_is_the_card_s():
    facts = {"device": H100, "device_bytes": 6 * 2**30}
    ours = measured("decoupled", [[0.25], [0.25]], CASE, facts)
    peer = measured("transformers", [[0.5], [0.5]], CASE, facts)
    packed = {
        name: x
        for name, x in CASE.items()
        if name not in batch_fields(REFERENCE, BATCH)
    }
    other = measured("JAX", [[0.25], [0.25]], packed, facts)
    (table,) = accelerators.tables([comparison("base-128x128", [peer, ours, other])])
    # 16 times the products of the reference step, in 50 ms, of 989 TFLOP/s; ours
    # computes the end of the last layer for fewer tokens.
    assert f"{16 * 625.978e9 / 0.05 / 989e12:.0%}" == "20%"
    assert table.rows[0][2:] == [
        "50.0 ms (50.0-50.0)", "2.00x (2.00-2.00)", "20%", "6.0 GiB"
    ]  # fmt: skip
    assert table.rows[1][4] == "38%"
    # Products of packed rows are not counted.
    assert table.rows[2][4] == ""


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_a_quick_run_of_packed_rows_on_a_cpu(tmp_path):
    pytest.importorskip("jax")
    main(["accelerators", "--quick", "--only=xnli", f"--results_dir={tmp_path}"])
    (read,) = results.read(tmp_path / "accelerators.json")
    ours, nondeterministic, padded, unpadded = read.workers
    assert ours.rounds[0].loss == nondeterministic.rounds[0].loss
    assert [worker.name for worker in (padded, unpadded)] == [
        "transformers", "transformers, unpadded",
    ]  # fmt: skip


@pytest.mark.interop
@pytest.mark.skipif(not PYTHON, reason="no interpreter with torch and transformers")
def test_examples_without_padding_have_the_loss_of_padded_rows(tmp_path):
    """Of the peer, in float32 without dropout, in three steps of training."""
    rng = np.random.default_rng(0)
    mask = np.array([[1] * 5 + [2] * 3, [1] * 8, [1] * 4 + [0] * 4])
    shape = mask.shape
    arrays = {
        "0-input_word_ids": rng.integers(1, 20, shape, np.int32),
        "0-input_type_ids": rng.integers(0, 2, shape, np.int32),
        "0-input_mask": mask.astype(np.int32),
        "0-label_ids": np.array([[0, 2], [1, 0], [2, 0]], np.int32),
    }
    np.savez(tmp_path / "features.npz", **arrays)
    case = pretraining_case(QUICK, Batch(1, 8, 1), "float32")
    case |= {
        "features": str(tmp_path / "features.npz"), "block": 1, "quick": True,
        "architecture": "bert",
    }  # fmt: skip
    script = (
        "import json, sys; sys.path.insert(0, 'benchmarks/workers'); import torch;"
        "torch.compile = lambda f, **_: f; import transformers_step as t;"
        "t.DROPOUT = 0.0; case = json.loads(sys.argv[1]); ways = [];\n"
        "for way in (False, True):\n"
        "    step, _ = t.build({**case, 'unpadded': way})\n"
        "    ways.append([step() for _ in range(3)])\n"
        "print(json.dumps(ways))"
    )
    done = subprocess.run(
        [PYTHON, "-c", script, json.dumps(case)], capture_output=True, text=True,
        cwd=peers.ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    padded, unpadded = json.loads(done.stdout.splitlines()[-1])
    assert unpadded == pytest.approx(padded, rel=1e-5)
    assert len(set(padded)) == 3
