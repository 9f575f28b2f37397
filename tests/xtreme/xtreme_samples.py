"""Small files of XTREME's tasks."""

import json

from decoupled.xtreme import official
from decoupled.xtreme.files import LanguageFile


def language_file(path, text, task, language="sw"):
    """Writes `text` (str or bytes) to `path` and names it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return LanguageFile(str(path), task, language)


def squad_json(questions):
    """SQuAD's JSON of {id: right answers}, one article of one paragraph."""
    rows = [
        {"id": name, "answers": [{"answer_start": 0, "text": text} for text in answers]}
        for name, answers in questions.items()
    ]
    return json.dumps({"version": "1.1", "data": [{"paragraphs": [{"qas": rows}]}]})


# Labels of each task, and predictions with planted errors.
LABELS = {
    "pawsx": "0\n1\n1\n0\n",
    "xnli": "contradiction\nentailment\nneutral\n",
    "panx": "B-PER\nI-PER\nO\n\nO\nB-LOC\n",
    "udpos": "DET\nNOUN\n\nVERB\n",
    "bucc2018": "x-1\ten-5\nx-2\ten-6\n",
    "tatoeba": "2\n0\n1\n3\n",
    "xquad": squad_json({"q": ["Denver Broncos"]}),
    "mlqa": squad_json({"q": ["1954", "in 1954"]}),
    "tydiqa": squad_json({"q1": ["a lake"], "q2": ["sea"]}),
}
PREDICTIONS = {
    "pawsx": "1\n1\n1\n0\n",
    "xnli": "contradiction\nentailment\nentailment\n",
    "panx": "B-PER\nI-PER\nO\n\nO\nO\n",
    "udpos": "DET\nVERB\n\nVERB\n",
    "bucc2018": "x-1\ten-5\nx-2\ten-5\n",
    "tatoeba": "2\n0\n1\n2\n",
    "xquad": '{"q": "Broncos"}',
    "mlqa": '{"q": "1954."}',
    "tydiqa": '{"q1": "lake", "q2": "ocean"}',
}


def write_submission(folder):
    """`predictions` and `labels` of all tasks; English XNLI is without errors."""
    for kind, texts in (("predictions", PREDICTIONS), ("labels", LABELS)):
        for task, text in texts.items():
            (folder / kind / task).mkdir(parents=True)
            for language in official.TASKS[task].languages:
                name = official.prediction_file(task, language)
                (folder / kind / name).write_text(text)
    (folder / "predictions/xnli/test-en.tsv").write_text(LABELS["xnli"])
    return folder
