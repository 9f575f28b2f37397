"""Dumps become articles; what cannot be read is named, after all that could be."""

import bz2
import collections
import tracemalloc

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.wikipedia import dump
from decoupled.corpora.wikipedia.dump import read_articles
from tests.corpora.dumps import GERMAN, dump_xml, page, prose, write

PAGES = [page(f"Article {index}", prose(index)) for index in range(7)]


def read(path, **parts):
    dropped = collections.Counter()
    return list(read_articles(path, dropped, **parts)), dict(dropped)


def read_until_error(path):
    """Titles of the articles before the error, and the error's message."""
    titles = []
    with pytest.raises(UserError) as error:
        for article in read_articles(path, collections.Counter()):
            titles.append(article.title)
    message = str(error.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return titles, message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["a.xml", "a.xml.bz2", "a.xml.gz"])
def test_articles_have_title_and_wikitext(tmp_path, name):
    text = "A [[b|c]] & <ref>d</ref> 'e' \"f\".\n\n日本語 עברית"
    path = write(tmp_path / name, dump_xml([page("Q & A", text)]))
    assert read(path) == ([("Q & A", text)], {})


def test_pages_that_are_no_articles_are_counted(tmp_path):
    pages = [
        page("One", prose(1)),
        page("Talk:One", "Hello.", namespace=1),
        page("Two", "#REDIRECT [[One]]", redirect="One"),
        page("Drei", "#WEITERLEITUNG [[One]]"),
        page("転送", "#転送 [[One]]"),
        page("Four", ""),
        page("Five", "  \n"),
        page("Six", '{"a": 1}', model="json"),
        page("Seven", "#1 [[hit]]s of 1960 were many."),
    ]
    articles, dropped = read(write(tmp_path / "a.xml", dump_xml(pages)))
    assert [article.title for article in articles] == ["One", "Seven"]
    assert dropped == {
        "pages outside namespace 0": 1,
        "redirects": 3,
        "pages without text": 2,
        "pages that are not wikitext": 1,
    }


@pytest.mark.parametrize(
    "title, text",
    [
        ("Mercury", "'''Mercury''' may be:\n* a\n{{disambiguation|geo}}"),
        ("Mercury", "* a\n{{Hndis|name=Mercury}}"),
        ("Merkur", "* a\n{{Begriffsklärung}}"),
        ("Mercure", "{{ Homonymie }}\n* a"),
        ("Меркурий", "* a\n{{неоднозначность}}"),
        ("水星", "* a\n{{消歧义}}"),
        ("水星", "* a\n{{Aimai}}"),
        ("عطارد", "* a\n{{توضيح}}"),
        ("Mercury", "* a\n__DISAMBIG__"),
        ("Mercury (disambiguation)", "* a"),
    ],
)
def test_disambiguation_pages_are_left_out(tmp_path, title, text):
    path = write(tmp_path / "a.xml", dump_xml([page(title, text)]))
    assert read(path) == ([], {"disambiguation pages": 1})


@pytest.mark.parametrize(
    "text",
    [
        "It is near [[Mercury]]{{disambiguation needed|date=May 2020}}.",
        # What Swedish has above an article that has a disambiguation page, too.
        "{{Olika betydelser|Merkurius}}\nMerkurius är en planet.",
    ],
)
def test_links_to_disambiguation_pages_make_none(tmp_path, text):
    path = write(tmp_path / "a.xml", dump_xml([page("A", text)]))
    assert len(read(path)[0]) == 1


def test_names_of_namespaces_come_from_the_dump(tmp_path):
    text = "[[Datei:A.jpg]] [[ datei:B]] [[Kategorie:C]] [[Medium:D]] [[Dateien:E]]"
    path = write(tmp_path / "a.xml", dump_xml([page("A", text)], GERMAN))
    assert read(path)[0][0].wikitext == (
        "[[File:A.jpg]] [[File:B]] [[Category:C]] [[Media:D]] [[Dateien:E]]"
    )


@pytest.mark.parametrize("parts", [2, 3, 10])
def test_parts_together_are_the_whole(tmp_path, parts):
    pages = PAGES + [page("Talk:A", "x", namespace=1)] * 5 + [page("B", "")]
    path = write(tmp_path / "a.xml.bz2", dump_xml(pages))
    whole, whole_dropped = read(path)
    read_parts = [read(path, part=part, parts=parts) for part in range(parts)]
    dropped = sum(
        (collections.Counter(d) for _, d in read_parts), collections.Counter()
    )
    assert sorted(a for articles, _ in read_parts for a in articles) == sorted(whole)
    assert dropped == whole_dropped
    titles = {article.title for article in whole}
    assert [a.title for a in read_parts[1][0]] == [
        each.title for each in pages[1::parts] if each.title in titles
    ]


