"""Converted models compute what transformers' do, both ways, and come back the same."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from decoupled.configs import MaskingConfig, MeshConfig, ModelConfig, TrainingConfig
from decoupled.core.compat import mtf
from decoupled.core.release import tf
from decoupled.exports.interop.huggingface import (
    from_huggingface,
    huggingface_name,
    our_value,
    to_huggingface,
)
from decoupled.exports.interop.huggingface_config import (
    ACTIVATIONS,
    BERT,
    XLM_R,
    make_config,
    read_config,
)
from decoupled.exports.interop.surgery import change_embeddings, untie
from decoupled.exports.serving import encoder as serving
from decoupled.exports.serving.encoder import Encoder
from decoupled.launch import gin_files
from decoupled.model.dims import make_dims
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import (
    cls_positions,
    sequence_logits,
    span_logits,
    token_logits,
)
from decoupled.model.layers import Builder
from decoupled.model.parameters import TABLE_1, finetuning_counts
from decoupled.ops.row_partitions import saved_variables
from decoupled.runs.run_folder import read
from decoupled.runs.saved_run import open_model
from decoupled.tasks.classification import Classification, Regression
from decoupled.tasks.mlm import MaskedLM
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.checkpoints import plan_initialization
from decoupled.training.graph import Network, TrainingGraph, build_step
from decoupled.training.partitioned_tables import start_from
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    random_batch,
    write_model_dir,
)
from tests.helpers import adamw, run_mesh, schedule
from tests.interop.reference import NEEDS_TRANSFORMERS, call
from tests.vocabularies import xlm_r_folder

pytestmark = NEEDS_TRANSFORMERS

# Odd sizes; a vocabulary larger than the 48 pieces of the tests'.
SIZES = {
    "vocab_size": 61,
    "hidden_size": 21,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 19,
    "type_vocab_size": 2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
REMBERT = SIZES | {"input_embedding_size": 10, "output_embedding_size": 13}
NUMBER = {
    "id2label": {0: "LABEL_0"},
    "label2id": {"LABEL_0": 0},
    "problem_type": "regression",
}
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}


XLM_R_SIZES = SIZES | {
    "max_position_embeddings": 21,
    "type_vocab_size": 1,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def made(family, sizes, model, save=None, batch="usual", **changes):
    return {
        "config": f"{family}Config",
        "class": f"{family}{model}",
        "sizes": sizes | changes,
        "save": save or {},
        "batch": batch,
    }


def rembert(model, save=None, **changes):
    return made("RemBert", REMBERT, model, save, **changes)


def bert(model, **changes):
    return made("Bert", SIZES, model, **changes)


def xlm_r(model, **changes):
    return made("XLMRoberta", XLM_R_SIZES, model, batch="xlm_r", **changes)


THEIRS = {
    "encoder": rembert("Model"),
    "masked_lm": rembert("ForMaskedLM", hidden_act="gelu_new", layer_norm_eps=1e-6),
    "sharded": rembert("ForMaskedLM", save={"max_shard_size": "9KB"}),
    "wide": rembert("ForMaskedLM", input_embedding_size=30, output_embedding_size=21),
    "equal": rembert("ForMaskedLM", input_embedding_size=21, output_embedding_size=21),
    "classifier": rembert("ForSequenceClassification", **LABELS),
    "regressor": rembert("ForSequenceClassification", **NUMBER),
    "tagger": rembert("ForTokenClassification", **LABELS),
    "reader": rembert("ForQuestionAnswering", hidden_act="relu"),
    "bert_encoder": bert("Model"),
    "bert_masked_lm": bert("ForMaskedLM", hidden_act="gelu_pytorch_tanh"),
    "bert_untied": bert("ForMaskedLM", tie_word_embeddings=False),
    "bert_pretraining": bert("ForPreTraining"),
    "bert_classifier": bert("ForSequenceClassification", **LABELS),
    "bert_regressor": bert("ForSequenceClassification", **NUMBER),
    "bert_tagger": bert("ForTokenClassification", **LABELS),
    "bert_reader": bert("ForQuestionAnswering"),
    "xlm_r_encoder": xlm_r("Model", hidden_act="gelu_new"),
    "xlm_r_masked_lm": xlm_r("ForMaskedLM", layer_norm_eps=1e-5),
    "xlm_r_untied": xlm_r("ForMaskedLM", tie_word_embeddings=False),
    "xlm_r_classifier": xlm_r("ForSequenceClassification", **LABELS),
    "xlm_r_regressor": xlm_r("ForSequenceClassification", **NUMBER),
    "xlm_r_tagger": xlm_r("ForTokenClassification", **LABELS),
    "xlm_r_reader": xlm_r("ForQuestionAnswering"),
}
ALLOWED = {"bert_pretraining": ["cls.seq_relationship.*"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("conversion")


def batch_of(name, seed=0):
    """Unequal lengths and two segments, in XLM-R one; only padding has the id of
    padding, for which transformers has no gradients, and XLM-R no position."""
    one_type = THEIRS[name]["batch"] == "xlm_r"
    config = model_config(vocab_size=61, type_vocab_size=1 if one_type else 2)
    batch = random_batch(config, batch=4, length=17, seed=seed)
    pad, mask = int(one_type), batch["input_mask"]
    ids = np.maximum(batch["input_word_ids"], pad + 1)
    return batch | {"input_word_ids": ids * mask + pad * (1 - mask)}


BATCHES = {"usual": "encoder", "xlm_r": "xlm_r_encoder"}


def as_lists(batch):
    return {name: value.tolist() for name, value in batch.items()}


def request_of(models):
    batches = {name: as_lists(batch_of(model)) for name, model in BATCHES.items()}
    return {"models": models, "batches": batches}


@pytest.fixture(scope="module")
def theirs(folder):
    """What transformers made and computed: NAME/ and NAME.npz."""
    return call("make", request_of(THEIRS), folder / "theirs")


@pytest.fixture(scope="module")
def converted(theirs, folder, vocabulary):
    """The model folders made of theirs."""
    sentences = ["the quick brown fox jumps over the lazy dog and the sleepy cat"] * 9
    for name, entry in THEIRS.items():
        if entry["batch"] == "xlm_r":
            xlm_r_folder(theirs / name, sentences)
        else:
            shutil.copy(vocabulary.path, theirs / name / "sentencepiece.model")
        from_huggingface(
            str(theirs / name),
            str(folder / "ours" / name),
            None,
            ALLOWED.get(name, []),
        )
    return folder / "ours"


@pytest.fixture(scope="module")
def returned(converted, folder):
    """The folders made of ours again, and what transformers computes with them."""
    for name in THEIRS:
        ours = str(converted / name)
        target = str(folder / "again" / name)
        to_huggingface(ours, None, target, encoder_only=False)
    models = {
        name: {"folder": str(folder / "again" / name), "batch": entry["batch"]}
        for name, entry in THEIRS.items()
    }
    for name in TRAINED:
        models[name]["train"] = vars(OPTIMIZER) | {
            "batches": [for_transformers(batch) for batch in training_batches(name)]
        }
    call("run", request_of(models), folder / "again_outputs")
    return folder / "again"


def load(path):
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def head_logits(description, build, tensors):
    """The logits of whatever head the folder's model has; None for an encoder."""
    task = description.task
    if task is None:
        positions = tensors["masked_lm_positions"]
        x = encode(build, tensors, positions)[-1]
        return OutputEmbedding(build).logits(x)
    if task["kind"] in ("classification", "regression"):
        cls = encode(build, tensors, cls_positions(build))[-1]
        return sequence_logits(build, cls, len(task["labels"]) or 1, 0.0)
    encoded = encode(build, tensors)
    if task["kind"] == "tagging":
        return token_logits(build, encoded[-1], len(task["labels"]), 0.0)
    logits = span_logits(build, encoded[-1], 0.0)
    dims = logits.shape.dims
    return mtf.transpose(logits, [dims[0], dims[2], dims[1]])


