"""Fields of a page as the export format defines them; the rest skipped or refused."""

import tracemalloc

import pytest

from decoupled.corpora.wikipedia.dump_pages import (
    BadXml,
    PageFields,
    parse_namespaces,
    parse_page,
)

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" version="0.10">'
    "<siteinfo><sitename>Test</sitename><case>first-letter</case><namespaces>{}"
    "</namespaces></siteinfo>"
)
MODEL = "<model>wikitext</model>"


def revision(text="<text>hello</text>", model=MODEL, further=""):
    return (
        "<revision><id>7</id><parentid>6</parentid>"
        "<timestamp>2024-01-01T00:00:00Z</timestamp>"
        "<contributor><username>A</username><id>1</id></contributor><minor />"
        f"<comment>c</comment>{model}<format>text/x-wiki</format>{text}"
        f"<sha1>x</sha1>{further}</revision>"
    )


def page(before="<title>T</title><ns>0</ns><id>3</id>", revisions=None):
    return f"<page>{before}{revision() if revisions is None else revisions}</page>"


def parse(xml):
    return parse_page(xml.encode("utf-8"))


def test_all_fields():
    before = "<title>A &amp; B</title><ns>4</ns><id>12</id><redirect title='C' />"
    found = parse(page(before))
    assert found == PageFields("A & B", 4, 12, True, "hello", "wikitext")


@pytest.mark.parametrize(
    "before, expected",
    [
        ("<title>T</title><id>3</id>", (None, 3, False)),
        ("<title>T</title><ns>0</ns>", (0, None, False)),
        ("<title>T</title><ns> -1 </ns><id>3</id>", (-1, 3, False)),
        ("<title>T</title><id>3</id><redirect/>", (None, 3, True)),
        (
            "<title>T</title><id>3</id><restrictions>edit=sysop</restrictions>",
            (None, 3, False),
        ),
        (
            "<title>T</title><DiscussionThreading><ThreadSubject>a</ThreadSubject>"
            "</DiscussionThreading>",
            (None, None, False),
        ),
    ],
)
def test_fields_that_a_page_may_lack(before, expected):
    found = parse(page(before))
    assert (found.namespace, found.page_id, found.is_redirect) == expected
    assert (found.title, found.text) == ("T", "hello")


@pytest.mark.parametrize(
    "revisions, text, model",
    [
        ("", None, None),
        (revision(text=""), None, "wikitext"),
        (revision(text='<text deleted="deleted" />'), None, "wikitext"),
        (revision(text="<text></text>", model="<model/>"), None, None),
        (revision(model=""), "hello", None),
        (revision(model="", further="<model>json</model>"), "hello", "json"),
        (
            revision("<text>1</text>") + revision("<text>2</text>", model=""),
            "2",
            None,
        ),
        (revision() + revision(text='<text deleted="deleted" />'), None, "wikitext"),
        (revision() + revision(text="", model=""), None, None),
        (revision() + "<upload><filename>a</filename></upload>", "hello", "wikitext"),
    ],
)
def test_text_and_model_are_those_of_the_last_revision(revisions, text, model):
    found = parse(page(revisions=revisions))
    assert (found.text, found.model) == (text, model)


def test_further_slots_of_a_revision_are_not_its_text():
    slot = (
        "<content><role>mediainfo</role><origin>1</origin><model>json</model>"
        '<format>f</format><text bytes="2" sha1="b">{}</text></content>'
    )
    found = parse(page(revisions=revision(further=slot)))
    assert (found.text, found.model) == ("hello", "wikitext")


@pytest.mark.parametrize(
    "xml, text",
    [
        ("a<!-- <b> -->c", "ac"),
        ("<![CDATA[<page> ]]>&amp;", "<page> &"),
        ("&#233;&#x1F600;&amp;lt; &lt;ref&gt;", "é😀&lt; <ref>"),
        ("a<?php echo ?>b", "ab"),
        ("one\r\ntwo\rthree\n", "one\ntwo\nthree\n"),
        ("日本語 עברית " * 20_000, "日本語 עברית " * 20_000),
    ],
)
def test_text_is_what_xml_says(xml, text):
    assert parse(page(revisions=revision(f"<text>{xml}</text>"))).text == text


def test_names_may_have_a_prefix_or_a_namespace():
    xml = page().replace("title>", "mw:title>")
    assert parse(xml).title == "T"
    uri = "http://www.mediawiki.org/xml/export-0.11/"
    assert parse(page().replace("<page>", f'<page xmlns="{uri}">')).title == "T"


