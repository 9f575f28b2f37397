"""What a compiled program moves through a device's memory and computes, by its text.

Each instruction of the scheduled program reads its operands and writes its results
once. Its bound is the larger of its bytes at the memory's bandwidth and its operations
at the peak of bfloat16; the sum is a lower bound of a step, and no time. So it is
counted:

- of an operand that is only sliced, the slice; of a target that is updated in place,
  the update; of a TPU's vector memory, S(1) in a layout, nothing.
- operations are those of products. Attention that is called by name counts by formula:
  two products forward, five backward. The body of a loop counts as often as it runs.
- what the compiler would still choose on a card (tiles, libraries) is not known, and a
  kernel may read an operand more than once.

Collective operations of GPUs run one after the other beside the instructions between
their start and their end, each instruction in its bound. What is left is waited for.

For a Python without TensorFlow and the rest of this package.
"""

import collections
import math
import re
from typing import Any, NamedTuple

_SIZES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4,
    "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
_TENSOR = re.compile(rf"\b({'|'.join(_SIZES)})\[([\d,]*)\](\{{[^}}]*\}})?")
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"(?:ROOT )?%?([\w.\-]+) = ")
_OPERATION = re.compile(r"\s*([\w\-]+)\(")
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)')
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")
_FREE_OPERATIONS = {
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all",
    "partition-id", "replica-id", "opt-barrier",
}  # fmt: skip
_COLLECTIVES = (
    "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_RESHAPES = {"bitcast", "reshape", "copy", "convert"}
_MOVES = _RESHAPES | {"parameter", "transpose", "constant"}
_SLICES = {"slice", "dynamic-slice", "gather"}
_LARGEST_GROUPS = 10


class _Instruction(NamedTuple):
    name: str
    shape: str
    op: str
    operands: list[str]
    attributes: str
    is_root: bool


class _Cost(NamedTuple):
    kind: str
    bytes: int
    flops: int


def traffic_of(
    text: str, bandwidth: float, peak: float, to_others: float | None = None
) -> dict[str, Any]:
    """Counts a program.

    Args:
      text: of the compiled HLO module. bandwidth: bytes/s. peak: FLOP/s. to_others:
        bytes/s that a GPU sends to others.

    Returns:
      "instructions", "bytes", "flops", "bound" in seconds, "share" of the peak at the
      bound; "groups", the ten that take most of it: kind, shape, count, bytes, flops
      and bound; "collectives": kind, bytes, whether others may run meanwhile, count;
      with `to_others` "sending", the seconds of the collective operations, and
      "waiting", those of them beside which nothing runs.
    """
    counter = _Counter(text, bandwidth, peak, to_others)
    counter.walk(counter.entry, 1)
    groups = counter.groups
    total = {
        "instructions": sum(row["count"] for row in groups.values()),
        "bytes": sum(row["bytes"] for row in groups.values()),
        "flops": sum(row["flops"] for row in groups.values()),
        "bound": sum(row["bound"] for row in groups.values()),
    }
    if to_others:
        total |= {"sending": counter.sending, "waiting": counter.waiting}
    rows = sorted(groups.values(), key=lambda row: -row["bound"])
    return {
        **total,
        "share": total["flops"] / (total["bound"] * peak) if total["bound"] else 0.0,
        "groups": rows[:_LARGEST_GROUPS],
        "collectives": [
            {"kind": kind, "bytes": size, "overlaps": overlaps, "count": count}
            for (kind, size, overlaps), count in counter.collectives.most_common()
        ],
    }


class _Counter:
    def __init__(
        self, text: str, bandwidth: float, peak: float, to_others: float | None
    ):
        self._computations, self.entry = _computations(text)
        self._bandwidth, self._peak, self._to_others = bandwidth, peak, to_others
        # Seconds: now, when the links are free, and when each collective ends.
        self._clock = self._links_free_time = 0.0
        self._ends: dict[str, float] = {}
        self.sending = self.waiting = 0.0
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.collectives: collections.Counter = collections.Counter()

    def walk(self, name: str, times: int) -> None:
        """Adds a computation's instructions to the groups."""
        instructions = self._computations[name]
        shapes = {instruction.name: instruction.shape for instruction in instructions}
        for instruction in instructions:
            op = instruction.op
            if op.endswith("-done"):
                self._wait_for(instruction.operands[0], times)
            if op in _FREE_OPERATIONS or op.endswith(("-done", "-update")):
                continue
            computation = _callee(instruction)
            if op == "while":
                self.walk(_attribute(instruction, "body"), times * _trips(instruction))
            elif op in ("call", "async-start") and computation:
                self.walk(computation, times)
            elif op == "conditional":
                for branch in _branches(instruction):
                    self.walk(branch, times)
            else:
                self._add(instruction, self._cost(instruction, shapes), times)

    def _add(self, instruction, cost, times):
        shape = _without_layouts(instruction.shape)
        row = self.groups.setdefault(
            (cost.kind, shape),
            {
                "kind": cost.kind, "shape": shape[:80], "count": 0, "bytes": 0,
                "flops": 0, "bound": 0.0,
            },
        )  # fmt: skip
        row["count"] += times
        row["bytes"] += times * cost.bytes
        row["flops"] += times * cost.flops
        bound = max(cost.bytes / self._bandwidth, cost.flops / self._peak)
        row["bound"] += times * bound
        self._clock += times * bound
        kind = instruction.op.removesuffix("-start")
        if kind in _COLLECTIVES:
            overlaps = instruction.op.endswith("-start")
            self.collectives[(kind, _sent_bytes(instruction), overlaps)] += times
            if self._to_others:
                self._send(instruction, kind, times)
                if not overlaps:
                    self._wait_for(instruction.name, times)

    def _send(self, instruction, kind, times):
        size = _group_size(instruction)
        # Devices send in a ring; a sum goes round twice.
        passes = (2 if kind == "all-reduce" else 1) * (size - 1) / size
        seconds = passes * _sent_bytes(instruction) / self._to_others
        self._links_free_time = max(self._links_free_time, self._clock) + seconds
        self._ends[instruction.name] = self._links_free_time
        self.sending += times * seconds

    def _wait_for(self, name, times):
        wait = max(0.0, self._ends.get(name, 0.0) - self._clock)
        self._clock += wait
        self.waiting += times * wait

    def _cost(self, instruction, shapes):
        operands = [shapes.get(name, "") for name in instruction.operands]
        kind, shape, flops = instruction.op, instruction.shape, 0
        if instruction.op == "fusion":
            body = self._computations[_callee(instruction)]
            kind, flops = self._kind(body), self._flops(body)
            return _Cost(kind, self._fused_bytes(instruction, body, operands), flops)
        if instruction.op == "custom-call":
            kind = re.search(r'custom_call_target="([^"]+)"', instruction.attributes)[1]
            flops = _flops_by_name(kind, instruction, operands)
        elif instruction.op in ("dot", "convolution"):
            flops = _product_flops(instruction, shapes)
        if instruction.op.endswith("-start"):
            # Between two places of the memory, or from and to a TPU's vector memory.
            parts = [_size(part) for part in _tensors(shape) if part[1]]
            memory_places = sum(1 for part in _tensors(shape)[:2] if _in_memory(part))
            return _Cost(kind, min(parts, default=0) * memory_places, 0)
        if instruction.op in _SLICES:
            return _Cost(kind, 2 * _bytes(shape), 0)
        if instruction.op == "dynamic-update-slice":
            return _Cost(kind, 2 * _bytes(operands[1]), 0)
        return _Cost(kind, _bytes(shape) + sum(map(_bytes, operands)), flops)

    def _fused_bytes(self, instruction, body, operands):
        total = self._bytes_written(body, instruction.shape)
        for index, shape in enumerate(operands):
            if size := _bytes(shape):
                total += min(size, self._bytes_read(body, index, size))
        return total

    def _bytes_read(self, body, index, size):
        """What a fused computation reads of an operand."""
        parameter = f"{index})"
        names = {
            instruction.name
            for instruction in body
            if instruction.op == "parameter"
            and instruction.attributes.startswith(parameter)
        }
        total = 0
        for instruction in body:
            op = instruction.op
            if not names & set(instruction.operands):
                continue
            if op in _RESHAPES and not instruction.is_root:
                names.add(instruction.name)
            elif op in _SLICES:
                # Indices are small.
                total += _bytes(instruction.shape, everywhere=True)
            elif op == "fusion":
                nested_body = self._computations[_callee(instruction)]
                total += sum(
                    self._bytes_read(nested_body, position, size)
                    for position, name in enumerate(instruction.operands)
                    if name in names
                )
            elif op != "dynamic-update-slice" or instruction.operands[0] not in names:
                return size
        return total

    def _bytes_written(self, body, shape):
        """What a fused computation writes; of a target that it updates, the update."""
        by_name = {instruction.name: instruction for instruction in body}
        (root,) = (instruction for instruction in body if instruction.is_root)
        roots = root.operands if root.op == "tuple" else [root.name]
        total = 0
        for name, part in zip(roots, _tensors(shape), strict=False):
            instruction = by_name[name]
            while instruction.op in _RESHAPES and instruction.operands[0] in by_name:
                instruction = by_name[instruction.operands[0]]
            if not _in_memory(part):
                continue
            if instruction.op == "dynamic-update-slice":
                update = by_name[instruction.operands[1]]
                total += _bytes(update.shape, everywhere=True)
            else:
                total += _size(part)
        return total

    def _flops(self, body):
        shapes = {instruction.name: instruction.shape for instruction in body}
        total = 0
        for instruction in body:
            if instruction.op in ("dot", "convolution"):
                total += _product_flops(instruction, shapes)
            elif instruction.op == "fusion":
                total += self._flops(self._computations[_callee(instruction)])
        return total

    def _kind(self, body):
        ops = self._ops(body)
        for kind in ("dot", "convolution"):
            if kind in ops:
                return "product"
        for kind in ("scatter", "reduce", "sort"):
            if kind in ops:
                return kind
        if ops & {"rng-bit-generator", "shift-right-logical"}:
            return "random"
        return "transpose" if "transpose" in ops and ops <= _MOVES else "elementwise"

    def _ops(self, body):
        ops = {instruction.op for instruction in body}
        for instruction in body:
            if instruction.op == "fusion":
                ops |= self._ops(self._computations[_callee(instruction)])
        return ops - {"fusion"}


def _computations(text):
    computations, name, entry = {}, None, None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            computations[name], entry = [], name if head[1] else entry
        elif name and line.startswith("  ") and (instruction := _parse(line.strip())):
            computations[name].append(instruction)
    return computations, entry


def _parse(line):
    name = _NAME.match(line)
    if not name:
        return None
    text = line[name.end() :]
    if text.startswith("("):
        end = _closing_index(text)
        shape, text = text[: end + 1], text[end + 1 :]
    else:
        shape, _, text = text.partition(" ")
    operation = _OPERATION.match(text)
    if not operation:
        return None
    text = text[operation.end() :]
    arguments = text[: _closing_index(f"({text}") - 1]
    operands = re.findall(r"%([\w.\-]+)", arguments)
    is_root = line.startswith("ROOT ")
    return _Instruction(name[1], shape, operation[1], operands, text, is_root)


def _closing_index(text):
    """The place of the bracket that closes the first one."""
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return index
    return len(text)


def _attribute(instruction, name):
    value = re.search(rf"\b{name}=%?([\w.\-]+)", instruction.attributes)
    return value[1] if value else None


def _callee(instruction):
    return _attribute(instruction, "calls") or _attribute(instruction, "to_apply")


def _branches(instruction):
    match = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    if match:
        return re.findall(r"%([\w.\-]+)", match[1])
    names = (_attribute(instruction, f"{way}_computation") for way in ("true", "false"))
    return [name for name in names if name]


def _trips(instruction):
    match = re.search(r'"known_trip_count":\s*\{"n":\s*"(\d+)"', instruction.attributes)
    return int(match[1]) if match else 1


def _group_size(instruction):
    """Devices of a group: {{0,1},{2,3}} or [2,2]<=[4]; 2 where it is not said."""
    match = _GROUPS.search(instruction.attributes)
    if not match:
        return 2
    return match[1].count(",") + 1 if match[1] else int(match[2])


def _tensors(shape):
    """Dtype, sizes and layout of each tensor of a shape."""
    return _TENSOR.findall(shape)


def _size(part):
    dtype, sizes, _ = part
    return _SIZES[dtype] * math.prod(map(int, filter(None, sizes.split(","))))


def _in_memory(part):
    return "S(" not in part[2]


def _bytes(shape, everywhere=False):
    parts = _tensors(shape)
    return sum(_size(part) for part in parts if everywhere or _in_memory(part))


def _sizes(shape):
    parts = _tensors(shape)
    return [int(size) for size in parts[0][1].split(",") if size] if parts else []


def _without_layouts(shape):
    return ", ".join(f"{dtype}[{sizes}]" for dtype, sizes, _ in _tensors(shape))


def _sent_bytes(instruction):
    """Bytes of a collective's result; one that is started also names its operands."""
    parts = _tensors(instruction.shape)
    total = sum(map(_size, parts))
    kind = instruction.op.removesuffix("-start")
    names_operands = instruction.op.endswith("-start") and kind != "all-reduce"
    return total // 2 if names_operands else total


def _product_flops(instruction, shapes):
    left, right = (_sizes(shapes.get(name, "")) for name in instruction.operands[:2])
    if instruction.op == "dot":
        match = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        dimensions = match[1].split(",") if match and match[1] else []
        inner = math.prod(left[int(place)] for place in dimensions)
        return 2 * math.prod(_sizes(instruction.shape)) * inner
    # TPUs compute products as convolutions, in which a dimension of the batch or of the
    # heads is a side of the window. Most of its places lie in the padding.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    left_labels, right_labels, out_labels = labels.groups()
    out_sizes = _sizes(instruction.shape)
    flops = 2 * out_sizes[out_labels.index("b")] * out_sizes[out_labels.index("f")]
    flops *= right[right_labels.index("i")]
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}
    for side in filter(str.isdecimal, out_labels):
        sizes = (left[left_labels.index(side)], out_sizes[out_labels.index(side)])
        flops *= _places(*sizes, int(side), fields)
    return flops


