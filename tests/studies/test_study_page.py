"""The page of a study, its files, and the committed studies."""

import re
import runpy
import shutil
import types

import numpy as np
import pytest

from decoupled.core import plots
from decoupled.core.errors import UserError
from decoupled.studies import claims, study_page
from decoupled.studies.results import Number
from decoupled.studies.statistics import Estimate
from decoupled.studies.study import load, read_study, save
from decoupled.studies.study_jobs import StudyJobs, sized
from decoupled.studies.study_page import (
    picture_of_contrasts,
    picture_of_curves,
    write_page,
)
from decoupled.studies.verdicts import Part, judge
from tests.studies import invented
from tests.studies.finished_jobs import write_all

DOCS = invented.DOCS
# What the committed studies say of each claim; README repeats the first.
VERDICTS = {
    "1": "supported",
    "2": "supported",
    "3": "no effect above the margin",
    "4": "supported",
    "5": "no effect above the margin",
    "6": "supported",
    "7": "supported",
}
# The default of part A decides claim 3.
PART_A = {**dict.fromkeys("247", "not run"), "3": "supported"}
CAUSE = {
    "3": "supported",
    "It does so by its initial value.": "supported",
    "A wide output embedding is as good as the rate and the scale that it amounts "
    "to.": "contradicted",
}
CLAIMS = {**dict.fromkeys("237", "undecided"), "4": "supported"}
FOLDED = {
    "Width is not needed to the end: the folded table trains on as well "
    "(loss).": "supported",
    "Width is not needed to the end (S).": "supported",
}
ENGLISH = {
    **dict.fromkeys("125", "not run"),
    **dict.fromkeys("346", "too few seeds"),
    "7": "not measured",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    path, beside = folder / "results.md", folder / "results"
    beside.mkdir()
    tags = {row: value + 3 for row, value in invented.SCORES.items()}
    tags = invented.measured("UD-POS", tags, baseline=20.0)
    taken = invented.measures(udpos=tags, word_similarity=None)
    save(invented.study(by_key=taken), {}, str(beside))
    judged = write_page(str(path), load(str(beside)), invented.curves())
    assert verdicts(judged) == dict.fromkeys("1234567", "supported")
    return path


@pytest.fixture
def without_pictures(monkeypatch):
    """As where matplotlib is not installed."""
    monkeypatch.setattr(plots, "can_draw", lambda: False)


def section(document, title):
    """The text below a heading of level 2."""
    text = document.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return text[start : end if end > 0 else None]


def cells(text, *begin):
    """The other cells of the line that begins with these."""
    head = "".join(f"| {cell} " for cell in begin) + "|"
    line = next(line for line in text.splitlines() if line.startswith(head))
    return line.strip("| ").split(" | ")[len(begin) :]


def verdicts(judged):
    return {claim.claim: claim.verdict for claim in judged}


def test_verdicts_of_all_claims(document):
    text = section(document, "Claims")
    third = cells(text, "3", claims.CLAIMS["3"])
    assert third[:3] == ["**supported**", "S, e_large - in_small", "> 0"]
    assert third[3] == "+3.00 points"
    assert re.fullmatch(r"\+2\.8\d to \+3\.1\d", third[4])
    assert third[5] == "below 0.001" and third[7] == "+1.6"
    # Two parts, one under the other.
    fifth = cells(text, "5", claims.CLAIMS["5"])
    assert fifth[1] == "S, reinv_l - coupled<br>S, reinv_h - coupled"
    assert fifth[7] == "+3.9<br>+2.2"
    sixth = cells(text, "6", claims.CLAIMS["6"])
    assert sixth[-3:] == [
        "word similarity", "Not measured: word similarity.", "supported",
    ]  # fmt: skip


def test_facts_curves_and_crossings(document):
    text = document.read_text()
    for line in (
        "    decoupled reproduce --work_dir=w",
        "| models | 10, 1,000 steps |",
        "| complete | 9 of 9 jobs |",
        "| their time | 1 h 00 min |",
    ):
        assert line in text
    text = section(document, "Curves of pre-training")
    assert cells(text, "coupled") == ["300 ± 0", "3.00", "3.10", "no"]
    assert "unigram entropy (6.00)" in text
    assert "![curves](results/curves.png)" in text


def test_losses_by_rate(document):
    text = section(document, "E_out and the learning rate")
    assert cells(text, "e_large") == ["3.002", "3.004"]
    assert "![dose](results/dose.png)" in text


def test_rates_that_do_not_train_are_in_the_table_and_not_in_the_figure(
    tmp_path, monkeypatch
):
    drawn = {}

    def picture(page, name, value):
        drawn[name] = value

    monkeypatch.setattr(study_page.Page, "picture", picture)
    study = invented.study()
    on_the_plateau = Number("e_small", "rates", "0.008", 100, invented.ENTROPY - 0.1)
    trains = Number("e_large", "rates", "0.008", 100, 3.5)
    study = study._replace(numbers=[*study.numbers, on_the_plateau, trains])
    path = tmp_path / "r.md"
    write_page(str(path), study)
    text = section(path, "E_out and the learning rate")
    assert cells(text, "e_small") == ["3.002", "3.004", "5.900"]
    losses, *_ = drawn["dose"].panels[0]
    last = losses.lines[-1]
    assert last.name == "rate 0.008"
    assert list(last.x) == ["16", "96", "384"]
    np.testing.assert_array_equal(last.y, [np.nan, np.nan, 3.5])


def test_a_void_row_is_named(tmp_path, without_pictures):
    path = tmp_path / "r.md"
    judged = write_page(str(path), invented.study(void_rows=("e_large",)))
    assert [verdicts(judged)[number] for number in "367"] == ["void"] * 3
    row = cells(section(path, "Curves of pre-training"), "e_large")
    assert row[3] == "Row e_large did not train."


def test_every_measure_stands_beside_its_control(document, tmp_path, without_pictures):
    title = "Trained models against one step of training"
    text = section(document, title)
    values = cells(text, "UD-POS", "points", "coupled")
    assert re.fullmatch(r"33\.0 ± 0\.\d", values[0])
    assert re.fullmatch(r"\+25\.00 \(\+.* to \+.*\)", values[2])
    assert values[3] == "20.0" and values[5:] == ["yes", "yes"]
    # A loss that falls is a gain.
    assert cells(text, "masked-LM loss", "nats", "coupled")[2].startswith("+2.50 ")
    scores = invented.SCORES | {"control:coupled": 30.0}
    taken = invented.measures(retrieval=invented.measured("retrieval", scores))
    path = tmp_path / "r.md"
    judged = write_page(str(path), invented.study(by_key=taken))
    assert verdicts(judged)["3"] == "not testable"
    assert (
        cells(section(path, title), claims.RETRIEVAL, "points", "coupled")[-1] == "no"
    )


def test_the_rows_stand_beside_the_papers(document):
    text = section(document, "Rows: means over seeds ± standard deviations")
    rows = re.findall(r"^\| (\w+) \| \d", text, re.M)
    assert rows == list(invented.ROWS)
    result = cells(text, "e_large")
    assert result[-1] == "61.8" and result[4].endswith("M")
    # S is the mean of the three after it.
    means = [float(cell.split(" ± ")[0]) for cell in result[6:10]]
    assert means == [32.0, 31.0, 34.0, 31.0]
    assert cells(text, "add_layers")[3] == "1 -> 1"
    assert cells(text, "in_small_head")[-1] == "-"


def test_layers(document):
    text = section(document, "Retrieval of translations by layer (Figure 2; paper: "
                   "English to German), %")  # fmt: skip
    row = ["4.0 ± 0.0", "9.0 ± 0.0", "12.0 ± 0.0", "8.0 ± 0.0"]
    assert cells(text, "e_large") == row
    text = section(document, "Fine-tuning of the first layers alone: parts of speech "
                   "(Figure 1; paper: XNLI), %")  # fmt: skip
    assert cells(text, "e_small") == ["61.0 ± 0.0", "62.0 ± 0.0"]
    # Rows that were not trained with fewer layers are not there.
    assert "| coupled |" not in text
    assert "| e_small | 68.1 | 68.6 | 68.2 | 68.5 | 68.3 |" in text


def test_missing_measures_and_rows(tmp_path, without_pictures):
    rows = ("in_small", "e_small", "e_large")
    lacking = dict.fromkeys((claims.ACCURACY, claims.SIMILARITY))
    taken = invented.measures(rows, **lacking)
    path = tmp_path / "r.md"
    judged = write_page(str(path), invented.study(rows, taken))
    absent = dict.fromkeys("1245", "not run")
    expected = {"3": "supported", "6": "not measured", "7": "supported"}
    assert verdicts(judged) == absent | expected
    assert "MLM acc" not in path.read_text()
    judged = write_page(str(path), invented.study((), {}))
    assert set(verdicts(judged).values()) == {"not run"}


def test_a_page_of_finished_jobs(root, folders, tmp_path, without_pictures):
    maker = StudyJobs(sized(root, 1), folders, "float32")
    write_all(maker, root.sweep.seeds)
    known = invented.study().facts | {"steps": 150}
    study, counted, curves = read_study(maker, known)
    path, beside = tmp_path / "r.md", tmp_path / "r"
    beside.mkdir()
    save(study, counted, str(beside))
    write_page(str(path), load(str(beside)), curves)
    text = section(path, "Retrieval of translations by layer (Figure 2; paper: "
                   "English to German), %")  # fmt: skip
    assert cells(text, "e_large") == ["10.0 ± 0.0", "50.0 ± 0.0", *["70.0 ± 0.0"] * 2]
    # The curves cross at their last step.
    text = section(path, "Curves of pre-training")
    assert cells(text, "e_small")[0] == "150 ± 0" and text.count("| Row ") == 3
    text = section(path, "Embeddings and logits")
    assert cells(text, "e_small") == ["96.0 ± 0.0", "41.5 ± 0.7", "9.0 ± 0.7"]
    lines = (beside / "scores.csv").read_text().splitlines()
    assert any(line.startswith("e_small,layers,layer 2,1,50.0,") for line in lines)


def test_all_contrasts_have_their_statistics(document):
    text = section(document, "Contrasts")
    result = cells(text, "S, e_large - in_small", "> 0")
    assert result[3:5] == ["5", "150"] and float(result[5]) > 3
    assert cells(text, "masked-LM loss, e_large - in_small", "-")[3] == "5"


def test_links_and_tables_are_well_formed(document):
    text = document.read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 5
    for link in links:
        assert (document.parent / link).is_file(), link
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        lines = [line.rstrip("|").split("|") for line in table.splitlines()]
        assert len({len(line) for line in lines}) == 1, table
        assert set("".join(lines[1])) <= set("-: "), table
    assert len(tables) > 8


def test_a_study_is_read_back_from_its_files(tmp_path):
    study = invented.study()
    key = "S, e_large - in_small"
    same = study.evidence.estimates[key]._replace(error=float("inf"))
    study.evidence.estimates[key] = same
    save(study, {}, str(tmp_path))
    again = load(str(tmp_path))
    assert again.evidence.estimates == study.evidence.estimates
    assert again.numbers == study.numbers and again.training == study.training
    assert again.rows == study.rows
    head = (tmp_path / "scores.csv").read_text().splitlines()[0]
    assert head == "model,task,metric,seed,value,folder"
    (tmp_path / "scores.csv").write_text(f"{head}\na,b,c,first,1.0,d\n")
    with pytest.raises(UserError, match="scores.csv, line 2: not a number of a run"):
        load(str(tmp_path))
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(UserError, match="study.json: not what a study found"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("first", VERDICTS),
        ("english", ENGLISH),
        ("part_a", PART_A),
        ("part_a_cause", CAUSE),
        ("part_a_claims", CLAIMS),
        ("part_b", FOLDED),
        ("part_c", {"5": "void"}),
        ("part_d", {"6": "undecided"}),
    ],
)
def test_the_committed_pages_are_those_of_their_files(
    name, expected, tmp_path, without_pictures
):
    """Every number and verdict of the pages follows from scores.csv and study.json."""
    shutil.copytree(DOCS / name, tmp_path / name)
    judged = write_page(str(tmp_path / f"{name}.md"), load(str(DOCS / name)))
    assert verdicts(judged).items() >= expected.items()
    sixth = [claim.missing() for claim in judged if claim.claim == "6"]
    unmeasured = [] if name == "part_d" else ["word similarity"]
    assert sixth == ([unmeasured] if "6" in expected else [])
    page = (DOCS / f"{name}.md").read_text()
    # Every row has a score.
    assert not re.search(r"^\| \w+ \|( [\w>. -]+ \|){6} - \|", page, re.M)
    drawn = re.compile(r"!\[(?!curves).*\n\n")
    assert (tmp_path / f"{name}.md").read_text() == drawn.sub("", page)


