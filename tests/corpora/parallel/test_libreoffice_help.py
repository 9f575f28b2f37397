"""Pages of LibreOffice's help become paragraphs with ids; pages are made by hand."""

import collections
import os

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel import libreoffice_help
from decoupled.corpora.parallel.parallel_text import split_of
from tests.corpora.parallel.test_from_parallel import make
from tests.corpora.parallel.test_parallel_text import SETTINGS

DEBIAN = "usr/share/libreoffice/help"
# As the pages of a package are, shortened.
PAGE = """<!DOCTYPE html>
<html lang="xx" dir="ltr"><head><title>Title</title>
<script type="text/javascript">write('<p id="par_id9">1 < 2</p>')</script>
</head><body>
<header><p dir="auto">Help without an id</p></header>
<div id="DisplayArea" itemprop="softwareHelp"><a name="finding_text"></a>
{}
</div>
<footer><div id="DEBUG"><p id="bm_module" dir="auto"></p></div></footer>
</body></html>
"""


def write(root, language, pages):
    """pages: name below text/ -> lines of the page."""
    for name, lines in pages.items():
        path = root / DEBIAN / language / "text" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format("\n".join(lines)))
    return root


def paragraph(number, text, kind="paragraph"):
    return f'<p id="par_id{number}" class="{kind}" dir="auto">{text}</p>'


def read(root, language):
    dropped = collections.Counter()
    found = {text.language: text for text in libreoffice_help.find(str(root), SETTINGS)}
    lines = list(libreoffice_help.read(found[language], dropped))
    return [tuple(line[:2]) for line in lines], +dropped


def test_paragraphs_and_headings_have_the_ids_of_their_page(tmp_path):
    lines = [
        '<h1 id="hd_id1" dir="auto">\n<a name="x"></a>Find &amp; Replace</h1>',
        '<ol><li><p id="par_id2" class="listitem">Type <span class="emph">the</span>'
        ' <a href="x.html">text</a><br>here<img alt="Icon">.</p></li></ol>',
        "<p>No id.</p>",
        paragraph(3, "<b>Last</b> x<sup>2</sup>"),
    ]
    write(tmp_path, "en-US", {"swriter/guide/finding": lines, "shared/a": lines[:1]})
    found, dropped = read(tmp_path, "en")
    assert found == [
        ("text/shared/a#hd_id1", "Find & Replace"),
        ("text/swriter/guide/finding#par_id2", "Type the text here."),
        ("text/swriter/guide/finding#par_id3", "Last x2"),
    ]
    assert dropped == {"paragraph of another page": 1}


def test_a_word_has_the_form_for_all_other_systems(tmp_path):
    keys = (
        '<span class="switchinline"><span hidden="true" id="MAC1" class="MAC">'
        '<span class="keycode">Command</span></span><span hidden="true" id="default1">'
        '<span class="keycode">Ctrl</span></span></span>+F'
    )
    text = paragraph(1, f"Press {keys} now.")
    write(tmp_path, "en-US", {"a": [text, paragraph(2, "Whole.")]})
    assert [line for _, line in read(tmp_path, "en")[0]] == [
        "Press Ctrl+F now.",
        "Whole.",
    ]


def test_code_and_repeated_ids_are_left_out(tmp_path):
    lines = [
        paragraph(1, "Once."),
        paragraph(2, "Sub Main", kind="code"),
        paragraph(1, "Again."),
    ]
    write(tmp_path, "en-US", {"a": lines})
    found, dropped = read(tmp_path, "en")
    assert found == [("text/a#par_id1", "Once.")]
    assert dropped == {
        "paragraph of program code": 1,
        "paragraph with an id that its page had before": 1,
    }


def test_the_english_pages_say_where_a_paragraph_belongs(tmp_path):
    """Also where two pages translate it in two ways."""
    english = {name: [paragraph(1, "Opens a file.")] for name in ("a", "b")}
    english["c"] = [paragraph(1, "Another text.")]
    write(tmp_path, "en-US", english)
    yoruba = {"a": [paragraph(1, "Ọ̀kan.")], "b": [paragraph(1, "Èjì.")]}
    yoruba["c"] = [paragraph(1, "Ẹ̀ta."), paragraph(2, "English lacks it.")]
    write(tmp_path, "yo", yoruba)
    found, dropped = read(tmp_path, "yo")
    assert found == [("text/a#par_id1", "Ọ̀kan."), ("text/c#par_id1", "Ẹ̀ta.")]
    assert dropped == {"paragraph of another page": 2}


def test_what_is_left_in_english_is_no_text_of_a_language(tmp_path):
    lines = [paragraph(1, "Opens a file."), paragraph(2, "Closes a file.")]
    write(tmp_path, "en-US", {"a": lines})
    write(tmp_path, "yo", {"a": [lines[0], paragraph(2, "Ó pa fáìlì dé.")]})
    found, dropped = read(tmp_path, "yo")
    assert found == [("text/a#par_id2", "Ó pa fáìlì dé.")]
    assert dropped == {"paragraph left in English": 1}


