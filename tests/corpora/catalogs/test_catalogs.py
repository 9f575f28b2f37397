"""Catalogs of installed packages become messages, text, pairs and a task."""

import itertools
import sys

import pytest

from decoupled.configs.corpora import TaskSettings
from decoupled.core.errors import UserError
from decoupled.corpora.catalogs import catalog_task, catalogs
from decoupled.corpora.catalogs.catalog_task import Example
from decoupled.corpora.catalogs.message_text import message_key

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
    """A function that installs a package with the given .po files; returns its name."""

    def make(po_files):
        # A new name each time: the import system remembers packages.
        name = f"fake_package_{next(_PACKAGE_NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
        for place, content in po_files.items():
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
        {
            "locale/de/LC_MESSAGES/django.po": entry("Delete", "Löschen"),
            "locale/zh_Hans/LC_MESSAGES/django.po": entry("Delete", "删除"),
        }
    )
    message = catalogs.Message(
        name, "core", "delete", {"en": "Delete", "de": "Löschen", "zh-Hans": "删除"}
    )
    assert catalogs.read_catalogs([name]) == ([message], {})


def test_skips_fuzzy_obsolete_and_untranslated(package, capfd):
    content = (
        entry("Fuzzy message", "Ungenau", flags="fuzzy")
        + entry("Not translated", "")
        + entry("%(only)s %(placeholders)s", "%(only)s")
        + '#~ msgid "Obsolete"\n#~ msgstr "Überholt"\n'
    )
    name = package({"locale/de/LC_MESSAGES/django.po": content})
    read = catalogs.read_catalogs([name])
    assert translations(read) == {
        "Fuzzy message": {"en": "Fuzzy message"},
        "Not translated": {"en": "Not translated"},
    }
    assert read.dropped == {
        "fuzzy": 1,
        "no text": 1,
        "obsolete": 1,
        "untranslated": 1,
    }
    assert capfd.readouterr() == ("", "")


def test_a_plural_entry_gives_its_general_form(package, capfd):
    forms = ["%d plik", "%d pliki", "%d plików"]
    content = entry("%d file", forms, plural="%d files")
    name = package({"locale/pl/LC_MESSAGES/django.po": content})
    assert translations(catalogs.read_catalogs([name])) == {
        "… files": {"en": "… files", "pl": "… plików"}
    }
    # More forms than the header declares: some PO readers print warnings.
    assert capfd.readouterr() == ("", "")


def test_drops_copies_of_english_and_of_the_base_language(package):
    name = package(
        {
            "locale/es/LC_MESSAGES/django.po": entry("Server", "Server")
            + entry("Car", "Coche")
            + entry("Save", "Guardar"),
            "locale/es_AR/LC_MESSAGES/django.po": entry("Car", "Auto")
            + entry("Save", "Guardar"),
            "locale/en_GB/LC_MESSAGES/django.po": entry("Car", "Motor car"),
        }
    )
    read = catalogs.read_catalogs([name])
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
    found = [
        (m.catalog, m.translations["en"]) for m in catalogs.read_catalogs([name])[0]
    ]
    assert found == [
        ("admin", "Two"),
        ("admin", "One"),
        ("admin", "Three"),
        ("core", "Four"),
    ]


def test_unknown_package_is_named():
    with pytest.raises(UserError, match="catalogs:no_such_package: no such package"):
        catalogs.read_catalogs(["no_such_package"])


def test_package_without_catalogs_is_named(package):
    name = package({})
    with pytest.raises(UserError, match=f"catalogs:{name}: no LC_MESSAGES"):
        catalogs.read_catalogs([name])


def test_damaged_catalog_is_named_with_its_line(package):
    name = package({"locale/de/LC_MESSAGES/django.po": "Delete = Löschen\n"})
    with pytest.raises(UserError, match=r"\.po: not a gettext catalog \(line 4\)"):
        catalogs.read_catalogs([name])


def test_fingerprint_changes_with_the_content(package):
    one = package({"locale/de/LC_MESSAGES/django.po": entry("One", "Eins")})
    other = package({"locale/de/LC_MESSAGES/django.po": entry("One", "Ein")})
    prints = catalogs.fingerprint_catalogs([one, other])
    assert prints[one] != prints[other]
    assert prints == catalogs.fingerprint_catalogs([one, other])


SETTINGS = TaskSettings(
    dev_share=0.2, test_share=0.3, min_label_messages=5, min_language_examples=1
)


def made_up_messages():
    """Two catalogs of 30 messages, in German whole and in Swahili the first three."""
    return [
        catalogs.Message(
            "package",
            catalog,
            f"{catalog}{i}",
            {"en": f"{catalog} {i}", "de": f"{catalog} auf Deutsch {i}"}
            | ({"sw": f"{catalog} kwa Kiswahili {i}"} if i < 3 else {}),
        )
        for catalog in ("admin", "core")
        for i in range(30)
    ]


def shared(catalog):
    return catalogs.Message("package", catalog, "yes", {"en": "Yes", "de": "Ja"})