def test_contrasts_are_drawn_in_margins():
    contrast = claims.Contrast.read("S: e_large - in_small > 0")
    result = Estimate(2.0, 0.5, 1e9, 5, 100)
    small = result._replace(value=0.2, error=0.05)
    parts = [
        ("3: S", Part(contrast, "S", "points", "", "", result, 1.0)),
        ("7: last", Part(contrast, "S", "logits", "", "", small, 0.1)),
    ]
    [[panel]] = picture_of_contrasts(parts).panels
    assert panel.rows == ["3: S", "7: last"]
    [line] = panel.lines
    assert line.x == pytest.approx([2.0, 2.0])
    assert line.low == pytest.approx([2 - 0.98] * 2, abs=0.01)
    assert line.high == pytest.approx([2 + 0.98] * 2, abs=0.01)


def test_curves_name_rows_and_the_unigram_level():
    curves = invented.curves(("coupled", "e_small"))
    [[panel]] = picture_of_curves(curves, invented.ENTROPY).panels
    names = [line.name for line in panel.lines]
    assert names == ["coupled", "e_small", "unigram entropy"]


_NUMBER = r"[+-]?\d+\.\d+"


@pytest.mark.parametrize("page", ["../reproduction.md", "../../README.md"])
def test_numbers_written_by_hand_are_those_of_the_study(page):
    """Every "difference (low to high)" is an estimate of a study, and so is every other
    number beside it in the text."""
    text = " ".join((DOCS / page).read_text().split())
    if "## The paper's claims" in text:
        start = text.index("## The paper's claims")
        text = text[start : text.index("## To change")]
    names = ("first", "part_a_cause", "part_a_claims", "part_b", "part_c", "part_d")
    studies = [load(str(DOCS / name)).evidence for name in names]
    estimates = [each for study in studies for each in study.estimates.values()]
    [third] = [claim for claim in judge(studies[1]) if claim.claim == "3"]
    for p_value in re.findall(r"p = ([\d.]+)", text):
        assert p_value == f"{third.corrected_p:.3f}"
    written = re.findall(
        rf"({_NUMBER})(?: nats| logits| points)? \(({_NUMBER}) to ({_NUMBER})[;)]", text
    )
    assert len(written) >= 8
    for numbers in written:
        digits = len(numbers[0].partition(".")[2])
        known = [
            tuple(f"{x:+.{digits}f}" for x in (e.value, *e.interval()))
            for e in estimates
        ]
        signed = tuple(f"{float(x):+.{digits}f}" for x in numbers)
        zero = tuple(x.replace("-0.0", "+0.0") for x in signed)
        assert signed in known or zero in known, numbers
    for loss in ("0.57", "0.19") if "0.57" in text else ("0.19",):
        assert any(f"{-e.value:.2f}" == loss for e in estimates) and loss in text


