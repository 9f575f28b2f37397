"""Compiles a training step for TPUs or GPUs, outside TensorFlow and without them.

A script for a Python of its own with the package jax, without TensorFlow and the rest
of this package. Google's compiler for TPUs comes with the package libtpu, and XLA's for
GPUs with JAX's plugin for CUDA. They need no device:

  python -m venv compiler; compiler/bin/pip install 'jax[tpu]'
  compiler/bin/python decoupled/planning/jax_step.py --topology=v3-128 FOLDER
  python -m venv cuda; cuda/bin/pip install 'jax[cuda13]'
  cuda/bin/python decoupled/planning/jax_step.py --topology=h100-1 FOLDER

A FOLDER is from `decoupled.training.xla.programs.ExportedProgram.write`; places.json in
it may have the coordinates of each replica's device. Prints a line of JSON for each
folder.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[2]))
from decoupled.planning import hardware, traffic  # noqa: E402
from decoupled.training.xla import kernels  # noqa: E402
from decoupled.training.xla.stablehlo import to_stablehlo  # noqa: E402

# Nobody asks for a TPU's host here, and several processes may compile.
_SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    # Else the plugin for CUDA refuses to load without a driver.
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}
# Fields of a card's description whose text is a name of the protocol buffer's.
_ENUMERATIONS = ("feature_extension",)
# A chip of v4 is one device: its two cores work as one. A slice of one chip has a host
# of its own.
_CONFIGURATIONS = {
    "v4": {"chip_config_name": "megacore"},
    "v5e:1x1": {"chips_per_host_bounds": [1, 1, 1]},
    "v6e:1x1": {"chips_per_host_bounds": [1, 1, 1]},
}
_NO_ROOM = re.compile(r"\(([\d.]+)G\) exceeds available HBM \(([\d.]+)G\)")


def main() -> None:
    """Compiles what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--topology", required=True, help="e.g. v3-128 or h100-8")
    parser.add_argument(
        "--precision", default="default", help="of float32 products, e.g. highest"
    )
    arguments = parser.parse_args()
    target = DescribedDevices(arguments.topology)
    for folder in arguments.folders:
        result = compile_for(target, folder, arguments.precision)
        print(json.dumps({"folder": folder.name, **result}), flush=True)


class DescribedDevices:
    """Devices that are not there, as a compiler knows them.

    slice: that they form. devices: JAX's. compiler: its name and release.
    """

    def __init__(self, name: str):
        os.environ.update(_SETTINGS)
        import jax

        jax.config.update("jax_platforms", "cpu")
        from jax.experimental import topologies

        self.slice = hardware.parse_topology(name)
        topology, version = self.slice.topology, self.slice.version
        if card := self.slice.generation.card:
            topology_devices = topologies.get_topology_desc(
                platform="cuda", topology_name=version, topology=topology,
                target_config=_as_text(card),
            )  # fmt: skip
            self.compiler = f"XLA of JAX {jax.__version__}"
        else:
            os.environ["TPU_ACCELERATOR_TYPE"] = f"{version}-8"
            topology_devices = topologies.get_topology_desc(
                platform="tpu", topology_name=topology,
                **_CONFIGURATIONS.get(version, _CONFIGURATIONS.get(topology, {})),
            )  # fmt: skip
            self.compiler = f"libtpu {importlib.metadata.version('libtpu')}"
        self.devices = list(topology_devices.devices)

    def devices_at(self, places: list[list[int]]) -> list[Any]:
        """The devices at these coordinates."""
        if self.slice.generation.card:
            return [self.devices[place[0]] for place in places]
        devices = {(*each.coords, each.core_on_chip): each for each in self.devices}
        return [devices[tuple(place)] for place in places]

    def judge(self, program: Any) -> dict[str, Any]:
        """What a compiled program needs, moves and computes, for one device."""
        text = program.hlo_modules()[0].to_string()
        result = memory_of(program)
        rates = [self.slice.core_hbm_bandwidth, self.slice.core_flops]
        if self.slice.generation.card:
            # Nothing refuses a program that the card does not hold.
            if result["needed"] > self.slice.program_bytes:
                result["available"] = self.slice.program_bytes
            rates.append(2 * self.slice.generation.link_bandwidth)
        return result | {"traffic": traffic.traffic_of(text, *rates)}