def test_split_is_a_function_of_the_key_alone():
    splits = [catalog_task.split_of(f"key {i}", SETTINGS) for i in range(1000)]
    assert splits[:6] == ["test", "test", "test", "test", "train", "dev"]
    shares = [splits.count(split) / 1000 for split in ("train", "dev", "test")]
    assert shares == pytest.approx([0.5, 0.2, 0.3], abs=0.05)


def test_train_is_english_and_no_message_is_in_two_splits():
    task = catalog_task.make_task(made_up_messages(), SETTINGS)
    assert task.labels == ["admin", "core"]
    assert {lang for split, lang in task.examples if split == "train"} == {"en"}
    splits = {
        split: {e.text for e in task.examples[split, "en"]}
        for split in ("train", "dev", "test")
    }
    assert sum(map(len, splits.values())) == len(set().union(*splits.values())) == 60
    german = {e.text.replace("auf Deutsch ", "") for e in task.examples["test", "de"]}
    assert german == splits["test"]


def test_shared_messages_and_small_catalogs_are_not_in_the_task():
    small = [
        catalogs.Message("package", "small", f"small{i}", {"en": f"small {i}"})
        for i in range(4)
    ]
    other = [
        catalogs.Message("other", "core", f"other{i}", {"en": f"other {i}"})
        for i in range(9)
    ]
    messages = [*made_up_messages(), shared("admin"), shared("core"), *small, *other]
    task = catalog_task.make_task(messages, SETTINGS)
    assert task == catalog_task.make_task(made_up_messages(), SETTINGS)


def test_variants_and_languages_with_few_examples_are_not_evaluated():
    messages = [
        m._replace(translations=m.translations | {"de-AT": m.translations["de"]})
        for m in made_up_messages()
    ]
    settings = TaskSettings(0.2, 0.3, 5, min_language_examples=5)
    task = catalog_task.make_task(messages, settings)
    assert {language for _, language in task.examples} == {"en", "de"}


def test_eval_text_is_the_held_out_messages_and_never_in_train():
    messages = [*made_up_messages(), shared("admin"), shared("core")]
    task = catalog_task.make_task(messages, SETTINGS)
    text = catalog_task.make_text(messages, SETTINGS)
    for language in ("en", "de"):
        examples = task.examples["dev", language] + task.examples["test", language]
        assert sorted(text["eval"][language]) == sorted(e.text for e in examples)
        assert not set(text["eval"][language]) & set(text["train"][language])
    # A message of two catalogs is ambiguous as an example, but is text once.
    assert text["train"]["de"].count("Ja") == 1


def test_a_translation_that_is_also_held_out_is_not_in_train():
    messages = made_up_messages()
    task = catalog_task.make_task(messages, SETTINGS)
    held_out = task.examples["test", "de"][0].text
    twin = catalogs.Message("package", "x", "twin", {"en": "Twin", "de": held_out})
    text = catalog_task.make_text([*messages, twin], SETTINGS)
    assert held_out not in text["train"]["de"]
    assert "Twin" in text["train"]["en"]


def test_pairs_are_the_held_out_messages():
    messages = made_up_messages()
    pairs = catalog_task.make_pairs(messages, SETTINGS)
    english = catalog_task.make_text(messages, SETTINGS)["eval"]["en"]
    assert [pair[1] for pair in pairs["de"]] == english
    assert all(de.replace("auf Deutsch ", "") == en for de, en in pairs["de"])


def test_a_task_needs_two_labels():
    messages = [m for m in made_up_messages() if m.catalog == "core"]
    with pytest.raises(UserError, match="lower min_label_messages or add packages"):
        catalog_task.make_task(messages, SETTINGS)


@pytest.mark.parametrize("shares", [(0.0, 0.2), (0.5, 0.5), (0.2, -0.1)])
def test_impossible_shares(shares):
    with pytest.raises(UserError, match="dev_share"):
        TaskSettings(*shares, min_label_messages=1, min_language_examples=1)


DJANGO_SETTINGS = TaskSettings(0.1, 0.2, 30, 20)


@pytest.fixture(scope="module")
def django():
    pytest.importorskip("django", reason="needs the [demo] extra")
    return catalogs.read_catalogs(["django"])


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


def test_django_task_is_held_out_in_every_language(django):
    task = catalog_task.make_task(django.messages, DJANGO_SETTINGS)
    text = catalog_task.make_text(django.messages, DJANGO_SETTINGS)
    assert task.labels == ["admin", "admindocs", "auth", "core", "humanize"]
    assert len(task.examples["train", "en"]) > 400
    tested = [language for split, language in task.examples if split == "test"]
    assert len(tested) > 70 and {"en", "ar", "de", "hi", "ja", "th"} <= set(tested)
    assert Example("Delete multiple objects", "admin") in task.examples["train", "en"]
    for language in tested:
        train = {message_key(sentence) for sentence in text["train"][language]}
        for split in ("dev", "test"):
            examples = task.examples[split, language]
            assert not train & {message_key(example.text) for example in examples}


@pytest.mark.parametrize("module, extra", [("polib", "data"), ("django", "demo")])
def test_what_is_missing_is_told_with_its_extra(monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{module} is not .*'decoupled\[{extra}\]'"):
        catalogs.check_installed(["django"])
