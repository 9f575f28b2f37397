"""Names of locale folders become language codes."""

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.locales import (
    base_language,
    check_language,
    is_variant,
    language_codes,
)


@pytest.mark.parametrize(
    "code",
    ["en", "simple", "zh-Hant", "zh_TW", "es-419", "be-tarask", "sr@latin", "x1-y_z"],
)
def test_a_code_has_letters_and_digits_with_single_signs_between(code):
    check_language(code, "--input")


@pytest.mark.parametrize(
    "code",
    ["", ".", "..", "../..", "a/b", "a\\b", "-en", "en-", "zh--TW", "zh__TW", "@", "1a"]
    + ["en ", "en\n", "e\x00n", "日本", "en.", "a" * 65, None, 7, ["en"]],
)
def test_anything_else_is_refused_in_one_line(code):
    with pytest.raises(UserError) as caught:
        check_language(code, "m.json")
    assert str(caught.value).startswith(f"m.json: {code!r} is no language code")
    assert "\n" not in str(caught.value)


def test_scripts_and_territories_are_bcp_47():
    folders = ["de", "es", "es_AR", "sr", "sr@latin", "zh_Hans", "zh_Hant"]
    assert language_codes(folders) == {
        "de": "de",
        "es": "es",
        "es_AR": "es-AR",
        "sr": "sr",
        "sr@latin": "sr-Latn",
        "zh_Hans": "zh-Hans",
        "zh_Hant": "zh-Hant",
    }


def test_english_variants_and_other_folders_are_left_out():
    assert language_codes(["en", "en_GB", "en_AU", "en@quot", "README"]) == {"en": "en"}


def test_a_modifier_that_no_code_may_have_is_no_locale():
    assert language_codes(["de", "ca@ärger", "sr@a_b"]) == {"de": "de"}


def test_a_territory_without_alternative_says_nothing():
    assert language_codes(["he_IL", "is_IS"]) == {"he_IL": "he", "is_IS": "is"}


def test_the_languages_own_territory_stands_for_it():
    assert language_codes(["pt_PT", "pt_BR"]) == {"pt_PT": "pt", "pt_BR": "pt-BR"}


def test_the_plain_folder_wins():
    assert language_codes(["tr", "tr_TR"]) == {"tr": "tr", "tr_TR": "tr-TR"}


def test_variants():
    assert [is_variant(x) for x in ("es-AR", "es-419", "zh-Hans", "es")] == [
        True,
        True,
        False,
        False,
    ]
    assert base_language("es-419") == "es"
    assert base_language("zh-Hans") == "zh-Hans"
