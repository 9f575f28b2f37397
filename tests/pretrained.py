"""A tiny pre-trained model on disk, to fine-tune from."""

from decoupled.data.vocabulary import Vocabulary
from decoupled.runs import run_folder
from tests.data.small_corpus import make_vocabulary
from tests.helpers import schedule, tiny_model
from tests.training.runs import graph_config, run_spec, train_run

STEPS = 5


def make_pretrained(folder, **model):
    """Trains a masked-LM model for a few steps on random ids; returns its folder.

    Args:
      folder: made. model: fields of `tiny_model` to change.
    """
    folder.mkdir(parents=True)
    vocabulary = Vocabulary(make_vocabulary(folder / "made.model").path)
    sizes = tiny_model(vocab_size=vocabulary.size, **model)
    description = run_folder.ModelDir(
        "pretrain", sizes, vocabulary.fingerprint, None, {}
    )
    run = folder / "run"
    run_folder.claim(str(run), description, vocabulary.path)
    train_run(graph_config(model=sizes, schedule=schedule(STEPS, 1)), run_spec(run))
    return run
