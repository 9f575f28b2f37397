"""Plans as tables and as JSON."""

import math

from decoupled.core import console
from decoupled.core.machine import readable_bytes
from decoupled.model.parameters import SPECIAL_COLUMNS, SPECIAL_TITLE, special_variables
from decoupled.planning.plan import Plan, seconds
from decoupled.planning.program import CompiledStep

# Rows of the tables of slices, activations and collectives.
_ROWS = 8
_TRILLION = 1e12


def print_plan(plan: Plan) -> None:
    """Prints what was assumed; what a core holds, computes and sends; the times."""
    mesh, training = plan.run.mesh, plan.run.training
    console.say(
        f"planned with activations in {mesh.activation_dtype}, weights on the cores in "
        f"{mesh.slice_dtype}, slots in float32, "
        f"{training.gradient_accumulation} microbatches, layers "
        f"{'computed again' if training.recompute_layers else 'kept'} for the backward "
        "pass (pretrain on a TPU has the same defaults)"
    )
    if rows := special_variables(plan.run.model, plan.run.optimizer):
        console.table(SPECIAL_TITLE, SPECIAL_COLUMNS, rows)
    first_of_shape = {}
    for variable in plan.variables:
        first_of_shape.setdefault(tuple(variable.shape), variable)
    variables = sorted(first_of_shape.values(), key=lambda v: -math.prod(v.shape))
    console.table(
        f"The largest weights, and a core's slice, on {mesh.mesh_shape} with "
        f"{mesh.layout_rules or 'no rules'}",
        ["weight", "whole", "slice"],
        [[v.name, str(v.shape), str(v.slice)] for v in variables[:_ROWS]],
    )
    _print_memory(plan)
    _print_collectives(plan)
    _print_times(plan)
    _print_hosts(plan)


def summary_row(name: str, plan: Plan) -> list[object]:
    """A plan in one line; `SUMMARY` names the columns."""
    memory, times = plan.memory, plan.times
    return [
        name,
        plan.run.mesh.mesh_shape,
        readable_bytes(memory.weights + memory.slots),
        readable_bytes(memory.gradients + memory.activations),
        readable_bytes(memory.total),
        "yes" if plan.fits else "no",
        f"{times.step:.3f} s",
        f"{times.collectives:.3f} s",
        _days(times.days(plan.steps)),
        _days(times.days(_TRILLION / plan.tokens_per_step)),
    ]


SUMMARY = [
    "", "mesh", "weights and slots", "other", "peak", "fits", "step", "collectives",
    "days", "days for 1T tokens",
]  # fmt: skip


def print_compiled(plan: Plan, compiled: CompiledStep) -> None:
    """Prints the memory of a core by the compiler, beside the plan's."""
    memory, rows = plan.memory, []
    held_bytes = memory.weights + memory.slots
    if compiled.fits:
        other_bytes = compiled.needed - compiled.arguments
        rows = [
            ["weights, slots, features", compiled.arguments, held_bytes],
            ["other, with the program itself", other_bytes, memory.total - held_bytes],
        ]
    rows.append(["all", compiled.needed, memory.total])
    console.table(
        f"Memory of a core of {plan.tpu.name} by {compiled.compiler}, compiled in "
        f"{compiled.seconds:.0f} s",
        ["", "compiled", "planned"],
        [
            [name, readable_bytes(compiled_bytes), readable_bytes(planned_bytes)]
            for name, compiled_bytes, planned_bytes in rows
        ],
    )
    if not compiled.fits:
        console.say(
            f"DOES NOT FIT: a core has {readable_bytes(compiled.available)} for it"
        )
    if compiled.traffic:
        _print_traffic(compiled.traffic, compiled.attention)


def _print_traffic(traffic, attention):
    console.table(
        "What a core moves and computes in a step, counted in the compiled program",
        ["", ""],
        [
            ["instructions", f"{traffic['instructions']:,}"],
            ["bytes moved", readable_bytes(traffic["bytes"])],
            ["products", f"{traffic['flops'] / 1e12:.2f} TFLOP"],
            ["no step is faster than", f"{1e3 * traffic['bound']:.2f} ms"],
            ["share of the peak, then", f"{traffic['share']:.0%}"],
            ["attention", attention],
            *_links(traffic),
        ],
    )
    console.table(
        "What takes most of it",
        ["", "count", "bytes", "TFLOP", "ms", "result"],
        [
            [
                group["kind"], group["count"], readable_bytes(group["bytes"]),
                f"{group['flops'] / 1e12:.2f}", f"{1e3 * group['bound']:.2f}",
                group["shape"],
            ]
            for group in traffic["groups"]
        ],
    )  # fmt: skip
    if traffic["collectives"]:
        console.table(
            "Collective operations of the compiled program",
            ["operation", "count", "each", "beside others"],
            [
                [
                    row["kind"], row["count"], readable_bytes(row["bytes"]),
                    "yes" if row["overlaps"] else "no",
                ]
                for row in traffic["collectives"][:_ROWS]
            ],
        )  # fmt: skip


def _links(traffic):
    if "sending" not in traffic:
        return []
    sending, waiting = (f"{1e3 * traffic[n]:.2f} ms" for n in ("sending", "waiting"))
    return [["collective operations", f"{sending}, {waiting} beside nothing else"]]


