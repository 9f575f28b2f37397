"""What is read from the folders of finished jobs."""

import functools
import os
import runpy
import types

import numpy as np
import pytest
from scipy import stats

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.runs.curve import Curve, crossing
from decoupled.studies import claims, measures
from decoupled.studies.claims import Contrast
from decoupled.studies.items import ItemScores
from decoupled.studies.jobs import complete_jobs
from decoupled.studies.measures import (
    SOURCES,
    AnalysisResult,
    ResultReader,
    read_measures,
)
from decoupled.studies.statistics import Sums
from decoupled.studies.study import (
    check_published,
    load,
    read_published,
    read_study,
    save,
    whole_curves,
)
from decoupled.studies.study_jobs import StudyJobs, sized
from decoupled.studies.study_page import write_page
from tests.studies.conftest import make_folders
from tests.studies.finished_jobs import HIT_COUNTS, LOSSES, complete, write_all
from tests.studies.invented import DOCS

CONTROL = "control:e_small"


@pytest.fixture
def read(root, folders):
    """Reads the jobs of two seeds, those that are complete."""
    return reader_of(root, folders)


@pytest.fixture(scope="module")
def findings(root, shared_folders):
    """What it reads where all are complete."""
    return reader_of(root, shared_folders)()


def reader_of(root, folders):
    maker = StudyJobs(sized(root, 1), folders, "float32")
    jobs = write_all(maker, (0, 1))

    return lambda: Findings(maker, jobs)


class Findings:
    """What is read from the folders, when it is first asked for."""

    def __init__(self, maker, jobs):
        self._maker, self._jobs = maker, jobs

    @functools.cached_property
    def measured(self):
        reader = ResultReader(complete_jobs(self._jobs), self._maker.tasks)
        return read_measures(reader, {})[0]

    @functools.cached_property
    def _read(self):
        return read_study(self._maker, {"steps": 200, "seconds": 60.0})

    study = property(lambda self: self._read[0])
    counted = property(lambda self: self._read[1])
    curves = property(lambda self: self._read[2])
    numbers = property(lambda self: self.study.numbers)
    facts = property(lambda self: self.study.facts)


@pytest.fixture
def finetunings(root, folders):
    """All fine-tunings are complete: sizes of languages -> what reads their items,
    every second of which is right, and none with two layers."""
    maker = StudyJobs(sized(root, 1), folders, "float32")
    for seed in (0, 1):
        for job in maker.of_seed(seed):
            if job.kind == "finetune":
                os.makedirs(job.folder, exist_ok=True)
                files.write_json(job.result, {})
                complete(job)

    def of(sizes):
        def read_items(folder, data_dir):
            times = 0.0 if "keep_2" in folder else 1.0
            return {
                language: ItemScores(
                    Sums(np.arange(count) % 2 * times, np.ones(count)), 30.0
                )
                for language, count in sizes.items()
            }

        return read_items

    return of


def folder_of(folders, name):
    return os.path.join(folders.runs, name)


def test_the_layer_of_retrieval_is_chosen_on_dev_sentences(findings):
    result = findings.measured[claims.RETRIEVAL]
    assert result.seeds == [0, 1] and result.unit == "points" and result.better == 1
    assert set(result.values) == {*HIT_COUNTS, CONTROL}
    for row, counts in HIT_COUNTS.items():
        # The input embedding, best on dev, is no layer.
        assert result.by_seed(row) == pytest.approx([10 * counts[2]] * 2)
        assert result.values[row]["P@1"].shape == (2, 10)
    assert result.by_seed(CONTROL) == pytest.approx([10, 10])
    assert result.baseline == pytest.approx(10)


def test_the_last_layer_is_compared_with_those_below(findings):
    measured = findings.measured
    points = measured[claims.LAST_LAYER_POINTS]
    assert points.by_seed("e_small") == pytest.approx([10 - 40] * 2)
    assert points.by_seed("e_large") == pytest.approx([70 - 60] * 2)
    logits = measured[claims.LAST_LAYER]
    share = np.array([0.3, 0.5, 0.1])
    own = np.log(share / (1 - share))
    assert logits.unit == "logits"
    assert logits.by_seed("e_small") == pytest.approx([own[2] - own[:2].mean()] * 2)


