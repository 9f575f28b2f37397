"""What the paper prints of its models beside scores: Tables 8 and 9, Figures 1 and 2.

The numbers of the figures are read off the plots.
"""

import statistics

# Spearman x 100 of the dot product: set -> (input, output embedding); the coupled model
# has one. Then masked-LM accuracy in percent.
SIMILARITY = {
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

# Table 9, F1 of probes on a mix of all layers, of the tasks that treebanks have.
PROBING = {
    "e_out_128": {"pos": 96.7, "dependencies": 94.3},
    "e_out_768": {"pos": 96.7, "dependencies": 94.4},
    "e_out_3072": {"pos": 96.8, "dependencies": 94.5},
}

# Figure 1, XNLI: layers kept -> accuracy.
LAYER_DROP = {
    "e_out_128": {8: 68.1, 9: 68.6, 10: 68.2, 11: 68.5, 12: 68.3},
    "e_out_768": {8: 68.2, 9: 69.0, 10: 70.0, 11: 70.5, 12: 70.4},
    "e_out_3072": {8: 69.6, 9: 70.2, 10: 70.3, 11: 70.6, 12: 71.1},
}

# Figure 2, English to German: accuracy of layers 1 to 12.
TRANSLATION = {
    "e_out_128": [33, 36, 54, 61, 65, 72, 74, 74, 69, 64, 60, 44],
    "e_out_768": [35, 38, 53, 58, 67, 72, 75, 76, 74, 71, 68, 50],
    "e_out_3072": [32, 37, 47, 57, 70, 73, 77, 77, 78, 75, 76, 64],
}


def mean_similarity(row: str, kind: str) -> float:
    """Mean over the sets of the "input" or "output" embedding of a model."""
    place = 0 if kind == "input" else -1
    return statistics.fmean(values[place] for values in SIMILARITY[row].values())


def mean_probing(row: str) -> float:
    """Mean of the probes' F1 over the tasks that treebanks have."""
    return statistics.fmean(PROBING[row].values())


def translation_fall(row: str) -> float:
    """Accuracy of the best layer minus that of the last."""
    return float(max(TRANSLATION[row]) - TRANSLATION[row][-1])


def last_layer_gain(row: str) -> float:
    """Score with all layers minus that without the last."""
    kept = LAYER_DROP[row]
    return kept[max(kept)] - kept[max(kept) - 1]
