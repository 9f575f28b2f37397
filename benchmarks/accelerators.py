"""Training steps on a GPU beside other implementations, and judged by compilers.

Measures a step in bfloat16, without dropout but that of XNLI's head, of
  decoupled               the exported program, with attention by name, as
                          `decoupled pretrain --accelerator=gpu` runs it
  decoupled, nondeterministic
                          the same with MeshConfig.deterministic = False
  transformers            BertForMaskedLM or, where E_out is not H, RemBertForMaskedLM:
                          autocast, SDPA (RemBERT has none), torch.compile with CUDA
                          graphs, fused AdamW, the head at the masked positions alone
  transformers, unpadded  the same without padding, by attention over rows of several
                          lengths: on XNLI, because the other batches have no padding
  JAX                     a hand-written encoder with cuDNN's attention and every saving
                          that ours has (`workers/jax_encoder.py`)
Programs are written where TensorFlow is, and run where JAX and PyTorch are:

  python -m benchmarks accelerators --programs=FOLDER --write
  python -m benchmarks accelerators --programs=FOLDER

Without any device, the compilers say what the same steps move and need:

  python -m benchmarks accelerators --offline --compiler=cuda/bin/python \\
      --compiler=compiler/bin/python

prints a line of JSON for each step of ours, with plain attention and by name, and of
the hand-written encoder. What is counted, and what that is worth, is in
`decoupled/planning/traffic.py` and in docs/performance.md. Each compiler compiles the
steps of its devices; a RemBERT takes some minutes.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.flops import pretraining_flops
from benchmarks.interleave import MeasuredWorker, Worker, seconds, spread
from benchmarks.peers import ROOT
from benchmarks.results import Comparison, Plan
from benchmarks.sizes import Batch
from benchmarks.tables import (
    OURS,
    BenchmarkTable,
    Suite,
    milliseconds_or_seconds,
    worker_table,
)
from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.planning.hardware import GENERATIONS, parse_topology

_REFERENCE = ROOT / "benchmarks" / "workers" / "jax_encoder.py"
_STEP = ROOT / "decoupled" / "planning" / "jax_step.py"
_KERNELS = {"h100-1": "cudnn", "v5e-1": "splash", "v5p-8": "splash"}
GIB = 2**30
NONDETERMINISTIC = f"{OURS}, nondeterministic"
JAX, TRANSFORMERS = "JAX", "transformers"
# Steps between two readings of the loss; on XNLI of each of its five batches.
BLOCK, BATCHES = 10, 5
# The frameworks share the card, so none of them may take all of its memory.
_CARD_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


class Row(NamedTuple):
    """A step: the name of its program in `xla_programs`, and the compiler's devices."""

    program: str
    topology: str

    @property
    def title(self) -> str:
        """The names of step and devices."""
        return f"{self.program.replace('-bfloat16', '')} on {self.topology}"

    @property
    def kernel_program(self) -> str:
        """The name of the program that calls attention by name, for a kernel."""
        return f"{self.program}+{_KERNELS[self.topology]}"


ROWS = (
    Row("base-bfloat16-64x512", "h100-1"),
    Row("base-bfloat16-128x128", "h100-1"),
    Row("rembert-bfloat16-16x512", "h100-1"),
    Row("xnli-bfloat16-packed", "h100-1"),
    Row("softmax-bfloat16-250000-768", "h100-1"),
    Row("softmax-bfloat16-250000-3072", "h100-1"),
    Row("base-bfloat16-16x512", "v5e-1"),
    Row("base-bfloat16-128x128", "v5e-1"),
    Row("rembert-bfloat16-16x512", "v5p-8"),
)
_GPU_ROWS = [row for row in ROWS if row.topology == "h100-1"]


def comparisons(arguments, folder: pathlib.Path) -> Iterator[Plan]:
    """A comparison for each row of a GPU."""
    for row in _GPU_ROWS:
        make_workers = functools.partial(_workers, row, arguments, folder)
        yield Plan(row.program.replace("-bfloat16", ""), make_workers)


def write_programs(arguments: argparse.Namespace) -> None:
    """Writes the programs of a GPU's rows to --programs.

    Raises:
      UserError: there is no --programs.
    """
    if not arguments.programs:
        raise UserError("--write: needs --programs=FOLDER")
    for row in _GPU_ROWS:
        _write(row, row.kernel_program, arguments.programs, arguments.quick)


def _workers(row, arguments, folder) -> Sequence[Worker]:
    path = (arguments.programs or folder) / row.kernel_program
    if not arguments.programs:
        _write(row, row.kernel_program, folder, arguments.quick)
    case = files.read_json(str(path / "case.json"))
    model, quick = case["model"], arguments.quick
    is_packed = "batch" not in case
    case |= {"dtype": "bfloat16", "block": 1 if quick else BLOCK, "quick": quick}
    if is_packed:
        case |= {"features": str(path / "features.npz")}
        case["block"] *= BATCHES
    is_bert = model["output_embedding_size"] == model["hidden_size"]
    case["architecture"] = "bert" if is_bert or is_packed else "rembert"

    def our_worker(name, deterministic):
        program_case = {**case, "folder": str(path), "deterministic": deterministic}
        return _worker(name, "decoupled", "xla_step", program_case)

    def peer_worker(name, is_unpadded):
        peer_case = {**case, "unpadded": is_unpadded}
        # Its compiler needs no quiet device.
        return _worker(name, "torch", "transformers_step", peer_case, starts_first=True)

    workers = [our_worker(OURS, True)]
    if case["architecture"] == "bert":
        workers.append(our_worker(NONDETERMINISTIC, False))
    if not is_packed:
        jax_case = {**case, "attention": "plain" if quick else "cudnn"}
        workers.append(_worker(JAX, "decoupled", "jax_encoder", jax_case))
    workers.append(peer_worker(TRANSFORMERS, False))
    if is_packed:
        workers.append(peer_worker(f"{TRANSFORMERS}, unpadded", True))
    return workers