def test_losses_have_equal_weights_of_languages_and_the_unigram_entropy(findings):
    loss = findings.measured[claims.LOSS]
    assert loss.better == -1 and loss.unit == "nats"
    assert loss.baseline == pytest.approx(5.5)
    for row, value in LOSSES.items():
        assert loss.by_seed(row) == pytest.approx(
            [value + 0.25, value + 0.26], abs=1e-3
        )
    accuracy = findings.measured[claims.ACCURACY]
    assert accuracy.by_seed("e_large") == pytest.approx([25, 25])
    assert findings.facts["languages"] == ["de", "en"]
    # Languages count as they are drawn: half each.
    assert findings.facts["unigram_entropy"] == pytest.approx(5.5)


def test_probes_are_compared_with_a_lookup_of_words(findings):
    measured = findings.measured
    result = measured[claims.PROBES]
    # Two sentences are the items, of two targets and of one.
    assert result.values["e_small"]["dependencies"].shape == (2, 2)
    assert result.by_seed("e_small") == pytest.approx([100 / 3, 200 / 3])
    assert result.baseline == pytest.approx(30)
    assert measured[claims.POS_PROBES].baseline == pytest.approx(50)


def test_tags_in_all_languages(read, monkeypatch, finetunings):
    sizes = {"en": 6, "de": 4, "fr": 4}
    monkeypatch.setattr(measures, "read_items", finetunings(sizes))
    measured = read().measured
    tags = measured[claims.UD_POS]
    assert {key: one.shape for key, one in tags.values["e_small"].items()} == {
        "en": (2, 6), "de": (2, 4), "fr": (2, 4)
    }  # fmt: skip
    assert tags.by_seed(CONTROL) == pytest.approx([50, 50]) and tags.baseline == 30


def test_the_last_layer_is_worth_what_tags_lose_without_it(
    read, monkeypatch, finetunings
):
    monkeypatch.setattr(measures, "read_items", finetunings({"en": 4}))
    findings = read()
    drop = findings.measured[claims.LAYER_DROP]
    assert set(drop.values) == {"e_small", "e_large"}
    assert drop.by_seed("e_large") == pytest.approx([50, 50])
    result = {one.metric: one for one in findings.numbers if one.task == "layer_drop"}
    assert result["layers 1 to 2"].value == 0 and result["layers 1 to 1"].value == 50


def test_a_seed_that_drops_only_more_than_the_last_layer_leaves_its_measure(
    read, folders, monkeypatch, finetunings
):
    monkeypatch.setattr(measures, "read_items", finetunings({"en": 4}))
    path = "layer_drop/udpos/e_large/keep_2/seed_1/job.json"
    os.remove(folder_of(folders, path))
    drop = read().measured[claims.LAYER_DROP]
    # What keep_1 loses is no loss without the last layer.
    assert drop.seeds == [0] and drop.by_seed("e_large") == pytest.approx([50])


def test_a_seed_that_a_job_lacks_leaves_its_measure(read, folders):
    os.remove(folder_of(folders, "analyses/neighbours/seed_0/job.json"))
    measured = read().measured
    assert measured[claims.RETRIEVAL].seeds == [1]
    assert measured[claims.LOSS].seeds == [0, 1]
    os.remove(folder_of(folders, "analyses/neighbours_dev/seed_1/job.json"))
    assert claims.RETRIEVAL not in read().measured


def test_curves_and_rows(findings, read, folders):
    assert set(findings.curves) == {
        (row, seed) for row in HIT_COUNTS for seed in (0, 1)
    }
    assert findings.curves["e_small", 1].loss == pytest.approx([6, 5, 4])
    assert findings.facts["seeds"] == [0, 1]
    assert list(findings.study.rows) == list(HIT_COUNTS)
    assert findings.study.training["e_small"].crosses == "150 ± 0"
    assert "nats below" in findings.study.training["e_small"].void
    # A job of another length is another job.
    os.remove(folder_of(folders, "models/e_small/seed_1/job.json"))
    assert ("e_small", 1) not in read().curves


