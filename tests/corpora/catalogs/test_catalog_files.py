"""Catalogs of installed packages become messages, and messages plain text."""

import itertools
import sys
import time

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.catalogs import catalog_files
from decoupled.corpora.catalogs.catalog_files import clean_message, message_key

HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
_PACKAGE_NUMBERS = itertools.count()


def entry(english, translation, flags="", plural=None):
    """One entry of a .po file; translations of a plural entry are a list."""
    lines = [f"#, {flags}"] if flags else []
    lines.append(f'msgid "{english}"')
    if plural:
        lines.append(f'msgid_plural "{plural}"')
        lines += [f'msgstr[{i}] "{text}"' for i, text in enumerate(translation)]
    else:
        lines.append(f'msgstr "{translation}"')
    return "\n".join(lines) + "\n\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs a package with .po files, each named by its place or its
    language; returns the package's name."""

    def make(po_files):
        # A new name each time: the import system remembers packages.
        name = f"fake_package_{next(_PACKAGE_NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
        for place, content in po_files.items():
            if "/" not in place:
                place = f"locale/{place}/LC_MESSAGES/django.po"
            path = tmp_path / name / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEADER + content, encoding="utf-8")
        return name

    monkeypatch.syspath_prepend(tmp_path)
    return make


def translations(read):
    return {m.translations["en"]: m.translations for m in read.messages}


def test_reads_translations_by_language(package):
    name = package(
        {"de": entry("Delete", "Löschen"), "zh_Hans": entry("Delete", "删除")}
    )
    message = catalog_files.Message(
        name, "core", "delete", {"en": "Delete", "de": "Löschen", "zh-Hans": "删除"}
    )
    assert catalog_files.read_catalogs([name]) == ([message], {})


def test_skips_fuzzy_obsolete_and_untranslated(package, capfd):
    content = (
        entry("Fuzzy message", "Ungenau", flags="fuzzy")
        + entry("Not translated", "")
        + entry("%(only)s %(placeholders)s", "%(only)s")
        + '#~ msgid "Obsolete"\n#~ msgstr "Überholt"\n'
    )
    name = package({"de": content})
    read = catalog_files.read_catalogs([name])
    assert translations(read) == {
        "Fuzzy message": {"en": "Fuzzy message"},
        "Not translated": {"en": "Not translated"},
    }
    assert read.dropped == {"fuzzy": 1, "no text": 1, "obsolete": 1, "untranslated": 1}
    assert capfd.readouterr() == ("", "")


def test_a_plural_entry_gives_its_general_form(package, capfd):
    forms = ["%d plik", "%d pliki", "%d plików"]
    content = entry("%d file", forms, plural="%d files")
    name = package({"pl": content})
    assert translations(catalog_files.read_catalogs([name])) == {
        "… files": {"en": "… files", "pl": "… plików"}
    }
    # More forms than the header declares: some PO readers print warnings.
    assert capfd.readouterr() == ("", "")


def test_drops_copies_of_english_and_of_the_base_language(package):
    name = package(
        {
            "es": entry("Server", "Server")
            + entry("Car", "Coche")
            + entry("Save", "Guardar"),
            "es_AR": entry("Car", "Auto") + entry("Save", "Guardar"),
            "en_GB": entry("Car", "Motor car"),
        }
    )
    read = catalog_files.read_catalogs([name])
    assert translations(read) == {
        "Server": {"en": "Server"},
        "Car": {"en": "Car", "es": "Coche", "es-AR": "Auto"},
        "Save": {"en": "Save", "es": "Guardar"},
    }
    assert read.dropped == {"same as English": 1, "same as the base language": 1}


def test_all_files_of_an_application_are_one_catalog_in_english_order(package):
    name = package(
        {
            "contrib/admin/locale/de/LC_MESSAGES/djangojs.po": entry("Three", "Drei"),
            "contrib/admin/locale/de/LC_MESSAGES/django.po": entry("One", "Eins"),
            "contrib/admin/locale/en/LC_MESSAGES/django.po": entry("Two", "")
            + entry("One", ""),
            "conf/locale/de/LC_MESSAGES/django.po": entry("Four", "Vier"),
        }
    )
    result = [
        (m.catalog, m.translations["en"])
        for m in catalog_files.read_catalogs([name])[0]
    ]
    assert result == [
        ("admin", "Two"),
        ("admin", "One"),
        ("admin", "Three"),
        ("core", "Four"),
    ]


@pytest.mark.parametrize(
    "po_files, message",
    [
        ({}, "no LC_MESSAGES"),
        ({"de": "Delete = Löschen\n"}, r"\.po: not a gettext catalog \(line 4\)"),
        ({"de": entry("One", "E\0ins")}, "django.po: not a gettext catalog .a NUL"),
    ],
)
def test_a_package_whose_catalogs_cannot_be_read_is_named(package, po_files, message):
    name = package(po_files)
    with pytest.raises(UserError, match=message):
        catalog_files.read_catalogs([name])
    with pytest.raises(UserError, match="catalogs:no_such_package: no such package"):
        catalog_files.read_catalogs(["no_such_package"])


