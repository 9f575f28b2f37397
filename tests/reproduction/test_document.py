"""The page of a reproduction: its parts, its tables, and where its links lead."""

import re

import pytest

from decoupled.core import plots
from decoupled.reproduction import claims
from decoupled.reproduction.document import write_document
from decoupled.reproduction.measured import CONTROL
from tests.reproduction import invented


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    path = folder / "reproduction.md"
    found = invented.findings(tmp_path_factory.mktemp("runs"))
    judged = write_document(str(path), found)
    (folder / "reproduction" / "design.md").write_text("By hand.\n")
    assert [one.claim.number for one in judged] == [1, 2, 3, 4, 5, 6, 7]
    return path


@pytest.fixture
def without_pictures(monkeypatch):
    """As where matplotlib is not installed."""
    monkeypatch.setattr(plots, "draw", lambda *_: [])


def section(document, title):
    """The lines below a heading of level 2."""
    text = document.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return text[start : end if end > 0 else None].splitlines()


def cells(lines, *begin):
    """The other cells of the line that begins with these, without links."""
    head = "".join(f"| {cell} " for cell in begin) + "|"
    line = next(line for line in lines if line.startswith(head))
    line = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
    return line.strip("| ").split(" | ")[len(begin) :]


def test_head(document):
    text = document.read_text()
    for said in (
        "    decoupled reproduce --work_dir=w",
        "Text: 4 sentences. 11 models were pre-trained for 1,000 steps with seeds 0,",
        "9 of 9 jobs are complete; their times add up to 1 h 00 min.",
        "- No questions.",
    ):
        assert said in text
    assert "has gaps" not in text


def test_verdicts_of_all_claims(document):
    lines = section(document, "The claims")
    verdicts = dict(re.findall(r"^\| (\d) \|.*?\*\*(.+?)\*\*", "\n".join(lines), re.M))
    assert verdicts == dict.fromkeys("1234567", "supported")
    third = cells(lines, "3", claims.CLAIMS[2].text)
    assert third[1] == "+3.00 points" or third[1].startswith(("+2.9", "+3."))
    assert re.fullmatch(r"\+\d\.\d\d to \+\d\.\d\d", third[2])
    assert third[3] == "< 0.001" and third[5] == "+1.6"
    # Two parts, one under the other.
    assert all(cell.count("<br>") == 1 for cell in cells(lines, "5")[2:4])
    assert "out of reach" in lines[-5] or any("out of reach" in one for one in lines)


def test_lessons_stand_above_the_results(document):
    text = document.read_text()
    learned = text.index("## What we learned about embedding coupling")
    assert text.index("## The claims") < learned < text.index("## Curves")
    lines = section(document, "What we learned about embedding coupling")
    assert sum(line.startswith("- ") for line in lines) >= 8


def test_curves_and_crossings(document):
    lines = section(document, "Curves of pre-training")
    first = cells(lines, "coupled")
    assert first[0] == "312 ± 7" or re.fullmatch(r"\d{3} ± \d+", first[0])
    assert first[3] == "trained"
    assert any(line.startswith("![curves]") for line in lines)


def test_a_void_row_is_named(tmp_path, without_pictures):
    found = invented.findings(tmp_path / "runs")
    curves = dict(found.curves)
    curves["e_large", 2] = invented.curve(200, final=5.0)
    judged = write_document(str(tmp_path / "r.md"), found._replace(curves=curves))
    assert [one.verdict for one in judged if one.claim.number in (3, 6, 7)] == [
        "void"
    ] * 3
    lines = section(tmp_path / "r.md", "Curves of pre-training")
    assert cells(lines, "e_large")[3].startswith("**void**: Row e_large, seed 2, ends")
    learned = "\n".join(
        section(tmp_path / "r.md", "What we learned about embedding coupling")
    )
    assert (
        "Each of the claims 3, 6, 7 cannot be judged, because a row did not" in learned
    )


def test_every_measure_stands_beside_its_control(document):
    lines = section(document, "What pre-training brings")
    found = cells(lines, "retrieval", "points", "coupled")
    assert found[0].startswith("50.") or found[0].startswith("49.")
    assert found[2].startswith("+20.") or found[2].startswith("+19.")
    assert found[3] == "40.0" and found[5] == "yes"
    found = cells(lines, claims.LOSS, "nats", "e_small")
    # A loss that falls is a gain.
    assert found[2].startswith("+2.")


def test_a_measure_that_its_control_reaches_is_marked(tmp_path, without_pictures):
    found = invented.measures(retrieval={"gain": 0.0})
    path = tmp_path / "r.md"
    judged = write_document(
        str(path), invented.findings(tmp_path / "runs", found=found)
    )
    assert {one.claim.number: one.verdict for one in judged}[3] == "not testable"
    lines = section(path, "What pre-training brings")
    assert cells(lines, "retrieval", "points", "coupled")[-1] == "**no**"
    assert cells(lines, "udpos", "points", "coupled")[-1] == "yes"
    learned = "\n".join(section(path, "What we learned about embedding coupling"))
    assert "In retrieval it is not, so that these decide nothing." in learned