@pytest.mark.parametrize(
    "name, claim, count",
    [
        ("part_a", "3", 3),
        ("part_a_cause", "3", 5),
        ("part_a_claims", "7", 7),
        ("part_b", "Width is not needed to the end (S).", 2),
        ("part_c", "5", 2),
        ("part_d", "6", 2),
    ],
)
def test_the_committed_items_give_the_committed_intervals(name, claim, count, capsys):
    runpy.run_path(str(DOCS / "recompute.py"))["main"](str(DOCS / name))
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert claim in {row[0] for row in rows} and len(rows) == count
    estimates = load(str(DOCS / name)).evidence.estimates
    for _, contrast, value, interval in rows:
        estimate = estimates[claims.Contrast.read(contrast).key]
        low, high = estimate.interval()
        assert value == f"{estimate.value:+.2f}"
        assert interval == f"{low:+.2f} to {high:+.2f}"


@pytest.fixture(scope="module")
def power():
    """The names of the script that simulates the design's power."""
    return types.SimpleNamespace(**runpy.run_path(str(DOCS / "power.py")))


def test_the_designs_power_is_that_of_its_simulation(power):
    lines = list(power.table())
    assert len(lines) > 10
    assert "\n".join(lines) in (DOCS / "design.md").read_text()


def test_simulated_power_is_that_of_the_formula(power):
    """Of the estimates, whose noise is that of seeds alone."""
    for seeds, claims_run in ((5, 3), (8, 8)):
        result = Estimate(0.0, 0.5 / seeds**0.5, seeds - 1.0, seeds, 1)
        level = 0.05 / claims_run
        effect = power.smallest_effect(0.5, seeds, claims_run, False)
        assert effect == pytest.approx(result.smallest_effect(level), rel=0.03)
        margin = power.smallest_effect(0.5, seeds, claims_run, True)
        assert margin == pytest.approx(result.smallest_margin(level), rel=0.03)
