"""Words to rows and back: by hand, and for whatever words there are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.tasks.tagging import tagging_features, word_tags
from decoupled.tasks.tagging_files import TaggedSentence
from tests.tasks.tagged_words import DIFFICULT, INVISIBLE, TEXT, small_vocabulary

LABELS = ("O", "A", "B")


class Letters:
    """A vocabulary of letters: a is 10, b is 11, ...; of "." nothing is left."""

    pad_id, unk_id, cls_id, sep_id = 0, 3, 1, 2

    def encode_batch(self, texts):
        return [[ord(x) - 87 for x in text if x != "."] for text in texts]


def featurize(sentences, length, vocabulary=None):
    return tagging_features(vocabulary or Letters(), sentences, LABELS, length)


def check(features, **expected):
    for name, rows in expected.items():
        assert features[name].tolist() == rows, name


def test_a_label_stands_at_the_first_piece_of_its_word():
    features = featurize([TaggedSentence(["ab", "c", "de"], ["A", "O", "B"])], 9)
    check(
        features,
        input_word_ids=[[1, 10, 11, 12, 13, 14, 2, 0, 0]],
        input_mask=[[1, 1, 1, 1, 1, 1, 1, 0, 0]],
        input_type_ids=[[0] * 9],
        word_starts=[[0, 1, 0, 1, 1, 0, 0, 0, 0]],
        label_ids=[[0, 1, 0, 0, 2, 0, 0, 0, 0]],
        example_index=[0],
    )
    assert {array.dtype for array in features.values()} == {np.dtype(np.int32)}


def test_a_word_that_becomes_nothing_is_unknown():
    features = featurize([TaggedSentence([".", "a", ".."], ["A", "O", "B"])], 6)
    check(
        features,
        input_word_ids=[[1, 3, 10, 3, 2, 0]],
        word_starts=[[0, 1, 1, 1, 0, 0]],
        label_ids=[[0, 1, 0, 2, 0, 0]],
    )


def test_a_long_sentence_goes_on_in_another_row_between_words():
    sentences = [
        TaggedSentence(["a"], ["A"]),
        TaggedSentence(["ab", "cd", "e", "f"], ["A", "B", "O", "B"]),
        TaggedSentence(["abc"], ["B"]),
    ]
    check(
        featurize(sentences, 5),
        input_word_ids=[
            [1, 10, 2, 0, 0],
            [1, 10, 11, 2, 0],
            [1, 12, 13, 14, 2],
            [1, 15, 2, 0, 0],
            [1, 10, 11, 12, 2],
        ],
        label_ids=[
            [0, 1, 0, 0, 0],
            [0, 1, 0, 0, 0],
            [0, 2, 0, 0, 0],
            [0, 2, 0, 0, 0],
            [0, 2, 0, 0, 0],
        ],
        example_index=[0, 1, 1, 1, 2],
    )


def test_a_long_word_is_cut_and_tagged_once():
    features = featurize([TaggedSentence(["a", "bcdefgh", "i"], ["A", "B", "O"])], 5)
    check(
        features,
        input_word_ids=[
            [1, 10, 2, 0, 0],
            [1, 11, 12, 13, 2],
            [1, 14, 15, 16, 2],
            [1, 17, 18, 2, 0],
        ],
        word_starts=[
            [0, 1, 0, 0, 0],
            [0, 1, 0, 0, 0],
            [0, 0, 0, 0, 0],
            [0, 0, 1, 0, 0],
        ],
        example_index=[0, 0, 0, 0],
    )


def test_sentences_without_tags_differ_in_the_labels_only():
    sentences = [TaggedSentence(["ab", "c"], ["A", "B"])]
    bare = [sentence._replace(tags=None) for sentence in sentences]
    tagged, untagged = featurize(sentences, 6), featurize(bare, 6)
    assert tagged.pop("label_ids").any()
    assert not untagged.pop("label_ids").any()
    for name, array in tagged.items():
        np.testing.assert_array_equal(untagged[name], array, err_msg=name)


def test_tags_are_read_at_first_pieces_over_all_rows():
    sentences = [TaggedSentence(["ab", "cd", "e"], None), TaggedSentence(["f"], None)]
    starts = featurize(sentences, 5)["word_starts"]
    # Wrong labels stand everywhere else.
    best = np.array([[0, 1, 0, 0, 0], [2, 2, 0, 1, 0], [2, 0, 2, 2, 2]])
    assert starts.shape == best.shape
    tags = word_tags(sentences, starts, best, LABELS)
    assert tags == [["A", "B", "A"], ["O"]]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return small_vocabulary(tmp_path_factory.mktemp("vocabulary") / "pieces.model")


@pytest.mark.parametrize("word", INVISIBLE, ids=ascii)
def test_words_of_which_nothing_is_left(vocabulary, word):
    assert vocabulary.encode(word) == []
    features = featurize([TaggedSentence(["cat", word], ["A", "B"])], 12, vocabulary)
    place = int(np.flatnonzero(features["label_ids"][0] == 2)[0])
    assert features["input_word_ids"][0, place] == vocabulary.unk_id
    assert features["word_starts"].sum() == 2


def windows_word_by_word(vocabulary, sentence, window):
    """[[(piece, tag or None), ...], ...]: as one would with pencil and paper."""
    rows = [[]]
    for word, tag in zip(sentence.words, sentence.tags, strict=True):
        pieces = vocabulary.encode(word) or [vocabulary.unk_id]
        marked = [(piece, None if i else tag) for i, piece in enumerate(pieces)]
        if len(rows[-1]) + min(len(marked), window) > window:
            rows.append([])
        while marked:
            if len(rows[-1]) == window:
                rows.append([])
            rows[-1] += marked[:window]
            marked = marked[window:]
    return rows


def read_back(vocabulary, features, number):
    """The same from the rows of a sentence."""
    rows = []
    for row in np.flatnonzero(features["example_index"] == number):
        real = int(features["input_mask"][row].sum())
        assert features["input_mask"][row, :real].all()
        ids = features["input_word_ids"][row]
        assert (ids[0], ids[real - 1]) == (vocabulary.cls_id, vocabulary.sep_id)
        assert (ids[real:] == vocabulary.pad_id).all()
        assert not features["word_starts"][row, [0, *range(real - 1, len(ids))]].any()
        rows.append(
            [
                (ids[i], LABELS[features["label_ids"][row, i]] if start else None)
                for i, start in enumerate(features["word_starts"][row])
                if 0 < i < real - 1
            ]
        )
    return rows


words = st.one_of(
    st.sampled_from(DIFFICULT),
    st.sampled_from([word for line in TEXT for word in line.split()]),
    st.text(max_size=12),
)
tagged_sentences = st.lists(
    st.lists(st.tuples(words, st.sampled_from(LABELS)), min_size=1, max_size=12).map(
        lambda pairs: TaggedSentence([w for w, _ in pairs], [t for _, t in pairs])
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150)
@given(sentences=tagged_sentences, length=st.integers(3, 24))
def test_whatever_the_words_are(vocabulary, sentences, length):
    features = featurize(sentences, length, vocabulary)
    for number, sentence in enumerate(sentences):
        expected = windows_word_by_word(vocabulary, sentence, length - 2)
        assert read_back(vocabulary, features, number) == expected
    assert (np.diff(features["example_index"], prepend=0) >= 0).all()
    # Every word has one place, and what is right there is right in the end.
    assert features["word_starts"].sum() == sum(len(s.words) for s in sentences)
    tags = word_tags(sentences, features["word_starts"], features["label_ids"], LABELS)
    assert tags == [sentence.tags for sentence in sentences]