def test_languages_are_the_folders(tmp_path):
    for language in ("en-US", "en-GB", "pt-BR", "ca-valencia"):
        write(tmp_path, language, {"a": [paragraph(1, language)]})
    (tmp_path / DEBIAN / "media").mkdir()
    for place in (tmp_path, tmp_path / DEBIAN):
        found = libreoffice_help.find(str(place), SETTINGS)
        languages = ["ca-valencia", "en-GB", "en", "pt-BR"]
        assert [text.language for text in found] == languages
    assert {text.licence for text in found} == {"MPL-2.0"}


def test_the_text_of_a_language_depends_on_the_english_pages(tmp_path):
    def fingerprints():
        found = libreoffice_help.find(str(tmp_path), SETTINGS)
        return {text.language: text.sha256 for text in found}

    write(tmp_path, "en-US", {"a": [paragraph(1, "A.")]})
    write(tmp_path, "yo", {"a": [paragraph(1, "B.")]})
    before = fingerprints()
    write(tmp_path, "en-US", {"a": [paragraph(1, "C.")]})
    after = fingerprints()
    assert before["yo"] != after["yo"] and before["en"] != after["en"]


def test_pages_are_held_out_together(tmp_path):
    for language, word in (("en-US", "Page"), ("yo", "Ojú-ìwé")):
        pages = {
            f"scalc/{page:02d}": [
                paragraph(10 * page + i, f"{word} {page}, {i}.") for i in range(3)
            ]
            for page in range(60)
        }
        write(tmp_path / "help", language, pages)
    make(f"libreoffice_help:{tmp_path}/help", tmp_path / "c")
    built = Corpus(str(tmp_path / "c"))
    for language, word in (("en", "Page"), ("yo", "Ojú-ìwé")):
        for split in ("train", "eval"):
            expected = [
                [f"{word} {page}, {i}." for i in range(3)]
                for page in range(60)
                if (split_of(f"text/scalc/{page:02d}", SETTINGS) == "train")
                == (split == "train")
            ]
            assert list(built.documents(split, language)) == expected != []
    assert built.manifest["tasks"] == {}
    assert built.manifest["pairs"]["test"]["yo"] > 0


def test_links_are_not_followed(tmp_path):
    write(tmp_path, "en-US", {"a": [paragraph(1, "A.")]})
    (tmp_path / "secret.html").write_text(paragraph(7, "Secret."))
    folder = tmp_path / DEBIAN / "en-US/text"
    os.symlink(tmp_path / "secret.html", folder / "b.html")
    os.symlink(tmp_path, folder / "more")
    assert read(tmp_path, "en")[0] == [("text/a#par_id1", "A.")]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"<p id='par_id1'>\xff</p>", r"a\.html: not UTF-8 at byte 16"),
        (b"<p>" * (2 << 20), r"a\.html: more than 4 MiB, no page of the help"),
        (b"<p id='par_id1'>a\0b</p>", r"a\.html: a NUL character, no page"),
    ],
    ids=["not utf-8", "large", "nul"],
)
def test_bad_pages_are_named(tmp_path, content, message):
    write(tmp_path, "en-US", {"a": []})
    (tmp_path / DEBIAN / "en-US/text/a.html").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path, "en")


@pytest.mark.parametrize(
    "content",
    [
        "<p id='par_id1'>Open",
        "<p id='par_id1'>One<p id='par_id2'>Two</span></p></p>",
        "<p id='par_id1'><span hidden class='MAC'>Open<p id='par_id2'>Two</p>",
        "<p id='par_id" + "1" * 100 + "'>A</p><p id=\"par_id'>\">B</p>",
        "<!DOCTYPE [<!ENTITY a 'b'>]><p id='par_id1'>&a;&#xD800;&#0;</p>",
        "<![CDATA[<p id='par_id1'>A</p>",
        "<p id='par_id1' class='&#" + "1" * 5000 + ";'>A &#" + "1" * 5000 + ";</p>",
    ],
    ids=range(7),
)
def test_strange_pages_are_read_without_an_error(tmp_path, content):
    write(tmp_path, "en-US", {"a": []})
    (tmp_path / DEBIAN / "en-US/text/a.html").write_text(content)
    for _, text in read(tmp_path, "en")[0]:
        text.encode("utf-8")


def test_a_wrong_place_is_told(tmp_path):
    with pytest.raises(UserError, match="no usr/share/libreoffice/help/LANGUAGE/text"):
        libreoffice_help.find(str(tmp_path), SETTINGS)
    write(tmp_path, "de", {"a": [paragraph(1, "A.")]})
    with pytest.raises(
        UserError, match="has no en-US, which .* get libreoffice-help-en"
    ):
        libreoffice_help.find(str(tmp_path), SETTINGS)
