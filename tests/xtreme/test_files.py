"""Which languages the names of files tell."""

from decoupled.corpora import locales
from decoupled.xtreme.files import is_language, languages_of


def test_languages_of_a_folder(tmp_path):
    names = (
        "test-sw.tsv test-zh-TW.tsv test-zh_Hant.tsv dev-de.tsv test-.tsv test-e.tsv"
    )
    for name in [*names.split(), "test-sw.tsv.bak", "TEST-fr.tsv", "test-a.b.tsv"]:
        (tmp_path / name).write_text("")
    found = languages_of(str(tmp_path), "test-{language}.tsv")
    assert found == ["sw", "zh-TW", "zh_Hant"]
    both = languages_of(str(tmp_path), "test-{language}.tsv", "dev-{language}.tsv")
    assert both == ["de", "sw", "zh-TW", "zh_Hant"]


def test_a_language_that_stands_twice_is_the_same(tmp_path):
    (tmp_path / "test").mkdir()
    for name in ("context-hi-question-hi.json", "context-hi-question-de.json"):
        (tmp_path / "test" / name).write_text("")
    template = "test/context-{language}-question-{language}.json"
    assert languages_of(str(tmp_path), template) == ["hi"]
    assert languages_of(str(tmp_path), "test/{name}.json", "none/{language}") == []


def test_what_may_be_a_language():
    assert all(map(is_language, ["sw", "ceb", "zh-TW", "sr_Latn_RS"]))
    # All of them are codes that a corpus accepts, which accepts more.
    for name in ("sw", "ceb", "zh-TW", "sr_Latn_RS", "v2", "b", "sr@latin"):
        locales.check_language(name, "test")
    assert not any(map(is_language, ["v2", "b", "sr@latin"]))
    assert not any(map(is_language, ["", "s", "../sw", "sw/", "s.w", "sw-", "zh--TW"]))
