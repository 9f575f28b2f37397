"""Plans a pre-training run on a Cloud TPU slice or the GPUs of a host, without any.

Builds the graph of a training step as for these devices, and reports a core's slices
of the weights, the bytes of its memory, collective operations, FLOPs, and the predicted
time of a step and of the whole run. Takes the settings of `decoupled pretrain`.

  decoupled plan --topology=v3-128 --gin_file=models/rembert.gin \\
      --layouts=all

--compiler=PYTHON: compiles the planned program, with --layouts the best one's, with the
compiler of Cloud TPUs or of GPUs, which knows the memory of a core exactly, and counts
the bytes that the program moves. PYTHON is of a separate environment with jax and the
package libtpu, or JAX's plugin for CUDA 13 (docs/scaling.md). RemBERT's program takes 2
to 6 minutes and up to 14 GB of this machine's memory.
--topology: v2-8 ... v2-512, v3-8 ... v3-2048, v4-8 ... v4-4096, v5e-1 ... v5e-256
(v5litepod), v5p-8 ... v5p-12288, v6e-1 ... v6e-256, tpu7x-8 ... tpu7x-4096, and for the
GPUs of a host h100-1 ... h100-8 and h200-1 ... h200-8. The settings' mesh must have as
many processors as a program sees devices there: a chip of v2, v3 and TPU7x is two, any
other is one.
--layouts: compares these layouts, on every reasonable mesh of the slice's cores,
instead of the settings' own mesh; "all" stands for layouts/*.gin. The best plan is
reported in full. Building the graph of a layout takes some seconds for a large model.
"""

import os

from absl import flags

from decoupled.configs import PlanSettings
from decoupled.core import console, files
from decoupled.launch import gin_files, start

FLAGS = flags.FLAGS
DEFAULTS = "runs/pretrain_tpu.gin"
_ALL = "all"
_NO_TRIALS = "no settings are tried; docs/scaling.md lists those that save memory"
_SAVES_MEMORY = (
    "less memory is needed with TrainingConfig.gradient_accumulation, TrainingConfig."
    "recompute_layers, MeshConfig.slice_dtype = 'bfloat16', another layout "
    "(--layouts=all) or a larger slice (docs/scaling.md)"
)
GONE = {
    "--noadvice": _NO_TRIALS,
    "--advice_minutes": _NO_TRIALS,
    "--gpus": "TensorFlow's kernels no longer run on GPUs; decoupled pretrain "
    "--accelerator=gpu says before the first step what it needs and what there is",
}


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("topology", None, "E.g. v3-8 or h100-8.", required=True)
    flags.DEFINE_list(
        "layouts", [], "Layouts to compare: gin files, names in layouts/, or all."
    )
    flags.DEFINE_string("json", None, "JSON file for all values of all plans.")
    flags.DEFINE_string(
        "compiler", None, "A Python with the compiler, to compile with."
    )


def main() -> None:
    """Plans, compares and prints."""
    settings = start.parse_gin(PlanSettings, DEFAULTS)
    # Imported here, so that --help does not wait for TensorFlow.
    from decoupled.planning.comparison import compare_layouts, select_plan
    from decoupled.planning.hardware import parse_topology
    from decoupled.planning.plan import make_plan
    from decoupled.planning.program import check_compiler, compile_step
    from decoupled.planning.report import as_json, print_compiled, print_plan

    if FLAGS.json:
        files.check_output("--json", FLAGS.json)
    tpu, run = parse_topology(FLAGS.topology), settings.run
    if FLAGS.compiler:
        check_compiler(FLAGS.compiler, tpu)
    if FLAGS.layouts:
        plans = compare_layouts(_layouts(), run, tpu, settings.config)
    else:
        plans = [make_plan(run, tpu, settings.config)]
    best_plan = select_plan(plans)
    print_plan(best_plan)
    compilation = None
    if FLAGS.compiler:
        compilation = compile_step(FLAGS.compiler, best_plan.run, tpu)
        print_compiled(best_plan, compilation)
    if not best_plan.fits:
        console.say(f"the run does not fit: {_SAVES_MEMORY}")
    if FLAGS.json:
        content = [
            as_json(plan, compilation if plan is best_plan else None) for plan in plans
        ]
        files.write_json(FLAGS.json, content)


def _layouts():
    """Yields the name of each of --layouts, and the MeshConfig of its file alone."""
    names = FLAGS.layouts
    if names == [_ALL]:
        folder = os.path.join(gin_files.packaged_folder(), "layouts")
        names = sorted(name for name in os.listdir(folder) if name.endswith(".gin"))
    for name in names:
        path = name if name.endswith(".gin") else f"{name}.gin"
        path = path if os.path.dirname(path) else os.path.join("layouts", path)
        settings = gin_files.configure(
            PlanSettings, [path], [], FLAGS.gin_location_prefix
        )
        yield os.path.basename(path).removesuffix(".gin"), settings.run.mesh
