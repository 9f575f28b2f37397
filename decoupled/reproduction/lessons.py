"""What the verdicts teach about embedding coupling, in sentences chosen by verdict.

A sentence is written only where a number says so. Verdicts that say nothing about the
paper (not testable, void, not run) give a sentence that says so.
"""

from collections.abc import Iterator, Mapping, Sequence

from decoupled.reproduction.verdicts import (
    CONTRADICTED,
    NO_EFFECT,
    NOT_RUN,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    VOID,
    Judged,
)

# Of each claim: what it is about, and what the verdicts say of it.
_SENTENCES: Mapping[int, Mapping[str, str]] = {
    1: {
        "about": "Untying the input from the output embedding",
        SUPPORTED: "alone changes little: at most the margin to either side",
        NO_EFFECT: "alone changes little: at most the margin to either side",
        CONTRADICTED: "alone changes the score by more than the margin",
    },
    2: {
        "about": "A small input embedding, compared with a small output embedding,",
        SUPPORTED: (
            "is not worse by more than the margin, although it leaves fewer parameters "
            "to fine-tune"
        ),
        NO_EFFECT: (
            "makes no difference above the margin, although it leaves fewer parameters "
            "to fine-tune"
        ),
        CONTRADICTED: (
            "is worse by more than the margin: here the width was worth more at the "
            "input, which fine-tuning keeps"
        ),
    },
    3: {
        "about": "An output embedding wider than the hidden layers",
        SUPPORTED: (
            "helps, although it is thrown away and the models that are fine-tuned are "
            "identical in size"
        ),
        NO_EFFECT: "makes no difference above the margin after fine-tuning",
        CONTRADICTED: "hurts here",
    },
    4: {
        "about": "The parameters of a wider output embedding",
        SUPPORTED: "help more than the same in layers that are dropped afterwards",
        NO_EFFECT: "do as much as the same in layers that are dropped afterwards",
        CONTRADICTED: "help less than the same in layers that are dropped afterwards",
    },
    5: {
        "about": "The parameters that a small input embedding saves",
        SUPPORTED: "beat the coupled model of equal size, in depth and in width",
        NO_EFFECT: "make no difference above the margin to a coupled model of equal size",
        CONTRADICTED: (
            "do worse than in the coupled model of equal size: here the embedding "
            "needed its width more than the layers"
        ),
    },
    6: {
        "about": "A wider output embedding",
        SUPPORTED: (
            "guesses more masked words, while its rows are less alike for words that "
            "mean the same"
        ),
        NO_EFFECT: (
            "changes neither masked-LM accuracy nor the likeness of words that mean the "
            "same by more than the margin"
        ),
        CONTRADICTED: (
            "does not trade the likeness of words that mean the same for masked-LM "
            "accuracy: one of the two goes the other way"
        ),
    },
    7: {
        "about": "The fall of the last layer in retrieval of translations",
        SUPPORTED: (
            "is smaller with a wide output embedding: less of the encoder serves the "
            "prediction of words alone"
        ),
        NO_EFFECT: "does not depend on the width of the output embedding",
        CONTRADICTED: "is larger with a wide output embedding",
    },
}
_SILENT = {
    UNDECIDED: "is not decided by this run",
    NOT_TESTABLE: (
        "cannot be judged: the measure does not clearly beat its control, so it says "
        "nothing about pre-training"
    ),
    VOID: "cannot be judged: a row did not train",
    NOT_RUN: "was not run at this size",
}
