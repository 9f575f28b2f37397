"""The paper's claims 1 to 7, each judged by differences that are paired over seeds.

Which differences are taken, and what they have to show, is fixed here and does not
depend on results. "Score" is the mean of the tasks; differences are in points.
"""

from collections.abc import Callable
from typing import NamedTuple

from decoupled.reports import published_analyses as published
from decoupled.reports.paired import Paired, above, below, combined, paired, within
from decoupled.reports.published_scores import AVERAGE, SCORES
from decoupled.reports.reproduction_results import Evidence

# Differences up to this many points count as none: two and a half times what the paper
# calls little (0.4).
MARGIN = 1.0


class Part(NamedTuple):
    """One difference that a claim rests on.

    what: it is, as "A - B". paper: the same difference in the paper's numbers. rule:
    what would support the claim; "" where the number is shown and judges nothing.
    found: ours. verdict: None where it judges nothing.
    """

    what: str
    paper: float | None
    rule: str
    found: Paired | None
    verdict: str | None


class Claim(NamedTuple):
    """A claim, its parts, the verdict of all of them together, and what is to be said.

    note: what limits the verdict whatever the numbers are.
    """

    number: int
    text: str
    parts: list[Part]
    verdict: str
    note: str


def judge(evidence: Evidence) -> list[Claim]:
    """Claims 1 to 7 in their order."""
    makers = (
        _naive_decoupling,
        _small_input_or_output,
        _larger_output,
        _more_layers,
        _reinvestment,
        _lexical_similarity,
        _last_layers,
    )
    return [make(evidence) for make in makers]


def pretraining_gain(evidence: Evidence) -> list[Part]:
    """What pre-training adds to the score of each model that has a control.

    Where it adds nothing, scores say nothing of pre-training, and so do claims that
    rest on them.
    """
    return [
        Part(
            f"score, {row} - the same after one step of pre-training",
            None,
            "above 0",
            found := paired(evidence.averages(row), scores),
            above(found),
        )
        for row, scores in evidence.controls.items()
    ]


def _claim(number, text, parts, note=""):
    verdict = combined(part.verdict for part in parts if part.verdict)
    return Claim(number, text, parts, verdict, note)


def _positive(what, paper, found):
    return Part(what, paper, "above 0", found, above(found))


def _shown(what, paper, found):
    return Part(what, paper, "", found, None)


def _difference(evidence, first, second):
    return paired(evidence.averages(first), evidence.averages(second))


def _score(first, second, evidence, make: Callable = _positive):
    what = f"score, {first} - {second}"
    return make(what, _paper(first, second), _difference(evidence, first, second))


def _paper(first, second):
    return SCORES[first][AVERAGE][0] - SCORES[second][AVERAGE][0]


def _naive_decoupling(evidence):
    found = _difference(evidence, "decoupled", "coupled")
    part = Part(
        "score, decoupled - coupled",
        _paper("decoupled", "coupled"),
        f"within ±{MARGIN:g}",
        found,
        within(found, MARGIN),
    )
    return _claim(
        1,
        "Naive decoupling (same sizes, untied weights) changes little on average.",
        [part],
        f"Little is at most {MARGIN:g} point to either side, with the whole interval.",
    )


def _small_input_or_output(evidence):
    return _claim(
        2,
        "A small input embedding costs less than a small output embedding, although "
        "the latter is thrown away.",
        [
            _score("e_out_768", "large_in_small_out", evidence),
            _score("decoupled", "e_out_768", evidence, _shown),
            _score("decoupled", "large_in_small_out", evidence, _shown),
        ],
        "The paper's own averages differ by 0.1 only; what it stresses is that the "
        "model with the small input embedding has 43% fewer parameters in fine-tuning.",
    )


def _larger_output(evidence):
    return _claim(
        3,
        "Raising E_out beyond H keeps helping, with an identical fine-tuned model.",
        [
            _score("e_out_3072", "e_out_768", evidence),
            _score("e_out_768", "e_out_128", evidence, _shown),
            _score("e_out_3072", "e_out_128", evidence, _shown),
        ],
        _sizes(evidence, ("e_out_128", "e_out_768", "e_out_3072")),
    )


