"""Small random models, and what a model folder holds, for the tests of exports."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import types
from unittest import mock

import numpy as np
import sentencepiece

from decoupled.configs import ModelConfig
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.served_task import read_task
from decoupled.exports.serving import roots, saved_model, text
from decoupled.exports.serving.roots import trace
from decoupled.model.variables import MASKED_LM, Head, shapes
from decoupled.runs.saved_run import open_model

VOCABULARY_SIZE = 48

_SENTENCES = [
    f"{verb} the {colour} {thing} and {count} other objects"
    for verb in ("Select", "Delete", "Change", "Show")
    for colour in ("blue", "green", "hidden", "last")
    for thing in ("page", "user name", "image", "password", "Zürich")
    for count in range(10)
]


def model_config(**changes) -> ModelConfig:
    """A decoupled model of two layers, with E_in != H != E_out."""
    return ModelConfig(
        **{
            "vocab_size": VOCABULARY_SIZE,
            "input_embedding_size": 6,
            "output_embedding_size": 10,
            "coupled": False,
            "hidden_size": 8,
            "num_layers": 2,
            "num_heads": 2,
            "head_size": 4,
            "intermediate_size": 12,
            "max_positions": 24,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "activation": "gelu",
            "layer_norm_epsilon": 1e-6,
            "mlm_transform": "dense_activation_norm",
        }
        | changes
    )


def random_arrays(shapes: dict) -> dict[str, np.ndarray]:
    """Name -> float32 array; every part of the network moves the output."""
    generator = np.random.default_rng(0)
    return {
        name: (generator.normal(1 if name.endswith("gamma") else 0, 0.3, shape)).astype(
            np.float32
        )
        for name, shape in sorted(shapes.items())
    }


def pretrained_weights(config: ModelConfig) -> dict[str, np.ndarray]:
    """Encoder and MLM head, as pre-training leaves them."""
    return random_arrays(shapes(config, MASKED_LM))


def finetuned_weights(config: ModelConfig, num_labels: int) -> dict[str, np.ndarray]:
    """Encoder, pooler and classifier, as fine-tuning leaves them."""
    return random_arrays(shapes(config, Head(pooler=True, labels=num_labels)))


def random_batch(config: ModelConfig, batch: int, length: int, seed: int = 0) -> dict:
    """Two segments and padding at the end, except in the first row."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(length // 2, length, (batch, 1), endpoint=True)
    lengths[0] = length
    column = np.arange(length)
    mask = column < lengths
    ids = generator.integers(0, config.vocab_size, (batch, length))
    types = (column >= lengths // 2) & (config.type_vocab_size > 1)
    return {
        "input_word_ids": (ids * mask).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "input_type_ids": (types * mask).astype(np.int32),
    }


def write_checkpoint(prefix: str, arrays: dict[str, np.ndarray], step: int) -> str:
    """A TF checkpoint with exactly these names and `global_step`.

    By the operation of TensorFlow's saver: with variables it takes many times as long.
    """
    path, arrays = f"{prefix}-{step}", {**arrays, "global_step": np.int64(step)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        save = tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=[tf.constant(value) for value in arrays.values()],
        )
        session.run(save)
    tf.compat.v1.train.update_checkpoint_state(os.path.dirname(path), path)
    return path


def train_sentencepiece(path: str, vocab_size: int = VOCABULARY_SIZE) -> None:
    """A vocabulary of that many pieces with the special pieces of ours.

    It does not hold the path, so that all processes of a test run have the same.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_SENTENCES),
        model_writer=model,
        vocab_size=vocab_size,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        pad_piece="<pad>",
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        byte_fallback=False,
        minloglevel=2,
    )
    pathlib.Path(path).write_bytes(model.getvalue())


def write_model_dir(
    folder: str | pathlib.Path,
    vocabulary: Vocabulary,
    config: ModelConfig,
    arrays: dict[str, np.ndarray],
    task: dict | None = None,
    data: dict | None = None,
) -> str:
    """The folder of a run that ended at step 7; returns it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_wordpiece = vocabulary.content[:1] == b"{"
    name = "wordpiece.json" if is_wordpiece else "sentencepiece.model"
    (folder / name).write_bytes(vocabulary.content)
    entry = {"fingerprint": vocabulary.fingerprint, "vocab_size": vocabulary.size}
    description = {
        "format": "decoupled-model-1",
        "command": "finetune" if task else "pretrain",
        "model": dataclasses.asdict(config),
        "vocabulary": entry,
        "task": task,
        "data": data or {},
    }
    (folder / "config.json").write_text(json.dumps(description))
    write_checkpoint(f"{folder}/model.ckpt", arrays, 7)
    return str(folder)


def trace_inference(function, *arguments, training=False, **options):
    """`trace`, but not for training."""
    if not training:
        trace(function, *arguments, **options)


def texts_without_training():
    """In its context models of strings cannot be trained, which saves seconds."""
    return mock.patch.object(text, "trace", trace_inference)


def write_empty_model(path):
    """Writes the files of a SavedModel, all of them empty."""
    for name in ("saved_model.pb", "variables/variables.index"):
        file = os.path.join(path, name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        open(file, "w").close()


@contextlib.contextmanager
def saving_only(*names):
    """In its context only models of these names are saved: each takes seconds.

    None can be trained.
    """
    save, stand_in = tf.saved_model.save, types.SimpleNamespace(signatures=dict)

    def save_some(root, path, signatures):
        if os.path.basename(path) in names:
            save(root, path, signatures=signatures)
        else:
            write_empty_model(path)

    takes_strings = any(name.startswith("text_") for name in names)
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(tf.saved_model, "save", save_some))
        patches.enter_context(texts_without_training())
        patches.enter_context(mock.patch.object(roots, "trace", trace_inference))
        for name, is_used in (
            ("TextRoot", takes_strings),
            ("Preprocessor", takes_strings or "preprocessor" in names),
        ):
            if not is_used:
                patch = mock.patch.object(saved_model, name, lambda *_: stand_in)
                patches.enter_context(patch)
        yield


def model_and_task(folder):
    """The model of a folder, and its task."""
    model = open_model(folder)
    return model, read_task(model)
