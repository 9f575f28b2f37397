"""Worker: scores of tags, with one call of seqeval for each as XTREME's script has."""

import json
import pathlib
import warnings

import protocol
from seqeval.metrics import f1_score, precision_score, recall_score


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "tags", a JSON file with labels and predictions."""
    tags = json.loads(pathlib.Path(case["tags"]).read_text(encoding="utf-8"))
    # Parts of speech are no entities.
    warnings.simplefilter("ignore")

    def step():
        scores = [
            score(tags["labels"], tags["predictions"])
            for score in (f1_score, precision_score, recall_score)
        ]
        return float(scores[0]) * 100

    return step, {"versions": protocol.versions("seqeval")}


if __name__ == "__main__":
    protocol.serve(build)