def test_tables_of_the_paper(document):
    lines = section(document, "Table 4: output embedding size")
    names = [line.split(" | ")[0] for line in lines if line.startswith("| e_")]
    assert names == ["| e_small", "| e_large"]
    found = cells(lines, "e_large")
    assert found[-1] == "61.8" and found[4:6] == ["0.90M", "0.70M"]
    assert (
        cells(section(document, "Exploratory: a nonlinear head"), "in_small_head")[-1]
        == "-"
    )


def test_sections(document):
    lines = section(document, "Figure 2: retrieval of translations by layer")
    assert cells(lines, "e_large")[:4] == [
        "4.0 ± 0.0",
        "9.0 ± 0.0",
        "12.0 ± 0.0",
        "8.0 ± 0.0",
    ]
    assert "| e_large | 32 | 37 | 47 | 57 |" in "\n".join(lines)
    assert (
        cells(section(document, "Figure 2 in logits"), "e_large")[1] == "-2.31 ± 0.00"
    )
    lines = section(document, "Figure 1: without the last layers")
    assert cells(lines, "e_small") == ["61.0 ± 0.0", "62.0 ± 0.0", "63.0 ± 0.0"]
    found = cells(section(document, "Gradients and logits"), "e_large")
    assert found[0] == "25.0 ± 0.0" and found[2:4] == ["96.0 ± 0.0", "97.0 ± 0.0"]
    found = cells(section(document, "Likeness to the coupled table"), "e_large")
    assert found == ["0.75 ± 0.00", "0.75 ± 0.00"]


def test_missing_measures_leave_their_sections_out(tmp_path, without_pictures):
    rows = ("in_small", "e_small", "e_large")
    found = invented.measures(rows=rows)
    del found[claims.OUTPUT_WORDS], found[claims.INPUT_WORDS]
    made = invented.findings(
        tmp_path / "runs", rows, found, results={}, layers={}, complete=5
    )
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    judged = write_document(str(path), made)
    assert [one.verdict for one in judged] == [
        "not run at this size", "not run at this size", "supported",
        "not run at this size", "not run at this size", "not testable", "supported",
    ]  # fmt: skip
    text = path.read_text()
    assert "**Not everything is complete" in text
    for title in ("Table 2", "Table 6", "Figure 2", "word translation", "Gradients"):
        assert not re.search(f"^## .*{title}", text, re.M), title
    assert "## Table 4" in text and "![" not in text


def test_nothing_complete_is_a_document_too(tmp_path):
    made = invented.findings(
        tmp_path / "runs", (), {}, curves={}, unigram_entropy={}, layers={}, results={},
        numbers=[],
    )  # fmt: skip
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    judged = write_document(str(path), made)
    assert {one.verdict for one in judged} == {"not run at this size"}
    assert "Each of the claims 1, 2, 3, 4, 5, 6, 7 was not run" in path.read_text()


def test_claims_have_their_statistics(document):
    lines = section(document, "Claim by claim")
    found = cells(lines, "S, e_large - in_small", "above 0")
    assert found[4:6] == ["5", "120"] and float(found[6]) > 3
    # Each component of S by itself.
    assert cells(lines, "udpos, e_large - in_small")[0].endswith(" points")
    assert any(
        line.startswith("| masked_lm_loss, e_large - in_small | secondary |")
        for line in lines
    )


def pages(document):
    return [document, document.parent / "reproduction" / "runs.md"]


def test_every_link_leads_somewhere(document):
    for page in pages(document):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.is_file(), link
            headings = (
                re.findall(r"^#+ (.+)$", target.read_text(), re.M) if anchor else []
            )
            anchors = {
                re.sub(r"[^\w -]", "", one).lower().replace(" ", "-")
                for one in headings
            }
            assert not anchor or anchor in anchors, link


def test_every_mean_links_to_its_runs(document):
    sections = re.findall(r"^## (.+)$", pages(document)[1].read_text(), re.M)
    assert {*invented.ROWS, f"{CONTROL}coupled"} <= set(sections)
    left = re.sub(r"\[[^]]*\]\(reproduction/runs.md#\w+\)", "", document.read_text())
    assert "±" not in left.replace("within ± the margin", "")


def test_tables_are_well_formed(document):
    for page in pages(document):
        for block in page.read_text().split("\n\n"):
            lines = block.splitlines()
            if not block.startswith("|"):
                continue
            assert {line.count(" | ") for line in lines if "---" not in line} == {
                lines[1].count("|") - 2
            }, block
            assert set(lines[1]) <= set("|-: ")


def test_every_number_by_seed(document):
    lines = (document.parent / "reproduction" / "scores.csv").read_text().splitlines()
    assert lines[0] == "model,task,metric,seed,value,folder"
    assert sum(line.startswith("coupled,retrieval,mean,") for line in lines) == 5


def test_runs_that_differ_by_the_seed_alone_share_settings(document):
    settings = document.parent / "reproduction" / "settings"
    assert (settings / "models" / "coupled.gin").read_text() == (
        "# Seeds 0, 1, 2, 3, 4: nothing else differs. Below: seed 0.\n"
        "TrainingConfig.seed = 0\n"
    )
    assert list(settings.rglob("seed_*")) == []


def test_pictures(document):
    drawn = {path.name for path in (document.parent / "reproduction").glob("*.png")}
    assert drawn == {
        "contrasts.png",
        "curves.png",
        "retrieval.png",
        "retrieval_logits.png",
    }
