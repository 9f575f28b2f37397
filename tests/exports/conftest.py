"""Two models and their exports for all tests of this folder."""

import fcntl
import os
import subprocess

import pytest

from decoupled.core.release import import_tensorflow_text, tf
from decoupled.exports.serving.saved_model import export
from tests.exports.models import (
    finetuned_weights,
    model_and_task,
    model_config,
    pretrained_weights,
    saving_only,
    texts_without_training,
    write_model_dir,
)

LABELS = ["admin", "core", "gis"]
# It has one layer; the pre-trained model has several.
FINETUNED = model_config(num_layers=1)


@pytest.fixture(scope="session", autouse=True)
def operations_of_tokenizers():
    import_tensorflow_text()


@pytest.fixture(scope="session")
def pretrained_dir(tmp_path_factory, vocabulary):
    """The folder of a pre-training run."""
    config = model_config()
    folder = tmp_path_factory.mktemp("pretrained")
    return write_model_dir(folder, vocabulary, config, pretrained_weights(config))


@pytest.fixture(scope="session")
def finetuned_dir(tmp_path_factory, vocabulary):
    """The folder of a fine-tuning run with three labels."""
    folder = tmp_path_factory.mktemp("finetuned")
    weights = finetuned_weights(FINETUNED, len(LABELS))
    task = {"name": "catalogs", "labels": LABELS}
    return write_model_dir(folder, vocabulary, FINETUNED, weights, task)


def export_and_move(model_dir, tmp_path_factory, mlm):
    """The folder of an export, moved away from where it was written.

    It takes seconds: the first process of a test run that wants it makes it for all.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    target = folder / f"export{'_with_mlm' if mlm else ''}"
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            source = tmp_path_factory.mktemp("exports") / "written"
            export(
                *model_and_task(model_dir),
                str(source),
                sequence_length=16,
                mlm=mlm,
                overwrite=False,
            )
            source.rename(target)
    return target


@pytest.fixture(scope="session")
def encoder_export(pretrained_dir, tmp_path_factory):
    """preprocessor/, encoder/ with MLM head, text_encoder/, which cannot be trained."""
    with texts_without_training():
        return export_and_move(pretrained_dir, tmp_path_factory, mlm=True)


@pytest.fixture(scope="session")
def preprocessor(encoder_export):
    return tf.saved_model.load(str(encoder_export / "preprocessor"))


@pytest.fixture(scope="session")
def encoder(encoder_export):
    return tf.saved_model.load(str(encoder_export / "encoder"))


@pytest.fixture(scope="session")
def classifier_export(finetuned_dir, tmp_path_factory):
    """classifier/ and text_classifier/, as `saving_only` saves them."""
    with saving_only("classifier", "text_classifier"):
        return export_and_move(finetuned_dir, tmp_path_factory, mlm=False)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 100 KiB, which no export of these tests fits into."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can make a file system of its own")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
