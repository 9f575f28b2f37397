"""A function of TensorFlow on an accelerator: a program of XLA for each shape."""

from collections.abc import Callable, Sequence

import numpy as np

from decoupled.core.compat import tf
from decoupled.training.xla.adapter import Array, Client, Executable
from decoupled.training.xla.programs import Argument, ExportedProgram


class DeviceFunction:
    """Computes `function(*arrays)` on one device.

    Args:
      function: of tensors to one tensor; the variables that it reads go to the device
        once. kind, say: see `Client`. precision: of products of float32.

    Raises:
      UserError: there is no such device, or JAX is missing.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        kind: str,
        say: Callable[[str], None],
        precision: str = "highest",
    ):
        self._function, self._precision = function, precision
        self._client = Client(kind, [1], say)
        self._programs: dict[tuple, tuple[Executable, list]] = {}
        # id of a captured tensor -> the tensor, without which another could get its id,
        # and its array on the device.
        self._captured: dict[int, tuple[tf.Tensor, Array]] = {}

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The result for arrays of a shape; each new shape is compiled first."""
        key = tuple((array.shape, array.dtype.str) for array in arrays)
        if key not in self._programs:
            self._programs[key] = self._compiled(arrays)
        executable, captured = self._programs[key]
        features = {
            str(place): self._client.put_everywhere(array)
            for place, array in enumerate(arrays)
        }
        return np.asarray(executable.run(features, captured)["result"])

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
            cores=1,
        )
        return self._client.compile(program, {}, self._precision), captured
