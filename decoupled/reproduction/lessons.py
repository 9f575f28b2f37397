"""The conclusions about embedding coupling, as sentences that the verdicts select.

A sentence states only what its numbers show. If a verdict says nothing about the paper,
the sentence states this.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping

from decoupled.reproduction import claims, verdicts
from decoupled.reproduction.finished import Findings
from decoupled.reproduction.sections import EFFECTIVE_RANK, LOGITS
from decoupled.reproduction.verdicts import (
    CONTRADICTED,
    NO_EFFECT,
    SUPPORTED,
    Checked,
    Judged,
    Part,
    Training,
)

# Claim -> its subject, and the sentence of each verdict.
_SENTENCES: Mapping[int, tuple[str, Mapping[str, str]]] = {
    1: (
        "Untying the input from the output embedding, without any other change,",
        {
            SUPPORTED: "moves the score by less than the margin",
            CONTRADICTED: "moves the score by more than the margin",
        },
    ),
    2: (
        "A small input embedding, beside a small output embedding,",
        {
            SUPPORTED: (
                "is not worse by more than the margin, although it leaves fewer "
                "parameters to fine-tune"
            ),
            CONTRADICTED: ("is worse by more than the margin"),
        },
    ),
    3: (
        "An output embedding that is wider than the hidden layers",
        {
            SUPPORTED: (
                "helps, although it is thrown away and the fine-tuned models have the "
                "same size"
            ),
            NO_EFFECT: "makes no difference above the margin after fine-tuning",
            CONTRADICTED: "hurts after fine-tuning",
        },
    ),
    4: (
        "Parameters in a wider output embedding",
        {
            SUPPORTED: "help more than as many in layers that are dropped afterwards",
            NO_EFFECT: (
                "and as many in layers that are dropped afterwards do the same, within "
                "the margin"
            ),
            CONTRADICTED: (
                "help less than as many in layers that are dropped afterwards"
            ),
        },
    ),
    5: (
        "The parameters that a small input embedding saves",
        {
            SUPPORTED: "beat the coupled model of equal size, in depth and in width",
            NO_EFFECT: (
                "make no difference above the margin to the coupled model of equal size"
            ),
            CONTRADICTED: (
                "do not beat the coupled model of equal size in both ways, depth and "
                "width"
            ),
        },
    ),
    6: (
        "A wide output embedding",
        {
            SUPPORTED: (
                "guesses more masked words, while its rows translate words less well"
            ),
            NO_EFFECT: (
                "changes neither masked-LM accuracy nor the translation of words by "
                "its rows above the margin"
            ),
            CONTRADICTED: (
                "does not do both, guess more masked words and translate less well: at "
                "least one of the two goes the other way"
            ),
        },
    ),
    7: (
        "The fall of retrieval in the last layer",
        {
            SUPPORTED: "is smaller with a wide output embedding",
            NO_EFFECT: "is the same for a small and a wide output embedding",
            CONTRADICTED: "is larger with a wide output embedding",
        },
    ),
}
_SILENT = {
    verdicts.NOT_TESTABLE: "Not testable here, which says nothing of the paper",
    verdicts.VOID: "Void, because a row did not train",
    verdicts.NOT_RUN: "Not run at this size",
    verdicts.TOO_FEW: "Not judged, for want of seeds",
}


def lessons(
    judged: Iterable[Judged],
    checks: Iterable[Checked],
    training: Training,
    findings: Findings,
) -> Iterator[str]:
    """Yields sentences in Markdown, each with its numbers.

    Args:
      judged: the claims. checks: of all measures. training: of all rows. findings: has
        the ranks of logits.
    """
    judged = list(judged)
    yield from _on_pretraining(checks)
    for one in judged:
        about, found = _SENTENCES[one.claim.number]
        numbers = "; ".join(map(in_words, one.parts))
        if one.verdict in found:
            yield f"{about} {found[one.verdict]}: {numbers} (claim {one.claim.number})."
        if one.verdict == verdicts.UNDECIDED:
            seen = " ".join(map(verdicts.could_have_been_seen, one.parts))
            yield f"Claim {one.claim.number} is undecided: {numbers}. {seen}"
    yield from _on_speed(training)
    yield from _on_heads(judged, findings)
    for verdict, text in _SILENT.items():
        numbers = [str(one.claim.number) for one in judged if one.verdict == verdict]
        if numbers:
            yield f"{text}: claim{'s' * (len(numbers) > 1)} {', '.join(numbers)}."


def contrast_name(part: Part) -> str:
    """The measure and the rows of a contrast."""
    return f"{part.name}, {part.contrast.rows()}"


def in_words(part: Part) -> str:
    """A contrast with its estimate and interval."""
    if part.found is None:
        return f"{contrast_name(part)}: not measured"
    low, high = part.interval
    numbers = f"{part.found.value:+.2f} {part.unit} ({low:+.2f} to {high:+.2f})"
    return f"{contrast_name(part)}: {numbers}"


def _on_pretraining(checks):
    """Which measures show an effect of pre-training, and which do not."""
    passed: dict[str, bool] = {}
    for one in checks:
        passed[one.name] = passed.get(one.name, True) and one.passed()
    for wanted, text in (
        (True, "Pre-training is clearly visible in {}."),
        (False, "In {} it is not, so that these decide nothing."),
    ):
        names = [name for name, found in passed.items() if found is wanted]
        if names:
            yield text.format(", ".join(names))


def _on_speed(training):
    """Which rows leave the plateau first and last, if all do."""
    steps = {
        row: [run.crossed for run in runs.values()] for row, runs in training.items()
    }
    means = {
        row: sum(found) / len(found)
        for row, found in steps.items()
        if found and None not in found
    }
    if len(means) > 1:
        first, last = min(means, key=means.get), max(means, key=means.get)
        yield (
            f"Rows leave the plateau of word frequencies at different times: {first} "
            f"first, at step {means[first]:,.0f}, {last} last, at step "
            f"{means[last]:,.0f} (means over seeds). A part of every difference may be "
            "one of speed."
        )


def _on_heads(judged, findings):
    """Whether a nonlinear head changes the effect of a wide output embedding."""
    for one in judged:
        for part in one.secondary:
            if len(part.contrast.weights) != 4 or part.found is None:
                continue
            low, high = part.interval
            better = -1 if part.contrast.measure == claims.LOSS else 1
            how = "more" if part.found.value * better > 0 else "less"
            how = "not clearly more or less" if low <= 0 <= high else how
            yield (
                f"With a nonlinear head, a wide output embedding brings {how} in "
                f"{part.name}: {part.found.value:+.2f} {part.unit} ({low:+.2f} to "
                f"{high:+.2f}); exploratory."
            )
    ranks = {
        row: statistics.fmean(values.values())
        for row, values in LOGITS.read(findings).get(EFFECTIVE_RANK, {}).items()
    }
    if {"in_small", "e_large"} <= ranks.keys():
        text = ", ".join(
            f"{ranks[row]:.1f} in {row}"
            for row in ("in_small", "e_large", "in_small_head", "e_large_head")
            if row in ranks
        )
        yield (
            "With a linear head the rank of the logits is at most about H, whatever "
            f"E_out is. Their effective rank is {text}; exploratory."
        )