def our_logits(folder, batch):
    """What the graph of training computes from a folder's checkpoint."""
    description = read(str(folder))
    weights = open_model(str(folder), verify=False).weights
    size, length = batch["input_word_ids"].shape
    dims = make_dims(description.model, size, length)
    positions = np.tile(np.arange(length, dtype=np.int32), [size, 1])

    def build(mesh, tensors):
        builder = Builder(description.model, dims, mesh, tf.float32, 0)
        return [head_logits(description, builder, tensors)]

    inputs = {
        name: (value, [dims.batch, dims.sequence]) for name, value in batch.items()
    }
    inputs["masked_lm_positions"] = (positions, [dims.batch, dims.sequence])
    return run_mesh(build, inputs, weights=weights)[0]


@pytest.mark.parametrize("name", THEIRS)
def test_from_transformers_every_layer_and_the_pooled_vector(name, theirs, converted):
    expected, batch = load(theirs / f"{name}.npz"), batch_of(name)
    description = read(str(converted / name))
    weights = open_model(str(converted / name), verify=False).weights
    outputs = Encoder(description.model, weights)(
        {key: tf.constant(value) for key, value in batch.items()}
    )
    np.testing.assert_allclose(
        tokens(outputs["encoder_outputs"], batch),
        tokens(expected["hidden_states"], batch),
        atol=1e-5,
    )
    if "pooled_output" in expected:
        np.testing.assert_allclose(
            outputs["pooled_output"], expected["pooled_output"], atol=1e-5
        )


