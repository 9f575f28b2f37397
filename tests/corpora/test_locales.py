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


@pytest.mark.parametrize(
    "codes",
    [
        # Scripts and territories are those of BCP 47.
        {"es": "es", "es_AR": "es-AR", "sr": "sr", "sr@latin": "sr-Latn"},
        {"zh_Hans": "zh-Hans", "zh_Hant": "zh-Hant"},
        # The language's own territory stands for it, unless there is a plain folder;
        # so does one without an alternative.
        {"pt_PT": "pt", "pt_BR": "pt-BR"},
        {"tr": "tr", "tr_TR": "tr-TR"},
        {"he_IL": "he", "is_IS": "is"},
    ],
)
def test_names_of_folders_become_codes(codes):
    assert language_codes(list(codes)) == codes


def test_english_variants_and_what_is_no_locale_are_left_out():
    assert language_codes(["en", "en_GB", "en_AU", "en@quot", "README"]) == {"en": "en"}
    assert language_codes(["de", "ca@ärger", "sr@a_b"]) == {"de": "de"}


def test_variants():
    assert [is_variant(x) for x in ("es-AR", "es-419", "zh-Hans", "es")] == [
        True,
        True,
        False,
        False,
    ]
    assert base_language("es-419") == "es"
    assert base_language("zh-Hans") == "zh-Hans"
