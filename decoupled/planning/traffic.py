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
_FREE = {
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
    rest: str
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
    largest = sorted(groups.values(), key=lambda row: -row["bound"])
    return {
        **total,
        "share": total["flops"] / (total["bound"] * peak) if total["bound"] else 0.0,
        "groups": largest[:_LARGEST_GROUPS],
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
        self._clock = self._links_free = 0.0
        self._ends: dict[str, float] = {}
        self.sending = self.waiting = 0.0
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.collectives: collections.Counter = collections.Counter()

    def walk(self, name: str, times: int) -> None:
        """Adds a computation's instructions to the groups."""
        instructions = self._computations[name]
        shapes = {each.name: each.shape for each in instructions}
        for each in instructions:
            if each.op.endswith("-done"):
                self._wait_for(each.operands[0], times)
            if each.op in _FREE or each.op.endswith(("-done", "-update")):
                continue
            called = _called(each)
            if each.op == "while":
                self.walk(_attribute(each, "body"), times * _trips(each))
            elif each.op in ("call", "async-start") and called:
                self.walk(called, times)
            elif each.op == "conditional":
                for branch in _branches(each):
                    self.walk(branch, times)
            else:
                self._add(each, self._cost(each, shapes), times)

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
            self.collectives[(kind, _sent(instruction), overlaps)] += times
            if self._to_others:
                self._send(instruction, kind, times)
                if not overlaps:
                    self._wait_for(instruction.name, times)

    def _send(self, instruction, kind, times):
        size = _group_size(instruction)
        # In a ring; a sum goes round twice.
        passes = (2 if kind == "all-reduce" else 1) * (size - 1) / size
        seconds = passes * _sent(instruction) / self._to_others
        self._links_free = max(self._links_free, self._clock) + seconds
        self._ends[instruction.name] = self._links_free
        self.sending += times * seconds

    def _wait_for(self, name, times):
        wait = max(0.0, self._ends.get(name, 0.0) - self._clock)
        self._clock += wait
        self.waiting += times * wait

    def _cost(self, each, shapes):
        operands = [shapes.get(name, "") for name in each.operands]
        kind, flops = each.op, 0
        if each.op == "fusion":
            inside = self._computations[_called(each)]
            kind, flops = self._kind(inside), self._flops(inside)
            return _Cost(kind, self._fused_bytes(each, inside, operands), flops)
        if each.op == "custom-call":
            kind = re.search(r'custom_call_target="([^"]+)"', each.rest)[1]
            flops = _flops_by_name(kind, each, operands)
        elif each.op in ("dot", "convolution"):
            flops = _product_flops(each, shapes)
        if each.op.endswith("-start"):
            # Between two places of the memory, or from and to a TPU's vector memory.
            parts = [_size(part) for part in _tensors(each.shape) if part[1]]
            touched = sum(1 for part in _tensors(each.shape)[:2] if _in_memory(part))
            return _Cost(kind, min(parts, default=0) * touched, 0)
        if each.op in _SLICES:
            return _Cost(kind, 2 * _bytes(each.shape), 0)
        if each.op == "dynamic-update-slice":
            return _Cost(kind, 2 * _bytes(operands[1]), 0)
        return _Cost(kind, _bytes(each.shape) + sum(map(_bytes, operands)), flops)

    def _fused_bytes(self, each, inside, operands):
        total = self._written(inside, each.shape)
        for index, shape in enumerate(operands):
            if size := _bytes(shape):
                total += min(size, self._read(inside, index, size))
        return total

    def _read(self, inside, index, whole):
        """What a fused computation reads of an operand."""
        parameter = f"{index})"
        names = {
            each.name
            for each in inside
            if each.op == "parameter" and each.rest.startswith(parameter)
        }
        total = 0
        for each in inside:
            if not names & set(each.operands):
                continue
            if each.op in _RESHAPES and not each.is_root:
                names.add(each.name)
            elif each.op in _SLICES:
                # Indices are small.
                total += _bytes(each.shape, everywhere=True)
            elif each.op == "fusion":
                nested = self._computations[_called(each)]
                total += sum(
                    self._read(nested, place, whole)
                    for place, name in enumerate(each.operands)
                    if name in names
                )
            elif each.op != "dynamic-update-slice" or each.operands[0] not in names:
                return whole
        return total

    def _written(self, inside, shape):
        """What a fused computation writes; of a target that it updates, the update."""
        by_name = {each.name: each for each in inside}
        (root,) = (each for each in inside if each.is_root)
        roots = root.operands if root.op == "tuple" else [root.name]
        total = 0
        for name, part in zip(roots, _tensors(shape), strict=False):
            each = by_name[name]
            while each.op in _RESHAPES and each.operands[0] in by_name:
                each = by_name[each.operands[0]]
            if not _in_memory(part):
                continue
            if each.op == "dynamic-update-slice":
                total += _bytes(by_name[each.operands[1]].shape, everywhere=True)
            else:
                total += _size(part)
        return total

    def _flops(self, inside):
        shapes = {each.name: each.shape for each in inside}
        total = 0
        for each in inside:
            if each.op in ("dot", "convolution"):
                total += _product_flops(each, shapes)
            elif each.op == "fusion":
                total += self._flops(self._computations[_called(each)])
        return total

    def _kind(self, inside):
        ops = self._ops(inside)
        for kind in ("dot", "convolution"):
            if kind in ops:
                return "product"
        for kind in ("scatter", "reduce", "sort"):
            if kind in ops:
                return kind
        if ops & {"rng-bit-generator", "shift-right-logical"}:
            return "random"
        return "transpose" if "transpose" in ops and ops <= _MOVES else "elementwise"

    def _ops(self, inside):
        ops = {each.op for each in inside}
        for each in inside:
            if each.op == "fusion":
                ops |= self._ops(self._computations[_called(each)])
        return ops - {"fusion"}


def _computations(text):
    computations, name, entry = {}, None, None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head[2]
            computations[name], entry = [], name if head[1] else entry
        elif name and line.startswith("  ") and (each := _parsed(line.strip())):
            computations[name].append(each)
    return computations, entry


def _parsed(line):
    name = _NAME.match(line)
    if not name:
        return None
    rest = line[name.end() :]
    if rest.startswith("("):
        end = _closing(rest)
        shape, rest = rest[: end + 1], rest[end + 1 :]
    else:
        shape, _, rest = rest.partition(" ")
    operation = _OPERATION.match(rest)
    if not operation:
        return None
    rest = rest[operation.end() :]
    arguments = rest[: _closing(f"({rest}") - 1]
    operands = re.findall(r"%([\w.\-]+)", arguments)
    is_root = line.startswith("ROOT ")
    return _Instruction(name[1], shape, operation[1], operands, rest, is_root)


def _closing(text):
    """The place of the bracket that closes the first one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    return len(text)


def _attribute(each, name):
    value = re.search(rf"\b{name}=%?([\w.\-]+)", each.rest)
    return value[1] if value else None


def _called(each):
    return _attribute(each, "calls") or _attribute(each, "to_apply")


def _branches(each):
    listed = re.search(r"branch_computations=\{([^}]*)\}", each.rest)
    if listed:
        return re.findall(r"%([\w.\-]+)", listed[1])
    names = (_attribute(each, f"{way}_computation") for way in ("true", "false"))
    return [name for name in names if name]


def _trips(each):
    known = re.search(r'"known_trip_count":\s*\{"n":\s*"(\d+)"', each.rest)
    return int(known[1]) if known else 1


def _group_size(each):
    """Devices of a group: {{0,1},{2,3}} or [2,2]<=[4]; 2 where it is not said."""
    groups = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", each.rest)
    if not groups:
        return 2
    return groups[1].count(",") + 1 if groups[1] else int(groups[2])


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


def _sent(each):
    """Bytes of a collective's result; one that is started also names its operands."""
    parts = _tensors(each.shape)
    total = sum(map(_size, parts))
    kind = each.op.removesuffix("-start")
    doubled = each.op.endswith("-start") and kind != "all-reduce"
    return total // 2 if doubled else total


def _product_flops(each, shapes):
    left, right = (_sizes(shapes.get(name, "")) for name in each.operands[:2])
    if each.op == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.rest)
        places = contracted[1].split(",") if contracted and contracted[1] else []
        inner = math.prod(left[int(place)] for place in places)
        return 2 * math.prod(_sizes(each.shape)) * inner
    # TPUs compute products as convolutions, in which a dimension of the batch or of the
    # heads is a side of the window. Most of its places lie in the padding.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.rest)
    of_left, of_right, of_out = labels.groups()
    out_sizes = _sizes(each.shape)
    flops = 2 * out_sizes[of_out.index("b")] * out_sizes[of_out.index("f")]
    flops *= right[of_right.index("i")]
    window = re.search(r"window=\{([^}]*)\}", each.rest)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}
    for side in filter(str.isdecimal, of_out):
        sizes = (left[of_left.index(side)], out_sizes[of_out.index(side)])
        flops *= _places(*sizes, int(side), fields)
    return flops