def tokens(values, batch):
    """[..., batch, length, width] without padding, which has other positions in XLM-R.

    Logits of whole texts stay as they are."""
    values = np.asarray(values)
    mask = batch["input_mask"].astype(bool)
    return values if values.ndim < 3 else values[..., mask, :]


@pytest.mark.parametrize("name", [n for n in THEIRS if not n.endswith("encoder")])
def test_from_transformers_logits_of_every_head(name, theirs, converted):
    expected, batch = load(theirs / f"{name}.npz")["logits"], batch_of(name)
    logits = tokens(our_logits(converted / name, batch), batch)
    np.testing.assert_allclose(logits, tokens(expected, batch), atol=1e-5)


def test_the_embeddings_of_a_bert_are_untied_and_it_is_a_rembert(
    theirs, converted, folder
):
    ours, new = str(folder / "untied"), str(folder / "untied_again")
    change_embeddings(str(converted / "bert_masked_lm"), None, ours, untie)
    report = to_huggingface(ours, None, new, encoder_only=False)
    assert report["architecture"] == "RemBertForMaskedLM"
    models = {"untied": {"folder": new, "batch": "usual"}}
    outputs = call("run", request_of(models), folder / "untied_outputs")
    batch = batch_of("bert_masked_lm")
    actual, expected = (
        tokens(load(path)["logits"], batch)
        for path in (outputs / "untied.npz", theirs / "bert_masked_lm.npz")
    )
    np.testing.assert_allclose(actual, expected, atol=1e-5)


# An untied BERT comes back as RemBERT, with the unit matrix for its projection.
@pytest.mark.parametrize("name", [n for n in THEIRS if "untied" not in n])
def test_weights_come_back_bit_by_bit(name, theirs, returned):
    original = {}
    for path in sorted((theirs / name).glob("*.safetensors")):
        original |= load_file(path)
    again = load_file(returned / name / "model.safetensors")
    if name == "bert_pretraining":
        original = {k: v for k, v in original.items() if "seq_relationship" not in k}
    prefix = {"bert": "bert", "xlm": "roberta"}.get(name.partition("_")[0], "rembert")
    modern = {
        f"{prefix}.{key}"
        if key.startswith(("embeddings.", "encoder.", "pooler."))
        else key: value
        for key, value in original.items()
    }
    if name == "bert_pretraining":
        # Written back as a masked language model, which has no pooler.
        modern = {k: v for k, v in modern.items() if ".pooler." not in k}
    assert set(again) == set(modern)
    if prefix == "roberta":
        # No token has these positions.
        modern["roberta.embeddings.position_embeddings.weight"][:2] = 0
    for key, value in modern.items():
        assert np.array_equal(again[key], value), key