@pytest.mark.parametrize(
    "encoding, declared",
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-8-sig", "utf-8"),
        ("utf-16", ""),
        ("koi8-r", "KOI8-R"),
        ("cp1251", "windows-1251"),
    ],
)
def test_encodings(tmp_path, encoding, declared):
    text = "Это страница." if declared[:1] in "Kw" else "日本語 и עברית"
    xml = dump_xml([page("A", text)], encoding=declared)
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(xml.encode(encoding)))
    assert [article.wikitext for article in read(str(path))[0]] == [text]


@pytest.mark.parametrize("encoding", ["klingon", "zip", "idna", "gb18030", "UTF-32"])
def test_an_encoding_that_cannot_be_read_is_named(tmp_path, encoding):
    path = write(tmp_path / "a.xml", dump_xml(PAGES, encoding=encoding))
    titles, message = read_until_error(path)
    assert titles == []
    assert message.startswith(f"cannot read the encoding '{encoding}'; convert it")


@pytest.mark.parametrize(
    "encoding, declared", [("utf-8", "UTF-16"), ("utf-32", "UTF-32"), ("latin-1", "")]
)
def test_an_encoding_that_is_not_the_declared_one_is_refused(
    tmp_path, encoding, declared
):
    path = tmp_path / "a.xml"
    path.write_bytes(dump_xml([page("é", "é")], encoding=declared).encode(encoding))
    assert "cannot read the XML (" in read_until_error(str(path))[1]


def test_a_dump_without_siteinfo_and_namespaces(tmp_path):
    xml = (
        "<mediawiki><page><title>A</title><id>3</id><revision><id>1</id>"
        "<text>b</text></revision></page></mediawiki>"
    )
    assert read(write(tmp_path / "a.xml", xml))[0] == [("A", "b")]


@pytest.mark.parametrize(
    "title, article",
    [
        ("Diskussion:A", None),
        ("Diskussion: A", "Diskussion: A"),
        ("2001: A_Space_Odyssey", "2001: A Space Odyssey"),
        ("A_b", "A b"),
    ],
)
def test_a_dump_older_than_namespace_numbers(tmp_path, title, article):
    xml = dump_xml([page(title, "b")], GERMAN).replace("<ns>0</ns>", "")
    articles, dropped = read(write(tmp_path / "a.xml", xml))
    assert [each.title for each in articles] == ([article] if article else [])
    assert dropped == ({} if article else {"pages outside namespace 0": 1})


# Fields of a page

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" version="0.10">'
    "<siteinfo><sitename>Test</sitename><case>first-letter</case><namespaces>{}"
    "</namespaces></siteinfo>"
)
MODEL = "<model>wikitext</model>"
BEFORE = "<title>T</title><ns>0</ns><id>3</id>"


def revision(text="<text>hello</text>", model=MODEL, further=""):
    return (
        "<revision><id>7</id><parentid>6</parentid>"
        "<timestamp>2024-01-01T00:00:00Z</timestamp>"
        "<contributor><username>A</username><id>1</id></contributor><minor />"
        f"<comment>c</comment>{model}<format>text/x-wiki</format>{text}"
        f"<sha1>x</sha1>{further}</revision>"
    )


def with_page(before=BEFORE, revisions=None):
    """A dump with this page, then an ordinary one."""
    last = f"<page><title>End</title>{revision()}</page></mediawiki>"
    revisions = revision() if revisions is None else revisions
    return f"{HEAD.format('')}<page>{before}{revisions}</page>{last}"


def read_page(tmp_path, xml):
    """The article of the first page, or why it is none."""
    articles, dropped = read(write(tmp_path / "a.xml", xml))
    assert articles.pop().title == "End"
    return articles[0] if articles else next(iter(dropped))


@pytest.mark.parametrize(
    "before, expected",
    [
        ("<title>A &amp; B</title><ns>0</ns><id>12</id>", ("A & B", "hello")),
        ("<title>T</title><id>3</id>", ("T", "hello")),
        ("<title>T</title><ns> 0 </ns>", ("T", "hello")),
        ("<title>T</title><ns> -1 </ns><id>3</id>", dump.OTHER_NAMESPACES),
        (BEFORE + "<redirect/>", dump.REDIRECTS),
        (BEFORE + "<restrictions>edit=sysop</restrictions>", ("T", "hello")),
        (
            BEFORE + "<DiscussionThreading><ThreadSubject>a</ThreadSubject>"
            "</DiscussionThreading>",
            ("T", "hello"),
        ),
        (BEFORE.replace("title>", "mw:title>"), ("T", "hello")),
    ],
)
def test_fields_of_a_page(tmp_path, before, expected):
    assert read_page(tmp_path, with_page(before)) == expected


