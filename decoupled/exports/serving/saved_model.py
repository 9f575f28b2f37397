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
from decoupled.configs.finetuning import QUESTION_ANSWERING, REGRESSION, TAGGING
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.files import is_empty_folder, new_folder
from decoupled.core.machine import readable_bytes
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import Classifier, Encoder, MaskedLm
from decoupled.exports.serving.roots import (
    ClassifierRoot,
    EncoderRoot,
    RegressorRoot,
    Root,
    SpanRoot,
    TaggerRoot,
)
from decoupled.exports.serving.sentence_vectors import (
    SentenceRoot,
    SentenceVectors,
    store_mean,
)
from decoupled.exports.serving.stored import FLOAT32, StoredWeights
from decoupled.exports.serving.text import Preprocessor, TextRoot
from decoupled.exports.trained_model import (
    NAMES,
    SENTENCE_NAMES,
    TrainedModel,
    open_trained_model,
)
from decoupled.model.variables import POOLER

FORMAT = "decoupled-export-1"
DESCRIPTION = "export.json"
# Everything that an export may hold.
_NAMES = {DESCRIPTION, "preprocessor", *NAMES}
# The output that is shown of each model that takes strings.
_SHOWN = {
    "text_encoder": "pooled_output",
    "text_classifier": "label",
    "text_regressor": "value",
    "text_sentence_encoder": "sentence_vector",
}
# The files that `decoupled predict` reads for models without such a model.
_INPUTS = {"tagger": "words.tsv", "span_model": "questions.json"}


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
    centre_on: str | None = None,
) -> None:
    """Exports the model of a folder and says what was written.

    Args:
      model_dir, checkpoint: as for `open_trained_model`.
      export_dir, mlm, overwrite, weights: as for `export`.
      sequence_length: as for `export`; None for the length of training, or of the
        retrieval.
      max_answer_length: most pieces of an answer; None for the folder's limit.
      retrieval: settings of the sentence vectors to export; None exports the whole
        model.
      centre_on: a file of sentences; needed if `retrieval` centres vectors.

    Raises:
      UserError: as for `open_trained_model` and `export`; or an export does not support
        the settings of `retrieval`.
    """
    trained = open_trained_model(model_dir, checkpoint)
    sentences = None
    if retrieval is not None:
        sentences = _sentence_vectors(trained, retrieval, centre_on, mlm)
        # Only the encoder is exported, without windows and answers.
        trained = dataclasses.replace(
            trained,
            head=None,
            task=None,
            labels=(),
            answers=None,
            assumed=(),
            columns=(),
            label_column=None,
        )
        if sequence_length is None:
            longest = trained.config.max_positions
            sequence_length = min(retrieval.max_sequence_length, longest)
    if max_answer_length is not None:
        trained = trained.with_max_answer_length(max_answer_length)
    if sequence_length is None:
        sequence_length = trained.default_length
    description = export(
        trained,
        export_dir,
        sequence_length=sequence_length,
        mlm=mlm,
        overwrite=overwrite,
        weights=weights,
        sentences=sentences,
    )
    say_written(export_dir, description)
    say_length(sequence_length, trained.trained_length)
    say_vectors(description, f"{POOLER}/kernel" in trained.weights)
    say_assumed(trained)


def _sentence_vectors(trained, retrieval, centre_on, mlm) -> SentenceVectors:
    """The settings of sentence vectors; refuses options that contradict them."""
    if mlm:
        raise UserError("--mlm: sentence vectors need no MLM head; leave it out")
    if retrieval.centre != bool(centre_on):
        raise UserError(
            "--centre_on: name a file of sentences where RetrievalConfig.centre is "
            "True, and none where it is False"
        )
    if retrieval.long_sentences != "cut":
        raise UserError(
            "RetrievalConfig.long_sentences: an export cuts long sentences and makes "
            "no windows of them; set it to 'cut'"
        )
    layer = retrieval.layer_of(trained.config.num_layers, trained.weights.path)
    return SentenceVectors(layer, retrieval.pool_special_tokens, centre_on or "")


