"""The preprocessor as loaded from disk: ids, packing, offsets, special tokens."""

import numpy as np
import pytest
import sentencepiece

from decoupled.core.release import tf

SENTENCES = [
    "Select the blue page and 3 other objects",
    "",
    "  Zürich   image ",
    "ｆｕｌｌ width ﬁ ☃ [CLS] [MASK] <pad>",
    "Show the last user name and " + "9" * 5000,
]
CLS, SEP, MASK, PAD = 3, 4, 5, 0


@pytest.fixture(scope="module")
def pieces(vocabulary):
    return sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)


def packed_in_python(segments, length):
    """[CLS] A [SEP] (B [SEP]): cut from the longer segment, one piece at a time."""
    segments = [list(s) for s in segments]
    while sum(map(len, segments)) > length - 1 - len(segments):
        max(reversed(segments), key=len).pop()
    ids, types = [CLS], [0]
    for index, segment in enumerate(segments):
        ids += segment + [SEP]
        types += [index] * (len(segment) + 1)
    padding = [0] * (length - len(ids))
    return ids + padding, [1] * len(ids) + padding, types + padding


def assert_packed(actual, rows, length):
    expected = [packed_in_python(segments, length) for segments in rows]
    for index, name in enumerate(("input_word_ids", "input_mask", "input_type_ids")):
        assert actual[name].dtype == tf.int32
        np.testing.assert_array_equal(actual[name], [row[index] for row in expected])


def test_one_segment_is_the_pieces_between_cls_and_sep(preprocessor, pieces):
    packed = preprocessor(SENTENCES)
    assert_packed(packed, [[pieces.encode(s)] for s in SENTENCES], length=16)
    assert packed["input_word_ids"][1, :3].numpy().tolist() == [CLS, SEP, PAD]


@pytest.mark.parametrize(
    "text", [b"caf\xe9", b"\xff", b"\xc3", b"a\xed\xa0\x80b", "né".encode("utf-16")]
)
def test_bytes_that_are_not_utf_8_are_refused(preprocessor, text):
    texts = tf.constant([b"Select", text])
    for call in (
        preprocessor,
        preprocessor.tokenize,
        lambda texts: preprocessor(tf.constant(["a", "b"]), texts),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="a text is not UTF-8"):
            call(texts)


def test_any_unicode_is_utf_8(preprocessor):
    texts = [
        "\x00",
        "\ufeffa",
        "\ufffe",
        "\ufffd",
        "\U0010ffff",
        "\u2028",
        "👩\u200d👧",
    ]
    assert preprocessor(texts)["input_mask"].shape == (7, 16)


def test_two_segments_have_types_0_and_1(preprocessor, pieces):
    second = SENTENCES[::-1]
    pairs = zip(SENTENCES, second, strict=True)
    rows = [[pieces.encode(a), pieces.encode(b)] for a, b in pairs]
    assert_packed(preprocessor(SENTENCES, second), rows, length=16)


def test_any_number_of_sentences(preprocessor):
    assert preprocessor(tf.constant([], tf.string))["input_mask"].shape == (0, 16)
    assert preprocessor(["a"] * 33)["input_mask"].shape == (33, 16)


@pytest.mark.parametrize("length", [3, 4, 7, 8, 13])
@pytest.mark.parametrize("sizes", [(0, 0), (2, 9), (9, 2), (9, 9), (8, 9), (1, 40)])
def test_segments_share_the_budget_as_longest_first_does(preprocessor, length, sizes):
    first, second = ([[10 + i for i in range(size)]] for size in sizes)
    ragged = [tf.ragged.constant(s, tf.int32, ragged_rank=1) for s in (first, second)]
    packed = preprocessor.bert_pack_inputs(ragged, seq_length=length)
    assert_packed(packed, [[first[0], second[0]]], length)
    packed = preprocessor.bert_pack_inputs(ragged[:1], seq_length=length)
    assert_packed(packed, [first], length)


def test_words_of_pieces_are_joined(preprocessor):
    words = tf.ragged.constant([[[10, 11], [12]], [[13]]], tf.int32)
    tail = tf.ragged.constant([[[14]], []], tf.int32, ragged_rank=2)
    packed = preprocessor.bert_pack_inputs([words, tail], seq_length=tf.constant(8))
    assert_packed(packed, [[[10, 11, 12], [14]], [[13], []]], 8)


def test_default_length_of_packing_is_the_one_of_the_export(preprocessor):
    tokens = preprocessor.tokenize(SENTENCES)
    assert preprocessor.bert_pack_inputs([tokens])["input_mask"].shape == (5, 16)


def test_a_length_without_room_is_refused(preprocessor):
    tokens = preprocessor.tokenize(["a"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no room for"):
        preprocessor.bert_pack_inputs([tokens], seq_length=1)


def test_tokenize_gives_the_ids_of_python_sentencepiece(preprocessor, pieces):
    tokens = preprocessor.tokenize(SENTENCES)
    assert isinstance(tokens, tf.RaggedTensor)
    assert tokens.dtype == tf.int32
    assert tokens.to_list() == [pieces.encode(s) for s in SENTENCES]
    assert not {CLS, SEP, MASK, PAD} & set(tokens.flat_values.numpy().tolist())


def test_special_tokens(preprocessor):
    special = preprocessor.tokenize.get_special_tokens_dict()
    assert {name: int(value) for name, value in special.items()} == {
        "vocab_size": 48,
        "start_of_sequence_id": CLS,
        "end_of_segment_id": SEP,
        "padding_id": PAD,
        "mask_id": MASK,
    }


def test_vocabulary_travels_as_an_asset(preprocessor, vocabulary, encoder_export):
    path = preprocessor.sp_model_file.asset_path.numpy().decode()
    assert path.startswith(str(encoder_export))
    assert tf.io.gfile.GFile(path, "rb").read() == vocabulary.content
    assert not preprocessor.do_lower_case.numpy()