def test_numbers_keep_their_folders(findings, read, folders):
    result = {
        (one.row, one.task, one.metric, one.seed): one for one in findings.numbers
    }
    one = result["e_large", "layers", "layer 3", 1]
    assert one.value == pytest.approx(70)
    # Below the work folder, whose own path says nothing to others.
    assert one.folder == "runs/analyses/neighbours/seed_1"
    one = result[CONTROL, "pretrain", "masked-LM accuracy", 0]
    assert one.value == 25 and "control/models/e_small/seed_0" in one.folder
    one = result["e_small", "geometry", "effective rank, input", 1]
    assert one.value == 9.5
    # 4 models and 4 invented analyses of each of 2 seeds, 10 seconds each.
    facts = findings.facts
    assert facts["seconds"] == 60 + 2 * 8 * 10 and facts["complete"] == 16
    # A job that was killed and went on does not say how long it took.
    path = folder_of(folders, "analyses/probing/seed_1/job.json")
    files.write_json(path, files.read_json(path) | {"seconds": None})
    assert read().facts["seconds"] == 60 + 2 * 8 * 10 - 10


def test_results_of_an_earlier_version_have_no_ranks(read, folders):
    path = folder_of(folders, "analyses/masked_lm/seed_1/masked_lm.json")
    result = files.read_json(path)
    for model in result["models"]:
        del model["logits"], model["embeddings"]
    files.write_json(path, result)
    numbers = [one for one in read().numbers if one.task == "geometry"]
    assert {one.seed for one in numbers} == {0}


def test_seeds_with_other_items_are_not_mixed(read, folders):
    path = folder_of(folders, "analyses/masked_lm/seed_1/masked_lm.json")
    text = open(path).read().replace('"de", 0', '"de", 7')
    open(path, "w").write(text)
    with pytest.raises(UserError, match="has other items than"):
        _ = read().study


def test_a_row_that_goes_on_has_the_curve_of_its_trunk_before():
    """Its first step would be late for leaving the plateau."""
    trunk = Curve(np.array([100, 200, 300]), np.array([6.0, 4.0, 3.5]))
    later = Curve(np.array([250, 300]), np.array([3.4, 3.2]))
    curves = {("trunk", 5): trunk, ("folded", 5): later, ("folded", 6): later}
    whole = whole_curves(curves, {"folded": ("trunk", "fold")})
    assert whole["folded", 5].steps.tolist() == [100, 200, 250, 300]
    assert whole["folded", 5].loss.tolist() == [6.0, 4.0, 3.4, 3.2]
    assert crossing(whole["folded", 5], 5.0) == 200
    # Without the trunk's job, it has its own alone.
    assert whole["folded", 6] is later and whole["trunk", 5] is trunk


def test_nothing_is_complete(root, folders):
    maker = StudyJobs(sized(root, 1), folders, "float32")
    study, _, curves = read_study(maker, {"steps": 4000, "seconds": 0.0})
    assert curves == {} and study.numbers == [] and study.training == {}
    assert study.evidence[:3] == ({}, {}, {})


@pytest.fixture
def published(findings, tmp_path):
    """The files of the study, as another one reads them."""
    folder = tmp_path / "part"
    folder.mkdir()
    save(findings.study, findings.counted, str(folder))
    return folder


