"""Plans a pre-training run on a Cloud TPU slice or on GPUs, without either.

Builds the graph of a training step as the slice would get it, and reports from it: a
core's slices of the weights, the bytes of its memory, collective operations, FLOPs, the
predicted time of a step and of the whole run; and, where the run does not fit, which
settings make it fit. Takes the settings of `decoupled pretrain`.

  decoupled plan --topology=v3-128 --gin_file=models/rembert.gin \\
      --layouts=all

--gpus=N, instead of --topology: what of the training graph would run on N GPUs of one
host, and what TensorFlow would move to its CPU for lack of a kernel.
--topology: v2-8 ... v2-512, v3-8 ... v3-2048, v4-8 ... v4-4096. The settings' mesh
must have as many processors as the slice has cores (v4: chips).
--layouts: instead of the settings' own mesh, these layouts on every mesh of the slice's
cores that can be; "all" are those of layouts/*.gin. The best is reported in full.
Every layout is a program to build, which takes some seconds for a large model; so is
every change of settings that is tried where nothing fits. --advice_minutes bounds how
long that is tried, --noadvice leaves it out.
"""

import os
import time
from collections.abc import Iterator

from absl import flags

from decoupled.configs.studies import plan
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start

FLAGS = flags.FLAGS
DEFAULTS, GPU_DEFAULTS = "runs/plan.gin", "runs/plan_gpus.gin"
_ALL = "all"
# A change that leaves more than this share of the memory does not help.
_HELPS = 0.99
# Programs of so many seconds are told of one by one.
_SLOW = 5.0


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("topology", None, "The slice, e.g. v3-8.")
    flags.DEFINE_list(
        "layouts", [], "Layouts to compare: gin files, or names of layouts/; or all."
    )
    flags.DEFINE_string("json", None, "File for all numbers of all plans.")
    flags.DEFINE_boolean("advice", True, "Where it does not fit, try what would.")
    flags.DEFINE_float("advice_minutes", 5.0, "Try that for no longer.", lower_bound=0)
    flags.DEFINE_integer("gpus", None, "GPUs of one host, instead.", lower_bound=1)


def main() -> None:
    """Plans, compares and prints."""
    if (FLAGS.topology is None) == (FLAGS.gpus is None):
        raise UserError(
            "--topology must be given, e.g. v3-8; or --gpus, and then no --topology"
        )
    if FLAGS.gpus is None:
        _plan_for_tpu()
    else:
        _place_on_gpus()


def _place_on_gpus():
    if FLAGS.layouts or FLAGS.json:
        raise UserError("--layouts and --json are of --topology: leave --gpus out")
    settings = start.parse_gin(plan, GPU_DEFAULTS)
    from decoupled.planning.gpu_placement import landing_of_run, print_landing
    from decoupled.planning.plan import run_of

    print_landing(landing_of_run(run_of(settings.run), FLAGS.gpus), FLAGS.gpus)


def _plan_for_tpu():
    settings = start.parse_gin(plan, DEFAULTS)
    # Here, so that --help does not wait for TensorFlow.
    from decoupled.planning.hardware import parse_topology
    from decoupled.planning.plan import make_plan, run_of
    from decoupled.planning.report import as_json, print_plan

    tpu, run = parse_topology(FLAGS.topology), run_of(settings.run)
    plans, started = [], time.monotonic()

    def make(planned):
        plans.append(make_plan(planned, tpu, settings.config))
        return plans[-1]

    if FLAGS.layouts:
        chosen = _compare(run, tpu, make)
    else:
        chosen = make(run)
    print_plan(chosen)
    if not chosen.fits and FLAGS.advice:
        _advise(chosen, make, (time.monotonic() - started) / len(plans))
    if FLAGS.json:
        files.write_json(FLAGS.json, [as_json(made) for made in plans])


