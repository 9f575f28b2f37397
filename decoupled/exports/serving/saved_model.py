"""A run's checkpoint -> TF2 SavedModels that load without this project.

    OUT/preprocessor/    strings -> packed ids (needs tensorflow_text)
    OUT/encoder/         packed ids -> vectors (plain TensorFlow); of a fine-tuned model
                         classifier/, regressor/, tagger/ or span_model/
    OUT/text_encoder/    both in one (needs tensorflow_text); text_classifier/ or
                         text_regressor/; none of taggers and models of questions, for
                         whose strings `prediction` runs the code of their task
    OUT/sentence_encoder/, OUT/text_sentence_encoder/
                         instead of these two, where sentence vectors are exported
    OUT/export.json      what is inside, written last

OUT appears by one rename when everything in it is complete.
"""

import dataclasses
import os
from typing import Any

from decoupled.configs import RetrievalConfig
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.files import is_empty_folder, new_folder
from decoupled.core.machine import readable_bytes
from decoupled.core.release import tf
from decoupled.exports.served_task import (
    NAMES,
    SENTENCE_NAMES,
    ServedTask,
    check_exportable,
    read_task,
)
from decoupled.exports.serving.encoder import (
    FLOAT32,
    Classifier,
    Encoder,
    MaskedLm,
    StoredWeights,
)
from decoupled.exports.serving.roots import (
    EncoderRoot,
    Root,
    SentenceRoot,
    SentenceVectors,
    TaskRoot,
)
from decoupled.exports.serving.text import Preprocessor, TextRoot
from decoupled.model.variables import POOLER
from decoupled.runs.run_folder import weights_sha256
from decoupled.runs.saved_run import Model, open_model

FORMAT = "decoupled-export-1"
DESCRIPTION = "export.json"
# Everything that an export may hold.
_NAMES = {DESCRIPTION, "preprocessor", *NAMES}
# The output of each model that takes strings, in the example of its use.
_SHOWN_OUTPUTS = {
    "text_encoder": "pooled_output",
    "text_classifier": "label",
    "text_regressor": "value",
    "text_sentence_encoder": "sentence_vector",
}
# The other models -> title and file of an example with `decoupled predict`.
_PREDICT_EXAMPLES = {
    "tagger": ("From words to tags", "words.tsv"),
    "span_model": ("From questions to answers", "questions.json"),
}


def export_folder(
    model_dir: str,
    export_dir: str,
    *,
    checkpoint: str | None,
    sequence_length: int | None,
    max_answer_length: int | None,
    mlm: bool,
    overwrite: bool,
    weights: str = FLOAT32,
    retrieval: RetrievalConfig | None = None,
) -> None:
    """Exports the model of a folder and says what was written.

    `sequence_length` and `max_answer_length` are by default those of the folder.
    `retrieval` has the settings of the sentence vectors to export; None exports the
    whole model.
    """
    model = open_model(model_dir, checkpoint)
    task, sentences = read_task(model), None
    if retrieval is not None:
        sentences = _sentence_vectors(model, retrieval, mlm)
        # Only the encoder is exported, without windows and answers.
        task = ServedTask(trained_length=task.trained_length)
        if sequence_length is None:
            max_positions = model.config.max_positions
            sequence_length = min(retrieval.max_sequence_length, max_positions)
    if max_answer_length is not None:
        task = task.with_max_answer_length(max_answer_length)
    if sequence_length is None:
        sequence_length = task.default_length(model.config)
    description = export(
        model,
        task,
        export_dir,
        sequence_length=sequence_length,
        mlm=mlm,
        overwrite=overwrite,
        weights=weights,
        sentences=sentences,
    )
    say_written(export_dir, description)
    say_length(sequence_length, task.trained_length)
    say_vectors(description, f"{POOLER}/kernel" in model.weights)
    say_assumed(task)


def _sentence_vectors(model, retrieval, mlm) -> SentenceVectors:
    """The settings of sentence vectors; refuses options that contradict them."""
    if mlm:
        raise UserError("--mlm: sentence vectors need no MLM head; leave it out")
    if retrieval.centre:
        raise UserError(
            "RetrievalConfig.centre: an export does not know the mean vector of your "
            "sentences, which you can subtract; set it to False"
        )
    if retrieval.long_sentences != "cut":
        raise UserError(
            "RetrievalConfig.long_sentences: an export cuts long sentences and makes "
            "no windows of them; set it to 'cut'"
        )
    layer = retrieval.layer_of(model.config.num_layers, model.weights.path)
    return SentenceVectors(layer, retrieval.pool_special_tokens)


