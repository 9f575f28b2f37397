"""The input pipeline alone, beside the training step that it feeds.

Measures tokens a second of
  training step  this project's, on a batch that is there already
  decoupled      records to masked batches, each pulled by a session as in training
  transformers   DataCollatorForLanguageModeling behind a torch DataLoader of two
                 processes, on sequences that are in memory
at the sizes of the demo, of the reference configuration, and of long sequences, on
synthetic documents in ten languages; and the seconds to the first batch, from the start
and where a run is resumed.

Writes benchmarks/results/input_pipeline.json.

Examples:
  python -m benchmarks.input_pipeline --quick
  python -m benchmarks.input_pipeline --only=demo --dtypes=float32,bfloat16
"""

import dataclasses
import functools
import statistics
from typing import Any, NamedTuple

from benchmarks import command
from benchmarks.interleave import Measured, Spread, Worker, ratio, spread
from benchmarks.results import Comparison
from benchmarks.sizes import (
    QUICK,
    QUICK_BATCH,
    REFERENCE,
    REFERENCE_BATCH,
    Batch,
    batch_fields,
    pretraining_case,
)
from benchmarks.tables import Table, gigabytes, with_range, worker_table
from decoupled.configs import MaskingConfig, ModelConfig, SamplingConfig

NAME = "input_pipeline"
OURS = "decoupled"
PEER = "transformers"
STEP = "training step"
# gin/models/demo_decoupled.gin and gin/runs/demo_pretrain.gin.
DEMO = dataclasses.replace(
    REFERENCE,
    vocab_size=2000,
    input_embedding_size=48,
    output_embedding_size=384,
    hidden_size=96,
    num_layers=2,
    num_heads=6,
    head_size=16,
    intermediate_size=384,
    max_positions=128,
    activation="gelu_tanh",
    initializer_range=0.0566,
    mlm_transform="projection",
)
DEMO_BATCH = Batch(sequences=256, length=16, predictions=2)
LONG_BATCH = Batch(sequences=64, length=512, predictions=80)
# A training step of LONG_BATCH needs more memory than most machines have. Tokens a
# second are those of a smaller batch of the same sequences.
LONG_STEP_BATCH = LONG_BATCH._replace(sequences=8)
SAMPLING = SamplingConfig(alpha=0.5, weights=None, min_epochs=None, max_epochs=None)
# Most of the text is in few languages.
LANGUAGES = {
    name: 1_600_000 >> place
    for place, name in enumerate("en de ru ja fr ar fi tr sw yo".split())
}
TOKENS_PER_SHARD = 1 << 18
RESUMED = 100_000
# Tokens that a pipeline delivers in a step: of ours, shards are opened in each.
OUR_TOKENS = 1 << 22
PEER_TOKENS = 1 << 18


class Setting(NamedTuple):
    """Sizes at which pipeline and step are measured.

    step_batch: of the training step. steps: training steps a round. scale: of the data
    and of what a pipeline delivers in a step, as a share. start_repeats: how often the
    first batch is timed.
    """

    name: str
    model: ModelConfig
    batch: Batch
    step_batch: Batch
    steps: int
    scale: float = 1.0
    start_repeats: int = 3


SETTINGS = (
    Setting("demo", DEMO, DEMO_BATCH, DEMO_BATCH, 50),
    Setting("reference", REFERENCE, REFERENCE_BATCH, REFERENCE_BATCH, 3),
    Setting("long", REFERENCE, LONG_BATCH, LONG_STEP_BATCH, 1),
)
QUICK_SETTINGS = (Setting("quick", QUICK, QUICK_BATCH, QUICK_BATCH, 2, 1e-3, 1),)


def main() -> None:
    """Measures what the command line asks for and prints the table."""
    # In bfloat16 a step consumes more.
    options = command.parser(NAME, __doc__, rounds=5, steps=1, dtypes=["bfloat16"])
    arguments = command.parse(options)
    comparisons = [
        command.Planned(
            f"{setting.name}: {dtype}", functools.partial(_workers, setting, dtype)
        )
        for setting in (QUICK_SETTINGS if arguments.quick else SETTINGS)
        for dtype in arguments.dtypes
    ]
    command.measure(arguments, NAME, comparisons, tables)


