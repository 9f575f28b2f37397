"""What tests of vocabularies share: real text, read once."""

import pytest


@pytest.fixture(scope="session")
def sentences(django):
    """Messages of the Django catalogs in eleven languages."""
    languages = ("en", "de", "fr", "ru", "ar", "hi", "th", "zh-Hans", "ja", "ko", "vi")
    return [
        message.translations[language]
        for message in django.messages
        for language in languages
        if language in message.translations
    ]
