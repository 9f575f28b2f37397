"""Held-out masked-LM loss: every token once, and the losses of the network in numpy."""

from dataclasses import replace

import numpy as np
import pytest

from decoupled.analyses import masked_lm, ranks
from decoupled.analyses.masked_lm import read_masked_text
from decoupled.analyses.models import open_models
from decoupled.configs import MaskingConfig
from decoupled.configs.analyses import MaskedLmSettings
from decoupled.core.errors import UserError
from tests.analyses.tiny_runs import show, write_run
from tests.data.record_folders import make_records
from tests.exports.reference import Reference

LENGTH = 12
MASKING = MaskingConfig(LENGTH, 3, 0.3, 1.0, 0.0)
SMOOTHING = 0.25
SETTINGS = MaskedLmSettings(MASKING, 0, SMOOTHING, batch_size=7, seed=0)
# Of the tiny vocabulary, 6 to 47 are ordinary pieces.
RNG = np.random.default_rng(0)


def documents(*lengths, high=48):
    return [RNG.integers(6, high, length).tolist() for length in lengths]


TRAIN = {
    "en": [documents(900, 200, high=30), documents(400)],
    "sw": [documents(50)],
    "th": [documents(3000)],
}
HELD_OUT = {"en": [documents(60, 41), documents(77, 1)], "sw": [documents(23)]}


@pytest.fixture(scope="module")
def records(vocabulary, tmp_path_factory):
    """Two languages; "en" has much more text than "sw", in two shards."""
    folder = tmp_path_factory.mktemp("records") / "made"
    make_records(folder, TRAIN, HELD_OUT, vocabulary=vocabulary)
    return str(folder)


@pytest.fixture(scope="module")
def models(pretrained_dir, coupled_dir):
    return open_models([pretrained_dir, coupled_dir], masked_lm=True)


@pytest.fixture(scope="module")
def one_model(models):
    """The first of them, where nothing depends on their number."""
    return models[:1]


@pytest.fixture(scope="module")
def text(records, models):
    return read_masked_text(records, models, SETTINGS)


@pytest.fixture(scope="module")
def result(models, text):
    return masked_lm.measure(models, text, SETTINGS)


@pytest.fixture(scope="module")
def wrong(vocabulary, text, tmp_path_factory):
    """A model that is wrong almost everywhere, and the result of it, for which 20
    tokens are ranked."""
    bias = np.zeros(48, np.float32)
    bias[7] = 3000.0
    weights = {"cls/predictions/output_bias": bias}
    folder = tmp_path_factory.mktemp("runs") / "wrong"
    [model] = open_models(
        [write_run(folder, vocabulary, weights=weights)], masked_lm=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_lm, "_MOST_RANKED", 20)
        return model, masked_lm.measure([model], text, SETTINGS)["models"][0]


def test_every_token_of_the_documents_is_predicted_once(result):
    # 60 + [SEP] + 41 tokens in chunks of 10, 77 + [SEP] + 1, and 23.
    items = [["en", n] for n in range(19)] + [["sw", n] for n in range(3)]
    assert result["items"] == items
    assert result["languages"] == {
        "en": {"sequences": 19, "tokens": 60 + 41 + 77 + 1},
        "sw": {"sequences": 3, "tokens": 23},
    }
    for model in (0, 1):
        predictions = result["arrays"][f"{model}/predictions"]
        assert predictions.dtype == np.float64
        # [SEP] between documents is none of them.
        assert predictions[:6].tolist() == [10] * 6
        assert predictions[6] == 9
        assert predictions.sum() == 202


