"""Weights in bfloat16, updated with stochastic rounding: exact on average."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import AdamUpdate, ElementwiseAdamUpdate, step_scalars
from decoupled.ops.kernels import compiled
from decoupled.ops.rounding import noise, round_by
from tests.helpers import SESSION_CONFIG, mesh_impl

BFLOAT16 = tf.bfloat16.as_numpy_dtype
MESHES = [("all:1", ""), ("m:2", "rows:m"), ("d:2;m:2", "rows:m")]
SHAPE = (32, 24)
DIMS = [mtf.Dimension("rows", SHAPE[0]), mtf.Dimension("columns", SHAPE[1])]


compiled_noise = compiled(noise)


def random_bits(seed, salt=7, first=(0, 0), sizes=SHAPE, part=None):
    """`noise` as numpy."""
    key = tf.constant([seed, salt, *first])
    return compiled_noise(key, sizes, part or sizes).numpy()


def deviations(bits):
    """Random bits as numbers with mean 0 and variance 1, if they are even."""
    return ((bits >> 16) / 2**16 - 0.5) * np.sqrt(12)


# The bits of some float32; those of a bfloat16 are a multiple of 0x10000.
BETWEEN = [0x3F808000, 0x3F804000, 0x3F80FFFF, 0x3F800001, 0xBF812345, 0x00810400]


def test_rounded_up_with_the_probability_of_what_is_cut_off():
    exact = np.array(BETWEEN, np.uint32)
    values = np.tile(exact.view(np.float32), [500, 1])
    round_all = compiled(
        lambda x, key: round_by(x, noise(key, x.shape.as_list(), x.shape.as_list()))
    )
    seeds = 100
    up = np.zeros(len(exact))
    for seed in range(seeds):
        result = round_all(values, tf.constant([seed, 1, 0, 0])).numpy()
        bits = result.astype(np.float32).view(np.uint32)
        below = exact & 0xFFFF0000
        assert np.isin(bits - below, [0, 0x10000]).all()
        up += (bits > below).sum(axis=0)
    draws = seeds * len(values)
    probability = (exact & 0xFFFF) / 2**16
    deviation = np.sqrt(probability * (1 - probability) / draws)
    assert (np.abs(up / draws - probability) < 5 * deviation + 1e-12).all()


def test_what_is_in_bfloat16_stays_and_so_do_infinity_and_nan():
    values = np.array([0.0, -1.5, 2.0**-126, np.inf, -np.inf], np.float32)
    most = np.full(values.shape, 0xFFFFFFFF, np.uint32)
    result = compiled(round_by)(values, most).numpy().astype(np.float32)
    np.testing.assert_array_equal(result, values)
    # A NaN of ones alone, which a carry would make zero.
    nan = np.array([0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(compiled(round_by)(nan, most[:2]).numpy().astype(np.float32)).all()


def test_bits_are_even_and_those_of_neighbours_steps_and_names_unrelated():
    shape = (200, 500)
    bits = random_bits(3, sizes=shape)
    counts = np.bincount((bits >> 24).ravel(), minlength=256)
    expected = bits.size / 256
    # Chi-square of 255 degrees of freedom: mean 255, deviation sqrt(510).
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 5 * np.sqrt(510)
    z = deviations(bits)
    others = [
        np.roll(z, 1, axis=0),
        np.roll(z, 1, axis=1),
        deviations(random_bits(4, sizes=shape)),
        deviations(random_bits(3, salt=8, sizes=shape)),
        # The two numbers that the bits depend on, exchanged.
        deviations(random_bits(7, salt=3, sizes=shape)),
    ]
    for other in others:
        assert abs((z * other).mean()) < 5 / np.sqrt(z.size)


def test_a_slice_has_the_bits_of_its_place_in_the_whole():
    whole = random_bits(5)
    part = random_bits(5, first=(16, 8), part=(16, 8))
    np.testing.assert_array_equal(part, whole[16:, 8:16])


class Update:
    """Updates of one variable, with constant gradients and bfloat16 slices.

    Args:
      start, gradient: arrays of SHAPE.
      mesh_shape, layout_rules: of the mesh.
      slice_dtype: of the weights. rate, weight_decay: of AdamW.
    """

    def __init__(
        self, start, gradient, mesh_shape="all:1", layout_rules="",
        slice_dtype=tf.bfloat16, rate=0.02, weight_decay=0.0,
    ):  # fmt: skip
        self._graph = tf.Graph()
        with self._graph.as_default():
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            self._step = tf.placeholder(tf.int32, [])

            def scalar(value):
                return mtf.import_tf_tensor(mesh, value, mtf.Shape([]))

            seed, step = scalar(self._step), scalar(tf.cast(self._step, tf.float32))
            weights = variable(mesh, "weights", start, slice_dtype)
            change = mtf.import_tf_tensor(mesh, gradient, mtf.Shape(DIMS))
            zeros = np.zeros(SHAPE, np.float32)
            slots = [variable(mesh, name, zeros, tf.float32) for name in "mv"]
            one, rate = (scalar(tf.constant(x)) for x in (1.0, rate))
            settings = dict(weight_decay=weight_decay, epsilon=1e-8)
            numbers = step_scalars(rate, step, beta1=0.9, beta2=0.999, **settings)
            updated = [weights, *slots, change]
            if slice_dtype == tf.bfloat16:
                members = [[x] for x in updated]
                update = ElementwiseAdamUpdate(
                    *members, one, numbers, [True], [1], seed=seed
                )
            else:
                update = AdamUpdate(*updated, one, numbers, True)
            lowering = mtf.Lowering(
                graph, {mesh: mesh_impl(mesh_shape, layout_rules)}, autostack=False
            )
            self._update = lowering.lowered_operation(update)
            self._to_slices = lowering.copy_masters_to_slices()
            self._to_masters = lowering.copy_slices_to_masters()
            self._slices = lowering.variables[weights].laid_out_tensor.all_slices
            self._saved = tf.global_variables()

    def run(self, steps):
        """The saved weights after some steps, float32; and the slices."""
        with tf.Session(graph=self._graph, config=SESSION_CONFIG) as session:
            session.run([variable.initializer for variable in self._saved])
            session.run(self._to_slices)
            for step in range(1, steps + 1):
                session.run(self._update, {self._step: step})
            session.run(self._to_masters)
            return session.run(self._saved[0]), session.run(self._slices)


def variable(mesh, name, value, slice_dtype):
    return mtf.get_variable(
        mesh,
        name,
        mtf.Shape(DIMS),
        dtype=mtf.VariableDType(tf.float32, slice_dtype, tf.float32),
        initializer=tf.constant_initializer(value),
    ).operation


def normal(seed):
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def test_one_step_of_adamw_is_that_of_float32_but_for_the_last_bit():
    start = normal(0).astype(BFLOAT16).astype(np.float32)
    narrow, wide = (
        Update(start, normal(1), slice_dtype=dtype, weight_decay=0.1)
        for dtype in (tf.bfloat16, tf.float32)
    )
    (result, slices), (expected, _) = narrow.run(1), wide.run(1)
    unit = 2.0 ** (np.floor(np.log2(np.abs(expected))) - 7)
    assert (np.abs(result - expected) < unit).all()
    assert 0.3 < (result > expected).mean() < 0.7
    assert {part.dtype for part in slices} == {np.dtype(BFLOAT16)}
    # Saved is what the devices have.
    np.testing.assert_array_equal(result.astype(BFLOAT16).astype(np.float32), result)


RATE, STEPS = 1e-4, 150


def test_many_small_steps_of_adamw_add_up():
    """A constant gradient moves every weight by the rate in each step."""
    ones = np.ones(SHAPE, np.float32)
    update = Update(ones, ones, rate=RATE)
    result, slices = update.run(STEPS)
    # Steps down from 1 are 2^-8 wide: each is made with probability RATE * 2^8.
    probability = RATE * 2**8
    deviation = 2**-8 * np.sqrt(STEPS * probability * (1 - probability))
    standard_error = deviation / np.sqrt(ones.size)
    assert abs(result.mean() - (1 - STEPS * RATE)) < 4 * standard_error
    assert result.std() == pytest.approx(deviation, rel=0.15)
    again, slices_again = update.run(STEPS)
    np.testing.assert_array_equal(again, result)
    for part, other in zip(slices, slices_again, strict=True):
        np.testing.assert_array_equal(part, other)


def test_every_mesh_rounds_alike_and_copies_of_a_slice_stay_equal():
    results = [Update(normal(2), normal(3) / 50, *mesh).run(5) for mesh in MESHES]
    for result, _ in results[1:]:
        np.testing.assert_array_equal(result, results[0][0])
    # rows:m on d:2;m:2: processors 0 and 2 have the same rows, and so have 1 and 3.
    slices = results[2][1]
    np.testing.assert_array_equal(slices[0], slices[2])
    np.testing.assert_array_equal(slices[1], slices[3])
    assert not np.array_equal(slices[0], slices[1])
