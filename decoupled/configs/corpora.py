"""Settings of corpora and vocabularies."""

import dataclasses
import re
from typing import Any

from decoupled.configs.checks import (
    Settings,
    bound,
    check_not_negative,
    check_positive,
    check_rates,
    configurable,
    unused_settings,
    where,
)
from decoupled.configs.data import SamplingConfig, VocabularyConfig
from decoupled.core.errors import UserError

# The settings of `build_corpus` that are for catalogs alone.
_CATALOG_SETTINGS = ("dev_share", "test_share")
_CATALOG_SETTINGS += ("min_label_messages", "min_language_examples")
# The normalisation of the vocabularies that `build_vocabulary` trains; texts that it
# makes equal are one text of a corpus.
NORMALIZATION = "nmt_nfkc"


@configurable()
@dataclasses.dataclass(frozen=True)
class ParallelTextConfig(Settings):
    """What is held out of parallel text, and what is made of it.

    dev_share, test_share: shares of the groups (chapters, pages) that are held out,
      each group in all languages together.
    seed: for the choice of groups and pairs.
    group: None, or a regular expression that matches at the beginning of an id. The
      group is the match of its first "(...)", or without one the whole match, e.g.
      "[0-9]{5}" for the first five digits. With None the source decides.
    max_pairs: the largest number of pairs of each language with English, in dev and in
      test.
    """

    dev_share: float = 0.04
    test_share: float = 0.04
    seed: int = 0
    group: str | None = None
    max_pairs: int = 1000

    def _check(self):
        check_not_negative(self, "dev_share test_share seed")
        check_positive(self, "max_pairs")
        name = type(self).__name__
        if self.dev_share + self.test_share >= 1:
            raise UserError(
                f"{name}.test_share: {self.test_share} and dev_share "
                f"{self.dev_share} leave nothing for training"
            )
        try:
            re.compile(self.group or "")
        except (re.error, RecursionError, OverflowError) as error:
            raise UserError(
                f"{name}.group: {self.group!r} is no regular expression ({error})"
            ) from error


@configurable("build_corpus")
@dataclasses.dataclass(frozen=True)
class CorpusSettings(Settings):
    """The settings of `build_corpus`.

    How the files of --input become documents:

    eval_share: share of the documents that is held out. Unless it is 0, a language with
      two different documents holds out at least one.
    min_characters: if text is split into sentences, shorter ones are dropped.
    split_json, split_text: whether the lines of JSON texts, and of plain text, are
      paragraphs, which are split into sentences; otherwise each line is a sentence.
    drop_duplicates: whether only the first of equal documents of a language is kept.
    part_bytes, max_parts: a file of more than part_bytes is cut into parts of about
      this size, but into at most max_parts.
    text_column: the field of JSON objects, or the column of a table, that has the text.
    language_column: None, or the field or column that has the language. Then only rows
      of the language that is built are read.
    language_values: None, or language -> its value in that column, if this is not the
      language's code, e.g. {"pt": "por"}.

    How messages of catalogs become a task:

    dev_share, test_share: shares of the English messages; the rest is for training.
    min_label_messages: a catalog is a label only if at least this many of its English
      messages are in no other catalog.
    min_language_examples: a language is evaluated if it has at least this many examples
      in dev and in test.

    parallel: for the other kinds of --source.
    """

    eval_share: float = 0.01
    min_characters: int = 10
    # Web crawls hold paragraphs.
    split_json: bool = True
    split_text: bool = False
    drop_duplicates: bool = True
    # Each process reads the whole file and cleans its part. With more than 4 parts the
    # additional reading costs more than they gain, unless a single file has to occupy
    # many cores.
    part_bytes: int = 1 << 28
    max_parts: int = 4
    text_column: str = "text"
    language_column: str | None = None
    language_values: dict | None = None
    # The test set is the larger one because all languages share its messages.
    dev_share: float = 0.1
    test_share: float = 0.2
    min_label_messages: int = 30
    min_language_examples: int = 20
    parallel: ParallelTextConfig = bound(ParallelTextConfig)

    def _check(self):
        if not self.text_column:
            raise UserError(f"{where(self, 'text_column')}: is empty; name a column")
        if self.language_column == "":
            name = where(self, "language_column")
            raise UserError(f"{name}: is empty; name a column, or None")
        self._check_language_values()
        check_rates(self, "eval_share")
        if min(self.dev_share, self.test_share) <= 0 or (
            self.dev_share + self.test_share >= 1
        ):
            raise UserError(
                f"{where(self, 'dev_share')}: {self.dev_share}, and test_share: "
                f"{self.test_share}, must be positive and leave messages for train"
            )
        check_positive(
            self,
            "min_characters part_bytes max_parts min_label_messages "
            "min_language_examples",
        )

    def _check_language_values(self) -> None:
        values = self.language_values
        if values is None:
            return
        name = where(self, "language_values")
        if self.language_column is None:
            raise UserError(f"{name}: needs {where(self, 'language_column')}")
        for language, value in values.items():
            if not (isinstance(language, str) and isinstance(value, str) and value):
                raise UserError(
                    f"{name}: {language!r}: {value!r} is not a language and its value"
                )

    def language_value(self, language: str) -> str:
        return (self.language_values or {}).get(language, language)

    def without_effect(self, flag: str) -> list[str]:
        """Lines on settings that have no part in a corpus of this flag: "--input",
        "--source=catalogs" or "--source=aligned"."""
        file_settings = vars(self).keys() - {*_CATALOG_SETTINGS, "parallel"}
        settings = {
            "--input": (self, file_settings),
            "--source=catalogs": (self, _CATALOG_SETTINGS),
            "--source=aligned": (self.parallel, vars(self.parallel)),
        }
        return [
            line
            for other, (config, names) in settings.items()
            if other != flag
            for line in unused_settings(config, names, f"it is for {other}")
        ]

    def catalog_settings(self) -> dict[str, Any]:
        """The settings as the manifest of a corpus of catalogs has them."""
        return {name: getattr(self, name) for name in _CATALOG_SETTINGS}

    def text_settings(self, language: str | None = None) -> dict[str, Any]:
        """The settings as a manifest of texts has them, for one language or for all.

        Columns with default values are left out, so that new corpora equal those of
        versions without columns.
        """
        other_names = (*_CATALOG_SETTINGS, "parallel")
        settings = {k: v for k, v in vars(self).items() if k not in other_names}
        if language is not None:
            values = self.language_values or {}
            values = {code: values[code] for code in values if code == language}
            settings["language_values"] = values or None
        for name in ("text_column", "language_column", "language_values"):
            if settings[name] == getattr(CorpusSettings, name):
                del settings[name]
        return settings


@configurable("build_vocabulary")
@dataclasses.dataclass(frozen=True)
class VocabularySettings(Settings):
    """The settings of `build_vocabulary`.

    seed: of the sample, if the text has more sentences than `max_sentences`.
    report_sentences: of each language, on which fertility is measured.
    """

    vocabulary: VocabularyConfig = bound(VocabularyConfig)
    sampling: SamplingConfig = bound(SamplingConfig)
    seed: int = 0
    report_sentences: int = 1000

    def _check(self):
        check_not_negative(self, "seed")
        check_positive(self, "report_sentences")