def _workers(setting, dtype):
    return [*our_workers(setting, dtype), peer_worker(setting)]


def our_workers(setting: Setting, dtype: str) -> list[Worker]:
    """The training step, and the pipeline alone."""
    python = command.python("decoupled")
    step = pretraining_case(setting.model, setting.step_batch, dtype)
    case = {
        **input_case(setting, OUR_TOKENS),
        "masking": dataclasses.asdict(_masking(setting.batch)),
        "sampling": dataclasses.asdict(SAMPLING),
        "mesh": step["mesh"],
        "tokens_per_shard": int(TOKENS_PER_SHARD * setting.scale),
        "starts": [0, RESUMED],
        "start_repeats": setting.start_repeats,
    }
    return [
        Worker(STEP, python, "decoupled_pretraining", step, steps=setting.steps),
        Worker(OURS, python, "decoupled_input", case),
    ]


def peer_worker(setting: Setting) -> Worker:
    """The collator of transformers."""
    case = {**input_case(setting, PEER_TOKENS), "loader_processes": 2}
    return Worker(PEER, command.python("torch"), "transformers_input", case)


def input_case(setting: Setting, tokens: int) -> dict[str, Any]:
    """The case of a pipeline's worker, of either framework.

    Args:
      tokens: that a step delivers, but for the setting's scale.
    """
    batch = setting.batch
    tokens_of_batch = batch.sequences * batch.length
    return {
        **batch_fields(setting.model, batch),
        "batches": max(1, round(tokens * setting.scale / tokens_of_batch)),
        "languages": {
            name: max(1, int(size * setting.scale)) for name, size in LANGUAGES.items()
        },
    }


def _masking(batch):
    return MaskingConfig(
        sequence_length=batch.length,
        max_predictions=batch.predictions,
        masking_rate=0.15,
        mask_token_rate=0.8,
        random_token_rate=0.1,
    )


def tables(comparisons: list[Comparison]) -> list[Table]:
    """One table: a row for each worker of each comparison."""
    columns = [
        "sizes", "what", "batch", "tokens", "against the step", "first batch",
        f"at step {RESUMED:,}", "peak memory",
    ]  # fmt: skip
    return [worker_table(NAME, "Input pipeline", columns, comparisons, STEP, _cells)]


def _cells(comparison, worker, against):
    case, step = worker.case, comparison.worker(STEP)
    return [
        comparison.title,
        worker.name,
        f"{case['batch']} x {case['sequence_length']}",
        with_range(_thousands(rate(worker)), "k/s"),
        # A step of a pipeline delivers more tokens than a step of training takes.
        against and with_range(lead(worker, step), "times"),
        _first_batch(worker, 0),
        _first_batch(worker, RESUMED),
        gigabytes(worker.peak_resident),
    ]


def tokens(worker: Measured) -> int:
    """Tokens, padding included, that a step of a worker consumes or delivers."""
    case = worker.case
    return case.get("batches", 1) * case["batch"] * case["sequence_length"]


def rate(worker: Measured) -> Spread:
    """Tokens a second, over rounds."""
    return spread([tokens(worker) / duration for duration in worker.medians()])


def lead(pipeline: Measured, step: Measured) -> Spread:
    """How many times the tokens of a training step a pipeline delivers, over rounds."""
    share = tokens(pipeline) / tokens(step)
    return Spread(*(share * value for value in ratio(step, pipeline)))


def _thousands(values):
    return Spread(*(value / 1e3 for value in values))


def _first_batch(worker, start):
    durations = worker.facts.get("first_batch", {}).get(str(start))
    return f"{statistics.median(durations):.2f} s" if durations else ""


if __name__ == "__main__":
    command.run(NAME, main)
