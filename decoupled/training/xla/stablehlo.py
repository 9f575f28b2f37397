"""TensorFlow's translation of a program as JAX's compilers take it.

Without TensorFlow and the rest of this package: `decoupled/planning/jax_step.py` also
imports it, in a Python that has only JAX.
"""

import re
from typing import Any


def to_stablehlo(hlo: bytes, precision: str) -> tuple[Any, dict[int, int]]:
    """The module as compilers take it, and which results are which arguments.

    Operations that only TensorFlow's translation writes are replaced; results take the
    memory of the old variables; products of float32 get their precision, which JAX's
    own setting gives only to what JAX traces.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        text = module.operation.get_asm(
            enable_debug_info=False, large_elements_limit=None
        )
        text = re.sub(r"mhlo\.copy (%\S+) : (\S+)", r"stablehlo.convert \1 : \2", text)
        text = re.sub(r"mhlo\.erf (%\S+) : (\S+)", r"chlo.erf \1 : \2 -> \2", text)
        # TensorFlow numbers loops through all graphs of a process, and the cache's key
        # has their names.
        text = re.sub(r"(@while\w*_(?:cond|body))_\d+", r"\1", text)
        module = ir.Module.parse(text)
        attributes = module.operation.attributes
        (main,) = (
            operation
            for operation in module.body
            if ir.StringAttr(operation.attributes["sym_name"]).value == "main"
        )
        index_type = ir.IntegerType.get_signless(32)
        arguments, updated_arguments = [{} for _ in main.arguments], {}
        for entry in attributes["mhlo.input_output_alias"]:
            entry = ir.DictAttr(entry)
            alias = ir.DictAttr(entry["alias"])
            (result,) = ir.DenseI64ArrayAttr(entry["output_index"])
            argument = ir.IntegerAttr(alias["parameter_number"]).value
            value = ir.IntegerAttr.get(index_type, result)
            arguments[argument] = {"tf.aliasing_output": value}
            updated_arguments[result] = argument
        argument_attributes = [ir.DictAttr.get(argument) for argument in arguments]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(argument_attributes)
        for name in [getattr(each, "name", each) for each in attributes]:
            if name.startswith("mhlo."):
                del attributes[name]
        # TensorFlow numbers it anew in each process; the cache's key has the name.
        attributes["sym_name"] = ir.StringAttr.get("program")
        _set_precision(ir, module, precision.upper())
        return module, updated_arguments


def _set_precision(ir, module, precision):
    precision_attribute = ir.Attribute.parse(f"#stablehlo<precision {precision}>")

    def visit(operation):
        if operation.name in ("stablehlo.dot_general", "stablehlo.convolution"):
            types = [ir.ShapedType(x.type).element_type for x in operation.operands]
            if any(isinstance(each, ir.F32Type) for each in types):
                both = ir.ArrayAttr.get([precision_attribute, precision_attribute])
                operation.attributes["precision_config"] = both
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