def export(
    trained: TrainedModel,
    export_dir: str,
    *,
    sequence_length: int,
    mlm: bool,
    overwrite: bool,
    weights: str = FLOAT32,
    sentences: SentenceVectors | None = None,
) -> dict[str, Any]:
    """Writes the SavedModels.

    Args:
      trained: what to export.
      export_dir: OUT of the module's docstring.
      sequence_length: length to which the preprocessor packs by default, and to which
        the combined model cuts.
      mlm: include the output embedding and MLM head as `encoder.mlm`.
      overwrite: replace an `export_dir` that contains an earlier export.
      weights: the type in which matrices are stored, one of `stored.STORED_AS`.
      sentences: export the vectors of sentences instead of the whole model.

    Returns:
      The content of export.json.

    Raises:
      UserError: see `TrainedModel.check`; `export_dir` exists, and is not an earlier
        export or `overwrite` is false; or it cannot be written.
    """
    _check_target(export_dir, overwrite)
    trained.check(sequence_length, mlm)
    with new_folder(export_dir, replaces=overwrite) as temporary:
        return _write(trained, temporary, sequence_length, mlm, weights, sentences)


def open_saved_model(folder: str) -> Any:
    """Loads a SavedModel, and says that it is a program.

    Raises:
      UserError: there is none, or it cannot be loaded.
    """
    console.say(
        f"{folder}: a SavedModel runs as a program; load it only from a source that "
        "you trust"
    )
    files.check_checkpoint_path(folder)
    if not files.exists(os.path.join(folder, "saved_model.pb")):
        raise UserError(f"{folder}: holds no SavedModel")
    try:
        return tf.saved_model.load(folder)
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = files.reason(error)
        raise UserError(f"{folder}: cannot load ({reason})") from error


def say_written(export_dir: str, description: dict[str, Any]) -> None:
    """Prints what was written and how to load it."""
    step = description["checkpoint"]["global_step"]
    console.table(
        f"{export_dir} (checkpoint {description['checkpoint']['name']}, step {step})",
        ["SavedModel", "size"],
        [[name, readable_bytes(size)] for name, size in description["bytes"].items()],
    )
    if kind := _INPUTS.get(description["kind"]):
        console.say(
            f"decoupled predict --export_dir={export_dir} --input={kind} "
            "--output=FILE goes from strings to answers"
        )
        return
    [name] = set(description["bytes"]) & set(_SHOWN)
    texts = "['A sentence.', 'Ein Satz.']"
    if description["task"]["texts"] == [2]:
        texts += ", second_sentences=['Another sentence.', 'Noch ein Satz.']"
    console.say("Load it anywhere:")
    console.say("  import tensorflow as tf, tensorflow_text")
    console.say(f"  model = tf.saved_model.load({os.path.join(export_dir, name)!r})")
    console.say(f"  model({texts})[{_SHOWN[name]!r}]")


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
    if described := description.get("sentence_vectors"):
        special = "with" if described["pool_special_tokens"] else "without"
        mean = described["centre_on"] and (
            f", minus the mean vector of the sentences in {described['centre_on']}"
        )
        console.say(
            f"sentence_vector is the mean over the tokens of layer "
            f"{described['layer']} of {layers}, {special} [CLS] and [SEP]{mean} "
            "(--gin_param='RetrievalConfig.layer = 8' takes layer 8; a layer above the "
            "middle is often better than the last)"
        )
    elif description["kind"] == "encoder" and not has_pooler:
        console.say(
            f"pooled_output is the vector of [CLS] in layer {layers}, because the "
            "model has no pooler; it is not trained to compare texts. For that, export "
            f"with --sentence_vectors --gin_param='RetrievalConfig.layer = "
            f"{-(-2 * layers // 3)}': the mean over the tokens of a layer, as in "
            "decoupled retrieve"
        )