def _as_text(values):
    """A description of a card as text of a protocol buffer."""
    fields = []
    for name, value in values.items():
        if isinstance(value, dict):
            fields.append(f"{name} {{ {_as_text(value)} }}")
        else:
            is_text = isinstance(value, str) and name not in _ENUMERATIONS
            fields.append(f"{name}: {json.dumps(value) if is_text else _word(value)}")
    return " ".join(fields)


def _word(value):
    return str(value).lower() if isinstance(value, bool) else value


def compile_for(
    target: DescribedDevices, folder: pathlib.Path, precision: str
) -> dict[str, Any]:
    """What the compiled step needs of the memory of a core, moves and computes.

    Args:
      folder: of the step. precision: of products of float32 numbers.

    Returns:
      Bytes of "arguments" (weights, slots and features); "temporary", of other tensors,
      some of which take the place of arguments that are not read again; and "needed" in
      all, with the program itself. "available" where that does not fit; of a TPU then
      only the last two. "traffic": see `decoupled.planning.traffic`. "attention": the
      kernel, and why it was refused. "seconds" of the compilation, "compiler".
    """
    import jax

    cores = json.loads((folder / "step.json").read_text(encoding="utf-8"))["cores"]
    devices = target.devices[:cores]
    if (places := folder / "places.json").exists():
        devices = target.devices_at(json.loads(places.read_text(encoding="utf-8")))
    result = {"compiler": target.compiler}
    start = time.monotonic()
    try:
        program, attention = compiled_step(folder, devices, precision)
    except jax.errors.JaxRuntimeError as error:
        sizes = _NO_ROOM.search(str(error))
        if not sizes:
            raise
        needed, available = (int(float(size) * 2**30) for size in sizes.groups())
        result |= {"needed": needed, "available": available}
    else:
        result |= target.judge(program) | {"attention": attention}
    return result | {"seconds": round(time.monotonic() - start, 1)}


def memory_of(program: Any) -> dict[str, int]:
    """Bytes of a program on one device."""
    stats = program.get_compiled_memory_stats()
    parts = (
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes - stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )
    return {
        "arguments": stats.argument_size_in_bytes,
        "temporary": stats.temp_size_in_bytes,
        # Before JAX 0.11 an upper bound: what temporary tensors share with arguments is
        # counted twice.
        "needed": getattr(stats, "total_allocation_bytes", sum(parts)),
    }


def compiled_step(
    folder: pathlib.Path,
    devices: list[Any],
    precision: str,
    load: bool = False,
    deterministic: bool = False,
) -> tuple[Any, str]:
    """The compiled step of a folder, which runs if it is loaded, and its attention.

    `deterministic`: whether nondeterministic operations are excluded.
    """
    from jax._src import compiler
    from jax._src.lib import xla_client

    client = devices[0].client
    is_gpu = devices[0].platform == "gpu"
    flags = kernels.DETERMINISTIC if deterministic and is_gpu else {}
    options = compiler.get_compile_options(
        num_replicas=len(devices),
        num_partitions=1,
        device_assignment=np.array([[device.id] for device in devices]),
        env_options_overrides=flags,
    )
    module, _ = to_stablehlo((folder / "step.hlo").read_bytes(), precision)
    about = json.loads((folder / "step.json").read_text(encoding="utf-8"))
    kernel = about.get("attention", kernels.PLAIN)
    platform = {"gpu": "cuda"}.get(devices[0].platform, devices[0].platform)
    refusal = kernels.replace(module, kernel, platform, deterministic)
    build = client.compile_and_load if load else client.compile
    program = build(module, xla_client.DeviceList(tuple(devices)), options)
    return program, f"{kernels.PLAIN}: {refusal}" if refusal else kernel


if __name__ == "__main__":
    main()
