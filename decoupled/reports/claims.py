"""The paper's claims 1 to 7, each judged by differences that are paired over seeds.

Which differences are taken, and what they have to show, is fixed here and does not
depend on results. "Score" is the mean of the tasks; differences are in points. The same
differences are taken of the paper's numbers.
"""

from collections.abc import Callable
from typing import NamedTuple

from decoupled.reports import published
from decoupled.reports.paired import Paired, above, below, combined, paired, within
from decoupled.reports.results import PROBING, Results, Values

# Differences up to this many points count as none: two and a half times what the paper
# calls little (0.4).
MARGIN = 1.0
SMALL, MIDDLE, LARGE = "e_out_128", "e_out_768", "e_out_3072"


class Rule(NamedTuple):
    """What supports a claim, and the verdict; "" and None where a number is shown."""

    text: str
    verdict: Callable[[Paired | None], str] | None


ABOVE_0 = Rule("above 0", above)
LITTLE = Rule(f"within ±{MARGIN:g}", lambda found: within(found, MARGIN))
HARMLESS = Rule(f"below +{MARGIN:g}", lambda found: below(found, MARGIN))
SHOWN = Rule("", None)

# Of a model's results, or of the paper's: seed -> value.
Measure = Callable[[Results], Values]


class Contrast(NamedTuple):
    """One difference that a claim rests on.

    what: it is. first, second: the difference is first - second. rule: on it. needs: an
    analysis without which the difference is left out; "" for none.
    """

    what: str
    first: Measure
    second: Measure
    rule: Rule = ABOVE_0
    needs: str = ""


class Claim(NamedTuple):
    """A claim of the paper.

    note: what limits the verdict whatever the numbers are. sizes: models whose
    fine-tuned parameters the note begins with.
    """

    number: int
    text: str
    contrasts: list[Contrast]
    note: str = ""
    sizes: tuple[str, ...] = ()


class Part(NamedTuple):
    """A contrast with its numbers.

    what: see `Contrast`. paper: the paper's difference, None without. rule: in words.
    found: ours. verdict: None where it judges nothing.
    """

    what: str
    paper: float | None
    rule: str
    found: Paired | None
    verdict: str | None


class Judged(NamedTuple):
    """A claim with its parts, the verdict of all of them together, and its note."""

    claim: Claim
    parts: list[Part]
    verdict: str
    note: str


def judge(results: Results) -> list[Judged]:
    """Claims 1 to 7 in their order."""
    paper = published.as_results()
    judged = []
    for claim in CLAIMS:
        parts = [
            _part(contrast, results, paper)
            for contrast in claim.contrasts
            if not contrast.needs or results.metrics(contrast.needs)
        ]
        verdict = combined(part.verdict for part in parts if part.verdict)
        note = _sizes(results, claim.sizes) + claim.note
        judged.append(Judged(claim, parts, verdict, note))
    return judged


def pretraining_gain(results: Results) -> list[Part]:
    """What pre-training adds to the score of each model that has a control.

    Where it adds nothing, scores say nothing of pre-training, and so do claims that
    rest on them.
    """
    return [
        _part(
            Contrast(
                f"score, {row} - the same after one step of pre-training",
                lambda found, row=row: found.averages(row),
                lambda found, row=row: found.control(row),
            ),
            results,
        )
        for row in results.controls()
    ]


def _part(contrast, results, paper=None):
    what, first, second, rule, _ = contrast
    found = paired(first(results), second(results))
    printed = paired(first(paper), second(paper)).mean if paper else None
    verdict = rule.verdict(found) if rule.verdict else None
    return Part(what, printed, rule.text, found, verdict)


def _sizes(results, rows):
    if not rows:
        return ""
    known = [results.rows[row] for row in rows if row in results.rows]
    sizes = ", ".join(f"{row.name} {row.finetuning:,}" for row in known)
    return f"Parameters in fine-tuning: {sizes}."


def _of(measure, what, first, second, rule=ABOVE_0, needs=""):
    """The same measure of two models."""
    return Contrast(
        f"{what}, {first} - {second}",
        lambda results: measure(results, first),
        lambda results: measure(results, second),
        rule,
        needs,
    )


def _score(first, second, rule=ABOVE_0):
    return _of(Results.averages, "score", first, second, rule)


