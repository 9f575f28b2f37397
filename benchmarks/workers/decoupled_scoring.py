"""Worker: all scores of tags, with this project's metrics."""

import json
import pathlib

import protocol

from decoupled.xtreme.official import score_language


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "task" and "tags", a JSON file with labels and predictions."""
    tags = json.loads(pathlib.Path(case["tags"]).read_text(encoding="utf-8"))

    def step():
        scores = score_language(case["task"], "en", tags["labels"], tags["predictions"])
        return scores["f1_seqeval_1_2_2"]

    return step, {"versions": protocol.versions("decoupled", "seqeval")}


if __name__ == "__main__":
    protocol.serve(build)