@pytest.mark.parametrize("name", THEIRS)
def test_transformers_computes_the_same_with_what_came_back(name, theirs, returned):
    outputs = returned.parent / "again_outputs"
    expected, actual = load(theirs / f"{name}.npz"), load(outputs / f"{name}.npz")
    batch = batch_of(name)
    for key in set(expected) & set(actual):
        # Equal weights; "gelu_new" and an identity round differently.
        np.testing.assert_allclose(
            tokens(actual[key], batch), tokens(expected[key], batch), atol=1e-5,
            err_msg=key,
        )  # fmt: skip
    loaded = json.loads((outputs / f"{name}.json").read_text())
    assert loaded["missing_keys"] == loaded["unexpected_keys"] == []
    config = THEIRS[name]["sizes"]
    written = loaded["config"]
    for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"):
        assert written[key] == config[key]
    activation = config.get("hidden_act", "gelu")
    same = {"gelu_pytorch_tanh": "gelu_new"}
    assert written["hidden_act"] == same.get(activation, activation)
    assert written["layer_norm_eps"] == config.get("layer_norm_eps", 1e-12)
    if "id2label" in config:
        assert [*written["id2label"].values()] == [*config["id2label"].values()]
        is_classifier = "SequenceClassification" in THEIRS[name]["class"]
        usual = "single_label_classification" if is_classifier else None
        assert written["problem_type"] == config.get("problem_type", usual)


def task(kind, labels=("x", "y", "z")):
    return {"name": "ours", "labels": list(labels), "kind": kind}


OURS = {
    "decoupled": ({"activation": "gelu_tanh"}, None),
    "decoupled, E_in = H": ({"input_embedding_size": 8}, None),
    "decoupled, E_in = H, projected": (
        {"input_embedding_size": 8, "project_equal_widths": True}, None),
    "coupled": ({"coupled": True, "input_embedding_size": 8,
                 "output_embedding_size": 8}, None),
    "classifier": ({}, task("classification")),
    "regressor": ({}, task("regression", ())),
    "tagger": ({"activation": "relu"}, task("tagging")),
    "reader": ({}, task("question answering", ())),
    "coupled classifier": ({"coupled": True, "input_embedding_size": 8,
                            "output_embedding_size": 8}, task("classification")),
    "narrow coupled tagger": ({"coupled": True, "input_embedding_size": 6,
                               "output_embedding_size": 6}, task("tagging")),
}  # fmt: skip


def weights_of(config, entry):
    if entry is None:
        return pretrained_weights(config)
    if entry["kind"] == "regression":
        return finetuned_weights(config, 1)
    arrays = finetuned_weights(config, len(entry["labels"]) or 2)
    if entry["kind"] == "classification":
        return arrays
    return {name: value for name, value in arrays.items() if "pooler" not in name}


@pytest.fixture(scope="module")
def ours(folder, vocabulary):
    """Models as training leaves them, exported, and what transformers computes."""
    models = {}
    for name, (changes, entry) in OURS.items():
        config = model_config(vocab_size=61, **changes)
        path, target = str(folder / "trained" / name), str(folder / "exported" / name)
        arrays = weights_of(config, entry)
        write_model_dir(path, vocabulary, config, arrays, entry)
        to_huggingface(path, None, target, encoder_only=False)
        models[name] = {"folder": target, "batch": "usual"}
    call("run", request_of(models), folder / "exported_outputs")
    return folder


@pytest.mark.parametrize("name", OURS)
def test_to_transformers(name, ours):
    expected = our_logits(ours / "trained" / name, batch_of("encoder"))
    outputs = ours / "exported_outputs"
    actual = load(outputs / f"{name}.npz")
    np.testing.assert_allclose(actual["logits"], expected, atol=1e-5)
    loaded = json.loads((outputs / f"{name}.json").read_text())
    assert loaded["missing_keys"] == loaded["unexpected_keys"] == []


