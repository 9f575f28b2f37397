"""Small files of XTREME's tasks."""

import json

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
