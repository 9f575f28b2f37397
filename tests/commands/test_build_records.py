"""The command that builds records: flags to a folder, errors in one line."""

import pytest

from decoupled.data import records
from decoupled.data.reading import verify_records
from decoupled.data.vocabulary import open_vocabulary
from tests.command_line import decoupled, mistake
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import tiny_model
from tests.training.runs import SMALL


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with `corpus/` and `vocabulary.model`."""
    folder = tmp_path_factory.mktemp("source")
    make_corpus(folder / "corpus")
    make_vocabulary(folder / "vocabulary.model")
    return folder


def test_command_line(source, tmp_path):
    flags = [f"--corpus_dir={source / 'corpus'}", f"--output_dir={tmp_path / 'r'}"]
    done = decoupled(
        "build_records", *flags, f"--vocabulary={source / 'vocabulary.model'}"
    )
    assert done.returncode == 0, done.stderr
    assert records.read_manifest(str(tmp_path / "r")).language("train", "en").tokens
    message = mistake("build_records", *flags, f"--vocabulary={tmp_path}/none.model")
    assert (
        message.startswith("decoupled build_records: error: ")
        and "none.model" in message
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder of transformers with WordPieces."""
    folder = tmp_path_factory.mktemp("bert")
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    pieces += [f"##{letter}" for letter in pieces[5:]]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    return folder


def test_a_folder_of_transformers_is_a_vocabulary(source, bert, tmp_path):
    """Records, their check, and training on whole words with it, from the folder or a
    file in it."""
    folder = tmp_path / "r"
    flags = [f"--corpus_dir={source / 'corpus'}", f"--output_dir={folder}"]
    done = decoupled("build_records", *flags, f"--vocabulary={bert}")
    assert done.returncode == 0, done.stderr
    manifest = records.read_manifest(str(folder))
    assert (manifest.vocabulary_kind, manifest.vocab_size) == ("WordPiece", 57)
    assert verify_records(str(folder), str(bert / "vocab.txt")) == []
    run = tmp_path / "run"
    sizes = vars(tiny_model(vocab_size=57, **SMALL))
    params = [f"--gin_param=ModelConfig.{name} = {v!r}" for name, v in sizes.items()]
    params += [
        f"--gin_param={setting}"
        for setting in (
            "pretrain.whole_words = True",
            "ScheduleConfig.train_steps = 1",
            "ScheduleConfig.warmup_steps = 0",
            "OptimizerConfig.rates = {'bert/*': 0}",
            "TrainingConfig.batch_size = 2",
            "MaskingConfig.sequence_length = 12",
            "MaskingConfig.max_predictions = 3",
        )
    ]
    flags = [f"--records_dir={folder}", f"--model_dir={run}", "--mode=train", *params]
    done = decoupled("pretrain", *flags, f"--vocabulary={bert}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert open_vocabulary(str(run)).fingerprint == manifest.vocabulary_fingerprint
    filled = decoupled("fill_mask", f"--model_dir={run}", "the [MASK]")
    assert "mask 1" in filled.stdout and filled.returncode == 0
