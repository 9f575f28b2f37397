"""The shape of a run's batches: packed, or length bucketing where that pads less."""

import dataclasses
import itertools

import numpy as np
import pytest

from decoupled.configs import FinetuningConfig
from decoupled.core.errors import UserError
from decoupled.data.array_input_fn import training_order
from decoupled.data.packing import Rows
from decoupled.runs.batch_shape import (
    BATCHES,
    Begun,
    choose_shape,
    longest_rows,
    mean_tokens,
    plan_for,
    read_begun,
    training_lengths,
    write_begun,
)
from decoupled.tasks.tagging import Tagging
from decoupled.training import lengths as lengths_module
from tests.helpers import schedule, tiny_training
from tests.training.runs import ONE_DEVICE, graph_config, run_spec
from tests.training.test_lengths import LENGTH, TAGS


def lengths_of(steps, graphs=1, sizes=(3, 3, 5, 7, 9, 12, 17, 18)):
    """Of a run with batches of two, in which a graph is as dear as 40 tokens a row."""
    graph = graph_config(task=TAGS, schedule=schedule(steps, 0))
    return lengths_from(graph, np.array(sizes), tiny_training(batch_size=2), graphs)


def lengths_from(graph, sizes, training, graphs):
    """`training_lengths` of a run, as `choose_shape` asks for them."""
    longest = np.append(longest_rows(graph, sizes, training), sizes.max())
    return training_lengths(graph, longest, training.batch_size, graphs)


def test_a_run_has_more_lengths_the_longer_it_is(monkeypatch):
    monkeypatch.setattr(
        "decoupled.runs.batch_shape.training_tokens_per_length",
        lambda model, steps, graphs: 80 * graphs,
    )
    monkeypatch.setattr("decoupled.data.array_input_fn._GROUPS_PER_EPOCH", 1)
    # An epoch's four batches have at most 3, 7, 12 and 18 tokens.
    assert lengths_of(steps=4) == (LENGTH,)
    assert lengths_of(steps=8) == (8, LENGTH)
    assert lengths_of(steps=80) == (8, 16, LENGTH)
    # Each evaluation is followed by a graph of its own.
    assert lengths_of(steps=8, graphs=2) == (LENGTH,)
    # Nothing is longer than the rows, and nothing shorter than a run's longest.
    assert lengths_of(steps=80, sizes=[5] * 8) == (8,)
    assert lengths_of(steps=1, sizes=[*[5] * 7, 17])[-1] == LENGTH


# The cores of this machine train on a token of `tiny_model` in a second, build a length
# in ten, and skip it in 40 steps in as long; a GPU trains ten times as fast.
MACHINE = {
    "_FLOPS_BESIDE_PRODUCTS": 904,
    "_FLOPS_PER_TRAINING_GRAPH": 10 * (2 * (4 * 16 * 16 + 2 * 16 * 32) + 904),
    "_STEPS_PER_GRAPH": 40,
    "_GPU_SPEED": 10,
}


def lengths_on(gpus, monkeypatch, *run):
    """`training_lengths` of a run on a host with these GPUs."""
    for name, value in MACHINE.items():
        monkeypatch.setattr(lengths_module, name, value)
    monkeypatch.setattr(
        lengths_module.tf.config, "list_physical_devices", lambda kind: gpus
    )
    return lengths_from(*run)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_lengths_of_a_run_take_less_time(monkeypatch, seed):
    longest, steps, graphs, batch_size = 50, 80, 3, 2
    tokens = np.random.default_rng(seed).geometric(0.06, 60)
    sizes = np.minimum(2 + tokens, longest)
    task = Tagging("tags", ("A", "B", "C"), longest, 0.0, 0.0)
    graph = graph_config(task=task, schedule=schedule(steps, 0))
    order = training_order(len(sizes), batch_size, graph.seed, 0, sizes)
    batches = [sizes[rows].max() for rows in itertools.islice(order, steps)]
    run = graph, sizes, tiny_training(batch_size=batch_size), graphs

    def seconds(chosen, tokens_per_second):
        padded = np.array(chosen)[np.searchsorted(chosen, batches)]
        training = batch_size * padded.sum() / tokens_per_second
        return training + 10 * (graphs + steps / 40) * len(chosen)

    def least(tokens_per_second):
        possible = [*range(8, longest, 8), longest]
        every_choice = itertools.chain.from_iterable(
            itertools.combinations(possible, n + 1) for n in range(len(possible))
        )
        fitting = [chosen for chosen in every_choice if chosen[-1] >= sizes.max()]
        return min(seconds(chosen, tokens_per_second) for chosen in fitting)

    on_cores, on_gpu = (lengths_on(gpus, monkeypatch, *run) for gpus in ([], ["GPU"]))
    assert seconds(on_cores, 1) == pytest.approx(least(1))
    assert seconds(on_gpu, 10) == pytest.approx(least(10))
    # What building takes weighs more where training is fast.
    assert 1 < len(on_gpu) < len(on_cores)


