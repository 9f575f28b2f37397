"""The scores that the paper prints for its models: XTREME dev, mean of three runs.

Tables 2 to 6, appendix Tables 12 and 13. In percent; a task of questions has exact
match and F1. `average` is the paper's own.
"""

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
    "english_coupled": {"xquad": (78.4, 86.2)},
    "english_e_out_128": {"xquad": (75.5, 84.2)},
    "english_e_out_768": {"xquad": (77.5, 85.5)},
    "english_e_out_3072": {"xquad": (78.4, 86.3)},
    "english_additional_layers_15": {"xquad": (78.7, 86.3)},
    "english_additional_layers_24": {"xquad": (77.8, 85.5)},
}  # fmt: skip


def printed(row: str, name: str) -> str | None:
    """The paper's numbers for a model and a task as it prints them: "46.2/63.2"."""
    numbers = SCORES.get(row, {}).get(name)
    return None if numbers is None else "/".join(f"{n:.1f}" for n in numbers)