def _similarity(first, second, rule=ABOVE_0):
    """Of two embeddings, (kind, model) each."""
    return Contrast(
        "Spearman x 100, mean of the sets, "
        + " - ".join(f"{kind} of {row}" for kind, row in (first, second)),
        lambda results: results.similarity(*reversed(first)),
        lambda results: results.similarity(*reversed(second)),
        rule,
    )


def _last_layer(row, rule):
    """Score with all layers minus that without the last one."""
    return Contrast(
        f"score, {row}: all layers - without the last",
        lambda results: _from_last(results.dropped(row), 0),
        lambda results: _from_last(results.dropped(row), 1),
        rule,
    )


def _from_last(by_layers, fewer):
    return by_layers.get(max(by_layers, default=0) - fewer, {})


def translation_fall(results: Results, row: str) -> dict[int, float]:
    """seed -> translation accuracy of the best layer minus that of the last.

    Layer 0, the embedding, is left out: the paper's figure begins with layer 1.
    """
    layers = {layer: by for layer, by in results.translation(row).items() if layer}
    last = _from_last(layers, 0)
    return {seed: max(by[seed] for by in layers.values()) - last[seed] for seed in last}


CLAIMS = [
    Claim(
        1,
        "Naive decoupling (same sizes, untied weights) changes little on average.",
        [_score("decoupled", "coupled", LITTLE)],
        f"Little is at most {MARGIN:g} point to either side, with the whole interval.",
    ),
    Claim(
        2,
        "A small input embedding costs less than a small output embedding, although "
        "the latter is thrown away.",
        [
            _score(MIDDLE, "large_in_small_out"),
            _score("decoupled", MIDDLE, SHOWN),
            _score("decoupled", "large_in_small_out", SHOWN),
        ],
        "The paper's own averages differ by 0.1 only; what it stresses is that the "
        "model with the small input embedding has 43% fewer parameters in fine-tuning.",
    ),
    Claim(
        3,
        "Raising E_out beyond H keeps helping, with an identical fine-tuned model.",
        [
            _score(LARGE, MIDDLE),
            _score(MIDDLE, SMALL, SHOWN),
            _score(LARGE, SMALL, SHOWN),
        ],
        sizes=(SMALL, MIDDLE, LARGE),
    ),
    Claim(
        4,
        "Extra capacity in layers that are dropped after pre-training helps less than "
        "a larger E_out.",
        [
            _score(MIDDLE, "additional_layers_23"),
            _score("additional_layers_23", SMALL, SHOWN),
        ],
        "The paper sees it above all in question answering, which is not tried here.",
    ),
    Claim(
        5,
        "Reinvesting the saved parameters in depth (best) or width beats the coupled "
        "model of equal size.",
        [
            _score("reinvested_l", "coupled"),
            _score("reinvested_h", "coupled"),
            _score("reinvested_l", "reinvested_h"),
        ],
        " The paper's are of about equal size: 177M, 168M and 178M.",
        sizes=("coupled", "reinvested_h", "reinvested_l"),
    ),
    Claim(
        6,
        "Output embeddings drift away from lexical similarity as E_out grows, while "
        "masked-LM accuracy rises.",
        [
            _similarity(("output", SMALL), ("output", LARGE)),
            _of(Results.masked_lm, "masked-LM accuracy", LARGE, SMALL),
            _similarity(("input", LARGE), ("output", LARGE), SHOWN),
        ],
        "The sets are of English words; a vocabulary of little text writes most of "
        "them in pieces that mean nothing by themselves.",
    ),
    Claim(
        7,
        "With a small E_out the last layers over-specialise; with a large one every "
        "layer is useful, and layers stay language-agnostic higher up.",
        [
            _last_layer(SMALL, HARMLESS),
            _last_layer(LARGE, ABOVE_0),
            _of(
                translation_fall,
                "translation, fall from the best layer to the last",
                SMALL,
                LARGE,
            ),
            _of(
                Results.probing,
                "F1 of probes, mean of the tasks",
                LARGE,
                SMALL,
                needs=PROBING,
            ),
        ],
        f"Not to hurt means to cost less than {MARGIN:g} point. A model of few layers "
        "has few that could specialise.",
    ),
]
