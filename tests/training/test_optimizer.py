"""The schedule, what is decayed, clipping, and single updates against NumPy."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.training.optimizer import apply_gradients, learning_rate
from tests.helpers import SESSION_CONFIG, adamw, adamw_step, mesh_impl, schedule


def rates(schedule_config, steps, peak=0.02):
    """Learning rates of the updates from each of some steps on."""
    return [
        float(learning_rate(peak, schedule_config, tf.constant(step, tf.int64)))
        for step in steps
    ]


DECAYS = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + np.cos(np.pi * x)) / 2,
    "one_minus_sqrt": lambda x: 1 - np.sqrt(x),
}


@pytest.mark.parametrize(
    "decay, decay_steps, final_share, warmup_steps",
    [
        *((decay, None, 0.0, 20) for decay in DECAYS),
        *((decay, 30, 0.1, 20) for decay in DECAYS),
        ("linear", None, 0.0, 0),
        ("constant", None, 0.0, 20),
        ("constant", None, 0.0, 0),
    ],
)
def test_rates_have_their_closed_form(decay, decay_steps, final_share, warmup_steps):
    """Also behind the last step."""
    config = schedule(100, warmup_steps, decay, decay_steps, final_share)
    steps = np.arange(130)

    values = np.array(rates(config, steps))

    begins = warmup_steps if decay_steps is None else 70
    # Stable between warm-up and decay.
    assert np.ptp(values[warmup_steps : begins + 1]) == 0
    expected = np.full(len(steps), 0.02)
    if decay != "constant":
        assert config.decay_begins == begins
        x = np.clip((steps - begins) / (100 - begins), 0, 1)
        expected *= final_share + (1 - final_share) * DECAYS[decay](x)
    warm = steps < warmup_steps
    expected[warm] = 0.02 * steps[warm] / 20
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-8)


def test_warm_up_may_last_the_whole_run():
    values = rates(schedule(10, 10, "linear"), [5, 9])
    np.testing.assert_allclose(values, [0.01, 0.018], rtol=1e-6)


# Two variables whose gradients have the global norm sqrt(9 + 16 + 144) = 13.
START = {"kernel": [1.0, -2.0, 0.5, 4.0], "layer/bias": [1.0, 1.0]}
GRADIENTS = {"kernel": [3.0, 0.0, 4.0, 0.0], "layer/bias": [0.0, 12.0]}
DECAYED = ["kernel"]
RATE = 0.1


def update(config, updates, mesh_shape="all:1", layout=""):
    """Variables, slots and gradient norm after some updates with one gradient."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        step = tf.train.get_or_create_global_step()
        variables, gradients = [], []
        for name, values in START.items():
            shape = mtf.Shape([mtf.Dimension("hidden", len(values))])
            start = tf.constant_initializer(values)
            value = mtf.get_variable(mesh, name, shape, initializer=start)
            variables.append(value.operation)
            gradient = tf.constant(GRADIENTS[name])
            gradients.append(mtf.import_tf_tensor(mesh, gradient, shape))
        scalars = [
            mtf.import_tf_tensor(mesh, tf.cast(value, tf.float32), mtf.Shape([]))
            for value in (RATE, step + 1)
        ]
        seed = mtf.import_tf_tensor(mesh, tf.cast(step, tf.int32), mtf.Shape([]))
        implementation = mesh_impl(mesh_shape, layout)
        made = apply_gradients(
            config, gradients, variables, DECAYED, {}, *scalars, implementation, seed
        )
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        operation = tf.group([lowering.lowered_operation(o) for o in made.operations])
        norm = lowering.export_to_tf_tensor(made.gradient_norm)
        to_slices = lowering.copy_masters_to_slices()
        to_masters = lowering.copy_slices_to_masters()
        with tf.control_dependencies([operation]):
            counted = tf.assign_add(step, 1)
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run(to_slices)
            for _ in range(updates):
                _, norm_value = session.run([counted, norm])
            session.run(to_masters)
            named = {v.op.name: v for v in tf.global_variables()}
            return session.run(named), norm_value


def numpy_adamw(config, updates):
    """Loshchilov and Hutter 2019, algorithm 2, with decoupled decay, in float64."""
    norm = np.sqrt(sum(np.square(g).sum() for g in GRADIENTS.values()))
    scale = min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0
    result = {}
    for name, start in START.items():
        x, g = np.array(start), np.array(GRADIENTS[name]) * scale
        m, v = np.zeros_like(x), np.zeros_like(x)
        for step in range(1, updates + 1):
            x, m, v = adamw_step(
                x, m, v, g, step, RATE,
                weight_decay=config.weight_decay if name in DECAYED else 0.0,
                beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon,
            )  # fmt: skip
        result |= {name: x, f"{name}/adam_m": m, f"{name}/adam_v": v}
    return result


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 6.5, 13.0, 100.0])
def test_adamw_equals_its_definition(clip_norm):
    # An epsilon of the size of the gradients shows how often it is corrected.
    config = adamw(weight_decay=0.25, epsilon=0.5, clip_norm=clip_norm)

    variables, norm = update(config, updates=3)

    assert norm == pytest.approx(13.0, rel=1e-6)
    for name, value in numpy_adamw(config, 3).items():
        np.testing.assert_allclose(variables[name], value, rtol=2e-5, atol=1e-7)


def test_the_norm_counts_every_slice_once():
    config = adamw(clip_norm=6.5)
    expected, _ = update(config, updates=2)

    for shape, layout in (("d:2;m:2", "hidden:m"), ("d:2", "")):
        variables, norm = update(config, 2, shape, layout)
        assert norm == pytest.approx(13.0, rel=1e-6)
        for name in expected:
            if "slice" not in name:
                np.testing.assert_allclose(variables[name], expected[name], rtol=1e-6)
