"""Pieces and their characters, for texts whose normalisation changes their length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.configs import VocabularyConfig
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.tasks.context_pieces import Pieces, context_pieces, gold_pieces
from tests.tasks.question_samples import TEXTS, make_vocabulary


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("qa") / "sentencepiece.model")


def spans(text, pieces):
    return [text[start:end] for start, end in zip(*pieces[1:], strict=True)]


def test_pieces_stand_for_the_characters_as_they_are_written(vocabulary):
    text = "is １０９４ km"
    pieces = context_pieces(vocabulary, text)
    assert "".join(spans(text, pieces)) == text
    found = gold_pieces(pieces, 3, 7)
    assert spans(text, pieces)[found[0]].strip().startswith("１")
    assert spans(text, pieces)[found[1]].endswith("４")


def test_each_piece_of_a_character_stands_for_all_of_it(vocabulary):
    """U+33A2 is "km" and a 2 to NFKC."""
    text = "a㎢ long"
    pieces = context_pieces(vocabulary, text)
    own = [i for i, span in enumerate(spans(text, pieces)) if span == "㎢"]
    assert len(own) >= 2
    assert gold_pieces(pieces, 1, 2) == (own[0], own[-1])


def test_unknown_characters_are_cut_where_a_script_has_no_spaces(vocabulary):
    text = "ความยาว km ελλάδα"
    pieces = context_pieces(vocabulary, text)
    unknown = pieces.ids == vocabulary.unk_id
    found = [s for s, u in zip(spans(text, pieces), unknown, strict=True) if u]
    # One per letter of Thai, its marks with it; a word of Greek stays one.
    assert found == ["ค", "ว", "า", "ม", "ย", "า", "ว", "ελλάδα"]
    marked = context_pieces(vocabulary, "น้ำที่")
    # Sara am (U+0E33) is a letter to Unicode, not a mark.
    assert [s for s in spans("น้ำที่", marked) if s] == ["น้", "ำ", "ที่"]


def test_each_byte_of_an_unknown_character_stands_for_the_character(tmp_path):
    config = VocabularyConfig(290, 1.0, True, 10**6, 10**9, 16)
    path = str(tmp_path / "sentencepiece.model")
    vocabulary = train_vocabulary([TEXTS["en"][0]], path, config)
    text = "in กข km"
    pieces = context_pieces(vocabulary, text)
    # Each letter has three bytes in UTF-8.
    found = spans(text, pieces)
    first = found.index("ก")
    assert found[first : first + 6] == ["ก"] * 3 + ["ข"] * 3
    assert gold_pieces(pieces, 4, 5) == (first + 3, first + 5)


ANY_TEXT = st.text(max_size=30) | st.text(
    "aé１½㎢ﬁﷺｶﾞกำที่กिक्षिلاِّ中文한 \u0301\u200b\u200d\u00ad\u3000e123,.", max_size=30
)


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT)
def test_offsets_round_trip_for_any_text(vocabulary, text):
    pieces = context_pieces(vocabulary, text)
    assert (np.diff(pieces.starts) >= 0).all() and (np.diff(pieces.ends) >= 0).all()
    assert (pieces.starts <= pieces.ends).all()
    covered = np.zeros(len(text), bool)
    for start, end in zip(pieces.starts, pieces.ends, strict=True):
        assert 0 <= start <= end <= len(text)
        covered[start:end] = True
    # What is not covered is white space and the like at the ends.
    inner = np.flatnonzero(covered)
    if len(inner):
        assert covered[inner[0] : inner[-1] + 1].all()
        outside = text[: inner[0]] + text[inner[-1] + 1 :]
        assert vocabulary.encode(outside) == []


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, data=st.data())
def test_any_answer_lies_within_the_characters_of_its_pieces(vocabulary, text, data):
    pieces = context_pieces(vocabulary, text)
    filled = [i for i, (s, e) in enumerate(zip(*pieces[1:], strict=True)) if s < e]
    if not filled:
        return
    first, last = sorted(data.draw(st.sampled_from(filled)) for _ in range(2))
    start, end = int(pieces.starts[first]), int(pieces.ends[last])
    found = gold_pieces(pieces, start, end)
    cut = int(pieces.starts[found[0]]), int(pieces.ends[found[1]])
    assert cut[0] <= start and end <= cut[1]
    # An answer that begins and ends with pieces is cut exactly, unless a character is
    # shared: "㎟2" may be the pieces "mm" and "22".
    if (pieces.starts[1:] >= pieces.ends[:-1]).all():
        assert cut == (start, end)
    inner = data.draw(st.integers(start, end - 1))
    found = gold_pieces(pieces, inner, inner + 1)
    assert pieces.starts[found[0]] <= inner < pieces.ends[found[1]]


def test_gold_pieces_by_hand():
    pieces = Pieces(
        np.arange(5),
        starts=np.array([0, 0, 3, 3, 6]),
        ends=np.array([0, 3, 6, 6, 9]),
    )
    assert gold_pieces(pieces, 0, 3) == (1, 1)
    assert gold_pieces(pieces, 3, 6) == (2, 3)
    assert gold_pieces(pieces, 2, 7) == (1, 4)
    assert gold_pieces(pieces, 9, 12) is None
