"""Messages become text, pairs, and a task whose test messages no training text has."""

import dataclasses

import pytest

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora.catalogs import catalog_files, from_catalogs
from decoupled.corpora.catalogs.catalog_files import message_key

SETTINGS = CorpusSettings(
    dev_share=0.2, test_share=0.3, min_label_messages=5, min_language_examples=1
)


def made_up_messages():
    """Two catalogs of 30 messages, in German whole and in Swahili the first three."""
    return [
        catalog_files.Message(
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
    return catalog_files.Message("package", catalog, "yes", {"en": "Yes", "de": "Ja"})


def test_split_is_a_function_of_the_key_alone():
    splits = [from_catalogs.split_of(f"key {i}", SETTINGS) for i in range(1000)]
    assert splits[:6] == ["test", "test", "test", "test", "train", "dev"]
    shares = [splits.count(split) / 1000 for split in ("train", "dev", "test")]
    assert shares == pytest.approx([0.5, 0.2, 0.3], abs=0.05)


def test_train_is_english_and_no_message_is_in_two_splits():
    task = from_catalogs.make_task(made_up_messages(), SETTINGS)
    assert task.labels == ["admin", "core"]
    assert {lang for split, lang in task.examples if split == "train"} == {"en"}
    splits = {
        split: {text for text, _ in task.examples[split, "en"]}
        for split in ("train", "dev", "test")
    }
    assert sum(map(len, splits.values())) == len(set().union(*splits.values())) == 60
    german = {
        text.replace("auf Deutsch ", "") for text, _ in task.examples["test", "de"]
    }
    assert german == splits["test"]


def test_shared_messages_and_small_catalogs_are_not_in_the_task():
    small = [
        catalog_files.Message("package", "small", f"small{i}", {"en": f"small {i}"})
        for i in range(4)
    ]
    other = [
        catalog_files.Message("other", "core", f"other{i}", {"en": f"other {i}"})
        for i in range(9)
    ]
    messages = [*made_up_messages(), shared("admin"), shared("core"), *small, *other]
    task = from_catalogs.make_task(messages, SETTINGS)
    assert task == from_catalogs.make_task(made_up_messages(), SETTINGS)


def test_variants_and_languages_with_few_examples_are_not_evaluated():
    messages = [
        m._replace(translations=m.translations | {"de-AT": m.translations["de"]})
        for m in made_up_messages()
    ]
    settings = dataclasses.replace(SETTINGS, min_language_examples=5)
    task = from_catalogs.make_task(messages, settings)
    assert {language for _, language in task.examples} == {"en", "de"}


def test_eval_text_is_the_held_out_messages_and_never_in_train():
    messages = [*made_up_messages(), shared("admin"), shared("core")]
    task = from_catalogs.make_task(messages, SETTINGS)
    text = from_catalogs.make_text(messages, SETTINGS)
    for language in ("en", "de"):
        examples = task.examples["dev", language] + task.examples["test", language]
        assert sorted(text["eval"][language]) == sorted(text for text, _ in examples)
        assert not set(text["eval"][language]) & set(text["train"][language])
    # A message of two catalogs is ambiguous as an example, but is text once.
    assert text["train"]["de"].count("Ja") == 1


# As it is, and with full-width letters, which a vocabulary does not distinguish.
@pytest.mark.parametrize("first_letter", ["a", "\uff41"])
def test_a_translation_that_is_also_held_out_is_not_in_train(first_letter):
    messages = made_up_messages()
    task = from_catalogs.make_task(messages, SETTINGS)
    letters = {ord("a") + number: ord(first_letter) + number for number in range(26)}
    held_out = task.examples["test", "de"][0][0].translate(letters)
    twin = catalog_files.Message("package", "x", "twin", {"en": "Twin", "de": held_out})
    text = from_catalogs.make_text([*messages, twin], SETTINGS)
    assert held_out not in text["train"]["de"]
    assert "Twin" in text["train"]["en"]


def test_a_task_needs_two_labels():
    messages = [m for m in made_up_messages() if m.catalog == "core"]
    with pytest.raises(UserError, match="lower min_label_messages or add packages"):
        from_catalogs.make_task(messages, SETTINGS)


def test_django_task_is_held_out_in_every_language(django):
    task = from_catalogs.make_task(django.messages, CorpusSettings())
    text = from_catalogs.make_text(django.messages, CorpusSettings())
    assert task.labels == ["admin", "admindocs", "auth", "core", "humanize"]
    assert len(task.examples["train", "en"]) > 400
    tested = [language for split, language in task.examples if split == "test"]
    assert len(tested) > 70 and {"en", "ar", "de", "hi", "ja", "th"} <= set(tested)
    assert ("Delete multiple objects", "admin") in task.examples["train", "en"]
    for language in tested:
        train = {message_key(sentence) for sentence in text["train"][language]}
        for split in ("dev", "test"):
            examples = task.examples[split, language]
            assert not train & {message_key(text) for text, _ in examples}