@pytest.mark.parametrize("name", OURS)
def test_ours_come_back_bit_by_bit(name, ours, tmp_path):
    from_huggingface(str(ours / "exported" / name), str(tmp_path / "again"), None, [])
    trained = str(ours / "trained" / name)
    before = open_model(trained, verify=False).weights
    after = open_model(str(tmp_path / "again"), verify=False).weights
    assert set(before.shapes) == set(after.shapes)
    for variable in set(before.shapes) - {"global_step"}:
        assert np.array_equal(before[variable], after[variable]), variable
    shutil.rmtree(tmp_path / "again")


def test_public_models_have_as_many_parameters_as_in_transformers(tmp_path, vocabulary):
    configs, counted = {}, {}
    for public in TABLE_1:
        files = [public.gin_file]
        model = gin_files.configure(ModelConfig, files, public.settings)
        family = XLM_R if "xlm_r" in public.gin_file else BERT
        config = make_config(model, vocabulary, family, None, None, None)
        configs[public.name] = config | {"pad_token_id": None}
        unused = family.unused_positions * model.hidden_size
        counted[public.name] = sum(finetuning_counts(model).values()) + unused
    folder = call("count", {"configs": configs}, tmp_path)
    assert json.loads((folder / "count.json").read_text()) == counted
    assert round(counted["mBERT"] / 1e6, 1) == 177.9
    assert round(counted["XLM-R base"] / 1e6, 1) == 278.0


def test_activations_are_all_of_transformers_that_compute_the_same(tmp_path):
    points = np.linspace(-30, 30, 3001)
    call("activations", {"points": points.tolist()}, tmp_path)
    result = json.loads((tmp_path / "activations.json").read_text())
    # TensorFlow rounds the root of 2 to float32.
    same = {
        (theirs, ours)
        for theirs, values in result.items()
        for ours, function in serving.ACTIVATIONS.items()
        if np.allclose(values, function(tf.constant(points)), rtol=0, atol=1e-6)
    }
    assert same == set(ACTIVATIONS.items())


def our_gradients(folder, task, features):
    """Of a task's loss, by the graph of training: name -> array."""
    model = without_dropout(folder)
    features = {n: tf.constant(value) for n, value in features.items()}
    prepared = {n: np.array(v) for n, v in task.prepare(features).items()}
    dims = make_dims(model, *prepared["input_mask"].shape)
    shapes, variables = task.feature_dims(dims), []

    def build(mesh, tensors):
        builder = Builder(model, dims, mesh, tf.float32, 0)
        loss = task.forward(builder, tensors).loss
        variables[:] = mesh.graph.trainable_variables
        return mtf.gradients([loss], [v.value for v in variables])

    inputs = {name: (value, shapes[name]) for name, value in prepared.items()}
    weights = open_model(str(folder), verify=False).weights
    values = run_mesh(build, inputs, weights=weights)
    return {v.name: value for v, value in zip(variables, values, strict=True)}


def without_dropout(folder):
    model = read(str(folder)).model
    return dataclasses.replace(model, hidden_dropout=0.0, attention_dropout=0.0)


TRAINED = [
    *("masked_lm", "bert_masked_lm", "xlm_r_masked_lm"),
    *("classifier", "bert_classifier", "xlm_r_classifier"),
    *("regressor", "reader", "tagger"),
]
STEPS, PREDICTIONS = 10, 4
# The optimizer of the paper (Table 10), with a rate that moves models this small.
OPTIMIZER = adamw(learning_rate=2e-3)


def training_batches(name):
    """Different batches with their labels or numbers."""
    generator = np.random.default_rng(7)

    def integers(low, high, *shape):
        return generator.integers(low, high, [4, *shape]).astype(np.int32)

    def answers(mask):
        if name == "reader":
            # Padding has a part in the loss of transformers only.
            ids = integers(1, 61, 17)
            return {
                "input_word_ids": ids,
                "input_mask": np.ones_like(ids),
                "start_positions": integers(1, 9),
                "end_positions": integers(9, 16),
            }
        if name == "regressor":
            return {"targets": generator.normal(size=4).astype(np.float32)}
        if name == "tagger":
            starts = integers(0, 2, 17) * mask
            return {"word_starts": starts, "label_ids": integers(0, 3, 17)}
        if name.endswith("masked_lm"):
            places = generator.permuted(np.tile(np.arange(8), [4, 1]), axis=1)
            weights = np.arange(PREDICTIONS) < [[4], [1], [2], [3]]
            return {
                "masked_lm_positions": places[:, :PREDICTIONS].astype(np.int32),
                "masked_lm_ids": integers(0, 61, PREDICTIONS),
                "masked_lm_weights": weights.astype(np.float32),
            }
        return {"label_ids": integers(0, 3)}

    batches = [batch_of(name, seed) for seed in range(STEPS)]
    return [batch | answers(batch["input_mask"]) for batch in batches]