def test_rows_of_an_earlier_study_give_what_they_gave_there(
    findings, published, root, tmp_path, vocabulary
):
    folders = make_folders(tmp_path / "later", vocabulary)
    rows = findings.study.rows
    earlier = ("in_small", "e_small")
    before = read_published(str(published), {row: rows[row] for row in earlier})
    maker = StudyJobs(sized(root, 1), folders, "float32", earlier)
    jobs = write_all(maker, (0, 1))
    trained = [job.name for job in jobs if job.kind == "pretrain"]
    assert trained == ["models/e_large/seed_0", "models/e_large/seed_1"]
    facts = {"steps": 200, "seconds": 60.0}
    study, _, curves = read_study(maker, facts, before)
    whole = findings.study.evidence
    assert study.evidence.trained == whole.trained
    assert list(study.rows) == list(rows)
    assert study.training.keys() == findings.study.training.keys()
    deciding = {Contrast.read(text).key for text in sum(root.study.claims.values(), ())}
    compared = deciding & whole.estimates.keys()
    assert len(compared) >= 3
    for key in compared:
        assert study.evidence.estimates[key] == pytest.approx(whole.estimates[key])
    # Controls are not trained again, and are compared as before.
    for key, measure in whole.measures.items():
        checks = study.evidence.measures[key].checks
        assert measure.checks is None or checks == pytest.approx(measure.checks)
    values = {one[:4]: one.value for one in study.numbers}
    for one in findings.numbers:
        assert values[one[:4]] == pytest.approx(one.value), one
    folders_of = {one.row: one.folder for one in study.numbers}
    assert folders_of["e_small"].startswith("part/runs/")
    assert set(curves) == {("e_large", 0), ("e_large", 1)}
    assert study.facts["measured"] == {"part": list(earlier)}


def test_a_page_of_an_earlier_study_alone(
    findings, published, root, tmp_path, vocabulary
):
    folders = make_folders(tmp_path / "later", vocabulary)
    before = read_published(str(published), findings.study.rows)
    maker = StudyJobs(sized(root, 1), folders, "float32", before.study.rows)
    facts = {
        **{"command": "c", "text": ["t"], "steps": 200, "activation_dtype": "float32"},
        **{"machine": "m", "seconds": 60.0, "left_out": []},
    }
    study, counted, curves = read_study(maker, facts, before)
    assert study.training == findings.study.training
    assert study.facts["seeds"] == [0, 1]
    save(study, counted, str(tmp_path))
    judged = write_page(str(tmp_path / "page.md"), load(str(tmp_path)), curves)
    assert {claim.verdict for claim in judged} != {"not run"}


def test_an_earlier_study_of_something_else_is_refused(
    findings, published, root, folders
):
    rows = findings.study.rows
    with pytest.raises(UserError, match="part has no row of other"):
        read_published(str(published), {"other": rows["e_large"]})
    larger = rows["e_small"]._replace(keep_layers=1)
    with pytest.raises(UserError, match="e_small has other sizes than here"):
        read_published(str(published), {"e_small": larger})
    before = read_published(str(published), rows)
    trained = {row: ["steps = 9", "rate = 1"] for row in rows}
    facts = {"text": ["a"], "training": trained, "finetuning": ["epochs = 1"]}
    for there, said in (
        ({"text": ["b"]}, "part: its text has b, and here a"),
        (
            {"training": trained | {"e_small": ["steps = 9", "rate = 2"]}},
            "part: the training of e_small has rate = 2, and here rate = 1",
        ),
        (
            {"training": {}},
            "in_small has nothing else, and here steps = 9, rate = 1",
        ),
        (
            {"finetuning": ["epochs = 2"]},
            "part: the fine-tuning has epochs = 2, and here epochs = 1",
        ),
    ):
        study = before.study._replace(facts={**facts, **there})
        with pytest.raises(UserError, match=said):
            check_published(before._replace(study=study), facts)
    check_published(before._replace(study=study._replace(facts=facts)), facts)
    arrays = files.read_arrays(str(published / "items.npz"))
    arrays["masked_lm_accuracy/e_small/de"] = arrays["masked_lm_accuracy/e_small/de"][
        :1
    ]
    files.write_arrays(str(published / "items.npz"), arrays)
    with pytest.raises(UserError, match="e_small/de does not fit study.json"):
        read_published(str(published), rows)
    with pytest.raises(UserError, match="study.json: cannot read"):
        read_published(str(published / "absent"), rows)


