"""What README and the pages of docs/ point to exists; tests show what they say."""

import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATH = re.compile(
    r"(?<![\w./-])(?:decoupled|gin|tests|benchmarks|docs|tpu_scripts)/[\w/.-]*\w"
)
# NAME, TASK, tableN and the like stand for what the reader has.
PLACEHOLDER = re.compile(r"[A-Z]{2,}|tableN")
LINK = re.compile(r"\]\((?!https?:)([^)]+)\)")
TEST = re.compile(r"^ *def test_(\w+)", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def broken_paths(page):
    """Paths from the root of the repository that a page names and that are missing."""
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    return sorted(
        path
        for path in named
        if not PLACEHOLDER.search(path) and not (ROOT / path).exists()
    )


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    found = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in found}


def broken_links(page):
    """Links of a page to files or headings that are missing."""
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        is_page = target.suffix == ".md"
        if not target.exists() or (
            anchor and is_page and anchor not in anchors(target)
        ):
            broken.append(link)
    return broken


def test_paths_and_links_lead_somewhere():
    found = [
        f"{page.name}: {broken}"
        for page in PAGES
        for broken in [*broken_paths(page), *broken_links(page)]
    ]
    assert not found, "\n".join(found)


def test_what_is_broken_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One heading\n`decoupled/none.py` [a](b.md) [c](page.md#two)\n")
    assert broken_paths(page) == ["decoupled/none.py"]
    assert broken_links(page) == ["b.md", "page.md#two"]
    page.write_text("# One heading\n`gin/tasks/TASK.gin` [a](page.md#one-heading)\n")
    assert (broken_paths(page), broken_links(page)) == ([], [])


def promises():
    """Page, words of a sentence in it, and the tests and benchmarks that show it."""
    lines = (ROOT / "tests" / "promises.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


@functools.cache
def names_of_tests():
    texts = (path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*.py"))
    return {name for text in texts for name in TEST.findall(text)}


def is_there(evidence):
    if evidence.startswith("benchmarks."):
        return (ROOT / f"{evidence.replace('.', '/')}.py").exists()
    return evidence in names_of_tests()


@pytest.mark.parametrize("page", sorted({page for page, _, _ in promises()}))
def test_promises_stand_in_their_pages_and_are_shown(page):
    """Who rewords a sentence changes tests/promises.tsv, too.

    A promise that is taken back leaves the file, and CHANGELOG.md says so.
    """
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    rows = [(words, shown) for where, words, shown in promises() if where == page]
    gone = [words for words, _ in rows if words not in text]
    assert not gone, f"{page} does not say: {gone}"
    unshown = [
        (words, evidence)
        for words, shown in rows
        for evidence in shown.split(" ")
        if not is_there(evidence)
    ]
    assert not unshown, f"neither a test nor a benchmark: {unshown}"