def for_transformers(batch):
    """With labels of tokens where they are counted, and -100 elsewhere."""
    batch = dict(batch)
    if "word_starts" in batch:
        counted = batch.pop("word_starts") == 1
        batch["label_ids"] = np.where(counted, batch["label_ids"], -100)
    if "masked_lm_ids" in batch:
        rows, places = np.nonzero(batch.pop("masked_lm_weights"))
        positions, ids = batch.pop("masked_lm_positions"), batch.pop("masked_lm_ids")
        batch["label_ids"] = np.full([4, 17], -100)
        batch["label_ids"][rows, positions[rows, places]] = ids[rows, places]
    return as_lists(batch)


def task_of(batches):
    if "masked_lm_ids" in batches[0]:
        return MaskedLM(MaskingConfig(17, PREDICTIONS))
    if "targets" in batches[0]:
        return Regression("ours", 17, 0.0)
    if "start_positions" in batches[0]:
        return ExtractiveQA("ours", 17, 0.0)
    kind = Tagging if "word_starts" in batches[0] else Classification
    return kind("ours", ["a", "b", "c"], 17, 0.0)


def our_losses(folder, batches):
    """Training that starts from all variables of a converted checkpoint."""
    config = TrainingGraph(
        Network(task_of(batches), without_dropout(folder), MeshConfig()),
        optimizer=OPTIMIZER,
        schedule=schedule(100, 0, "constant"),
        training=TrainingConfig(),
    )
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        features = {
            name: tf.constant(np.stack([batch[name] for batch in batches]))[step]
            for name in batches[0]
        }
        lowered = build_step(config, features)
        prefix = open_model(str(folder)).weights.path
        report = plan_initialization(prefix, config.network.variables)
        assert report.fresh == report.dropped == []
        built = saved_variables()
        start_from(prefix, {name: built[name] for name in report.restored})
        with tf.control_dependencies([lowered.update]):
            counted = tf.compat.v1.assign_add(step, 1)
        to_slices = lowered.lowering.copy_masters_to_slices()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(to_slices)
            return [session.run([lowered.loss, counted])[0] for _ in batches]


@pytest.mark.parametrize("name", TRAINED)
def test_first_steps_of_fine_tuning_have_the_losses_of_transformers(
    name, returned, converted
):
    path = returned.parent / "again_outputs" / f"{name}.losses.json"
    expected = json.loads(path.read_text())
    losses = our_losses(converted / name, training_batches(name))
    np.testing.assert_allclose(losses, expected, atol=1e-3)
    # The steps change what is measured.
    untrained = our_losses(converted / name, [training_batches(name)[0]] * 2)
    assert abs(untrained[0] - untrained[1]) > 0.01


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_the_first_step_are_those_of_transformers(
    name, returned, converted
):
    path = returned.parent / "again_outputs" / f"{name}.gradients.npz"
    expected = load(path)
    # PyTorch names a tied table by the module that it meets first.
    if "lm_head.decoder.weight" in expected:
        table = expected.pop("lm_head.decoder.weight")
        expected["roberta.embeddings.word_embeddings.weight"] = table
    batches = training_batches(name)
    gradients = our_gradients(converted / name, task_of(batches), batches[0])
    described = read_config(str(returned / name))
    for variable, gradient in gradients.items():
        theirs = expected.pop(
            huggingface_name(variable, described.family, described.head)
        )
        theirs = our_value(variable, theirs, described.family)
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=variable)
    assert not expected