def export(
    model: Model,
    task: ServedTask,
    export_dir: str,
    *,
    sequence_length: int,
    mlm: bool,
    overwrite: bool,
    weights: str = FLOAT32,
    sentences: SentenceVectors | None = None,
) -> dict[str, Any]:
    """Writes the SavedModels and returns the content of export.json.

    Texts are packed and cut to `sequence_length`. `mlm` includes the output embedding
    and the MLM head as `encoder.mlm`. `weights`, one of `STORED_AS`, is the type of
    stored matrices. `sentences` exports vectors instead of the whole model.
    """
    _check_target(export_dir, overwrite)
    check_exportable(model, task, sequence_length, mlm)
    matrices = StoredWeights(model.weights, weights)
    kind, about, sizes = task.kind, {}, {}
    if sentences:
        kind, about = SENTENCE_NAMES[0], {"sentence_vectors": sentences._asdict()}
    with new_folder(export_dir, replaces=overwrite) as folder:
        roots = _build_roots(model, task, matrices, sequence_length, mlm, sentences)
        for name, root in roots.items():
            path = os.path.join(folder, name)
            tf.saved_model.save(root, path, signatures=root.signatures())
            sizes[name] = folder_bytes(path)
        description = {
            "format": FORMAT,
            "kind": kind,
            "mlm": mlm,
            "weights": weights,
            "sequence_length": sequence_length,
            "model": dataclasses.asdict(model.config),
            "vocabulary": {
                "fingerprint": model.vocabulary.fingerprint,
                "vocab_size": model.vocabulary.size,
            },
            "checkpoint": {
                "name": os.path.basename(model.weights.path),
                "global_step": model.weights.global_step,
            },
            "task": {
                "name": task.name,
                "columns": list(task.columns),
                "label_column": task.label_column,
                "texts": list(task.segments),
            },
            "labels": list(task.labels) or None,
            "answers": task.answer_settings(),
            "bytes": sizes,
            "sha256": program_sha256(os.path.join(folder, kind)),
            **about,
        }
        files.write_json(os.path.join(folder, DESCRIPTION), description)
    return description


def program_sha256(folder: str) -> str:
    """What tells a SavedModel from others: a hash of its graph and of its weights."""
    graph = files.file_fingerprint(os.path.join(folder, "saved_model.pb"))
    weights = weights_sha256(os.path.join(folder, "variables", "variables"))
    return files.fingerprint(graph + weights)


def open_saved_model(folder: str) -> Any:
    """Loads a SavedModel, and says that it is a program."""
    console.say(
        f"{folder}: a SavedModel runs as a program; load it only from a source that "
        "you trust"
    )
    files.check_checkpoint_path(folder)
    if not files.exists(os.path.join(folder, "saved_model.pb")):
        raise UserError(f"{folder}: holds no SavedModel")
    try:
        return tf.saved_model.load(folder)
    # A file of weights that ends too soon is an IndexError.
    except (OSError, ValueError, IndexError, tf.errors.OpError) as error:
        reason = files.reason(error)
        raise UserError(f"{folder}: cannot load ({reason})") from error


def say_written(export_dir: str, description: dict[str, Any]) -> None:
    """Says what was written and how to load it."""
    step = description["checkpoint"]["global_step"]
    console.table(
        f"{export_dir} (checkpoint {description['checkpoint']['name']}, step {step})",
        ["SavedModel", "size"],
        [[name, readable_bytes(size)] for name, size in description["bytes"].items()],
    )
    if example := _PREDICT_EXAMPLES.get(description["kind"]):
        title, name = example
        console.say(f"{title}:")
        command = f"decoupled predict --export_dir={export_dir} --input={name}"
        columns = description["task"]["columns"]
        if description["kind"] == "tagger" and columns not in ([], [1]):
            # A treebank has words in another column than a table of words alone.
            command += " --texts=1"
        console.say(f"  {command} --output=FILE")
        return
    [name] = set(description["bytes"]) & set(_SHOWN_OUTPUTS)
    texts = "['A sentence.', 'Ein Satz.']"
    if description["task"]["texts"] == [2]:
        texts += ", second_sentences=['Another sentence.', 'Noch ein Satz.']"
    console.say("Load it anywhere:")
    console.say("  import tensorflow as tf, tensorflow_text")
    console.say(f"  model = tf.saved_model.load({os.path.join(export_dir, name)!r})")
    console.say(f"  model({texts})[{_SHOWN_OUTPUTS[name]!r}]")


