"""Training steps of one core of a TPU, for compilers and devices outside TensorFlow.

Writes each step as a program of XLA to a folder of its own, with five batches of the
fine-tuning tasks and one of the others:
  TASK-DTYPE-packed       fine-tuning on real XNLI, UD-POS and XQuAD, dropout 0.1 before
                          the head, as `benchmarks/finetuning_runs.py` trains
  softmax-DTYPE-V-E_OUT   pre-training, two layers of width 256 below a vocabulary of V
                          pieces, 32 sequences of 128 tokens with 20 predictions each
  base-DTYPE-BxT, rembert-DTYPE-BxT
                          pre-training without dropout, B sequences of T tokens
A name may end in +splash or +cudnn: attention is called by name, for that kernel.
--device="TPU v5e" writes the program that a v5e gets.
Beside each is case.json, with the sizes of model and batch.
`decoupled/planning/jax_step.py` compiles the programs, and `benchmarks accelerators`
runs them:

  python -m benchmarks.xla_programs PROGRAMS softmax-bfloat16-250000-768
  compiler/bin/python decoupled/planning/jax_step.py --topology=v3-8 PROGRAMS/softmax*
"""

import argparse
import dataclasses
import math
import pathlib
import shutil
import sys
from unittest import mock

import numpy as np

from benchmarks import finetuning_runs
from benchmarks.interleave import Skip
from benchmarks.sizes import (
    ADAMW,
    NARROW,
    NARROW_BATCH,
    QUICK,
    QUICK_BATCH,
    Batch,
    batch_fields,
    shipped_model,
)
from benchmarks.workers import synthetic
from decoupled import __main__ as decoupled
from decoupled.configs import (
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.core import files
from decoupled.core.compat import tf
from decoupled.core.console import say
from decoupled.runs import finetuning_run
from decoupled.tasks.mlm import MaskedLM
from decoupled.training.graph import Network, TrainingGraph
from decoupled.training.xla.kernels import PLAIN
from decoupled.training.xla.programs import export, training_program

NAME = "xla_programs"
BATCHES = 5
# The rules of layouts/data_and_model.gin.
RULES = "batch:data;vocab:model;heads:model;intermediate:model"


class _Stop(Exception):
    """Ends a command before it trains: graph and batches are known."""


def main() -> None:
    """Writes the programs that the command line names."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=pathlib.Path, help="of all programs")
    parser.add_argument("names", nargs="+", metavar="NAME", help="of a program")
    parser.add_argument("--device", default="", help='its kind, e.g. "TPU v5e"')
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    arguments = parser.parse_args()
    kinds = {"softmax", *MODELS, *(source.task for source in finetuning_runs.SOURCES)}
    for name in arguments.names:
        if name.partition("-")[0] not in kinds:
            parser.error(f"{name}: begins with none of {', '.join(sorted(kinds))}")
        try:
            folder = arguments.folder.resolve()
            write(name, folder, arguments.quick, arguments.device)
        except Skip as reason:
            sys.exit(f"{NAME}: {name}: {reason}")


def write(name: str, folder: pathlib.Path, quick: bool, device: str = "") -> None:
    """Writes one program."""
    step, _, kernel = name.partition("+")
    kind, dtype, *sizes = step.split("-")
    if kind == "softmax":
        vocab_size, width = map(int, sizes)
        model = dataclasses.replace(
            NARROW, num_layers=2, vocab_size=vocab_size, output_embedding_size=width
        )
        inputs = _pretraining_inputs(model, NARROW_BATCH, dtype, quick)
    elif kind in MODELS:
        batch = pretraining_batch(sizes[0])
        inputs = _pretraining_inputs(MODELS[kind](), batch, dtype, quick)
    else:
        inputs = _finetuning_inputs(kind, dtype, folder, quick)
    _write(folder / name, *inputs, kernel or PLAIN, device)
    say(f"{NAME}: {name}")


MODELS = {
    "base": lambda: finetuning_runs.MODEL,
    "rembert": lambda: shipped_model("rembert"),
}


def pretraining_batch(text: str) -> Batch:
    """ "64x512" as a batch whose masked positions are 15% of its tokens."""
    sequences, length = map(int, text.split("x"))
    return Batch(sequences, length, math.ceil(0.15 * length))


def _pretraining_inputs(model: ModelConfig, batch, dtype, quick):
    """Graph, case, and batches."""
    if quick:
        model, batch = QUICK, QUICK_BATCH
    task = MaskedLM(MaskingConfig(batch.length, batch.predictions))
    graph = TrainingGraph(
        Network(task, model, _one_core(dtype)),
        optimizer=ADAMW,
        schedule=ScheduleConfig(100_000, 0, "constant"),
        training=TrainingConfig(seed=1),
    )
    features = synthetic.masked_lm_batch(batch_fields(model, batch))
    # A TPU's hosts do not send what the program computes from the ids.
    del features["input_mask"], features["input_type_ids"]
    return graph, _case(model) | batch_fields(model, batch), [features]


def _case(model):
    return {"model": dataclasses.asdict(model), "optimizer": dataclasses.asdict(ADAMW)}


def _one_core(dtype):
    return MeshConfig("data:1;model:1", RULES, dtype)


def _finetuning_inputs(task, dtype, folder, quick):
    """Graph and first batches that `decoupled finetune` would train with."""
    (source,) = (each for each in finetuning_runs.SOURCES if each.task == task)
    case = finetuning_runs.make_case(source, quick, folder / "cases" / task)
    case |= {"dtype": dtype, "epochs": 1}
    words = finetuning_runs.command_words(case, dtype, quick)
    inputs = []

    def train(graph, spec, batches_from, **options):
        del spec, options
        with tf.Graph().as_default(), tf.Session() as session:
            batch = tf.data.make_one_shot_iterator(batches_from(0)()).get_next()
            batches = [session.run(batch) for _ in range(BATCHES)]
            inputs.extend([graph, batches])
        raise _Stop

    with (
        mock.patch.object(finetuning_run, "train", train),
        mock.patch.object(sys, "argv", ["decoupled", *words]),
    ):
        try:
            decoupled.main()
        except _Stop:
            pass
    graph, batches = inputs
    network = graph.network._replace(mesh=_one_core(dtype))
    return graph._replace(network=network), _case(network.model), batches


def _write(folder, graph, case, batches, kernel, device):
    shutil.rmtree(folder, ignore_errors=True)
    specs = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in batches[0].items()}
    export(training_program(graph, specs, kernel, device)).write(str(folder))
    arrays = {
        f"{number}-{name}": value
        for number, batch in enumerate(batches)
        for name, value in batch.items()
    }
    np.savez(folder / "features.npz", **arrays)
    files.write_json(str(folder / "case.json"), case)


if __name__ == "__main__":
    main()