def test_losses_are_those_of_the_network_in_numpy(result, models, text):
    batch, weights = text.arrays, text.arrays["masked_lm_weights"]
    # Every row has a token, of which the last is that before the next row.
    copied = text.sequence[np.cumsum(weights.sum(1)).astype(int) - 1]
    for number, model in enumerate(models):
        reference = Reference(
            model.config, {n: model.weights[n] for n in model.weights}
        )
        losses = reference.losses(batch).numpy() * weights
        last = reference.encode(batch)[-1]
        logits = reference.masked_lm(last, batch["masked_lm_positions"])
        right = (logits.argmax(-1) == batch["masked_lm_ids"]) * weights
        for name, values in (("loss", losses), ("correct", right)):
            sums = np.zeros(22)
            np.add.at(sums, copied, values.sum(1))
            measured = result["arrays"][f"{number}/{name}"]
            np.testing.assert_allclose(measured, sums, rtol=1e-5)
            key = {"loss": "loss", "correct": "accuracy"}[name]
            of_languages = result["models"][number]["languages"]
            assert of_languages["en"][key] == pytest.approx(sums[:19].sum() / 179)
            assert of_languages["sw"][key] == pytest.approx(sums[19:].sum() / 23)
    assert 0 < result["models"][0]["all"]["accuracy"] < 0.5


def test_ranks_are_those_of_the_vectors_of_all_tokens(result, models, text, wrong):
    """And of as many tokens as are kept, spread evenly."""
    batch = text.arrays
    rows, slots = np.nonzero(text.is_token)
    chosen = np.linspace(0, len(rows) - 1, 20).round().astype(int)
    entries = zip(models, result["models"], strict=True)
    for model, entry in [*entries, wrong]:
        weights = {name: model.weights[name] for name in model.weights}
        last = np.asarray(Reference(model.config, weights).encode(batch)[-1])
        vectors = last[rows, batch["masked_lm_positions"][rows, slots]]
        if entry is wrong[1]:
            vectors = vectors[chosen]
        expected = ranks.of_logits(model, vectors.astype(np.float32))
        assert entry["logits"] == pytest.approx(expected, rel=1e-4)


def test_languages_have_equal_weight(result):
    for model in result["models"]:
        of = model["languages"]
        for measure in ("loss", "accuracy", "below_unigram", "relative_loss"):
            mean = (of["en"][measure] + of["sw"][measure]) / 2
            assert model["all"][measure] == pytest.approx(mean)
        assert of["en"]["perplexity"] == pytest.approx(np.exp(of["en"]["loss"]))
        entropy = result["unigram_entropy"]["sw"]
        assert of["sw"]["below_unigram"] == pytest.approx(entropy - of["sw"]["loss"])
        assert of["sw"]["relative_loss"] == pytest.approx(of["sw"]["loss"] / entropy)


def test_unigram_entropies_by_hand(result, vocabulary):
    """Of 48 pieces, 5 are special and get nothing of the smoothing."""
    assert len(vocabulary.special_ids) == 5
    assert list(result["unigram_entropy"]) == list(HELD_OUT)
    for language, shards in HELD_OUT.items():
        train, held_out = (
            np.concatenate([ids for shard in of for ids in shard])
            for of in (TRAIN[language], shards)
        )
        counts = np.bincount(train, minlength=48) + SMOOTHING
        total = len(train) + 43 * SMOOTHING
        expected = -np.log(counts[held_out] / total).mean()
        assert result["unigram_entropy"][language] == pytest.approx(expected)


def test_a_diverged_model_is_named(vocabulary, text, tmp_path):
    broken = {"cls/predictions/output_embedding": np.full([48, 10], 3e38, np.float32)}
    folder = write_run(tmp_path / "broken", vocabulary, weights=broken)
    [model] = open_models([folder], masked_lm=True)
    with pytest.raises(UserError, match="broken/model.ckpt-7: gives losses that"):
        masked_lm.measure([model], text, SETTINGS)


def test_the_perplexity_of_a_loss_of_thousands_of_nats_is_a_number(wrong):
    """Such a power of e is none."""
    entry = wrong[1]["all"]
    assert entry["loss"] > 1000 and np.isfinite(entry["perplexity"])