def _worker(name, framework, script, case, **options):
    # Only a quick run may compute on a CPU.
    platform = {} if case["quick"] else {"JAX_PLATFORMS": "cuda"}
    environment = _CARD_ENVIRONMENT | platform
    return Worker(name, framework, script, case, environment=environment, **options)


def _write(row, name, folder, quick):
    device = parse_topology(row.topology).device_kind
    words = [str(folder), name, f"--device={device}", *["--quick"] * quick]
    _output(row, [sys.executable, "-m", "benchmarks.xla_programs", *words])


def tables(results: list[Comparison]) -> list[BenchmarkTable]:
    """Steps on the card."""
    columns = ["step", "by", "time", "against ours", "share of the peak", "memory"]
    title = "Training steps on a GPU"
    return [worker_table("accelerators", title, columns, results, _cells)]


def _cells(comparison, worker, slowdown):
    step = spread([block / worker.case["block"] for block in seconds(worker)])
    size = worker.facts.get("device_bytes")
    return [
        comparison.title,
        worker.name,
        milliseconds_or_seconds(step),
        slowdown,
        _share(worker, step.median),
        f"{size / GIB:.1f} GiB" if size else "",
    ]


def _share(worker: MeasuredWorker, step_seconds: float) -> str:
    """The percent of the card's peak rate; "" where the card or the FLOPs of the step
    are unknown."""
    case, kind = worker.case, worker.facts.get("device", "").lower()
    card = next((g for n, g in GENERATIONS.items() if g.card and n in kind), None)
    if not card or "batch" not in case:
        return ""
    batch = Batch(case["batch"], case["sequence_length"], case["predictions"])
    whole = worker.name.startswith(TRANSFORMERS)
    flops = pretraining_flops(ModelConfig(**case["model"]), batch, whole=whole)
    return f"{flops / step_seconds / card.flops:.0%}"


SUITE = Suite(comparisons, tables, rounds=5, steps=2)


def offline(arguments: argparse.Namespace, folder: pathlib.Path) -> None:
    """Compiles the rows that --only leaves in, and prints a line for each step.

    Raises:
      UserError: no compiler is given, or one cannot be used.
    """
    compilers = _compilers(arguments.compiler)
    rows = [
        row
        for row in ROWS
        if not arguments.only or any(text in row.title for text in arguments.only)
    ]
    for row in rows:
        is_gpu = parse_topology(row.topology).generation.card is not None
        if python := compilers.get(is_gpu):
            for author, result in _compiled_steps(row, python, folder, arguments.quick):
                print(json.dumps(_line(row, author, result)), flush=True)
        else:
            print(f"{row.title}: no --compiler has its devices", file=sys.stderr)


def _compilers(pythons):
    """Whether a compiler is for GPUs -> its interpreter."""
    # This imports TensorFlow, which a machine that runs the programs need not have.
    from decoupled.planning.program import check_compiler

    if not pythons:
        raise UserError("--offline: needs --compiler=PYTHON; see docs/scaling.md")
    compilers, errors = {}, {}
    for python in pythons:
        for topology in ("h100-1", "v5e-1"):
            try:
                check_compiler(python, parse_topology(topology))
            except UserError as error:
                errors.setdefault(python, error)
            else:
                compilers[topology == "h100-1"] = python
        if python not in compilers.values():
            raise errors[python]
    return compilers


def _compiled_steps(
    row: Row, python: str, folder: pathlib.Path, quick: bool
) -> Iterator[tuple[str, dict]]:
    kernel = _KERNELS[row.topology]
    for name in (row.program, row.kernel_program):
        _write(row, name, folder, quick)
        command = [python, str(_STEP), str(folder / name), f"--topology={row.topology}"]
        result = _output(row, command)
        yield "decoupled", result
    case = files.read_json(str(folder / row.program / "case.json"))
    if "batch" in case:
        for attention in ("plain", kernel):
            jax_case = {**case, "topology": row.topology, "attention": attention}
            yield JAX, _output(row, [python, str(_REFERENCE), json.dumps(jax_case)])


def _output(row, command):
    """What a command prints last, as JSON; {} if it prints none."""
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        errors = process.stderr.strip().splitlines() or [f"code {process.returncode}"]
        raise UserError(f"{row.title}: {errors[-1]}")
    lines = process.stdout.strip().splitlines()
    return files.parse_json(lines[-1]) if lines and lines[-1].startswith("{") else {}


def _line(row, author, result):
    line = {"step": row.title, "by": author, "attention": result.get("attention")}
    if traffic := result.get("traffic"):
        line |= {
            "instructions": traffic["instructions"],
            "GB": round(traffic["bytes"] / 1e9, 1),
            "TFLOP": round(traffic["flops"] / 1e12, 2),
            "bound_ms": round(1e3 * traffic["bound"], 2),
            "share": round(traffic["share"], 3),
            "temporary_GiB": round(result["temporary"] / GIB, 2),
        }
    line["needed_GiB"] = round(result["needed"] / GIB, 2)
    line |= {name: result[name] for name in ("compiler", "seconds")}
    if "available" in result:
        line["does_not_fit_GiB"] = round(result["available"] / GIB, 2)
    if traffic:
        line["groups"] = [
            {**group, "bound": round(1e3 * group["bound"], 3)}
            for group in traffic["groups"]
        ]
    return line


if __name__ == "__main__":
    from benchmarks.__main__ import run_module

    run_module("accelerators")
