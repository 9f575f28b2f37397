"""The document of a reproduction, its figures, and that its links lead somewhere."""

import re

import pytest

from decoupled.core import plots
from decoupled.reports import pictures
from decoupled.reports.finished_runs import read_reproduction
from decoupled.reports.reproduction import FIGURE_ROWS, PaperTable, write_document
from decoupled.reports.results import CONTROL, KINDS, MLM
from tests.analyses.tiny_runs import texts_of
from tests.reports.fake_reproduction import SCORES, write_reproduction

TABLES = [PaperTable("Table 4: output embedding size", ("e_out_128", "e_out_3072"))]
TOLD = ["    decoupled reproduce --work_dir=w", "Text: 7 sentences."]
LIMITS = ["No questions."]


def write(path, results):
    write_document(str(path), results, TABLES, TOLD, LIMITS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return write_reproduction(tmp_path_factory.mktemp("reproduction") / "runs")


@pytest.fixture(scope="module")
def document(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "reproduction.md"
    write(path, read_reproduction(str(runs)))
    return path


@pytest.fixture
def without_pictures(monkeypatch):
    """As where matplotlib is not installed."""
    monkeypatch.setattr(plots, "draw", lambda *_: [])


def section(document, title):
    """The lines below a heading."""
    text = document.read_text()
    start = text.index(f"\n## {title}")
    end = text.find("\n## ", start + 1)
    return text[start:end].splitlines()


def cells(lines, name):
    """The cells of a line without its name, and without their links."""
    row = next(line for line in lines if line.startswith(f"| {name} |"))
    row = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", row)
    return row.strip("| ").split(" | ")[1:]


def test_head(document):
    text = document.read_text()
    for said in (
        "    decoupled reproduce --work_dir=w",
        "Text: 7 sentences.",
        "scores 40.0.",
        "**9 of 9 models score higher than that.**",
        "- No questions.",
        "- 3 seeds: an interval reaches 2.5 standard deviations",
    ):
        assert said in text


def test_verdicts(document):
    lines = section(document, "The claims\n")
    verdicts = [re.findall(r"\*\*(.+)\*\*", line) for line in lines]
    assert [found[0] for found in verdicts if found] == [
        *["supported"] * 3,
        "undecided at this scale",
        "not supported",
        *["supported"] * 2,
    ]
    assert "| 8 |" in lines[-1] and "out of reach" in lines[-1]


def test_control(document):
    lines = section(document, "Does pre-training help here?")
    assert cells(lines, "e_out_128") == ["51.0 ± 1.0", "44.5 ± 0.9"]
    assert "rest on scores" not in document.read_text()


def test_claims_are_put_in_doubt_where_pretraining_does_not_help(
    runs, tmp_path, without_pictures
):
    results = read_reproduction(str(runs))
    scores = results.averages("e_out_128")
    numbers = [
        n._replace(value=scores[n.seed] + 1 + n.seed) if n.task == CONTROL else n
        for n in results.numbers
    ]
    path = tmp_path / "r.md"
    write(path, results._replace(numbers=numbers))
    claims = "\n".join(section(path, "The claims\n"))
    assert "**Claims 1 to 5 and part of 7 rest on scores" in claims


def test_table_of_the_paper(document):
    lines = section(document, "Table 4: output embedding size")
    names = [line.split(" | ")[0] for line in lines if line.startswith("| e_")]
    assert names == ["| e_out_128", "| e_out_3072"]
    # Of 56, 58.4 and 56.7.
    assert cells(lines, "e_out_3072")[-1] == "**57.0 ± 1.2**"


def test_table_8(document):
    lines = section(document, "Table 8")
    assert cells(lines, "coupled")[0] == "41.0 ± 1.0<br>paper 40.8"
    assert cells(lines, "e_out_3072") == [
        "41.0 ± 1.0 / 16.0 ± 1.0<br>paper 40.1 / 10.8",
        "41.0 ± 1.0 / 16.0 ± 1.0<br>paper 43.3 / 19.5",
        "18.1 ± 0.1<br>paper 62.3",
    ]
    assert "men 75% of 200" in "\n".join(lines)


def test_figures_as_tables(document):
    lines = section(document, "Figure 1")
    # Two layers fewer cost nothing, 0.2 and 0.4.
    assert cells(lines, "e_out_128") == ["50.8 ± 0.9", "50.9 ± 1.0", "51.0 ± 1.0"]
    assert "| layers kept | 8 | 9 | 10 | 11 | 12 |" in lines
    lines = section(document, "Figure 2")
    assert cells(lines, "e_out_3072")[-1] == "35.2 ± 0.2"
    assert "| e_out_128 | 33 | 36 | 54 |" in "\n".join(lines)


def test_table_9(document):
    lines = section(document, "Table 9")
    assert cells(lines, "e_out_3072") == [
        "83.0 ± 1.0<br>paper 96.8",
        "73.0 ± 1.0<br>paper 94.5",
        "78.0 ± 1.0",
    ]


def test_spectrum(document):
    lines = section(document, "Spectrum")
    assert cells(lines, "e_out_3072") == ["6.0 ± 1.0", "8", "6.0 ± 1.0", "64"]
    assert cells(lines, "coupled")[2:] == ["-", "-"]


def test_claims_have_their_statistics(document):
    lines = section(document, "The claims, number by number")
    row = cells(lines, "score, e_out_3072 - e_out_768")
    assert row == ["+1.6", "+3.00", "+2.50 to +3.50", "3", "above 0", "supported"]


def test_a_model_that_did_not_learn_is_named(runs, tmp_path, without_pictures):
    results = read_reproduction(str(runs))
    path = tmp_path / "r.md"
    write(path, results)
    assert "half as many masked words" not in path.read_text()
    third = max(results.masked_lm("e_out_3072").values()) / 3
    numbers = [
        n._replace(value=third) if (n.row, n.metric) == ("coupled", MLM) else n
        for n in results.numbers
    ]
    write(path, results._replace(numbers=numbers))
    limits = section(path, "What limits this")
    assert any(line.startswith("- coupled: guesses less") for line in limits)


def links_of(page):
    """(text, file, section) of all links of a page; every file is there."""
    found = re.findall(r"\[([^]]*)\]\(([^)#]+)#?([^)]*)\)", page.read_text())
    for _, file, _ in found:
        assert (page.parent / file).is_file(), file
    return [(text, page.parent / file, section) for text, file, section in found]


def test_every_link_leads_to_a_file_and_every_file_is_linked(document):
    page = document.parent / "reproduction" / "runs.md"
    links = [*links_of(document), *links_of(page)]
    beside = {p for p in (document.parent / "reproduction").rglob("*") if p.is_file()}
    left = beside - {path for _, path, _ in links}
    assert {path.name for path in left} == {"scores.csv"}


@pytest.mark.parametrize(
    "title",
    [
        *("Does pre-training help", "Table 4", "Table 8", "Table 9"),
        *("Figure 1", "Figure 2", "Spectrum"),
    ],
)
def test_every_number_of_ours_links_to_its_runs(document, title):
    page = document.parent / "reproduction" / "runs.md"
    sections = set(re.findall(r"^## (\S+)$", page.read_text(), re.MULTILINE))
    lines = section(document, title)
    measured = [line for line in lines if re.match(r"\| \w+ \|.*±", line)]
    assert measured
    for line in measured:
        name = line.split(" | ")[0].strip("| ")
        assert "±" not in re.sub(r"\[[^]]*\]\(reproduction/runs.md#\w+\)", "", line)
        assert set(re.findall(r"#(\w+)\)", line)) == {name} <= sections


def test_page_of_the_runs(document):
    page = document.parent / "reproduction" / "runs.md"
    text = page.read_text().split("\n## e_out_3072\n")[1].split("\n## ")[0]

    def settings(task, metric):
        line = next(
            one for one in text.splitlines() if one.startswith(f"| {task} | {metric} |")
        )
        return re.findall(r"\[([\d.]+)\]\(settings/([^)]+)\)", line)

    assert settings("catalogs", "accuracy")[1] == (
        "58.40",
        "tasks/catalogs/e_out_3072.gin",
    )
    assert settings("layer_drop", "catalogs, layers 1 to 1")[2] == (
        "52.30",
        "layer_drop/catalogs/e_out_3072/keep_1.gin",
    )
    assert settings("neighbours", "layer 3")[0][1] == "analyses/neighbours.gin"
    # Of an analysis without settings: what its model was made with.
    assert settings("spectrum", "effective rank, input embedding")[1][1] == (
        "models/e_out_3072.gin"
    )


def test_settings_that_differ_by_the_seed_alone_share_a_file(document):
    settings = document.parent / "reproduction" / "settings"
    assert (settings / "models" / "e_out_3072.gin").read_text() == (
        "# Seeds 0, 1, 2: nothing else differs. Below: seed 0.\n"
        "TrainingConfig.seed = 0\n"
    )
    assert list(settings.rglob("seed_*")) == []


def test_settings_that_differ_in_more_have_files_of_their_own(
    tmp_path, without_pictures
):
    runs = write_reproduction(tmp_path / "runs")
    other = "TrainingConfig.batch_size = 8\nTrainingConfig.seed = 1\n"
    (runs / "models" / "coupled" / "seed_1" / "config.1.gin").write_text(other)
    write(tmp_path / "r.md", read_reproduction(str(runs)))
    settings = tmp_path / "r" / "settings" / "models"
    assert (settings / "coupled" / "seed_0.gin").read_text() == (
        "TrainingConfig.seed = 0\n"
    )
    assert (settings / "coupled" / "seed_1.gin").read_text() == other
    page = (tmp_path / "r" / "runs.md").read_text()
    assert "(settings/models/coupled/seed_1.gin)" in page
    assert "(settings/models/e_out_128.gin)" in page


def test_settings_of_an_earlier_document_do_not_stay(runs, tmp_path, without_pictures):
    path = tmp_path / "r.md"
    stale = tmp_path / "r" / "settings" / "models" / "coupled.gin"
    stale.parent.mkdir(parents=True)
    stale.write_text("# of another run\n")
    write(path, read_reproduction(str(runs)))
    assert stale.read_text().endswith("\nTrainingConfig.seed = 0\n")


def test_every_number_by_seed(document, runs):
    lines = (document.parent / "reproduction" / "scores.csv").read_text().splitlines()
    assert lines[0] == "model,task,metric,seed,value,folder"
    for line in (
        'layers 1 to 1",0,51.0,{}/layer_drop/catalogs/e_out_768/keep_1/seed_0',
        '"catalogs, after one step",2,44.0,{}/control/tasks/catalogs/e_out_128/seed_2',
        "e_out_128,neighbours,layer 1,2,35.0,{}/analyses/neighbours/seed_2",
        'e_out_128,probing,"F1, pos",0,80.0,{}/analyses/probing/seed_0',
        'rank, input embedding",1,6.0,{}/analyses/spectrum/seed_1',
    ):
        assert any(found.endswith(line.format(runs)) for found in lines), line
    scores = [line for line in lines if ",catalogs,accuracy," in line]
    assert len(scores) == 3 * len(SCORES)


def test_an_incomplete_one_has_gaps(tmp_path, without_pictures):
    runs = write_reproduction(tmp_path / "runs", ("e_out_128",), (0,))
    for name in ("neighbours", "word_similarity", "spectrum", "probing"):
        (runs / "analyses" / name / "seed_0" / "job.json").unlink()
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    write(path, read_reproduction(str(runs)))
    text = path.read_text()
    assert (
        "Table 8" not in text
        and "Table 9" not in text
        and "Figure 2" not in text
        and "![" not in text
    )
    assert "| score, decoupled - coupled | +0.4 | - | - | 0 | within ±1 |" in text


def test_nothing_complete_is_a_document_too(tmp_path):
    runs = write_reproduction(tmp_path / "runs", ("e_out_128",), ())
    path = tmp_path / "docs" / "r.md"
    path.parent.mkdir()
    write(path, read_reproduction(str(runs)))
    assert "| e_out_128 | 8 | 8 |" in path.read_text()


@pytest.mark.parametrize(
    "seeds, note", [(1, "one seed"), (3, "bars: standard deviation over 3 seeds")]
)
def test_one_layer_of_one_model_has_one_mark(seeds, note, tmp_path):
    scores = {seed: 50.0 + seed for seed in range(seeds)}
    drawn = pictures.ByLayer("Layers", "kept", "score", {"e_out_128": {2: scores}})
    pictures.plot_by_layer(drawn, str(tmp_path / "one"))
    found = texts_of(tmp_path / "one.svg")
    assert f"Layers; {note}" in found
    places = found[: found.index("kept")]
    assert places == ["2"]


def test_pictures(runs, tmp_path):
    results = read_reproduction(str(runs))
    models = {row: results.dropped(row) for row in FIGURE_ROWS}
    layers = pictures.ByLayer("Layers", "layers kept", "score, %", models)
    pictures.plot_by_layer(layers, str(tmp_path / "layers"))
    drawn = {"masked_lm": {row: results.masked_lm(row) for row in SCORES}}
    for kind in KINDS:
        drawn[kind] = {row: results.similarity(row, kind) for row in SCORES}
    pictures.plot_similarity(drawn, str(tmp_path / "similarity"))
    assert {"e_out_128", "layers kept", "score, %"} <= set(
        texts_of(tmp_path / "layers.svg")
    )
    assert {"input embedding", "coupled", "masked-LM accuracy, %"} <= set(
        texts_of(tmp_path / "similarity.svg")
    )