def test_lines_end_at_line_feeds_only(package):
    content = entry("One file", "Eine\u2028Datei\x85mit\x0bLinien")
    name = package({"de": content})
    read = translations(catalog_files.read_catalogs([name]))
    assert read["One file"]["de"] == "Eine Datei mit Linien"


def test_a_byte_order_mark_is_skipped(package, tmp_path):
    name = package({"de": entry("One file", "Eins hier")})
    path = tmp_path / name / "locale/de/LC_MESSAGES/django.po"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    read = translations(catalog_files.read_catalogs([name]))
    assert read == {"One file": {"en": "One file", "de": "Eins hier"}}


def test_a_catalog_that_is_a_path_opens_no_other_file(package, tmp_path):
    other = tmp_path / "other.po"
    other.write_text(HEADER + entry("Secret", "Geheim"))
    name = package({"de": entry("One", "Eins")})
    path = tmp_path / name / "locale/de/LC_MESSAGES/django.po"
    path.write_text(str(other))
    with pytest.raises(UserError, match="django.po: not a gettext catalog .line 1"):
        catalog_files.read_catalogs([name])


def test_fingerprint_changes_with_the_content(package):
    one = package({"de": entry("One", "Eins")})
    other = package({"de": entry("One", "Ein")})
    prints = catalog_files.fingerprint_catalogs([one, other])
    assert prints[one] != prints[other]
    assert prints == catalog_files.fingerprint_catalogs([one, other])


@pytest.mark.parametrize("module, extra", [("polib", "data"), ("django", "demo")])
def test_what_is_missing_is_reported_with_its_extra(monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{module} is not .*'decoupled\[{extra}\]'"):
        catalog_files.check_installed(["django"])


@pytest.mark.parametrize(
    "message, text",
    [
        ("Cannot delete %(name)s", "Cannot delete …"),
        ("“%(value)s” value must be %(type)r.", "“…” value must be …."),
        ("%d of %d selected", "… of … selected"),
        ("%1$s sent %2$s a file", "… sent … a file"),
        ("%(size)d byte", "… byte"),
        ("%(number)s. päivä", "…. päivä"),
        ("{name} by {0} on {{ date }}", "… by … on …"),
        ("{% if x %}Shown{% endif %} here", "…Shown… here"),
        ("%(a)s %(b)s has text", "… has text"),
        ("100%% of 20% taken", "100% of 20% taken"),
        ('Log <a href="%(url)s">in</a>.<br>Please', "Log in. Please"),
        ("Save &amp; close&nbsp;it", "Save & close it"),
        ("a &lt; b, 1 < 2 or more", "a < b, 1 < 2 or more"),
        ("&File _Edit AT&T user_id", "File Edit AT&T user_id"),
        ("文件(&F)", "文件"),
        ("  two\n lines\t", "two lines"),
        ("是", "是"),
    ],
)
def test_cleans(message, text):
    assert clean_message(message) == text


@pytest.mark.parametrize(
    "message", ["", "%(name)s", "%s: %s", "…", "12:30", "M", "<br>", 'broken {"a": {}']
)
def test_drops_what_is_not_legible(message):
    assert clean_message(message) == ""


def test_a_key_ignores_case_space_and_punctuation_and_keeps_vowel_signs():
    assert message_key("Yes, Delete!") == message_key("yes delete") == "yesdelete"
    assert message_key("कि") != message_key("की")


def test_django_has_much_text_in_many_scripts(django):
    messages = {m.translations["en"]: m.translations for m in django.messages}
    assert len(messages) > 800
    assert len({x for m in django.messages for x in m.translations}) > 90
    assert sum(len(m.translations) for m in django.messages) > 50_000
    assert messages["Enter a number."]["de"] == "Bitte eine Zahl eingeben."
    assert messages["Enter a number."]["ja"] == "数値を入力してください。"
    assert messages["Cannot delete …"]["fr"] == "Impossible de supprimer …"


def test_django_text_is_clean(django):
    texts = [text for m in django.messages for text in m.translations.values()]
    for mark in ("%(", "%s", "{", "<a ", "&quot;", "&nbsp;", "\n", "\t", "  "):
        assert not [text for text in texts if mark in text], mark


@pytest.mark.parametrize("unit", ["{%", "<!--", "<br ", "%1111", "&#x1", "% ( a"])
def test_the_time_does_not_grow_with_the_square_of_a_message(unit):
    begun = time.process_time()
    clean_message("One " + unit * (60_000 // len(unit)) + " two")
    # It was a minute for the first two.
    assert time.process_time() - begun < 4


def test_a_reference_of_thousands_of_digits_is_no_character():
    assert clean_message("One &#" + "1" * 5000 + ";two") == "One \ufffdtwo"
