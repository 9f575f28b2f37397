"""Which checkpoint of a run counts for all who open it, and what is refused."""

import json
import pathlib
import shutil

import pytest

from decoupled.analyses.models import open_models
from decoupled.analyses.sentence_vectors import open_encoder
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.trained_model import chosen_prefix, open_trained_model
from decoupled.runs.saved_run import open_run, read_folder
from decoupled.runs.selection import keep_checkpoint
from tests.analyses.tiny_runs import write_finetuned_run
from tests.exports.models import train_sentencepiece


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "pieces.model")
    train_sentencepiece(path)
    return Vocabulary(path)


@pytest.fixture
def run(vocabulary, tmp_path):
    """A fine-tuned run at step 7."""
    return write_finetuned_run(tmp_path / "run", vocabulary)


def keep_older(run):
    """Makes a checkpoint of step 7, named 3, the best one; returns its prefix."""
    for file in pathlib.Path(run).glob("model.ckpt-7*"):
        shutil.copy(file, str(file).replace("-7", "-3"))
    keep_checkpoint(f"{run}/model.ckpt-3", f"{run}/best")
    return f"{run}/best/model.ckpt-3"


def test_a_folder_or_a_prefix_of_a_run(run, vocabulary):
    for path in (run, f"{run}/", f"{run}/model.ckpt-7"):
        opened = open_run(path)
        assert (opened.folder, opened.prefix) == (run, f"{run}/model.ckpt-7")
        assert opened.description.task["name"] == "xnli"
        assert opened.vocabulary.fingerprint == vocabulary.fingerprint


def test_the_best_checkpoint_counts_for_everyone(run):
    best = keep_older(run)
    for path in (run, f"{run}/best", best):
        opened = open_run(path)
        assert (opened.folder, opened.prefix) == (run, best)
    assert open_run(f"{run}/model.ckpt-7").prefix == f"{run}/model.ckpt-7"
    assert open_trained_model(run).weights.path == best
    assert chosen_prefix(run, None) == best
    assert open_encoder(run).checkpoint == best
    assert [model.weights.path for model in open_models([run])] == [best]


def refusal(function, path):
    with pytest.raises(UserError) as caught:
        function(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_run_is_called_so(tmp_path):
    told = (
        f"{tmp_path}: no config.json; is it a folder that pretrain or finetune wrote?"
    )
    assert refusal(open_run, str(tmp_path)) == told
    missing = f"{tmp_path}/model.ckpt-1"
    assert refusal(open_run, missing).startswith(f"{missing}: no such checkpoint")


def test_a_run_without_checkpoints_is_refused(run):
    (pathlib.Path(run) / "checkpoint").unlink()
    assert refusal(open_run, run).startswith(f"{run}: no complete checkpoint")


def change_config(run, change):
    path = pathlib.Path(run) / "config.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))


def test_the_vocabulary_must_be_the_models_own(run, vocabulary):
    change_config(run, lambda d: d["vocabulary"].update(fingerprint="ab" * 32))
    told = (
        f"{run}/sentencepiece.model: is not the vocabulary that the model was trained "
        f"with (fingerprint {vocabulary.fingerprint}, config.json says {'ab' * 32})"
    )
    assert refusal(read_folder, run) == refusal(open_run, run) == told


def test_every_piece_must_have_its_row(run):
    change_config(run, lambda d: d["model"].update(vocab_size=40))
    assert refusal(read_folder, run) == (
        f"{run}/sentencepiece.model: 48 pieces, the model has embeddings for 40; it is "
        "another vocabulary"
    )