def _more_layers(evidence):
    return _claim(
        4,
        "Extra capacity in layers that are dropped after pre-training helps less than "
        "a larger E_out.",
        [
            _score("e_out_768", "additional_layers_23", evidence),
            _score("additional_layers_23", "e_out_128", evidence, _shown),
        ],
        "The paper sees it above all in question answering, which is not tried here.",
    )


def _reinvestment(evidence):
    return _claim(
        5,
        "Reinvesting the saved parameters in depth (best) or width beats the coupled "
        "model of equal size.",
        [
            _score("reinvested_l", "coupled", evidence),
            _score("reinvested_h", "coupled", evidence),
            _score("reinvested_l", "reinvested_h", evidence),
        ],
        _sizes(evidence, ("coupled", "reinvested_h", "reinvested_l"))
        + " The paper's are of about equal size: 177M, 168M and 178M.",
    )


def _lexical_similarity(evidence):
    small, large = "e_out_128", "e_out_3072"
    drift = _similarity(evidence, (small, "output"), (large, "output"))
    accuracy = _positive(
        f"masked-LM accuracy, {large} - {small}",
        published.MASKED_LM[large] - published.MASKED_LM[small],
        paired(evidence.masked_lm(large), evidence.masked_lm(small)),
    )
    kept = _similarity(evidence, (large, "input"), (large, "output"), _shown)
    return _claim(
        6,
        "Output embeddings drift away from lexical similarity as E_out grows, while "
        "masked-LM accuracy rises.",
        [drift, accuracy, kept],
        "The sets are of English words; a vocabulary of little text writes most of "
        "them in pieces that mean nothing by themselves.",
    )


def _similarity(evidence, first, second, make: Callable = _positive):
    names = " - ".join(f"{kind} of {row}" for row, kind in (first, second))
    return make(
        f"Spearman x 100, mean of the sets, {names}",
        published.mean_similarity(*first) - published.mean_similarity(*second),
        paired(evidence.mean_similarity(*first), evidence.mean_similarity(*second)),
    )


def _last_layers(evidence):
    small, large = "e_out_128", "e_out_3072"
    gain = last_layer_gain(evidence, small)
    harmless = Part(
        f"score, {small}: all layers - without the last",
        published.last_layer_gain(small),
        f"below +{MARGIN:g}",
        gain,
        below(gain, MARGIN),
    )
    useful = _positive(
        f"score, {large}: all layers - without the last",
        published.last_layer_gain(large),
        last_layer_gain(evidence, large),
    )
    falls = [translation_fall(evidence, row) for row in (small, large)]
    agnostic = _positive(
        f"translation, fall from the best layer to the last, {small} - {large}",
        published.translation_fall(small) - published.translation_fall(large),
        paired(*falls),
    )
    probed = _positive(
        f"F1 of probes, mean of the tasks, {large} - {small}",
        published.mean_probing(large) - published.mean_probing(small),
        paired(evidence.mean_probing(large), evidence.mean_probing(small)),
    )
    parts = [harmless, useful, agnostic]
    return _claim(
        7,
        "With a small E_out the last layers over-specialise; with a large one every "
        "layer is useful, and layers stay language-agnostic higher up.",
        [*parts, probed] if evidence.probing else parts,
        f"Not to hurt means to cost less than {MARGIN:g} point. A model of few layers "
        "has few that could specialise.",
    )


def last_layer_gain(evidence: Evidence, row: str) -> Paired | None:
    """Score with all layers minus that without the last one."""
    kept = evidence.dropped.get(row, {})
    if len(kept) < 2:
        return None
    most = max(kept)
    return paired(kept[most], kept.get(most - 1, {}))


def translation_fall(evidence: Evidence, row: str) -> dict[int, float]:
    """seed -> translation accuracy of the best layer minus that of the last.

    Layer 0, the embedding, does not count: the paper's figure begins with layer 1.
    """
    return {
        seed: max(layers[1:]) - layers[-1]
        for seed, layers in evidence.translation.get(row, {}).items()
    }


def _sizes(evidence, rows):
    known = [evidence.rows[row] for row in rows if row in evidence.rows]
    sizes = ", ".join(f"{row.name} {row.finetuning:,}" for row in known)
    return f"Parameters in fine-tuning: {sizes}."