@pytest.mark.parametrize(
    "revisions, text",
    [
        ("", dump.NO_TEXT),
        (revision(text=""), dump.NO_TEXT),
        (revision(text='<text deleted="deleted" />'), dump.NO_TEXT),
        (revision(model="<model/>"), "hello"),
        (revision(model=""), "hello"),
        (revision(model="", further="<model>json</model>"), dump.NO_WIKITEXT),
        (revision("<text>1</text>") + revision("<text>2</text>", model=""), "2"),
        (revision() + revision(text='<text deleted="deleted" />'), dump.NO_TEXT),
        (revision() + revision(text="", model=""), dump.NO_TEXT),
        (revision() + "<upload><filename>a</filename></upload>", "hello"),
        # A further slot of a revision is not its text.
        (
            revision(
                further="<content><role>mediainfo</role><model>json</model>"
                '<text bytes="2">{}</text></content>'
            ),
            "hello",
        ),
        (revision("<text>a<!-- </page> <b> -->c</text>"), "ac"),
        (revision("<text><![CDATA[</page> <b> ]]>&amp;</text>"), "</page> <b> &"),
        (revision("<text>&#233;&#x1F600;&amp;lt; &lt;a&gt;</text>"), "é😀&lt; <a>"),
        (revision("<text>a<?php echo ?>b</text>"), "ab"),
        (revision("<text>one\r\ntwo\rthree\n</text>"), "one\ntwo\nthree\n"),
        (
            revision(f"<text>{'日本語 עברית ' * 99_999}</text>"),
            "日本語 עברית " * 99_999,
        ),
    ],
)
def test_the_text_is_what_xml_says_of_the_last_revision(tmp_path, revisions, text):
    result = read_page(tmp_path, with_page(revisions=revisions))
    assert (result if isinstance(result, str) else result.wikitext) == text


@pytest.mark.parametrize(
    "xml, said",
    [
        (with_page("<ns>0</ns><id>3</id>"), "page 1 has no title"),
        (with_page("<title/>"), "page 1 has no title"),
        (with_page("<title>T</title><ns/>"), "'' is no number"),
        (with_page(f"<title>T</title><ns>{'9' * 5000}</ns>"), "9 is no number"),
        (with_page("<title>T</title><item/>"), "unexpected element 'item' in page"),
        (with_page("<title>T</title>lost"), "unexpected text between elements"),
        (with_page(revisions=revision(further="<x/>")), "element 'x' in revision"),
        (with_page(revisions=revision("<text>a<b/></text>")), "element 'b' in text"),
        (with_page("", revision() + BEFORE), "'title' after a revision"),
        (with_page("<title>T</titel>"), "mismatched tag: line 1"),
        (with_page(revisions=revision("<text>&nbsp;</text>")), "undefined entity"),
        (with_page(revisions=revision("<text>\udcff</text>")), "invalid token"),
        (HEAD.format("<namespace>A</namespace>"), "'' is no number"),
        (HEAD.format('<namespace key="x">A</namespace>'), "'x' is no number"),
    ],
)
def test_xml_that_no_export_has_is_refused(tmp_path, xml, said):
    path = write(tmp_path / "a.xml", xml.encode("utf-8", "surrogateescape"))
    titles, message = read_until_error(path)
    assert titles == [] and said in message and len(message) < 300


# What is damaged


