"""The places of the paper that this project cites exist, and were checked there.

SECTIONS and PLACES say what the cited places of arXiv 2010.12821 have. A citation of
another place fails, and so does one of a section, appendix or footnote in a file that
SECTIONS does not name for it: who adds a citation checks it first.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
GIN, CODE = "gin/", "decoupled/"
MAP = "docs/paper_map.md"
DESIGN = "docs/reproduction/design.md"
# Place -> what the paper says there, and the files that cite it.
SECTIONS = {
    "section 3": (
        "the baseline and the tasks; means of three fine-tuning runs, on dev sets",
        {f"{GIN}sweeps/paper.gin"},
    ),
    "section 5": (
        "RemBERT's V, E_in, E_out, layers and heads; 2048 sequences of 512 tokens, "
        "1.76M steps, 1.8T tokens, 3.5 times fewer than XLM-R; 110 languages",
        {f"{GIN}models/rembert.gin", f"{CODE}configs/data.py", MAP},
    ),
    "section 6.1": (
        "Spearman with human judgements by dot products; a word is the mean of its "
        "subwords",
        {f"{CODE}analyses/word_similarity.py"},
    ),
    "A.1": (
        "models are compared by their parameters in fine-tuning, without task heads",
        {MAP},
    ),
    "A.2": (
        "mBERT's architecture; no dropout; SentencePiece, 120k subwords; Wikipedia in "
        "104 languages; masked language modelling",
        {
            f"{CODE}configs/data.py",
            f"{CODE}configs/model.py",
            f"{CODE}data/masking.py",
            "docs/configuration.md",
            MAP,
        },
    ),
    "A.3": (
        "64 Cloud TPUs and 26B tokens of Wikipedia, except RemBERT; fine-tuning on 8 "
        "TPUs with batch 32; unigram SentencePiece",
        {
            f"{CODE}configs/training.py",
            f"{GIN}sweeps/paper.gin",
            "docs/scaling.md",
            MAP,
        },
    ),
    "A.7": (
        "RemBERT: 995M and 575M parameters, Wikipedia and Common Crawl; shares of "
        "languages by sentences, to the power alpha = 0.5",
        {
            f"{GIN}models/rembert.gin",
            f"{CODE}configs/data.py",
            f"{CODE}corpora/sampling.py",
            "docs/configuration.md",
            MAP,
        },
    ),
    "A.9": (
        "5000 sentence pairs of WMT16; means without [CLS] and [SEP]; translation "
        "vector; L2 distance",
        {
            f"{CODE}configs/analyses.py",
            "docs/analyses.md",
        },
    ),
    "footnote 3": (
        "linear projections E_in -> H and H -> E_out",
        {
            f"{GIN}models/rembert_table14.gin",
            f"{CODE}configs/model.py",
            f"{CODE}model/embeddings.py",
            f"{CODE}model/variables.py",
            MAP,
            DESIGN,
        },
    ),
    "footnote 4": (
        "the trend of Table 3 stays with a frozen input embedding",
        {f"{CODE}configs/finetuning.py", f"{GIN}sweeps/table3_frozen.gin", MAP, DESIGN},
    ),
    "footnote 11": (
        "output embedding and pooler are discarded after pre-training",
        {MAP},
    ),
    "footnote 6": (
        "retrieval tasks are left out, since they need data of other tasks",
        {MAP},
    ),
}
PLACES = {
    "Table 1": "share of the embeddings in public models: mBERT 52%",
    "Table 2": "coupled or decoupled, E = 768",
    "Table 3": "E_in 768, E_out 128 or the reverse",
    "Table 4": "E_in 128; E_out 128, 768, 3072",
    "Table 5": "E_out 768 or 11 additional layers",
    "Table 6": "reinvested in H or in L",
    "Table 7": "XTREME's test sets by category of tasks: RemBERT 75.4, XLM-R 71.4",
    "Table 8": "word similarity of both tables, and masked-LM accuracy",
    "Table 9": "ten probing tasks, mix: 86.9, 87.1, 87.4",
    "Table 10": "fine-tuning rates of PAWS-X, XNLI, SQuAD, NER; batch 32, 3 epochs",
    "Table 11": "sizes and languages of XTREME's tasks",
    "Table 12": "E = 768 or 128, coupled; the English row is ALBERT's",
    "Table 13": "English BERT-base: E_out 128, 768, 3072, 15 or 24 layers",
    "Table 14": "RemBERT's sizes and pre-training",
    "Table 15": "RemBERT's fine-tuning: PAWS-X, XNLI, SQuAD, POS, NER",
    "Table 16": "XTREME's test sets by task",
    "Figure 1": "XNLI with 8 to 12 layers kept",
    "Figure 2": "nearest neighbours, English to German, by layer",
}
# RemBERT's line of Table 16.
TABLE_16 = {
    "xnli": "80.8",
    "udpos": "76.5 (F1)",
    "panx": "70.1 (F1)",
    "pawsx": "87.5",
    "xquad": "64.0/79.6 (EM/F1)",
    "mlqa": "55.0/73.1 (EM/F1)",
    "tydiqa": "63.0/77.0 (EM/F1)",
}

# "Devlin et al. 2019, section 4.2" is a place in another text.
OTHERS = re.compile(
    r"(?:[A-Z][\w&]+(?: \w+)*,? (?:et al\. )?\d{4}|RFC \d+)[^.;()]{0,60}?,\s*"
    r"(?:section|appendix)\w*\s[\w.]+(?:\s(?:and|to)\s[\d.]+)?"
)
NUMBERS = r"(\d+(?:\.\d+)*(?:(?:-|,\s|\sto\s|\sand\s|,\sand\s)\d+(?:\.\d+)*)*)"
CITATION = re.compile(
    rf"([Ss]ections?|§|Tables?|Figures?|[Ff]ootnotes?)\s?{NUMBERS}|\b(A\.\d+)\b"
    r"|\b[Aa]ppendix\s(?!A\.\d)(\w+)"
)


def cited(text):
    """The places of the paper that a text names: "section 5", "A.7", "Table 8"."""
    # A sentence of a comment goes on in the next line.
    text = re.sub(r"\s*\n\s*#?\s*", " ", text)
    found = set()
    for kind, numbers, appendix, other in CITATION.findall(OTHERS.sub("", text)):
        if not numbers:
            found.add(appendix or f"appendix {other}")
            continue
        kind = kind.removesuffix("s").replace("S", "s").replace("F", "f")
        kind = {"§": "section", "figure": "Figure"}.get(kind, kind)
        for part in re.split(r",\sand\s|,\s|\sand\s", numbers):
            first, *last = re.split(r"-|\sto\s", part)
            ends = range(int(first), int(last[0]) + 1) if last else [first]
            found |= {f"{kind} {number}" for number in ends}
    return found


def citing_files():
    """Path -> the places that the file cites."""
    paths = [ROOT / "README.md"]
    for folder, ending in (
        ("gin", "gin"),
        ("decoupled", "py"),
        ("docs", "md"),
        ("benchmarks", "py"),
    ):
        paths += sorted((ROOT / folder).rglob(f"*.{ending}"))
    return {
        path.relative_to(ROOT).as_posix(): cited(path.read_text(encoding="utf-8"))
        for path in paths
    }


def test_cited_places_are_checked_ones():
    found = {}
    for path, places in citing_files().items():
        for place in places - PLACES.keys():
            found.setdefault(place, set()).add(path)
    assert found == {place: files for place, (_, files) in SECTIONS.items()}


@pytest.mark.parametrize("task", TABLE_16)
def test_scores_of_rembert_are_those_of_the_table(task):
    text = (ROOT / "gin/tasks/rembert.gin").read_text(encoding="utf-8")
    score = re.escape(f"RemBERT's test score in Table 16: {TABLE_16[task]}.")
    assert re.search(rf"{score}\n{task}/FinetuningConfig.learning_rates", text)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("Output (section\n4.2): H -> E_out", {"section 4.2"}),
        ("# Paper appendix A.1. `weights`", {"A.1"}),
        (
            "# (paper section\n# 6, Tables 7, 14 to 16)",
            {"section 6"} | {f"Table {n}" for n in (7, 14, 15, 16)},
        ),
        (
            "Tables 2-4 and 12; Figures 1, 2",
            {f"Table {n}" for n in (2, 3, 4, 12)} | {"Figure 1", "Figure 2"},
        ),
        ("sections 3.4 and 6.5", {"section 3.4", "section 6.5"}),
        ("the paper's footnote 4", {"footnote 4"}),
        ("(Devlin et al. 2019, section 4.2) and RFC 9113, sections 3.4 and 6.5", set()),
        ("§6.1; Footnote 3", {"section 6.1", "footnote 3"}),
        ("the table has 3 rows of tables 2", set()),
    ],
)
def test_citations_are_found(text, places):
    assert cited(text) == places