SETTINGS = FinetuningConfig(1.0, LENGTH, 0.1, 0, False, 0.1, (), "none", True, True)
SIZES = np.random.default_rng(0).integers(3, 19, 100)


def graph_on(steps=60, **mesh):
    placed = dataclasses.replace(ONE_DEVICE, **mesh)
    return graph_config(task=TAGS, schedule=schedule(steps, 0), mesh=placed)


def packing_of(on_tpu=False, accumulation=1, sizes=SIZES, **mesh):
    """Of a run with batches of 8 and examples of 3 to 18 tokens."""
    training = tiny_training(batch_size=8, gradient_accumulation=accumulation)
    return plan_for(graph_on(**mesh), sizes, training, on_tpu)


def test_packed_batches_have_a_shape_that_the_mesh_can_split():
    plain = packing_of()
    # 8 examples of 10.5 tokens.
    assert 84 <= plain.rows * plain.length <= 104 and plain.length % 8 == 0
    split = packing_of(mesh_shape="d:2;s:3", layout_rules="batch:d;sequence:s")
    assert split.rows % 2 == 0 and split.length % 24 == 0
    assert packing_of(accumulation=4).rows % 4 == 0
    on_tpu = packing_of(on_tpu=True)
    assert (on_tpu.rows, on_tpu.length) == (1, 128)


def test_a_batch_may_hold_one_example_several_times():
    """As a training set of one example makes it."""
    packing = packing_of(sizes=np.array([10]))
    assert packing.rows * packing.length >= 80


def chosen(tmp_path, said, accumulation=1, begun=None, sizes=SIZES, **settings):
    run = run_spec(tmp_path, batch_size=8, gradient_accumulation=accumulation)._replace(
        say=said.append
    )
    config = dataclasses.replace(SETTINGS, **settings)
    return choose_shape(graph_on(), config, sizes, run, 1, begun)


def test_settings_decide_whether_batches_are_packed_grouped_or_padded(tmp_path):
    said = []
    packed = chosen(tmp_path, said, pack_sequences=True)
    assert packed.packing and packed.lengths == (packed.packing.length,)
    assert packed.task.examples.size == packed.packing.examples
    assert "batches of 8 examples packed into" in said[-1] and "% of them" in said[-1]
    grouped = chosen(tmp_path, said, pack_sequences=False, group_by_length=True)
    assert grouped.packing is None and grouped.task is TAGS and grouped.lengths
    assert "batches of like length" in said[-1]
    padded = chosen(tmp_path, said, pack_sequences=False, group_by_length=False)
    assert padded == (TAGS, (), None)


EIGHT_ROWS = (
    "batches are not packed: they would need 8 rows, a multiple of 8 for mesh and "
    "microbatches, of 24 tokens, as no row is shorter than the longest example; {}, "
    "a batch has {} tokens"
)


def test_batches_are_not_packed_where_their_rows_would_be_emptier(tmp_path):
    """Eight microbatches need a row each, as long as the longest example."""
    said = []
    settings = dict(pack_sequences=True, group_by_length=True)
    shape = chosen(tmp_path, said, accumulation=8, **settings)
    assert shape.packing is None and shape.task is TAGS and shape.lengths
    longest = longest_rows(graph_on(), SIZES, tiny_training(batch_size=8))
    grouped = mean_tokens(longest, shape.lengths, 8)
    assert said[-2] == EIGHT_ROWS.format("grouped by length", f"{grouped:.0f}")
    settings["group_by_length"] = False
    assert chosen(tmp_path, said, accumulation=8, **settings) == (TAGS, (), None)
    assert said[-1] == EIGHT_ROWS.format("padded", 8 * LENGTH)


