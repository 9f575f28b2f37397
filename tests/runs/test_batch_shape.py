"""The shape of a run's packed batches, and how a run that resumes keeps its order."""

import numpy as np
import pytest

from decoupled.configs.hardware import Hardware, MeshConfig
from decoupled.core.errors import UserError
from decoupled.data.packing import Rows
from decoupled.runs.batch_shape import BATCHES, plan_batches, read_order, write_order
from decoupled.tasks.tagging import Tagging
from tests.helpers import schedule
from tests.refusals import refusal
from tests.training.runs import ONE_DEVICE, graph_config, run_spec, said

LENGTH = 20
TAGS = Tagging("tags", ("A", "B", "C"), LENGTH, 0.0)
SIZES = np.random.default_rng(0).integers(3, 19, 100)


def planned(folder, sizes=SIZES, order=None, mesh=ONE_DEVICE, tpu=None, **training):
    """(shape, what was said) of a run of 60 steps with examples of 3 to 18 tokens."""
    graph = graph_config(task=TAGS, schedule=schedule(60, 0), mesh=mesh, **training)
    run = run_spec(folder)._replace(hardware=Hardware(tpu=tpu))
    return plan_batches(graph, sizes, run, order), said(run)


def test_batches_have_a_shape_that_mesh_and_microbatches_can_split(tmp_path):
    plain, [line] = planned(tmp_path)
    # 8 examples of 10.5 tokens.
    assert 84 <= plain.rows * plain.length <= 104 and plain.length % 8 == 0
    assert line.startswith(
        f"batches of 8 examples packed into {plain.rows} rows of {plain.length} tokens"
    )
    axes = MeshConfig("d:2;s:3", "batch:d;sequence:s")
    split, _ = planned(tmp_path, mesh=axes)
    assert split.rows % 2 == 0 and split.length % 24 == 0
    assert planned(tmp_path, gradient_accumulation=4)[0].rows % 4 == 0
    assert planned(tmp_path, tpu="a TPU")[0][:2] == (1, 128)


@pytest.mark.parametrize(
    "sizes, batch_size, rows",
    [
        # Rows may be longer than the longest example.
        (np.full(100, LENGTH), 8, (4, 40)),
        (np.array([3] * 99 + [18]), 1, (1, 24)),
        # A batch may hold one example several times.
        (np.array([10]), 8, (4, 24)),
    ],
)
def test_any_examples_can_be_packed(sizes, batch_size, rows, tmp_path):
    packing, _ = planned(tmp_path, sizes, batch_size=batch_size)
    assert packing[:2] == rows


def test_a_run_that_resumes_keeps_the_order_of_its_examples(tmp_path):
    """With other microbatches, batches have another shape, but the same examples."""
    first, _ = planned(tmp_path)
    write_order(str(tmp_path), first.order)
    order = read_order(str(tmp_path))
    resumed, _ = planned(tmp_path, order=order, gradient_accumulation=8)
    assert first.order == resumed.order == Rows(first.rows, first.length)
    assert resumed.rows == 8 > first.rows
    # On the mesh of its first start nothing differs.
    assert planned(tmp_path, order=order)[0] == first
    with pytest.raises(UserError, match='has 18 tokens, more than its "length", 8; de'):
        planned(tmp_path, order=Rows(20, 8))


UNPACKED = "the run began with batches that are not packed, which is the one way now; "


@pytest.mark.parametrize(
    "content, message",
    [
        (None, UNPACKED),
        ('{"way": "grouped by length"}', UNPACKED),
        ('["packed"]', UNPACKED),
        ('{"way": "packed", "count": 10}', '"count" and "length" are not positive'),
        ('{"way": "packed", "count": 0, "length": 8}', '"count" and "length" are not'),
        ('{"way": "packed", "count": true, "length": 8}', '"count" and "length" are'),
    ],
)
def test_a_run_with_other_batches_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / BATCHES).write_text(content)
    refused = refusal(read_order, str(tmp_path))
    assert refused.startswith(f"{tmp_path}/{BATCHES}: {message}")
    assert refused.endswith("delete the run's folder to train anew")
