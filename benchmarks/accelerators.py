"""Training steps on GPUs and TPUs, judged by their compilers, which need no device.

  python -m benchmarks accelerators --offline --compiler=cuda/bin/python \\
      --compiler=compiler/bin/python

Prints a line of JSON for each step: ours with plain attention and by name, and a
hand-written JAX encoder of the same sizes beside it (`workers/jax_encoder.py`). What is
counted, and what that is worth, is in `decoupled/planning/traffic.py` and in
docs/performance.md. Each compiler compiles the steps of its devices; a RemBERT takes
some minutes. Activations are bfloat16, and there is no dropout but that of XNLI's head.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import xla_programs
from benchmarks.results import ROOT
from benchmarks.sizes import NARROW, NARROW_BATCH
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.planning.hardware import parse_topology
from decoupled.planning.program import check_compiler

_REFERENCE = ROOT / "benchmarks" / "workers" / "jax_encoder.py"
_STEP = ROOT / "decoupled" / "planning" / "jax_step.py"
_KERNELS = {"h100-1": "cudnn", "v5e-1": "splash", "v5p-8": "splash"}
GIB = 2**30


class Row(NamedTuple):
    """A step: the name of its program, of `xla_programs`, and where it is compiled."""

    program: str
    topology: str

    @property
    def title(self) -> str:
        """Of step and device."""
        return f"{self.program.replace('-bfloat16', '')} on {self.topology}"

    def sizes(self) -> tuple[Any, Any] | None:
        """Model and batch of the reference; None where there is none."""
        kind, _, *rest = self.program.split("-")
        if kind == "softmax":
            vocab_size, width = map(int, rest)
            model = dataclasses.replace(
                NARROW, num_layers=2, vocab_size=vocab_size, output_embedding_size=width
            )
            return model, NARROW_BATCH
        if kind in xla_programs.MODELS:
            model = xla_programs.MODELS[kind]()
            return model, xla_programs.pretraining_batch(rest[0])
        return None


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
            for by, result in _judged(row, python, folder, arguments.quick):
                print(json.dumps(_line(row, by, result)), flush=True)
        else:
            print(f"{row.title}: no --compiler has its devices", file=sys.stderr)


def _compilers(pythons):
    """Whether it is for GPUs -> the interpreter."""
    if not pythons:
        raise UserError("--offline: needs --compiler=PYTHON; see docs/scaling.md")
    compilers, refused = {}, {}
    for python in pythons:
        for topology in ("h100-1", "v5e-1"):
            try:
                check_compiler(python, parse_topology(topology))
            except UserError as error:
                refused.setdefault(python, error)
            else:
                compilers[topology == "h100-1"] = python
        if python not in compilers.values():
            raise refused[python]
    return compilers


def _judged(
    row: Row, python: str, folder: pathlib.Path, quick: bool
) -> Iterator[tuple[str, dict]]:
    kernel = _KERNELS[row.topology]
    for attention in ("plain", kernel):
        name = row.program if attention == "plain" else f"{row.program}+{kernel}"
        words = [str(folder), f"--one={name}", *["--quick"] * quick]
        export = [sys.executable, "-m", f"benchmarks.{xla_programs.NAME}", *words]
        _output(row, export)
        command = [python, str(_STEP), str(folder / name), f"--topology={row.topology}"]
        yield "decoupled", {"attention": attention, **_output(row, command)}
    if sizes := row.sizes():
        model, batch = sizes
        if quick:
            model, batch = xla_programs.QUICK, xla_programs.QUICK_BATCH
        for attention in ("plain", kernel):
            case = {
                "model": dataclasses.asdict(model), "batch": list(batch),
                "topology": row.topology, "attention": attention,
            }  # fmt: skip
            path = folder / "case.json"
            files.write_json(str(path), case)
            yield "JAX", _output(row, [python, str(_REFERENCE), str(path)])


def _output(row, command):
    """What a process prints last, as JSON; {} if it prints none."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        output = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        raise UserError(f"{row.title}: {output[-1]}")
    lines = done.stdout.strip().splitlines()
    return files.parse_json(lines[-1]) if lines and lines[-1].startswith("{") else {}


def _line(row, by, result):
    line = {"step": row.title, "by": by, "attention": result.get("attention")}
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