@pytest.fixture
def without_counts(monkeypatch):
    """As if no piece was in the training text: what is asked does not depend on it."""
    monkeypatch.setattr(masked_lm, "count_pieces", lambda *_: np.zeros(48, np.int64))


def rows_of(text, item):
    """The masked copies of a sequence."""
    rows, _ = np.nonzero(text.is_token)
    own = np.unique(rows[text.sequence == text.items.index(item)])
    return {name: values[own] for name, values in text.arrays.items()}


@pytest.mark.usefixtures("without_counts")
def test_a_limit_takes_sequences_evenly_and_asks_them_the_same(
    records, one_model, text, capsys
):
    settings = replace(SETTINGS, max_sequences=4)
    fewer = read_masked_text(records, one_model, settings)
    printed = capsys.readouterr().out
    assert ": 4 of 19 held-out sequences of en (masked" in printed
    assert "sequences of sw" not in printed
    assert fewer.items[:4] == [("en", n) for n in (0, 4, 9, 14)]
    assert fewer.items[4:] == [("sw", n) for n in (0, 1, 2)]
    for item in fewer.items:
        expected = rows_of(text, item)
        assert len(expected["masked_lm_ids"])
        for name, values in rows_of(fewer, item).items():
            np.testing.assert_array_equal(values, expected[name])


def test_languages_can_be_chosen(records, one_model, text):
    swahili = read_masked_text(records, one_model, SETTINGS, ["sw"])
    assert swahili.languages == ["sw"]
    assert swahili.items == [item for item in text.items if item[0] == "sw"]
    np.testing.assert_array_equal(swahili.counts, text.counts[1:])
    for name, values in swahili.arrays.items():
        np.testing.assert_array_equal(values, text.arrays[name][-len(values) :])
    with pytest.raises(UserError, match=r"made has no held-out text of 'th' \(there"):
        read_masked_text(records, one_model, SETTINGS, ["sw", "th"])


def test_result_table_and_plot(result, tmp_path, capsys):
    assert set(result["arrays"]) == {
        f"{i}/{name}" for i in (0, 1) for name in ("loss", "correct", "predictions")
    }
    assert result["settings"]["masking"]["mask_token_rate"] == 1.0
    shown, drawn = show(masked_lm, result, tmp_path / "out", capsys)
    assert "Held-out text, every token masked once" in shown
    assert "unigram entropy" in shown
    assert "Ranks of centred logits and embeddings" in shown
    names = {"pretrained", "coupled", "en", "sw", "all"}
    assert names <= set(drawn)


def test_records_that_do_not_fit(vocabulary, records, models, tmp_path):
    make_records(tmp_path / "other", {"en": [[[7]]]}, {"en": [[[7]]]})
    with pytest.raises(UserError, match="other: made with vocabulary"):
        read_masked_text(str(tmp_path / "other"), models, SETTINGS)
    make_records(tmp_path / "none", {"en": [[[7]]]}, vocabulary=vocabulary)
    with pytest.raises(UserError, match="none: no held-out text"):
        read_masked_text(str(tmp_path / "none"), models, SETTINGS)
    make_records(
        tmp_path / "half", {"en": [[[7]]], "sw": []}, {"sw": [[[7]]]},
        vocabulary=vocabulary,
    )  # fmt: skip
    with pytest.raises(UserError, match="no training text of 'sw' to count pieces"):
        read_masked_text(str(tmp_path / "half"), models, SETTINGS)
    with pytest.raises(UserError, match="missing: no complete records here"):
        read_masked_text(str(tmp_path / "missing"), models, SETTINGS)


@pytest.mark.usefixtures("without_counts")
def test_text_without_a_token_to_mask(vocabulary, models, tmp_path):
    made = str(tmp_path / "made")
    make_records(made, {"en": [[[7]]]}, {"en": [[[1, 1]]]}, vocabulary=vocabulary)
    with pytest.raises(UserError, match="held-out text of 'en': has no token to mask"):
        read_masked_text(made, models, SETTINGS)