@pytest.mark.parametrize(
    "xml, told",
    [
        (page("<ns>0</ns><id>3</id>"), "the page has no title"),
        (page("<title/>"), "the page has no title"),
        (page("<title>T</title><ns/>"), "invalid literal for int"),
        (page("<title>T</title><id>three</id>"), "invalid literal for int"),
        (page(f"<title>T</title><id>{'9' * 5000}</id>"), "Exceeds the limit"),
        (page("<title>T</title><item/>"), "unexpected element 'item' in page"),
        (page(revisions=revision(further="<x/>")), "element 'x' in revision"),
        (page(revisions=revision("<text>a<b>c</b></text>")), "element 'b' in text"),
        (page("<title>a<b/></title>"), "unexpected element 'b' in title"),
        (page("", revision() + "<title>T</title>"), "'title' after a revision"),
        (page("<title>T</titel>"), "mismatched tag: line 1"),
        (page(revisions=revision("<text>&nbsp;</text>")), "undefined entity"),
        (page(revisions=revision("<text>&#0;</text>")), "invalid character number"),
        (page(revisions=revision("<text>\x02</text>")), "invalid token"),
        (page() + page(), "junk after document element"),
        ("<title>T</title>", "unexpected element 'title' in the dump"),
        ("", "no element found"),
    ],
)
def test_what_is_no_page_is_refused(xml, told):
    with pytest.raises(BadXml, match=told) as caught:
        parse(xml)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_text_that_is_not_utf_8_is_refused():
    content = page(revisions=revision("<text>\udcff</text>"))
    with pytest.raises(BadXml, match="invalid token"):
        parse_page(content.encode("utf-8", "surrogateescape"))


LAUGHS = "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha"}">' for n in range(10)
)


@pytest.mark.parametrize(
    "declaration",
    [
        f"<!DOCTYPE page [{LAUGHS}]>",
        '<!DOCTYPE page [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE page SYSTEM "http://example.org/page.dtd">',
        "<!DOCTYPE page>",
    ],
)
def test_document_types_are_refused_before_an_entity_is_declared(declaration):
    xml = page(revisions=revision("<text>&l9;</text>"))
    with pytest.raises(BadXml, match="declares a document type or an entity"):
        parse(declaration + xml)
    with pytest.raises(BadXml, match="declares a document type or an entity"):
        parse_namespaces((declaration + HEAD.format("")).encode())
    # Inside an element no declaration is XML.
    with pytest.raises(BadXml, match="not well-formed"):
        parse(xml.replace("<page>", f"<page>{declaration}"))


def test_elements_in_each_other_take_no_memory():
    xml = "<comment>" + "<a>" * 200_000 + "</a>" * 200_000 + "</comment>"
    # A piece of the XML, where a tree of the elements would take 20 MiB.
    assert peak_of(xml, refused="deeper than 16") < 2 << 20


def test_elements_that_nobody_reads_take_no_memory():
    xml = "<comment>" + "<a b='c'>d</a>" * 100_000 + "</comment>"
    assert peak_of(xml) < 2 << 20


def peak_of(further, refused=None):
    content = page(revisions=revision(further=further)).encode()
    tracemalloc.start()
    try:
        if refused:
            with pytest.raises(BadXml, match=refused):
                parse_page(content)
        else:
            assert parse_page(content).text == "hello"
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_names_and_numbers_of_namespaces():
    names = (
        '<namespace key="-2" case="first-letter">Medium</namespace>'
        '<namespace key="0" case="first-letter" />'
        '<namespace key="6" case="first-letter">Datei &amp; Bild</namespace>'
    )
    found = parse_namespaces(HEAD.format(names).encode())
    assert found == {"Medium": -2, "": 0, "Datei & Bild": 6}
    assert parse_namespaces(b"<mediawiki>") == {}


@pytest.mark.parametrize(
    "names, told",
    [
        ("<namespace>A</namespace>", "a namespace has no key"),
        ('<namespace key="x">A</namespace>', "invalid literal for int"),
        ('<namespace key="1">&x;</namespace>', "undefined entity"),
        ("</siteinfo>", "mismatched tag"),
    ],
)
def test_a_damaged_head_is_refused(names, told):
    with pytest.raises(BadXml, match=told):
        parse_namespaces(HEAD.format(names).encode())
