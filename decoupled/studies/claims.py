"""The paper's claims, the measures, and the contrasts that decide a claim.

Which contrasts decide what is part of a study's settings (`StudyConfig.claims`) and is
kept in its results; `decoupled.studies.verdicts` applies the rules.
"""

import math
import re
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.studies import published
from decoupled.studies.statistics import LOGITS, NATS, POINTS, RANKS

CLAIMS = {
    "1": "Decoupling the input and the output embedding at equal sizes changes little "
    "on average (Table 2).",
    "2": "A small input embedding performs as well as a small output embedding, with "
    "far fewer parameters in fine-tuning (Table 3).",
    "3": "Raising E_out beyond H improves the model, although fine-tuning drops the "
    "output embedding (Table 4).",
    "4": "In multilingual models, a larger E_out helps more than as many parameters in "
    "layers that are dropped after pre-training (Table 5; English Table 13 differs).",
    "5": "Reinvesting the saved parameters in depth or width beats the coupled model "
    "of equal size in fine-tuning (Table 6).",
    "6": "As E_out grows, masked-LM accuracy rises, and the similarity of words by the "
    "output embedding correlates less with human judgements (Table 8).",
    "7": "With a small E_out the last layers specialise on pre-training; with a large "
    "one they stay useful and language-agnostic (Figures 1 and 2).",
}

# Names of measures. In points: accuracy of nearest-neighbour translation of held-out
# verses, over all ordered pairs of languages, in the layer (1 or above) that is best on
# dev verses; of part-of-speech tags after fine-tuning; of probes of the frozen model;
# masked-LM accuracy on held-out text, mean over the languages.
RETRIEVAL, UD_POS, PROBES = "retrieval", "udpos", "probes"
POS_PROBES = "pos_probes"
ACCURACY = "masked_lm_accuracy"
# In nats: held-out masked-LM loss, mean over the languages.
LOSS = "masked_lm_loss"
# In points: Spearman's correlation of the output embedding with what people say of
# words (Table 8), mean over the sets of words. It needs a vocabulary of whole words.
SIMILARITY = "word_similarity"
# Retrieval in the last layer minus the mean of layers 1 to L - 1, in logits of P@1 and
# in points.
LAST_LAYER, LAST_LAYER_POINTS = "last_layer", "last_layer_points"
# In points: share of right tags with all layers minus the share without the last one.
LAYER_DROP = "layer_drop"
# The score S is the mean of these measures, as far as their data are available. If one
# of them fails its control in a study, claims on S are not testable there: to leave it
# out then would select a measure by its outcome.
SCORE = "S"
SCORE_PARTS = (RETRIEVAL, UD_POS, PROBES)
MEASURES = (
    *(SCORE, *SCORE_PARTS, POS_PROBES, ACCURACY, LOSS, SIMILARITY),
    *(LAST_LAYER, LAST_LAYER_POINTS, LAYER_DROP),
)
# Shown for the rows of every contrast that decides a claim.
BESIDE = (SCORE, *SCORE_PARTS, LOSS, ACCURACY)
# Measure -> the measures that must exceed their controls before it can decide a claim;
# others must exceed their own. The difference of the last layer may have either sign,
# so retrieval must show an effect of pre-training.
CHECKED_BY = {
    SCORE: SCORE_PARTS,
    LAST_LAYER: (RETRIEVAL,),
    LAST_LAYER_POINTS: (RETRIEVAL,),
    LAYER_DROP: (UD_POS,),
}
# Differences up to a margin count as no effect. One point is two and a half times the
# difference that the paper calls small (0.4). 0.1 logits equal a point at a P@1 of 11%.
MARGINS = {POINTS: 1.0, RANKS: 1.0, NATS: 0.05, LOGITS: 0.1}

# Rules on a contrast.
ABOVE, BELOW = "> 0", "< 0"
WITHIN, NOT_BELOW = "within margin", "> -margin"
RULES = (ABOVE, BELOW, WITHIN, NOT_BELOW)
_CONTRAST = re.compile(
    rf"(\w+): ((?:\w+)(?: [+-] \w+)*)(?: ({'|'.join(map(re.escape, RULES))}))?"
)


class Contrast(NamedTuple):
    """A linear combination of rows on one measure.

    weights: row -> 1 or -1. rule: the condition that supports the claim; "" for a
    secondary contrast, which decides nothing.
    """

    measure: str
    weights: Mapping[str, int]
    rule: str = ""

    @classmethod
    def read(cls, text: str) -> "Contrast":
        """From "S: e_large - e_equal > 0"."""
        match = _CONTRAST.fullmatch(text)
        if not match:
            raise UserError(
                f"StudyConfig: {text!r} is no contrast; write MEASURE: ROW - ROW RULE, "
                f"where RULE is one of {', '.join(RULES)}, or left out"
            )
        words = f"+ {match[2]}".split()
        weights = {
            row: 1 if sign == "+" else -1
            for sign, row in zip(words[::2], words[1::2], strict=True)
        }
        if 2 * len(weights) < len(words):
            raise UserError(f"StudyConfig: {text!r} names a row twice")
        return cls(match[1], weights, match[3] or "")

    @property
    def rows(self) -> str:
        """The combination as text, "e_large - e_equal"."""
        signs = {1: "+", -1: "-"}
        text = " ".join(f"{signs[sign]} {row}" for row, sign in self.weights.items())
        return text.removeprefix("+ ")

    @property
    def key(self) -> str:
        """The contrast in the file of a study."""
        return f"{self.measure}, {self.rows}"

    def paper(self, papers: Mapping[str, str]) -> float | None:
        """The same combination of the paper's numbers; None if it has none.

        `papers`: row -> the paper's row.
        """
        values = _PAPER.get(self.measure, {})
        rows = {papers.get(row): sign for row, sign in self.weights.items()}
        if len(rows) < len(self.weights) or not rows.keys() <= values.keys():
            return None
        return sum(sign * values[row] for row, sign in rows.items())


def _last_layers(value):
    """The last layer minus the mean of the others, from the paper's Figure 2."""
    rows = {}
    for row, layers in published.TRANSLATION.items():
        *lower, last = (value(layers[layer] / 100) for layer in sorted(layers))
        rows[row] = last - sum(lower) / len(lower)
    return rows


# measure -> the paper's row -> the paper's number: averages of Tables 2 to 6, and MNLI
# of the English Table 13.
_PAPER = {
    SCORE: {
        row: tasks.get(published.AVERAGE, tasks.get("mnli"))[0]
        for row, tasks in published.SCORES.items()
        if {published.AVERAGE, "mnli"} & tasks.keys()
    },
    SIMILARITY: {
        row: statistics.fmean(values[-1] for values in sets.values())
        for row, sets in published.WORD_SIMILARITY.items()
    },
    ACCURACY: published.MASKED_LM,
    PROBES: {row: tasks["dependencies"] for row, tasks in published.PROBES.items()},
    POS_PROBES: {row: tasks["pos"] for row, tasks in published.PROBES.items()},
    LAST_LAYER: _last_layers(lambda share: math.log(share / (1 - share))),
    LAST_LAYER_POINTS: _last_layers(lambda share: 100 * share),
    LAYER_DROP: {
        row: kept[max(kept)] - kept[max(kept) - 1]
        for row, kept in published.LAYERS_KEPT.items()
    },
}
