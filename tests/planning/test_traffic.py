"""Bytes and operations of small programs, whose numbers are known."""

import pytest

from decoupled.planning.traffic import traffic_of

MILLION = 10**6
# Elements of [1000, 1000].
X = "f32[1000,1000]{1,0}"


def program(entry, *computations):
    """The text of a module; `entry` are lines of its main computation."""
    parts = [*computations, f"ENTRY %main (x: {X}) -> {X} {{\n{entry}\n}}"]
    return "HloModule test, is_scheduled=true\n\n" + "\n\n".join(parts)


def computation(name, *lines):
    return f"%{name} (p: {X}) -> {X} {{\n" + "\n".join(lines) + "\n}"


ADD = computation("add", f"  %p = {X} parameter(0)", f"  ROOT %r = {X} add(%p, %p)")
# Reads row 3 of a stack of 8.
MEMBER = computation(
    "member",
    "  %p = f32[8,1000,1000]{2,1,0} parameter(0)",
    "  %s = f32[1,1000,1000]{2,1,0} slice(%p), slice={[3:4], [0:1000], [0:1000]}",
    f"  ROOT %r = {X} bitcast(%s)",
)
# Writes a row of a stack in place.
UPDATE = computation(
    "update",
    "  %p = f32[8,1000,1000]{2,1,0} parameter(0)",
    "  %q = f32[1,1000,1000]{2,1,0} parameter(1)",
    "  %i = s32[] parameter(2)",
    "  ROOT %r = f32[8,1000,1000]{2,1,0} dynamic-update-slice(%p, %q, %i, %i, %i)",
)
PRODUCT = computation(
    "product",
    "  %p = bf16[64,512]{1,0} parameter(0)",
    "  %q = bf16[512,32]{1,0} parameter(1)",
    "  ROOT %r = bf16[64,32]{1,0} dot(%p, %q), lhs_contracting_dims={1}, "
    "rhs_contracting_dims={0}",
)
BODY = computation(
    "body",
    f"  %p = (s32[], {X}) parameter(0)",
    f"  %x = {X} get-tuple-element(%p), index=1",
    f"  %y = {X} fusion(%x), kind=kLoop, calls=%add",
    f"  ROOT %r = (s32[], {X}) tuple(%i, %y)",
)
SUM = "metadata={}, replica_groups={{0,1}}, to_apply=%sum"
PROGRAMS = {
    "an operand and a result": (
        f"  %x = {X} parameter(0)\n"
        f"  ROOT %y = {X} fusion(%x), kind=kLoop, calls=%add",
        [ADD], 1, 8 * MILLION, 0,
    ),
    "a slice of a stack": (
        "  %x = f32[8,1000,1000]{2,1,0} parameter(0)\n"
        f"  ROOT %y = {X} fusion(%x), kind=kLoop, calls=%member",
        [MEMBER], 1, 8 * MILLION, 0,
    ),
    "an update in place": (
        "  %x = f32[8,1000,1000]{2,1,0} parameter(0)\n"
        "  %y = f32[1,1000,1000]{2,1,0} parameter(1)\n"
        "  %i = s32[] parameter(2)\n"
        "  ROOT %z = f32[8,1000,1000]{2,1,0} fusion(%x, %y, %i), kind=kLoop, "
        "calls=%update",
        [UPDATE], 1, 8 * MILLION + 4, 0,
    ),
    "a product": (
        "  %x = bf16[64,512]{1,0} parameter(0)\n"
        "  %y = bf16[512,32]{1,0} parameter(1)\n"
        "  ROOT %z = bf16[64,32]{1,0} fusion(%x, %y), kind=kOutput, calls=%product",
        [PRODUCT], 1, 2 * (64 * 512 + 512 * 32 + 64 * 32), 2 * 64 * 512 * 32,
    ),
    "a loop of 12": (
        f"  %x = (s32[], {X}) parameter(0)\n"
        f"  ROOT %y = (s32[], {X}) while(%x), condition=%c, body=%body, "
        'backend_config={"known_trip_count":{"n":"12"}}',
        [ADD, BODY], 12, 12 * 8 * MILLION, 0,
    ),
    # Tokens before heads, in which only the kernel's settings say what is what.
    "cuDNN's attention": (
        "  %q = bf16[2,512,4,64]{3,2,1,0} parameter(0)\n"
        "  ROOT %y = (bf16[2,4,512,64]{3,2,1,0}, f32[2,4,512]{2,1,0}, u8[0]{0}) "
        'custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", '
        'backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": '
        '{"element_type": "BF16", "dimensions": ["2", "4", "512", "512"]}}}',
        [], 1, 4 * 2 * 2 * 4 * 512 * 64 + 4 * 2 * 4 * 512,
        2 * 2 * 2 * 4 * 512 * 512 * 64,
    ),
    "a TPU's vector memory": (
        "  %x = f32[1000,1000]{1,0:T(8,128)} parameter(0)\n"
        "  %y = f32[1000,1000]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%add\n"
        "  ROOT %z = f32[1000,1000]{1,0:T(8,128)} fusion(%y), kind=kLoop, calls=%add",
        [ADD], 2, 8 * MILLION, 0,
    ),
    "a TPU's prefetch": (
        "  %x = f32[1000,1000]{1,0:T(8,128)} parameter(0)\n"
        "  %s = (f32[1000,1000]{1,0:T(8,128)S(1)}, f32[1000,1000]{1,0:T(8,128)}, "
        "u32[]{:S(2)}) copy-start(%x)\n"
        "  ROOT %y = f32[1000,1000]{1,0:T(8,128)S(1)} copy-done(%s)",
        [], 1, 4 * MILLION, 0,
    ),
    # In a batch of 12, 128 x 64 by 64 x 256.
    "a TPU's product": (
        "  %x = bf16[12,128,64]{2,1,0:T(8,128)} parameter(0)\n"
        "  %y = bf16[12,64,256]{2,1,0:T(8,128)} parameter(1)\n"
        "  ROOT %z = bf16[12,128,256]{2,1,0:T(8,128)} convolution(%x, %y), "
        "window={size=12 stride=11 lhs_dilate=12}, dim_labels=0bf_0io->0bf",
        [], 1, 2 * 12 * (128 * 64 + 64 * 256 + 128 * 256), 2 * 12 * 128 * 64 * 256,
    ),
    # 128 x 64 by 64 x (12 heads of 256), of which each place of the window has one.
    "a TPU's product that splits heads": (
        "  %x = bf16[128,64,1]{1,0,2:T(8,128)} parameter(0)\n"
        "  %y = bf16[12,64,256]{2,1,0:T(8,128)} parameter(1)\n"
        "  ROOT %z = bf16[12,128,256]{2,1,0:T(8,128)} convolution(%x, %y), "
        "window={size=12 pad=11_11 rhs_reversal=1}, dim_labels=bf0_0io->0bf",
        [], 1, 2 * (128 * 64 + 12 * 64 * 256 + 12 * 128 * 256),
        2 * 12 * 128 * 64 * 256,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_moves_and_computes(name):
    entry, others, instructions, moved, flops = PROGRAMS[name]
    counted = traffic_of(program(entry, *others), bandwidth=1e12, peak=1e14)
    assert counted["instructions"] == instructions
    assert (counted["bytes"], counted["flops"]) == (moved, flops)
    # Each of these programs is bound by one of the two alone.
    assert counted["bound"] == pytest.approx(max(moved / 1e12, flops / 1e14))


def test_the_bound_is_that_of_each_instruction_by_itself():
    entry = (
        "  %x = bf16[4096,4096]{1,0} parameter(0)\n"
        "  %y = bf16[4096,4096]{1,0} dot(%x, %x), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n"
        "  ROOT %z = bf16[4096,4096]{1,0} copy(%y)"
    )
    counted = traffic_of(program(entry), bandwidth=1e12, peak=1e14)
    product, copy = 2 * 4096**3 / 1e14, 2 * 2 * 4096**2 / 1e12
    assert counted["bound"] == pytest.approx(product + copy)
    assert counted["share"] == pytest.approx(product / (product + copy))
    assert [group["kind"] for group in counted["groups"]] == ["dot", "copy"]


def test_collectives():
    entry = (
        f"  %x = {X} parameter(0)\n"
        f"  %s = {X} all-reduce-start(%x), {SUM}\n"
        f"  %y = {X} all-reduce-done(%s)\n"
        f"  ROOT %z = {X} all-reduce(%y), {SUM}"
    )
    counted = traffic_of(program(entry), bandwidth=1e12, peak=1e14)
    whole = {"kind": "all-reduce", "bytes": 4 * MILLION, "count": 1}
    assert counted["collectives"] == [
        {**whole, "overlaps": True},
        {**whole, "overlaps": False},
    ]


def test_collectives_hide_behind_what_runs_beside_them():
    """Of two cards, at 1 GB/s: a sum takes 4 ms, its memory 1 ms, and a copy 2 ms."""
    entry = (
        f"  %x = {X} parameter(0)\n"
        f"  %s = {X} all-reduce-start(%x), {SUM}\n"
        f"  %t = {X} all-reduce-start(%x), {SUM}\n"
        f"  %b = {X} copy(%x)\n"
        f"  %c = {X} copy(%b)\n"
        f"  %y = {X} all-reduce-done(%s)\n"
        f"  %z = {X} all-reduce-done(%t)\n"
        f"  ROOT %w = {X} all-reduce(%z), {SUM}"
    )
    counted = traffic_of(program(entry), 4e9, 1e14, to_others=1e9)
    assert counted["sending"] == pytest.approx(12e-3)
    # The first ends beside the copies, the second 3 ms after them; the last has none.
    assert counted["waiting"] == pytest.approx(7e-3)
    of_eight = program(entry.replace("{{0,1}}", "[1,8]<=[8]"))
    counted = traffic_of(of_eight, 4e9, 1e14, to_others=1e9)
    assert counted["sending"] == pytest.approx(12e-3 * 7 / 4)