def _places(size, out, side, fields):
    """Pairs of an output and a place of its window that has an input, along a side."""

    def field(name, default):
        return fields[name].split("x")[side] if name in fields else default

    stride, apart = int(field("stride", 1)), int(field("rhs_dilate", 1))
    before, every = int(field("pad", "0_0").split("_")[0]), int(field("lhs_dilate", 1))
    first = [place * apart - before for place in range(int(field("size", 1)))]
    return sum(
        (place + shift) % every == 0 and 0 <= (place + shift) // every < size
        for place in range(0, out * stride, stride)
        for shift in first
    )


def _flops_by_name(target, each, operands):
    if target.startswith("__cublas"):
        left = _sizes(operands[0])
        places = re.search(r'"lhs_contracting_dimensions":\s*\["(\d+)"', each.rest)
        out = _sizes(_without_layouts(each.shape))
        return 2 * math.prod(out) * left[int(places[1])]
    names = " ".join(each.operands)
    is_splash = target == "tpu_custom_call" and "segment_ids" in names
    if not (is_splash or target.startswith("__cudnn$fmha")):
        return 0
    query, key, *_ = (sizes for sizes in map(_sizes, operands) if len(sizes) > 3)
    if scores := _SCORES.search(each.rest):
        numbers = math.prod(int(size) for size in re.findall(r"\d+", scores[1]))
    else:
        numbers = math.prod(query[:-1]) * key[-2]
    backward = "Backward" in target or "do_ref" in names
    return 2 * (5 if backward else 2) * numbers * query[-1]
