"""The page of a reproduction: its parts, its tables, and where its links lead."""

import re

import pytest

from decoupled.core import plots
from decoupled.reproduction import claims
from decoupled.reproduction.document import Bar, plot_contrasts, write_document
from decoupled.reproduction.finished import Told, read_findings
from decoupled.reproduction.jobs import JobMaker, sized
from decoupled.reproduction.measured import CONTROL
from tests.reproduction import invented
from tests.reproduction.finished_jobs import write_all

LEARNED = "What we learned about embedding coupling"


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
    """The text below a heading of level 2."""
    text = document.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return text[start : end if end > 0 else None]


def cells(text, *begin):
    """The other cells of the line that begins with these, without links."""
    head = "".join(f"| {cell} " for cell in begin) + "|"
    line = next(line for line in text.splitlines() if line.startswith(head))
    line = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line)
    return line.strip("| ").split(" | ")[len(begin) :]


def verdicts(judged):
    return {one.claim.number: one.verdict for one in judged}


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
    text = section(document, "The claims")
    found = dict(re.findall(r"^\| (\d) \|.*?\*\*(.+?)\*\*", text, re.M))
    assert found == dict.fromkeys("1234567", "supported")
    third = cells(text, "3", claims.CLAIMS[2].text)
    assert third[1] == "S, e_large - in_small"
    assert re.fullmatch(r"\+(2\.9|3\.0)\d points", third[2])
    assert re.fullmatch(r"\+2\.9\d to \+3\.0\d", third[3])
    assert third[4] == "< 0.001" and third[6] == "+1.6"
    # Two parts, one under the other.
    fifth = cells(text, "5", claims.CLAIMS[4].text)
    assert fifth[1] == "S, reinv_l - coupled<br>S, reinv_h - coupled"
    assert fifth[-1] == "+3.9<br>+2.2"
    assert re.search(r"^\| 8 \|.*out of reach", text, re.M)


def test_what_was_learned_stands_above_the_results(document):
    text = document.read_text()
    assert text.index("## The claims") < text.index(LEARNED) < text.index("## Curves")
    assert section(document, LEARNED).count("\n- ") == 12


def test_curves_and_crossings(document):
    text = section(document, "Curves of pre-training")
    crossed, final, later, verdict = cells(text, "coupled")
    step, spread = crossed.split(" ± ")
    # From step 200 on the loss falls; it is smoothed over 50 steps.
    assert 250 < int(step) < 400 and 0 < int(spread) < 15
    assert re.fullmatch(r"3\.0\d ± 0\.00", final)
    assert float(later.split()[0]) > float(final.split()[0])
    assert verdict == "trained"
    assert "unigram entropy of the text, 6.00 nats" in text
    assert "![curves](reproduction/curves.png)" in text


def test_a_void_row_is_named(tmp_path, without_pictures):
    found = invented.findings(tmp_path / "runs")
    late = {("e_large", 2): invented.curve(800, final=2.0)}
    path = tmp_path / "r.md"
    judged = write_document(str(path), found._replace(curves={**found.curves, **late}))
    assert [verdicts(judged)[number] for number in (3, 6, 7)] == ["void"] * 3
    row = cells(section(path, "Curves of pre-training"), "e_large")
    assert row[3].startswith("**void**: Row e_large, seed 2, leaves the plateau at")
    said = "- Void, because a row did not train: claims 3, 6, 7."
    assert said in section(path, LEARNED)


def test_a_row_that_does_not_end_low_is_void(tmp_path, without_pictures):
    found = invented.measures()
    found[claims.LOSS].values["coupled"]["en"][1] += 2.0
    path = tmp_path / "r.md"
    made = invented.findings(tmp_path / "runs", found=found)
    judged = write_document(str(path), made)
    void = [number for number, one in verdicts(judged).items() if one == "void"]
    # Those in which the coupled model is compared.
    assert void == [1, 5]
    row = cells(section(path, "Curves of pre-training"), "coupled")
    assert re.search(r"seed 1, ends (0\.9|1\.0)\d nats below", row[3])


def test_a_difference_that_is_one_of_speed_is_named(tmp_path, without_pictures):
    found = invented.findings(tmp_path / "runs")
    curves = {
        # It crosses late, and is low for so few steps since then.
        run: invented.curve(500, final=3.4) if run[0] == "e_large" else curve
        for run, curve in found.curves.items()
    }
    path = tmp_path / "r.md"
    write_document(str(path), found._replace(curves=curves))
    text = section(path, "Curves of pre-training")
    assert "**Speed only**: the training loss of e_large minus that of in_small" in text
    assert "minus that of coupled" not in text


