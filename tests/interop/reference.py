"""Calls `huggingface_reference.py` in the interpreter that has PyTorch."""

import json
import os
import pathlib
import subprocess

import pytest

PYTHON = os.environ.get("DECOUPLED_INTEROP_PYTHON")
NEEDS_TRANSFORMERS = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PYTHON,
        reason="DECOUPLED_INTEROP_PYTHON names no interpreter with torch, transformers",
    ),
]
SCRIPT = pathlib.Path(__file__).parent / "huggingface_reference.py"


def call(action: str, request: dict, folder: pathlib.Path) -> pathlib.Path:
    """Runs an action of the script; returns the folder that it wrote to.

    Args:
      action: "make": `models` name -> config, class, sizes, save, batch (its name), and
        `batches` by name, gives FOLDER/NAME (save_pretrained) and NAME.npz (outputs).
        "run": `models` name -> folder, batch and perhaps `train`, gives NAME.npz,
        NAME.json (what loading reported), NAME.losses.json and NAME.gradients.npz, of
        the first step. "tokenize": folder, lines, pairs, gives tokens.json.
        "activations": `points`, gives activations.json, name -> values. "count":
        `configs` by name, gives count.json, name -> parameters. "embed":
        folder (of sentence-transformers), weights (a folder, too), texts, gives
        embed.npz.
      request: as above; becomes JSON.
      folder: is made where it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{action}.request.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    result = subprocess.run(
        [PYTHON, "-I", str(SCRIPT), action, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{SCRIPT.name} failed:\n{result.stderr[-3000:]}")
    return folder
