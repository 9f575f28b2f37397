"""Pre-training steps over large vocabularies: whole logits, or in blocks.

Measures seconds a step and peak memory of
  decoupled                  by the rule (`TrainingConfig.softmax_block_size = 0`)
  decoupled, whole logits    the logits of all pieces at once
  decoupled, small blocks    at most 4,096 pieces at a time (of 250,000: a partition of
                             the table, which has 1,953 pieces of 768 columns or 3,049
                             of 3072), computed again for the gradient
  transformers masked        Hugging Face's RemBertForMaskedLM, its head on the masked
                             positions: the fair peer
for vocabularies of 250,000 pieces with an output embedding of 768 and 3072 columns, and
of 1,000,000 pieces with 768. The encoder has two layers of width 256, so that the
softmax is most of a step: 32 sequences of 128 tokens, 20 predictions in each. The
logits take 0.64 or 2.56 GB.

Two such processes do not fit into memory together. So each is started anew in each
round. What needs more memory than is free is left out, with a line that says so.

Writes benchmarks/results/softmax.json.

Examples:
  python -m benchmarks.softmax --quick
  python -m benchmarks.softmax --only="V=250000 E_out=3072"
"""

import argparse
import dataclasses
import functools
import itertools

from benchmarks import command
from benchmarks.interleave import Measured, Skip, Worker, seconds
from benchmarks.pretraining import FAIR_PEER, OURS, fair_peer, our_worker
from benchmarks.results import Comparison
from benchmarks.sizes import (
    NARROW,
    NARROW_BATCH,
    QUICK,
    QUICK_BATCH,
    Batch,
    pretraining_case,
)
from benchmarks.tables import (
    Table,
    gigabytes,
    milliseconds_or_seconds,
    worker_table,
)
from decoupled.configs import ModelConfig
from decoupled.core.console import say

NAME = "softmax"
WHOLE = f"{OURS}, whole logits"
BLOCKS = f"{OURS}, small blocks"
BLOCK_SIZE = 4096
MODEL = dataclasses.replace(NARROW, num_layers=2)
# Pieces, and columns of the output embedding.
SIZES = ((250_000, 768), (250_000, 3072), (1_000_000, 768))
QUICK_SIZES = ((256, 16), (256, 48))
FLOAT = 4
# Bytes of the libraries, the program and the activations of the encoder.
PROGRAM = 1.2e9


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    options = command.parser(NAME, __doc__, rounds=5, steps=2, dtypes=["float32"])
    arguments = command.parse(options)
    sizes = QUICK_SIZES if arguments.quick else SIZES
    comparisons = [
        command.Planned(
            f"{dtype}: V={vocab_size} E_out={output_size}",
            functools.partial(_workers, vocab_size, output_size, dtype, arguments),
            together=False,
        )
        for dtype, (vocab_size, output_size) in itertools.product(
            arguments.dtypes, sizes
        )
    ]
    command.measure(arguments, NAME, comparisons, tables)


def _workers(
    vocab_size: int, output_size: int, dtype: str, arguments: argparse.Namespace
) -> list[Worker]:
    model, batch = (QUICK, QUICK_BATCH) if arguments.quick else (MODEL, NARROW_BATCH)
    model = dataclasses.replace(
        model, vocab_size=vocab_size, output_embedding_size=output_size
    )
    case = pretraining_case(model, batch, dtype)
    ours = {
        OURS: 0,
        WHOLE: vocab_size,
        BLOCKS: min(BLOCK_SIZE, vocab_size // 4),
    }
    workers = [
        our_worker({**case, "softmax_block_size": block_size}, name)
        for name, block_size in ours.items()
    ]
    fitting = []
    for worker in [*workers, fair_peer(case)]:
        try:
            command.require_memory(memory_needed(model, batch, worker.name))
            fitting.append(worker)
        except Skip as reason:
            if worker.name == OURS:
                raise
            say(f"{NAME}: V={vocab_size} E_out={output_size}: {worker.name}: {reason}")
    return fitting


def memory_needed(model: ModelConfig, batch: Batch, name: str) -> float:
    """Bytes at the peak of a process, estimated.

    The peer has a gradient beside each table and its two moments, this project does
    not. Whole logits are there up to three times: with their exponentials and their
    gradient.
    """
    width = model.input_embedding_size + model.output_embedding_size
    tables = 4 if name == FAIR_PEER else 3
    logits = batch.sequences * batch.predictions * model.vocab_size
    copies = 1 if name == BLOCKS else 3
    return PROGRAM + FLOAT * (tables * model.vocab_size * width + copies * logits)


def tables(comparisons: list[Comparison]) -> list[Table]:
    """A row per process."""
    columns = ["step", "by", "time", "against ours", "peak memory", "against ours"]
    title = "Pre-training over large vocabularies"
    return [worker_table(NAME, title, columns, comparisons, OURS, _cells)]


def _cells(comparison: Comparison, worker: Measured, against: str) -> list[str]:
    ours = comparison.worker(OURS)
    memory = f"{worker.peak_resident / ours.peak_resident:.2f}x"
    return [
        comparison.title,
        worker.name,
        milliseconds_or_seconds(seconds(worker)),
        against,
        gigabytes(worker.peak_resident),
        "" if worker is ours else memory,
    ]


if __name__ == "__main__":
    command.run(NAME, main)