def test_every_measure_stands_beside_its_control(document):
    text = section(document, "What pre-training brings")
    found = cells(text, claims.RETRIEVAL, "points", "coupled")
    assert re.fullmatch(r"(49\.\d|50\.\d) ± 0\.\d", found[0])
    assert re.fullmatch(r"\+(19|20)\.\d\d \(\+.* to \+.*\)", found[2])
    assert found[3] == "40.0" and found[5] == "yes"
    # A loss that falls is a gain.
    assert cells(text, claims.LOSS, "nats", "e_small")[2].startswith("+2.")


def test_a_measure_that_its_control_reaches_is_marked(tmp_path, without_pictures):
    found = invented.measures(retrieval={"gain": 0.0})
    path = tmp_path / "r.md"
    made = invented.findings(tmp_path / "runs", found=found)
    assert verdicts(write_document(str(path), made))[3] == "not testable"
    text = section(path, "What pre-training brings")
    assert cells(text, claims.RETRIEVAL, "points", "coupled")[-1] == "**no**"
    assert cells(text, claims.UD_POS, "points", "coupled")[-1] == "yes"
    learned = section(path, LEARNED)
    assert "- In retrieval it is not, so that these decide nothing." in learned
    assert "says nothing of the paper: claims 1, 2, 3, 4, 5, 7." in learned


def test_tables_of_the_paper(document):
    text = section(document, "Table 4: output embedding size")
    assert re.findall(r"^\| (\w+_\w+) ", text, re.M) == [
        "e_small",
        "in_small",
        "e_large",
    ]
    found = cells(text, "e_large")
    assert found[-1] == "61.8" and found[4:6] == ["0.90M", "0.70M"]
    text = section(document, "Table 5: additional layers or a larger output embedding")
    assert cells(text, "add_layers")[3] == "1 -> 1"
    text = section(document, "Exploratory: a nonlinear head")
    assert cells(text, "in_small_head")[-1] == "-"


def test_english_models_are_not_set_beside_multilingual_ones(
    tmp_path, without_pictures
):
    found = invented.findings(tmp_path / "runs")
    entropy = {"en": found.unigram_entropy["en"]}
    path = tmp_path / "english.md"
    write_document(str(path), found._replace(unigram_entropy=entropy))
    # The scores of Table 13, not the averages of Tables 4 and 5.
    text = section(path, "Table 4: output embedding size")
    assert "| paper's MNLI; SQuAD |" in text
    assert cells(text, "e_small")[-1] == "75.9; 75.5/84.2"
    assert cells(text, "e_large")[-1] == "79.5; 78.4/86.2"
    text = section(path, "Table 5: additional layers or a larger output embedding")
    assert cells(text, "add_layers")[-1] == "79.0; 77.8/85.5"
    assert cells(section(path, "The claims"), "3", claims.CLAIMS[2].text)[-1] == "-"
    assert "The paper, " not in path.read_text()


@pytest.mark.parametrize(
    "title, row",
    [
        (
            "Figure 2: retrieval of translations by layer",
            ["4.0 ± 0.0", "9.0 ± 0.0", "12.0 ± 0.0", "8.0 ± 0.0"],
        ),
        (
            "Figure 2 in logits",
            ["-3.18 ± 0.00", "-2.31 ± 0.00", "-1.99 ± 0.00", "-2.44 ± 0.00"],
        ),
        (
            "Gradients and logits",
            ["25.0 ± 0.0", "2.4 ± 0.0", "96.0 ± 0.0", "97.0 ± 0.0", "41.0 ± 0.0"],
        ),
        ("Likeness to the coupled table", ["0.75 ± 0.00", "0.75 ± 0.00"]),
        ("Masked-LM loss by frequency", ["7.00 ± 0.00", "5.00 ± 0.00"]),
        ("Anisotropy by layer", ["0.20 ± 0.00"] * 4),
    ],
)
def test_sections(document, title, row):
    assert cells(section(document, title), "e_large") == row


def test_fewer_layers_stand_beside_all_of_them(document):
    text = section(document, "Figure 1: without the last layers")
    *fewer, whole = cells(text, "e_small")
    assert fewer == ["61.0 ± 0.0", "62.0 ± 0.0"]
    assert (
        whole
        == cells(section(document, "Table 4: output embedding size"), "e_small")[8]
    )
    # Rows that were not trained with fewer layers are not there.
    assert "| coupled |" not in text
    assert "| e_small | 68.1 | 68.6 | 68.2 | 68.5 | 68.3 |" in text


def test_missing_measures_leave_their_sections_out(tmp_path, without_pictures):
    rows = ("in_small", "e_small", "e_large")
    found = invented.measures(rows=rows)
    del found[claims.OUTPUT_WORDS], found[claims.INPUT_WORDS]
    made = invented.findings(tmp_path / "runs", rows, found, complete=5)
    results = {"masked_lm": made.results["masked_lm"]}
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    judged = write_document(str(path), made._replace(results=results))
    absent = dict.fromkeys((1, 2, 4, 5), "not run at this size")
    expected = {3: "supported", 6: "not testable", 7: "supported"}
    assert verdicts(judged) == absent | expected
    text = path.read_text()
    assert "**Not everything is complete" in text
    for title in ("Table 2", "Table 6", "word translation", "Gradients", "Likeness"):
        assert not re.search(f"^## .*{title}", text, re.M), title
    assert "## Table 4" in text and "![" not in text