def say_length(length: int, trained_length: int | None) -> None:
    """Says how the length of packing compares to that of training."""
    if trained_length is None:
        console.say(
            f"texts are packed to {length} pieces; the model's folder does not say how "
            "long its inputs were in training (--sequence_length)"
        )
    elif length > trained_length:
        console.say(
            f"texts are packed to {length} pieces, but the model was trained at "
            f"{trained_length}: no step trained positions {trained_length} to "
            f"{length - 1} with this task, and what it says about longer texts may be "
            "worse"
        )
    else:
        console.say(
            f"texts are packed to {length} pieces; the model was trained at "
            f"{trained_length}"
        )


def say_vectors(description: dict[str, Any], has_pooler: bool) -> None:
    """Says what the vectors of a model are, if it gives no answers."""
    layers = description["model"]["num_layers"]
    layer = max(1, 2 * layers // 3)
    if vectors := description.get("sentence_vectors"):
        with_special = "with" if vectors["pool_special_tokens"] else "without"
        advice = (
            f" (--gin_param='RetrievalConfig.layer = {layer}' takes layer {layer}; a "
            "layer above the middle is often better than the last)"
        )
        console.say(
            f"sentence_vector is the mean over the tokens of layer "
            f"{vectors['layer']} of {layers}, {with_special} [CLS] and [SEP]"
            + (advice if vectors["layer"] == layers > layer else "")
        )
    elif description["kind"] == "encoder" and not has_pooler:
        console.say(
            f"pooled_output is the vector of [CLS] in layer {layers}, because the "
            "model has no pooler; it is not trained to compare texts. For that, export "
            f"with --sentence_vectors --gin_param='RetrievalConfig.layer = {layer}': "
            "the mean over the tokens of a layer, as in decoupled retrieve"
        )


def say_assumed(task: ServedTask) -> None:
    """Says which settings of question answering the model's folder does not have."""
    if task.assumed_settings:
        values = dataclasses.asdict(task.answers)
        settings = [f"{name} = {values[name]}" for name in task.assumed_settings]
        console.say(
            f"the model's folder does not say how its answers are chosen; usual "
            f"settings were taken: {', '.join(settings)}"
        )


def folder_bytes(folder: str) -> int:
    """The size of all files below a folder."""
    return sum(
        tf.io.gfile.stat(os.path.join(parent, name)).length
        for parent, _, names in tf.io.gfile.walk(folder)
        for name in names
    )


def _check_target(export_dir: str, overwrite: bool) -> None:
    # The variables of a SavedModel are a checkpoint.
    files.check_checkpoint_path(export_dir)
    if not files.exists(export_dir) or is_empty_folder(export_dir):
        return
    if not files.exists(os.path.join(export_dir, DESCRIPTION)):
        raise UserError(
            f"{export_dir}: exists and is not an earlier export; choose a new folder"
        )
    if not overwrite:
        raise UserError(
            f"{export_dir}: holds an earlier export; choose a new folder or give "
            "--overwrite"
        )
    names = {name.rstrip("/") for name in gfile.listdir(export_dir)}
    if foreign_names := sorted(names - _NAMES):
        raise UserError(
            f"{export_dir}: holds {foreign_names[0]}, which no export wrote; move it "
            "away, or choose a new folder"
        )


def _build_roots(
    model: Model,
    task: ServedTask,
    weights: StoredWeights,
    sequence_length: int,
    mlm: bool,
    sentences: SentenceVectors | None,
) -> dict[str, Root]:
    """Folder name -> object to save; of sentence vectors, with the layers up to the
    chosen one."""
    config, vocabulary = model.config, model.vocabulary
    counts = (1, 2) if vocabulary.pairs.fit(config) else (1,)
    preprocessor = Preprocessor(vocabulary, sequence_length, counts)
    encoder = Encoder(config, weights, sentences and sentences.layer)
    names, segments = (task.kind, task.text_kind), task.segments
    if sentences:
        names, segments = SENTENCE_NAMES, (1,)
        root = SentenceRoot(encoder, sentences.pool_special_tokens, vocabulary)
    elif task.head is None:
        head = MaskedLm(config, weights, encoder) if mlm else None
        root = EncoderRoot(encoder, head, vocabulary)
    else:
        layer = Classifier(weights)
        root = TaskRoot(task.head, encoder, layer, task.labels, vocabulary)
    roots = {"preprocessor": preprocessor, names[0]: root}
    if names[1]:
        roots[names[1]] = TextRoot(preprocessor, root, segments, vocabulary)
    return roots
