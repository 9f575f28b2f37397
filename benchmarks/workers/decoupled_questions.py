"""Worker: questions to features with this project's task."""

import json
import os
import pathlib

import protocol

from decoupled.configs import QuestionAnsweringConfig
from decoupled.data.vocabulary import Vocabulary
from decoupled.tasks.qa import QuestionAnsweringTask
from decoupled.tasks.qa_files import Answer, Question


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "folder", with "questions.json" and "pieces.model",
    "sequence_length" and the fields of "settings"; a step builds all features and gives
    the number of windows that hold an answer."""
    folder = pathlib.Path(case["folder"])
    rows = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    questions = [
        Question(str(number), text, context, (Answer(context[a:b], a, b),))
        for number, (text, context, a, b) in enumerate(rows)
    ]
    vocabulary = Vocabulary(os.path.join(folder, "pieces.model"))
    settings = QuestionAnsweringConfig(**case["settings"])
    task = QuestionAnsweringTask("xquad", case["sequence_length"], settings)

    def step() -> float:
        features = task.features(vocabulary, questions)
        return float((features["end_positions"] > 0).sum())

    features = task.features(vocabulary, questions)
    return step, {
        "windows": len(features["example_index"]),
        "tokens": int(features["input_mask"].sum()),
        "versions": protocol.versions("numpy", "sentencepiece"),
    }


if __name__ == "__main__":
    protocol.serve(build)