def as_json(plan: Plan, compiled: CompiledStep | None = None) -> dict:
    """Every value of a plan; bytes, seconds and FLOPs are of one core and step."""
    memory, times, run = plan.memory, plan.times, plan.run
    return {
        "topology": plan.tpu.name,
        "cores": plan.tpu.cores,
        "mesh_shape": run.mesh.mesh_shape,
        "layout_rules": run.mesh.layout_rules,
        "activation_dtype": run.mesh.activation_dtype,
        "slice_dtype": run.mesh.slice_dtype,
        "rates": run.optimizer.rates,
        "batch_size": run.training.batch_size,
        "gradient_accumulation": run.training.gradient_accumulation,
        "recompute_layers": run.training.recompute_layers,
        "bytes": {
            "hbm": plan.tpu.core_hbm_bytes,
            "usable": plan.usable_bytes,
            "weights": memory.weights,
            "slots": memory.slots,
            "gradients": memory.all_gradients,
            "gradients_at_peak": memory.gradients,
            "activations": memory.activations,
            "peak": memory.total,
        },
        "fits": plan.fits,
        "compiled": compiled and {**compiled._asdict(), "fits": compiled.fits},
        "hosts": plan.tpu.hosts,
        "features_bytes": plan.infeed_bytes,
        "largest_activations": [t._asdict() for t in memory.tensors[:_ROWS]],
        "flops": sum(plan.flops.values()),
        "collectives": [
            {
                "kind": c.kind,
                "cores": len(c.group),
                "bytes": c.bytes,
                "count": c.count,
                "seconds": c.count * seconds(c, plan.tpu),
            }
            for c in _by_time(plan)
        ],
        "seconds": {**times._asdict(), "step": times.step},
        "days": times.days(plan.steps),
        "days_for_1e12_tokens": times.days(_TRILLION / plan.tokens_per_step),
        "slices": {v.name: v.slice for v in plan.variables},
    }


def _print_memory(plan):
    memory = plan.memory
    rows = [
        ["weights", readable_bytes(memory.weights), ""],
        ["slots", readable_bytes(memory.slots), ""],
        [
            "gradients",
            readable_bytes(memory.all_gradients),
            f"{readable_bytes(memory.gradients)} of them at the peak",
        ],
        ["activations", readable_bytes(memory.activations), "at the peak"],
    ]
    for tensors in memory.tensors[:_ROWS]:
        if tensors.bytes > memory.total / 1000:
            description = f"{tensors.count} of {tensors.shape}"
            rows.append(["  of these", readable_bytes(tensors.bytes), description])
    rows.append(
        ["peak", readable_bytes(memory.total), "fits" if plan.fits else "DOES NOT FIT"]
    )
    rows.append(["usable", readable_bytes(plan.usable_bytes), plan.tpu.name])
    rows.append(["memory of a core", readable_bytes(plan.tpu.core_hbm_bytes), ""])
    title = f"Memory of a core{_phase_note(plan)}"
    console.table(title, ["", "bytes", ""], rows)


def _phase_note(plan):
    return " in the last phase" if plan.run.earlier_phases else ""


def _print_collectives(plan):
    collectives = _by_time(plan)

    def row(kind, cores, text, members):
        size = sum(c.count * c.bytes for c in members)
        time = sum(c.count * seconds(c, plan.tpu) for c in members)
        count = sum(c.count for c in members)
        return [kind, cores, count, text, readable_bytes(size), f"{1000 * time:.2f} ms"]

    rows = [
        row(c.kind, len(c.group), readable_bytes(c.bytes), [c])
        for c in collectives[:_ROWS]
    ]
    if len(collectives) > _ROWS:
        rows.append(row("the rest", None, None, collectives[_ROWS:]))
    console.table(
        "Collective operations of a core in a step",
        ["operation", "cores", "count", "each", "all", "time"],
        rows,
    )


def _by_time(plan):
    return sorted(
        plan.collectives, key=lambda c: c.count * seconds(c, plan.tpu), reverse=True
    )


def _print_hosts(plan):
    rows = [
        ["hosts", plan.tpu.hosts, plan.tpu.name],
        ["features of a step", readable_bytes(plan.infeed_bytes), "for every host"],
    ]
    console.table("Hosts", ["", "", ""], rows)


def _print_times(plan):
    times, steps = plan.times, plan.steps
    tokens = plan.tokens_per_step
    share, flops = plan.assumptions.efficiency, sum(plan.flops.values())
    bfloat16_share = plan.flops.get("bfloat16", 0) / flops
    rows = [
        ["FLOPs of a core", f"{flops / 1e12:.2f} T", f"{bfloat16_share:.0%} bfloat16"],
        ["matrix products", _s(times.products), f"at {share:.0%} of the peak"],
        ["optimizer", _s(times.optimizer), "at the memory's bandwidth"],
        ["collectives", _s(times.collectives), "at the links' bandwidth"],
        ["step", _s(times.step), f"{tokens / times.step:,.0f} tokens/s"],
        [
            f"{steps:,} steps{_phase_note(plan)}",
            f"{_days(times.days(steps))} days",
            f"{steps * tokens / _TRILLION:.2f}T tokens",
        ],
        ["1T tokens", f"{_days(times.days(_TRILLION / tokens))} days", ""],
    ]
    console.table("Time", ["", "", ""], rows)


def _s(value):
    return f"{value:.4f} s"


def _days(days: float) -> str:
    """A number of days with one decimal, or with two digits below a day."""
    return f"{days:.1f}" if days >= 1 else f"{days:.2g}"
