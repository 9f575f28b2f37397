"""Spectra against numpy's decomposition, effective ranks against closed forms."""

import json

import numpy as np
import pytest

from decoupled.analyses import spectrum
from decoupled.analyses.models import open_models
from tests.analyses.tiny_runs import texts_of


@pytest.mark.parametrize("shape", [(50, 7), (16, 16), (5, 9)])
def test_singular_values_are_those_of_numpy(shape, monkeypatch):
    # Several blocks, the last one smaller.
    monkeypatch.setattr(spectrum, "_BLOCK_ROWS", 8)
    table = np.random.default_rng(0).normal(3, 1, shape).astype(np.float32)
    found = spectrum.singular_values(table)
    for form, matrix in (("raw", table), ("centred", table - table.mean(0))):
        values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
        expected = np.zeros(shape[1])
        expected[: len(values)] = values
        # What is below 1e-8 of the largest value is lost in the square.
        np.testing.assert_allclose(
            found[form], expected, rtol=1e-5, atol=1e-6 * values[0]
        )


@pytest.mark.parametrize(
    "measure", [spectrum.effective_rank, spectrum.participation_ratio]
)
def test_closed_forms(measure):
    assert measure(np.full(12, 0.7)) == pytest.approx(12)
    assert measure(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert measure(np.zeros(3)) == 0


def test_two_values_by_hand():
    values = np.array([3.0, 1.0])
    # Shares 3/4 and 1/4: exp(-(0.75 ln 0.75 + 0.25 ln 0.25)).
    assert spectrum.effective_rank(values) == pytest.approx(1.754765, abs=1e-6)
    # (9 + 1)^2 / (81 + 1)
    assert spectrum.participation_ratio(values) == pytest.approx(100 / 82)


def test_a_common_direction_counts_in_the_raw_table_only():
    table = np.random.default_rng(0).normal(size=[500, 8]) + 30
    found = spectrum.singular_values(table)
    assert spectrum.effective_rank(found["raw"]) < 3
    assert spectrum.effective_rank(found["centred"]) > 7.9


def test_models_side_by_side(pretrained_dir, coupled_dir, tmp_path, capsys):
    models = open_models([pretrained_dir, coupled_dir])
    result = spectrum.measure(models)
    json.dumps(result, allow_nan=False)
    entries = [
        (model["name"], entry["embedding"], entry["rows"], entry["width"])
        for model in result["models"]
        for entry in model["embeddings"]
    ]
    assert entries == [
        ("pretrained", "input", 48, 6),
        ("pretrained", "output", 48, 10),
        ("coupled", "input", 48, 6),
    ]
    table = models[0].embedding("output").astype(np.float64)
    saved = result["models"][0]["embeddings"][1]["raw"]
    expected = np.linalg.svd(table, compute_uv=False)
    np.testing.assert_allclose(saved["singular_values"], expected, rtol=1e-9)
    shares = expected / expected.sum()
    entropy = -(shares * np.log(shares)).sum()
    assert saved["effective_rank"] == pytest.approx(np.exp(entropy))
    spectrum.show(result)
    assert "effective rank" in capsys.readouterr().out
    _, svg = spectrum.plot(result, str(tmp_path / "plot"))
    assert {"pretrained, input", "pretrained, output", "coupled, input"} <= set(
        texts_of(svg)
    )