def _places(size, out, side, fields):
    """Pairs of an output and a place of its window that has an input, along a side."""

    def field(name, default):
        return fields[name].split("x")[side] if name in fields else default

    stride, dilation = int(field("stride", 1)), int(field("rhs_dilate", 1))
    padding = int(field("pad", "0_0").split("_")[0])
    input_step = int(field("lhs_dilate", 1))
    shifts = [place * dilation - padding for place in range(int(field("size", 1)))]
    return sum(
        (place + shift) % input_step == 0 and 0 <= (place + shift) // input_step < size
        for place in range(0, out * stride, stride)
        for shift in shifts
    )


def _flops_by_name(target, instruction, operands):
    if target.startswith("__cublas"):
        left = _sizes(operands[0])
        match = re.search(
            r'"lhs_contracting_dimensions":\s*\["(\d+)"', instruction.attributes
        )
        sizes = _sizes(_without_layouts(instruction.shape))
        return 2 * math.prod(sizes) * left[int(match[1])]
    names = " ".join(instruction.operands)
    is_splash = target == "tpu_custom_call" and "segment_ids" in names
    if not (is_splash or target.startswith("__cudnn$fmha")):
        return 0
    query, key, *_ = (sizes for sizes in map(_sizes, operands) if len(sizes) > 3)
    if scores := _SCORES.search(instruction.attributes):
        score_count = math.prod(int(size) for size in re.findall(r"\d+", scores[1]))
    else:
        score_count = math.prod(query[:-1]) * key[-2]
    is_backward = "Backward" in target or "do_ref" in names
    return 2 * (5 if is_backward else 2) * score_count * query[-1]
