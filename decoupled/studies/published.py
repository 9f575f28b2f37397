"""The paper's results: Tables 2 to 9, 12, 13, 16, Figures 1 and 2.

The values of the figures are read off the plots.
"""

from decoupled.xtreme.official import BY_GROUP, BY_TASK

# Scores on XTREME's dev files in percent, means of three runs. Question answering has
# exact match and F1. `average` is the paper's own average.
AVERAGE = "average"

SCORES = {
    "coupled": {
        "xnli": (70.7,), "panx": (69.2,), "pawsx": (85.3,), "xquad": (46.2, 63.2),
        "mlqa": (37.3, 53.1), "tydiqa": (40.7, 56.7), AVERAGE: (62.3,),
    },
    "decoupled": {
        "xnli": (71.3,), "panx": (68.9,), "pawsx": (85.0,), "xquad": (46.9, 63.8),
        "mlqa": (37.3, 53.1), "tydiqa": (42.8, 58.1), AVERAGE: (62.7,),
    },
    "large_in_small_out": {
        "xnli": (70.0,), "panx": (68.3,), "pawsx": (84.3,), "xquad": (42.0, 60.8),
        "mlqa": (34.7, 50.9), "tydiqa": (35.2, 52.2), AVERAGE: (60.1,),
    },
    "e_out_768": {
        "xnli": (70.4,), "panx": (67.6,), "pawsx": (84.9,), "xquad": (43.9, 60.0),
        "mlqa": (34.6, 49.5), "tydiqa": (37.8, 51.0), AVERAGE: (60.2,),
    },
    "e_out_128": {
        "xnli": (68.1,), "panx": (65.2,), "pawsx": (83.3,), "xquad": (38.6, 54.8),
        "mlqa": (30.9, 45.2), "tydiqa": (32.2, 44.2), AVERAGE: (56.6,),
    },
    "e_out_3072": {
        "xnli": (71.1,), "panx": (68.1,), "pawsx": (85.1,), "xquad": (45.3, 63.3),
        "mlqa": (37.2, 53.1), "tydiqa": (39.4, 54.7), AVERAGE: (61.8,),
    },
    "additional_layers_23": {
        "xnli": (71.2,), "panx": (67.3,), "pawsx": (85.0,), "xquad": (38.8, 55.5),
        "mlqa": (31.4, 46.6), "tydiqa": (31.3, 45.5), AVERAGE: (58.0,),
    },
    "reinvested_h": {
        "xnli": (72.8,), "panx": (69.2,), "pawsx": (85.6,), "xquad": (50.2, 67.2),
        "mlqa": (40.7, 56.4), "tydiqa": (44.8, 60.0), AVERAGE: (64.5,),
    },
    "reinvested_l": {
        "xnli": (73.6,), "panx": (71.0,), "pawsx": (86.7,), "xquad": (51.7, 68.8),
        "mlqa": (42.4, 58.2), "tydiqa": (48.2, 62.9), AVERAGE: (66.2,),
    },
    "albert_coupled_128": {"xnli": (68.1,)},
    "english_coupled": {"mnli": (79.8,), "squad": (78.4, 86.2)},
    "english_e_out_128": {"mnli": (75.9,), "squad": (75.5, 84.2)},
    "english_e_out_768": {"mnli": (77.5,), "squad": (77.5, 85.5)},
    "english_e_out_3072": {"mnli": (79.5,), "squad": (78.4, 86.2)},
    "english_additional_layers_15": {"mnli": (80.1,), "squad": (78.7, 86.3)},
    "english_additional_layers_24": {"mnli": (79.0,), "squad": (77.8, 85.5)},
}  # fmt: skip
# Task of XTREME -> the task with the same training set that the paper scores instead.
_RELATIVES = {"xnli": "mnli", "xquad": "squad"}