def _compare(run, tpu, make):
    """Plans every layout; prints them in a table and returns the best."""
    from decoupled.planning.comparison import best, candidates
    from decoupled.planning.report import SUMMARY, summary_row

    found = [
        candidate
        for name, mesh in _layouts()
        for candidate in candidates(name, mesh, run, tpu)
    ]
    plans, rows, refused = [], [], []
    for candidate in console.track(found, "planning layouts"):
        if candidate.reason:
            refused.append(
                f"{candidate.name}, {candidate.run.mesh.mesh_shape}: {candidate.reason}"
            )
            continue
        plans.append(make(candidate.run))
        rows.append(summary_row(candidate.name, plans[-1]))
    if not plans:
        raise UserError(f"--layouts: none can be on {tpu.name}: {'; '.join(refused)}")
    console.table(f"Layouts on {tpu.name}", ["layout", *SUMMARY[1:]], rows)
    for line in refused:
        console.say(f"cannot be: {line}")
    chosen = best(plans)
    console.say(
        f"best: MeshConfig.mesh_shape = {chosen.run.mesh.mesh_shape!r}, "
        f"MeshConfig.layout_rules = {chosen.run.mesh.layout_rules!r}"
    )
    return chosen


def _layouts():
    """Name and MeshConfig of each layout of --layouts, among the other settings."""
    names = FLAGS.layouts
    if names == [_ALL]:
        folder = os.path.join(gin_files.packaged_folder(), "layouts")
        names = sorted(name for name in os.listdir(folder) if name.endswith(".gin"))
    for name in names:
        path = name if name.endswith(".gin") else f"{name}.gin"
        path = path if os.path.dirname(path) else os.path.join("layouts", path)
        settings = gin_files.configure(
            plan,
            [DEFAULTS, *FLAGS.gin_file, path],
            FLAGS.gin_param,
            FLAGS.gin_location_prefix,
        )
        yield os.path.basename(path).removesuffix(".gin"), settings.run.mesh


def _advise(chosen, make, seconds):
    """Tries what saves memory, the cheapest first, until something fits.

    Args:
      seconds: that one program took so far.
    """
    from decoupled.planning.comparison import levers
    from decoupled.planning.report import SUMMARY, summary_row

    series = list(levers(chosen))
    count = sum(map(len, series))
    limit = 60 * FLAGS.advice_minutes
    console.say(
        f"looking for settings that fit: at most {count} programs of some "
        f"{console.duration(seconds)} each, and at most {console.duration(limit)} in "
        "all (--advice_minutes; --noadvice leaves this out)"
    )
    deadline = time.monotonic() + limit
    rows, fits = [], False
    for lever, made in _try(series, make, deadline):
        rows.append(summary_row("; ".join(lever.settings), made))
        fits = made.fits
        left = min(deadline - time.monotonic(), seconds * (count - len(rows)))
        if not fits and seconds >= _SLOW:
            console.say(
                f"{len(rows)} of at most {count} tried, "
                f"{console.duration(max(left, 0))} left at most"
            )
    if rows:
        console.table("What to change", ["setting", *SUMMARY[1:]], rows)
    if not fits:
        _say_what_else(len(rows), count, limit, time.monotonic() >= deadline)


def _say_what_else(tried, count, limit, over):
    if over:
        console.say(
            f"stopped after {console.duration(limit)} with {tried} of at most {count} "
            "tried: give it more --advice_minutes"
        )
    console.say(
        "none of these fits: split more over `model` (--layouts=all), or take a "
        "larger slice"
    )


def _try(series, make, deadline) -> Iterator:
    """Yields levers with their plans until one fits or the time is over."""
    for levers in series:
        last = None
        for lever in levers:
            if time.monotonic() >= deadline:
                return
            made = make(lever.run)
            yield lever, made
            if made.fits:
                return
            least, last = last, made.memory.total
            # The rest of a series that no longer helps will not help either.
            if least and last > _HELPS * least:
                break
