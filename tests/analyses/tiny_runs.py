"""Folders of runs with tiny random models, and what analyses show and write."""

import json
import os
import re

from decoupled.analyses import output
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    write_model_dir,
)


def write_run(folder, vocabulary, sizes=None, weights=None):
    """A pre-training run; `weights` replaces single variables; returns the folder."""
    config = model_config(**(sizes or {}))
    arrays = pretrained_weights(config) | (weights or {})
    return write_model_dir(folder, vocabulary, config, arrays)


def write_finetuned_run(folder, vocabulary, **sizes):
    """A fine-tuning run of a task with two labels."""
    config, task = model_config(**sizes), {"name": "xnli", "labels": ["no", "yes"]}
    weights = finetuned_weights(config, 2)
    return write_model_dir(folder, vocabulary, config, weights, task)


def texts_of(svg):
    """All words of a picture."""
    with open(svg, encoding="utf-8") as file:
        return re.findall(r"<text [^>]*>([^<]+)</text>", file.read())


def show(module, result, folder, capsys):
    """Writes a result to a folder; returns its tables as one line, and its picture."""
    folder.mkdir()
    output.write(str(folder), result, module.tables, module.picture)
    stem = os.path.join(folder, result["analysis"])
    with open(f"{stem}.json", encoding="utf-8") as file:
        assert "arrays" not in json.load(file)
    assert os.path.exists(f"{stem}.items.npz") == ("arrays" in result)
    assert os.path.getsize(f"{stem}.png") > 1000
    return " ".join(capsys.readouterr().out.split()), texts_of(f"{stem}.svg")