def test_a_truncated_bz2_gives_what_is_complete_and_says_where_it_ends(tmp_path):
    # Text that does not compress, in several blocks of bzip2.
    pages = [
        page(
            f"P{n}",
            "".join(chr(0x4E00 + (n * i * i + i) % 20000) for i in range(45000)),
        )
        for n in range(1, 9)
    ]
    data = bz2.compress(dump_xml(pages).encode(), 1)
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(data[: len(data) * 2 // 3])
    titles, message = read_until_error(str(path))
    assert (
        titles == [f"P{n}" for n in range(1, len(titles) + 1)] and 3 <= len(titles) < 8
    )
    assert (
        f"bzip2 data ends too soon, at byte {len(data) * 2 // 3} of the file" in message
    )
    assert (
        f"the last complete page is {len(titles)} ('P{len(titles)}', byte " in message
    )
    assert message.endswith("download the file again")


def test_truncated_xml_gives_the_pages_before(tmp_path):
    xml = dump_xml(PAGES)
    path = write(tmp_path / "a.xml", xml[: xml.index("Article 4</title>")])
    titles, message = read_until_error(path)
    assert titles == [f"Article {n}" for n in range(4)]
    assert message.startswith("the XML ends too soon, after ")
    assert "the last complete page is 4 ('Article 3', byte " in message


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "the file is empty"),
        (" \n ", "the file is empty"),
        ("Just text.", "cannot read the XML (syntax error: line 1, column 0)"),
        ("<html><body/></html>", "no MediaWiki export: its first element is 'html'"),
        ("<!-- a --> <feed></feed>", "no MediaWiki export: its first element is"),
        (dump_xml([]), "holds no page"),
        (dump_xml([]) * 2, "cannot read the XML (junk after document element"),
        (dump_xml(PAGES).replace("</page>", "</page><item/>"), "unexpected element"),
        (dump_xml(PAGES).replace("</page>", "</page>lost"), "unexpected text"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, content, message):
    path = write(tmp_path / "a.xml", content)
    assert read_until_error(path)[1].startswith(message)


def test_damage_in_the_page_of_another_part_is_found(tmp_path):
    path = write(tmp_path / "a.xml", dump_xml(PAGES).replace("Article 4<", "&x;<"))
    for part in range(3):
        with pytest.raises(UserError, match="the last complete page is 4 "):
            read(path, part=part, parts=3)


# What is hostile

LAUGHS = "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha"}">' for n in range(10)
)


@pytest.mark.parametrize(
    "declaration",
    [
        f"<!DOCTYPE mediawiki [{LAUGHS}]>",
        '<!DOCTYPE mediawiki [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE mediawiki SYSTEM "http://example.org/page.dtd">',
        "<!DOCTYPE html>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_and_entities_are_refused(tmp_path, declaration, encoding):
    xml = declaration + dump_xml(PAGES).replace("Article 0<", "&l9;<")
    path = tmp_path / "a.xml"
    path.write_bytes(xml.encode(encoding))
    titles, message = read_until_error(str(path))
    assert titles == []
    assert message.startswith("declares a document type or an entity")


def test_an_entity_declared_between_pages_is_refused(tmp_path):
    xml = dump_xml(PAGES).replace("</page>\n", '</page>\n<!ENTITY a "b">\n', 1)
    titles, message = read_until_error(write(tmp_path / "a.xml", xml))
    assert titles == ["Article 0"] and message.startswith("cannot read the XML (")


def test_a_page_above_the_limit_is_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "MAX_CHARACTERS", 1 << 20)
    pages = [page("A", "a"), page("Huge", "word " * (1 << 19)), page("B", "b")]
    path = write(tmp_path / "a.xml.bz2", dump_xml(pages))
    articles, dropped = read(path)
    assert [article.title for article in articles] == ["A", "B"]
    assert dropped == {dump.TOO_LARGE: 1}
    assert dump.TOO_LARGE == "pages above 16 million characters"


@pytest.mark.parametrize("further", ["<a b='c'>d</a>" * 100_000, "<a>" * 200_000])
def test_elements_that_nobody_reads_take_no_memory(tmp_path, further):
    xml = with_page(revisions=revision(further=f"<comment>{further}</comment>"))
    path = write(tmp_path / "a.xml", xml)
    tracemalloc.start()
    if "b" in further:
        assert len(read(path)[0]) == 2
    else:
        # A tree of the elements would take 20 MiB.
        assert "deeper than 16" in read_until_error(path)[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("start", ["<page a='", "<!-- ", "<page", "<?a "])
def test_a_tag_without_end_is_refused_before_it_fills_the_memory(tmp_path, start):
    xml = dump_xml(PAGES).replace("</mediawiki>", start).encode()
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(bz2.compress(xml) + bz2.compress(b"x" * (16 << 20)))
    titles, message = read_until_error(str(path))
    assert len(titles) == 7 and message.startswith("a tag of more than 8 MiB")


def test_memory_does_not_grow_with_the_dump(tmp_path):
    def peak(count):
        path = write(tmp_path / "a.xml", dump_xml([page("A", "b" * 3000)] * count))
        tracemalloc.start()
        for _ in read_articles(path, collections.Counter()):
            pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(1600) < 1.05 * peak(800)