def test_a_document_of_finished_jobs(root, folders, tmp_path, without_pictures):
    maker = JobMaker(sized(root, 1), folders, "float32")
    jobs = write_all(maker, range(5))
    told = Told(["Text."], 150, "float32", "2 cores", 60.0, "decoupled", [])
    found = read_findings(jobs, maker.rows, folders.runs, maker.tasks, told)
    path = tmp_path / "r.md"
    write_document(str(path), found._replace(results={}))
    text = section(path, "Figure 2: retrieval of translations by layer")
    assert cells(text, "e_large") == ["10.0 ± 0.0", "50.0 ± 0.0", *["70.0 ± 0.0"] * 2]
    text = section(path, "What pre-training brings")
    # The curves cross at their last step.
    assert "This cannot be told: no row that trained" in text
    text = section(path, "Curves of pre-training")
    assert cells(text, "e_small")[0] == "150 ± 0" and text.count("**void**") == 3
    lines = (tmp_path / "r" / "scores.csv").read_text().splitlines()
    assert any(one.startswith("e_small,layers,layer 2,4,50.0,") for one in lines)


def test_nothing_complete_is_a_document_too(tmp_path):
    made = invented.findings(tmp_path / "runs", (), {})
    made = made._replace(curves={}, unigram_entropy={}, results={}, numbers=[])
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    assert set(verdicts(write_document(str(path), made)).values()) == {
        "not run at this size"
    }
    assert "- Not run at this size: claims 1, 2, 3, 4, 5, 6, 7.\n" in path.read_text()


def test_claims_have_their_statistics(document):
    text = section(document, "Claim by claim")
    found = cells(text, "S, e_large - in_small", "above 0")
    assert found[4:6] == ["5", "120"] and float(found[6]) > 3
    assert cells(text, f"{claims.LOSS}, e_large - in_small", "secondary")[4] == "5"


def pages(document):
    return [document, document.parent / "reproduction" / "runs.md"]


def test_every_link_leads_somewhere(document):
    for page in pages(document):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.is_file(), link
            if anchor:
                heads = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
                plain = [re.sub(r"[^\w -]", "", head).lower() for head in heads]
                assert anchor in [head.replace(" ", "-") for head in plain], link


def test_every_mean_links_to_its_runs(document):
    sections = re.findall(r"^## (.+)$", pages(document)[1].read_text(), re.M)
    assert {*invented.ROWS, f"{CONTROL}coupled"} <= set(sections)
    left = re.sub(r"\[[^]]*\]\(reproduction/runs.md#\w+\)", "", document.read_text())
    assert "±" not in left.replace("within ± the margin", "")


def test_tables_are_well_formed(document):
    for page in pages(document):
        tables = [b for b in page.read_text().split("\n\n") if b.startswith("|")]
        for table in tables:
            lines = [line.rstrip("|").split("|") for line in table.splitlines()]
            assert len({len(line) for line in lines}) == 1, table
            assert set("".join(lines[1])) <= set("-: "), table
        assert len(tables) > 10


def test_every_number_by_seed(document):
    lines = (document.parent / "reproduction" / "scores.csv").read_text().splitlines()
    assert lines[0] == "model,task,metric,seed,value,folder"
    assert sum(line.startswith("coupled,retrieval,mean,") for line in lines) == 5
    # Not where they lay on the machine of the study.
    assert not any(",/" in line for line in lines)


def test_runs_that_differ_by_the_seed_alone_share_settings(document):
    settings = document.parent / "reproduction" / "settings"
    assert len(list(settings.rglob("*.gin"))) == 2
    assert (settings / "models.gin").read_text() == (
        "# Seeds 0, 1, 2, 3, 4: nothing else differs. Below: seed 0.\n"
        "TrainingConfig.seed = 0\n"
    )


def test_pictures(document):
    drawn = {path.stem for path in (document.parent / "reproduction").glob("*.png")}
    assert drawn == {
        *("contrasts", "curves", "frequency"),
        *("retrieval", "retrieval_logits"),
    }


def test_contrasts_are_drawn_in_margins(tmp_path, monkeypatch):
    bars = [
        Bar("3: S", 2.0, 1.0, 3.0, 1.0),
        Bar("7: last layer", 0.2, 0.1, 0.3, 0.1),
    ]
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, _: drawn.append(figure))
    plot_contrasts(bars, str(tmp_path / "f"))
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "3: S",
        "7: last layer",
    ]
    for container in axes.containers:
        line, _, [bar] = container.lines
        assert line.get_xdata() == pytest.approx([2.0])
        assert bar.get_segments()[0][:, 0] == pytest.approx([1.0, 3.0])