def test_rows_that_were_tried_on_other_items_are_not_compared(
    published, findings, root, tmp_path, vocabulary
):
    path = published / "items.npz"
    arrays = files.read_arrays(str(path))
    arrays["masked_lm_accuracy/de"] = 2 * arrays["masked_lm_accuracy/de"]
    files.write_arrays(str(path), arrays)
    before = read_published(str(published), {"e_small": findings.study.rows["e_small"]})
    maker = StudyJobs(
        sized(root, 1), make_folders(tmp_path / "w", vocabulary), "float32", ["e_small"]
    )
    reader = ResultReader(complete_jobs(write_all(maker, (0, 1))), maker.tasks)
    with pytest.raises(UserError, match="row e_small: was tried on other items"):
        read_measures(reader, before.items)


def test_word_similarity_is_that_of_the_output_embedding_on_pairs():
    generator = np.random.default_rng(2)
    human = generator.random(300)
    values, models = {}, []
    # A coupled model has the input embedding alone.
    for index, noises in enumerate(({"input": 1}, {"input": 0, "output": 3})):
        values[f"{index}/human/men"] = human
        entries = [{"set": "men", "embedding": "input", "score": "cosine"}]
        # Without one of its pairs, a set of two has no correlation.
        few = {"set": "rare_word", "score": "dot", "covered": 2, "spearman": 1.0}
        for kind, noise in noises.items():
            dots = human + noise * generator.random(300)
            values[f"{index}/{kind}/men"] = dots
            rho = stats.spearmanr(human, dots).statistic
            known = {"embedding": kind, "score": "dot", "covered": 300}
            entries.append(few | {"embedding": kind})
            entries.append(known | {"set": "men", "spearman": rho})
        models.append({"correlations": entries})
    lacking = [entries[-1] | {"spearman": None}]
    models.append({"correlations": lacking})
    rows = ["coupled", "e_large", "e_small"]
    analysed = AnalysisResult({"models": models}, values, rows, "")
    reader = types.SimpleNamespace(analysis=lambda name, seed: analysed)
    read = SOURCES[claims.SIMILARITY].read(reader, 0)
    assert read.keys() == {"coupled", "e_large"}
    assert read["coupled"].keys() == read["e_large"].keys() == {"men"}
    for row, entry in (("coupled", models[0]), ("e_large", models[1])):
        expected = entry["correlations"][-1]["spearman"]
        assert read[row]["men"].got.mean() == pytest.approx(expected, abs=0.01)
        assert len(read[row]["men"].got) == 300


def test_anybody_can_recompute_the_intervals(
    read, root, folders, tmp_path, finetunings, monkeypatch, capsys
):
    """The script of docs, without the package, gives what the page has."""
    generator = np.random.default_rng(1)

    def read_items(folder, data_dir):
        got = generator.integers(0, 9, 30)
        return {"en": ItemScores(Sums(got, np.full(30, 9.0)), 1.0)}

    monkeypatch.setattr(measures, "read_items", read_items)
    for name in ("neighbours/seed_0/neighbours", "masked_lm/seed_1/masked_lm"):
        path = folder_of(folders, f"analyses/{name}.items.npz")
        arrays = files.read_arrays(path)
        for key, array in arrays.items():
            if not key.endswith("/predictions"):
                most = 2 if key.endswith("hits") else 9
                drawn = generator.integers(0, most, array.shape)
                arrays[key] = drawn.astype(array.dtype)
        files.write_arrays(path, arrays)
    result = read()
    save(result.study, result.counted, str(tmp_path))
    script = DOCS / "recompute.py"
    assert "decoupled" not in script.read_text()
    capsys.readouterr()
    runpy.run_path(str(script))["main"](str(tmp_path))
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    page = {}
    for text in sum(root.study.claims.values(), ()):
        if estimate := result.study.evidence.estimates.get(Contrast.read(text).key):
            low, high = estimate.interval()
            page[text] = [f"{estimate.value:+.2f}", f"{low:+.2f} to {high:+.2f}"]
    assert {row[1]: row[2:] for row in rows} == page
    # The score, a share, and logits of the last layer.
    assert len(page) == 3 and "inf" not in str(page)
