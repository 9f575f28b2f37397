"""What tests of vocabularies share: real text, read once."""

import pytest


@pytest.fixture(scope="session")
def sentences():
    """Messages of the Django catalogs in eleven languages."""
    pytest.importorskip("django", reason="needs the [demo] extra")
    from decoupled.corpora.catalogs.catalog_files import read_catalogs

    languages = ("en", "de", "fr", "ru", "ar", "hi", "th", "zh-Hans", "ja", "ko", "vi")
    return [
        message.translations[language]
        for message in read_catalogs(["django"]).messages
        for language in languages
        if language in message.translations
    ]