@pytest.mark.parametrize("group_by_length", [True, False])
def test_batches_of_full_rows_are_not_packed(tmp_path, group_by_length):
    """As the windows of long contexts are: packed, they would have as many tokens."""
    said, full = [], np.full(100, LENGTH)
    settings = dict(pack_sequences=True, group_by_length=group_by_length)
    shape = chosen(tmp_path, said, sizes=full, **settings)
    assert shape.packing is None and shape.task is TAGS
    [why] = [line for line in said if "packed" in line]
    assert why.startswith("batches are not packed: ")
    assert why.endswith("a batch has 160 tokens")
    # One shorter example in ten saves nothing either; half of all examples do.
    full[::10] = 4
    assert chosen(tmp_path, [], sizes=full, **settings).packing is None
    full[::2] = 4
    assert chosen(tmp_path, [], sizes=full, **settings).packing.rows < 8


def test_a_small_batch_with_a_long_example_is_not_blamed_on_the_mesh(tmp_path):
    said = []
    run = run_spec(tmp_path, batch_size=1)._replace(say=said.append)
    sizes = np.array([3] * 99 + [18])
    assert choose_shape(graph_on(), SETTINGS, sizes, run, 1).packing is None
    assert "they would need 1 rows of 24 tokens, as no row" in said[-2]


def test_a_run_that_resumes_keeps_the_way_that_it_began_with(tmp_path):
    """Although other microbatches, which it may have then, would change the choice."""
    settings = dict(pack_sequences=True, group_by_length=True)
    first = chosen(tmp_path, [], 1, None, **settings)
    assert first.way == "packed"
    packed = chosen(tmp_path, [], 8, first.begun, **settings)
    assert packed.way == "packed" and packed.packing.rows == 8
    grouped = Begun("grouped by length", None)
    assert chosen(tmp_path, [], 1, grouped, **settings).way != "packed"


def test_a_packed_run_that_resumes_keeps_the_order_of_its_examples(tmp_path):
    """With other microbatches, batches have another shape, but the same examples."""
    first = chosen(tmp_path, [], 1, pack_sequences=True)
    resumed = chosen(tmp_path, [], 8, first.begun, pack_sequences=True)
    shape = Rows(first.packing.rows, first.packing.length)
    assert first.begun == resumed.begun == Begun("packed", shape)
    assert resumed.packing.rows > first.packing.rows
    # On the mesh of its first start nothing differs.
    assert chosen(tmp_path, [], 1, first.begun, pack_sequences=True)[1:] == first[1:]
    with pytest.raises(UserError, match='has 18 tokens, more than its "length", 8; de'):
        chosen(tmp_path, [], 1, Begun("packed", Rows(20, 8)), pack_sequences=True)
    # One that began before batches exchanged examples goes on without.
    earlier = chosen(tmp_path, [], 1, Begun("packed", None), pack_sequences=True)
    assert earlier.packing.order == Rows(8, SIZES.max())


def test_tokens_of_batches_of_several_lengths():
    """Batches of two, sorted by length: the longest of each decides."""
    graph = graph_config(task=TAGS, schedule=schedule(4, 0))
    sizes = np.array([5] * 4 + [17] * 4)
    longest = longest_rows(graph, sizes, tiny_training(batch_size=2))
    assert mean_tokens(longest, (8, 18), 2) == 2 * (8 + 18) / 2


@pytest.mark.parametrize(
    "begun", [Begun("packed", Rows(10, 128)), Begun("padded", None)]
)
def test_a_folder_tells_how_its_run_began(begun, tmp_path):
    assert read_begun(str(tmp_path)) is None
    write_begun(str(tmp_path), begun)
    assert read_begun(str(tmp_path)) == begun


@pytest.mark.parametrize(
    "held, told",
    [
        ('["packed"]', '"way" is not one of "packed", "grouped by length", "padded"'),
        ('{"way": "odd"}', '"way" is not one of "packed"'),
        ('{"way": "packed", "count": 10}', '"count" and "length" are not positive'),
        ('{"way": "packed", "count": 0, "length": 8}', '"count" and "length" are not'),
        ('{"way": "packed", "count": true, "length": 8}', '"count" and "length" are'),
    ],
)
def test_a_damaged_file_is_named(held, told, tmp_path):
    (tmp_path / BATCHES).write_text(held)
    with pytest.raises(UserError) as error:
        read_begun(str(tmp_path))
    assert str(error.value).startswith(f"{tmp_path}/{BATCHES}: {told}")
    assert str(error.value).endswith("; delete the run's folder to train anew")