def say_assumed(trained: TrainedModel) -> None:
    """Prints the question-answering settings that the model's folder does not have."""
    if trained.assumed:
        values = dataclasses.asdict(trained.answers)
        assumed = ", ".join(f"{name} = {values[name]}" for name in trained.assumed)
        console.say(
            f"the model's folder does not say how its answers are chosen; usual "
            f"settings were taken: {assumed}"
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
    foreign = sorted({name.rstrip("/") for name in gfile.listdir(export_dir)} - _NAMES)
    if foreign:
        raise UserError(
            f"{export_dir}: holds {foreign[0]}, which no export wrote; move it away, "
            "or choose a new folder"
        )


def _write(
    trained: TrainedModel,
    folder: str,
    sequence_length: int,
    mlm: bool,
    stored_as: str,
    sentences: SentenceVectors | None,
) -> dict[str, Any]:
    """Builds and saves everything below `folder`; returns the description."""
    weights = StoredWeights(trained.weights, stored_as)
    if sentences is None:
        kind, about, segments = trained.kind, {}, trained.segments
        roots = _build_roots(trained, weights, sequence_length, mlm)
    else:
        kind, segments = SENTENCE_NAMES[0], (1,)
        roots = _build_sentence_roots(trained, weights, sequence_length, sentences)
        about = {"sentence_vectors": sentences._asdict()}
        if sentences.centre_on:
            root, text = (roots[name] for name in SENTENCE_NAMES)
            about["centred_on_sentences"] = store_mean(root, text, sentences.centre_on)
    sizes = {}
    for name, root in roots.items():
        path = os.path.join(folder, name)
        tf.saved_model.save(root, path, signatures=root.signatures())
        sizes[name] = folder_bytes(path)
    description = {
        "format": FORMAT,
        "kind": kind,
        "mlm": mlm,
        "weights": stored_as,
        "sequence_length": sequence_length,
        "model": dataclasses.asdict(trained.config),
        "vocabulary": {
            "fingerprint": trained.vocabulary.fingerprint,
            "vocab_size": trained.vocabulary.size,
        },
        "checkpoint": {
            "name": os.path.basename(trained.weights.path),
            "global_step": trained.weights.global_step,
        },
        "task": {
            "name": trained.task,
            "columns": list(trained.columns),
            "label_column": trained.label_column,
            "texts": list(segments),
        },
        "labels": list(trained.labels) or None,
        "answers": trained.described_answers(),
        "bytes": sizes,
        **about,
    }
    files.write_json(os.path.join(folder, DESCRIPTION), description)
    return description


def _build_roots(
    trained: TrainedModel, weights: StoredWeights, sequence_length: int, mlm: bool
) -> dict[str, Root]:
    """Folder name -> object to save."""
    model = _model_root(trained, weights, mlm)
    preprocessor = _preprocessor(trained, sequence_length)
    roots = {"preprocessor": preprocessor, trained.kind: model}
    if trained.text_kind:
        path = trained.vocabulary.path
        text = TextRoot(preprocessor, model, trained.segments, path)
        roots[trained.text_kind] = text
    return roots


def _preprocessor(trained: TrainedModel, sequence_length: int) -> Preprocessor:
    segments = (1, 2) if trained.config.type_vocab_size > 1 else (1,)
    return Preprocessor(trained.vocabulary, sequence_length, segments)


def _build_sentence_roots(
    trained: TrainedModel,
    weights: StoredWeights,
    sequence_length: int,
    sentences: SentenceVectors,
) -> dict[str, Root]:
    """Folder name -> object to save, with the layers up to the chosen one."""
    config, path = trained.config, trained.vocabulary.path
    encoder = Encoder(config, weights, sentences.layer)
    root = SentenceRoot(
        encoder, config.hidden_size, sentences.pool_special_tokens, path
    )
    preprocessor = _preprocessor(trained, sequence_length)
    text = TextRoot(preprocessor, root, segments=(1,), vocabulary_path=path)
    roots = dict(zip(SENTENCE_NAMES, (root, text), strict=True))
    return {"preprocessor": preprocessor, **roots}


def _model_root(trained: TrainedModel, weights: StoredWeights, mlm: bool) -> Root:
    """The encoder with its head."""
    config, path = trained.config, trained.vocabulary.path
    encoder = Encoder(config, weights)
    if trained.head is None:
        head = MaskedLm(config, weights, encoder) if mlm else None
        return EncoderRoot(encoder, head, path)
    if trained.head == QUESTION_ANSWERING:
        return SpanRoot(encoder, Classifier(weights), path)
    if trained.head == REGRESSION:
        return RegressorRoot(encoder, Classifier(weights), path)
    kind = TaggerRoot if trained.head == TAGGING else ClassifierRoot
    return kind(encoder, Classifier(weights), trained.labels, path)