# Tables 7 and 16: scores on XTREME's test files, by task, group of tasks, and as means
# over the seven tasks and the three groups without retrieval.
TEST_SCORES = {
    "RemBERT": {
        "xnli": (80.8,), "udpos": (76.5,), "panx": (70.1,), "pawsx": (87.5,),
        "xquad": (64.0, 79.6), "mlqa": (55.0, 73.1), "tydiqa": (63.0, 77.0),
        "classification": (84.2,), "tagging": (73.3,), "qa": (68.6,),
        BY_TASK: (74.4,), BY_GROUP: (75.4,),
    },
    "XLM-R large": {
        "xnli": (79.2,), "udpos": (73.8,), "panx": (65.4,), "pawsx": (86.4,),
        "xquad": (60.8, 76.6), "mlqa": (53.2, 71.6), "tydiqa": (45.0, 65.1),
        "classification": (82.8,), "tagging": (69.0,), "qa": (62.3,),
        BY_TASK: (70.1,), BY_GROUP: (71.4,),
    },
}  # fmt: skip
# Table 7, by group: models that had translations or data of other tasks.
TRANSLATED = {"STiLTs": 73.5, "FILTER": 76.0, "VECO": 75.1}

# Spearman x 100 of the dot product: set -> (input, output embedding); the coupled model
# has one embedding. Below: masked-LM accuracy in percent.
WORD_SIMILARITY = {
    "coupled": {
        "men": (40.8,), "mturk771": (37.5,), "rare_word": (25.0,),
        "simlex999": (20.1,), "verb143": (56.0,),
    },
    "decoupled": {
        "men": (39.2, 27.7), "mturk771": (37.5, 24.3), "rare_word": (24.0, 12.2),
        "simlex999": (17.6, 16.1), "verb143": (59.4, 43.9),
    },
    "e_out_128": {
        "men": (40.7, 36.6), "mturk771": (37.7, 32.8), "rare_word": (23.6, 16.4),
        "simlex999": (17.5, 17.3), "verb143": (48.9, 46.4),
    },
    "e_out_768": {
        "men": (38.6, 27.8), "mturk771": (35.2, 23.9), "rare_word": (22.6, 11.5),
        "simlex999": (19.7, 15.6), "verb143": (50.6, 45.5),
    },
    "e_out_3072": {
        "men": (40.1, 10.8), "mturk771": (36.2, 8.8), "rare_word": (22.6, -1.2),
        "simlex999": (18.9, 13.0), "verb143": (43.3, 19.5),
    },
}  # fmt: skip
MASKED_LM = {
    "coupled": 61.1,
    "decoupled": 61.6,
    "e_out_128": 59.0,
    "e_out_768": 60.7,
    "e_out_3072": 62.3,
}

# Table 9, F1 of probes on a mix of all layers, for the tasks that treebanks have.
PROBES = {
    "e_out_128": {"pos": 96.7, "dependencies": 94.3},
    "e_out_768": {"pos": 96.7, "dependencies": 94.4},
    "e_out_3072": {"pos": 96.8, "dependencies": 94.5},
}

# Figure 1, XNLI: layers kept -> accuracy.
LAYERS_KEPT = {
    "e_out_128": {8: 68.1, 9: 68.6, 10: 68.2, 11: 68.5, 12: 68.3},
    "e_out_768": {8: 68.2, 9: 69.0, 10: 70.0, 11: 70.5, 12: 70.4},
    "e_out_3072": {8: 69.6, 9: 70.2, 10: 70.3, 11: 70.6, 12: 71.1},
}

# Figure 2, English to German: layer -> accuracy.
TRANSLATION = {
    row: dict(enumerate(accuracies, start=1))
    for row, accuracies in {
        "e_out_128": [33, 36, 54, 61, 65, 72, 74, 74, 69, 64, 60, 44],
        "e_out_768": [35, 38, 53, 58, 67, 72, 75, 76, 74, 71, 68, 50],
        "e_out_3072": [32, 37, 47, 57, 70, 73, 77, 77, 78, 75, 76, 64],
    }.items()
}


def printed(row: str, name: str) -> str:
    """The paper's numbers for a model and a task as it prints them: "46.2/63.2".

    If the paper has only another set of examples, its name is appended: "79.8 (mnli)".
    """
    scores, relative = SCORES.get(row, {}), _RELATIVES.get(name)
    mark = f" ({relative})" if name not in scores and relative in scores else ""
    return _joined(scores.get(relative if mark else name, ())) + mark


def printed_on_test() -> dict[str, dict[str, str]]:
    """Model -> task, group or mean -> its score in Tables 7 and 16: "64.0/79.6"."""
    return {
        model: {name: _joined(numbers) for name, numbers in scores.items()}
        for model, scores in TEST_SCORES.items()
    }


def _joined(numbers):
    return "/".join(f"{number:.1f}" for number in numbers)
