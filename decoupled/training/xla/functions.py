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
        self._captured_arrays: dict[int, tuple[tf.Tensor, Array]] = {}

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The result for arrays of a shape; each new shape is compiled first."""
        shares = [np.split(array, self.devices) for array in arrays]
        key = tuple((parts[0].shape, parts[0].dtype.str) for parts in shares)
        if key not in self._programs:
            self._programs[key] = self._compile([parts[0] for parts in shares])
        executable, captured_arrays = self._programs[key]
        features = {
            str(index): self._client.put(parts) for index, parts in enumerate(shares)
        }
        results = executable.run(features, captured_arrays)["result"]
        return np.concatenate([np.asarray(part) for part in results], self._axis)

    def _compile(self, arrays: Sequence[np.ndarray]) -> tuple[Executable, list]:
        traced = tf.function(self._function, jit_compile=True, autograph=False)
        specs = [tf.TensorSpec(array.shape, array.dtype) for array in arrays]
        concrete_function = traced.get_concrete_function(*specs)
        captured_arrays, variable_arguments = [], []
        variables = {id(v.handle): v for v in concrete_function.variables}
        for index, tensor in enumerate(concrete_function.captured_inputs):
            if id(tensor) not in self._captured_arrays:
                value = variables.get(id(tensor), tensor).numpy()
                device_array = self._client.put_everywhere(value)
                self._captured_arrays[id(tensor)] = (tensor, device_array)
            _, array = self._captured_arrays[id(tensor)]
            variable_arguments.append(
                Argument(str(index), list(array.shape), array.dtype.name)
            )
            captured_arrays.append(array)
        program = ExportedProgram(
            hlo=traced.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"),
            features=[
                Argument(str(index), list(array.shape), array.dtype.name)
                for index, array in enumerate(arrays)
            ],
            variables=variable_arguments,
            results=["result"],
            layouts=[],
            cores=self.devices,
        )
        return self._client.compile(program, False, "highest"), captured_arrays
