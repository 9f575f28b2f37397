"""A function of TensorFlow on accelerators: a program of XLA for each shape."""

from collections.abc import Callable, Sequence

import numpy as np

from decoupled.core.compat import tf
from decoupled.training.xla.adapter import Array, Client, Executable
from decoupled.training.xla.programs import Argument, ExportedProgram


class DeviceFunction:
    """Computes `function(*arrays)`, a share of the rows on each device of this host.

    function: of tensors [rows, ...] to one tensor, whose axis `axis` has the rows; the
      variables that it reads go to the devices once.
    devices: how many there are; they divide the rows.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        kind: str,
        say: Callable[[str], None],
        axis: int,
    ):
        self._function, self._axis = function, axis
        self._client = Client(kind, None, say)
        self.devices = len(self._client.devices)
        self._programs: dict[tuple, tuple[Executable, list]] = {}
        # id of a captured tensor -> the tensor, without which another could get its id,
        # and its array on the devices.
        self._captured: dict[int, tuple[tf.Tensor, Array]] = {}

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The result for arrays of a shape; each new shape is compiled first."""
        shares = [np.split(array, self.devices) for array in arrays]
        key = tuple((parts[0].shape, parts[0].dtype.str) for parts in shares)
        if key not in self._programs:
            self._programs[key] = self._compiled([parts[0] for parts in shares])
        executable, captured = self._programs[key]
        features = {
            str(place): self._client.put(parts) for place, parts in enumerate(shares)
        }
        results = executable.run(features, captured)["result"]
        return np.concatenate([np.asarray(part) for part in results], self._axis)

    def _compiled(self, arrays: Sequence[np.ndarray]) -> tuple[Executable, list]:
        traced = tf.function(self._function, jit_compile=True, autograph=False)
        specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
        concrete = traced.get_concrete_function(*specs)
        captured, described = [], []
        variables = {id(v.handle): v for v in concrete.variables}
        for place, tensor in enumerate(concrete.captured_inputs):
            if id(tensor) not in self._captured:
                value = variables.get(id(tensor), tensor).numpy()
                on_device = self._client.put_everywhere(value)
                self._captured[id(tensor)] = (tensor, on_device)
            _, array = self._captured[id(tensor)]
            described.append(Argument(str(place), list(array.shape), array.dtype.name))
            captured.append(array)
        program = ExportedProgram(
            hlo=traced.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"),
            features=[
                Argument(str(place), list(array.shape), array.dtype.name)
                for place, array in enumerate(arrays)
            ],
            variables=described,
            results=["result"],
            layouts=[],
            cores=self.devices,
        )
        return self._client.compile(program, False, "highest"), captured
