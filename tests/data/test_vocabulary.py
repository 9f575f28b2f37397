"""The SentencePiece wrapper: ids, specials, offsets, and the tokenizer in the graph.

The vocabulary of most tests is trained on the Django catalogs: on less text many pieces
have equal scores, and Python and graph may break exact ties differently.
"""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.configs import VocabularyConfig
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.vocabulary_training import train_vocabulary
from tests.vocabularies import train_vocabulary as train_for_others

OTHERS = ["hello world and all the others"] * 5

# Text that offsets or normalisation are easily wrong on.
DIFFICULT = {
    "ligatures": "ﬁne oﬃce",
    "full width": "１２３ ＡＢＣ",
    "fraction": "a ½ b",
    "decomposed accents": "e\u0301te\u0301 cafe\u0301",
    "one to many": "\ufdfa x",
    "emoji": "a 👩\u200d👩\u200d👧 🇩🇪 ☃ b",
    "Thai": "สวัสดีชาวโลก",
    "Arabic": "لا يمكن حذف الملف",
    "Hindi": "कृपया सही मान भरें।",
    "Chinese": "请输入一个有效的值。",
    "Japanese": "ｶﾞ値を入力してください。",
    "Korean": "올바른 값을 입력하세요.",
    "leading space": "  lead",
    "double space": "a  double   space",
    "trailing space": "trail  ",
    "only space": "   ",
    "empty": "",
    "line breaks": "a\nb\tc\r\nd",
    "control characters": "a\x01b\x7fc\x00d",
    "invisible": "\ufeffa\u200bb\u00adc",
    "U+2581": "a▁b ▁",
    "specials": "[MASK] [CLS] <pad> <unk> </s> <0x41>",
    "unassigned": "a\U000e0fffb\uffff",
}


def config(vocab_size, byte_fallback=False, coverage=0.9999):
    return VocabularyConfig(vocab_size, coverage, byte_fallback, 10**6, 10**9, 16)


@pytest.fixture(scope="module")
def vocabulary(sentences, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model"
    return train_vocabulary(sentences, str(path), config(4000))


@pytest.fixture(scope="module")
def byte_vocabulary(sentences, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model"
    return train_vocabulary(sentences, str(path), config(3000, True, 0.98))


def in_graph(vocabulary, texts):
    return vocabulary.tokenizer().tokenize([t.encode("utf-8") for t in texts]).to_list()


def assert_graph_agrees(vocabulary, texts):
    """Graph and Python give the same ids, or segmentations of equal score in float32.

    Returns how often they differ. Exact ties occur where characters repeat: "YYYY" is
    "YYY" + "Y" as well as "Y" + "YYY".
    """
    scores, ties = vocabulary.scores(), 0
    python, graph = vocabulary.encode_batch(texts), in_graph(vocabulary, texts)
    for text, ours, theirs in zip(texts, python, graph, strict=True):
        if ours != theirs:
            ties += 1
            totals = [sum(scores[i] for i in ids) for ids in (ours, theirs)]
            assert totals[0] == pytest.approx(totals[1], rel=1e-6), text
            texts = (map(vocabulary.id_to_piece, ids) for ids in (ours, theirs))
            assert len(set(map("".join, texts))) == 1, text
    return ties


def pieces(vocabulary, text):
    return [vocabulary.id_to_piece(i) for i in vocabulary.encode(text)]


def spans(vocabulary, text):
    """(piece, the characters of the text that it stands for)."""
    encoding = next(vocabulary.encode_with_offsets([text]))
    return [
        (vocabulary.id_to_piece(i), text[start:end])
        for i, start, end in zip(*encoding, strict=True)
    ]


def test_special_pieces(vocabulary):
    assert vocabulary.size == 4000
    assert vocabulary.pad_id == 0
    assert vocabulary.unk_id == 2
    assert (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id) == (3, 4, 5)
    # </s> is 1; <unk> is not special: text becomes it.
    assert vocabulary.special_ids == (0, 1, 3, 4, 5)
    named = [vocabulary.id_to_piece(i) for i in range(6)]
    assert named == ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert vocabulary.piece_to_id("[MASK]") == 5
    assert vocabulary.piece_to_id("no such piece") == 2


def test_pieces_are_the_text(vocabulary):
    text = "Enter a valid value."
    assert "".join(pieces(vocabulary, text)) == "▁Enter▁a▁valid▁value."
    assert vocabulary.encode_batch(["", text]) == [[], vocabulary.encode(text)]


@pytest.mark.parametrize(
    "text, words",
    [
        ("ﬁle", ["ﬁ"]),
        ("oﬃce", ["oﬃce"]),
        ("x １２ ½ y", ["１", "２", "½"]),
        ("cafe\u0301 e\u0301", ["e\u0301"]),
        ("上 入力", ["入", "力"]),
    ],
)
def test_offsets_are_characters_of_the_original(vocabulary, text, words):
    found = "".join(span for _, span in spans(vocabulary, text))
    assert found == text
    for word in words:
        assert word in found


def test_offsets_after_characters_of_several_bytes(vocabulary):
    text = "👩\u200d👧 สวัสดี ½ value"
    piece, span = spans(vocabulary, text)[-1]
    assert (piece, span) == ("▁value", " value")


def test_offsets_around_spaces(vocabulary):
    assert spans(vocabulary, "  value  value  ") == [
        ("▁value", "value"),
        ("▁value", "  value"),
    ]
    assert next(vocabulary.encode_with_offsets([""])) == ([], [], [])


@pytest.mark.parametrize("text", DIFFICULT.values(), ids=DIFFICULT.keys())
def test_difficult_text(vocabulary, byte_vocabulary, text):
    for tested in (vocabulary, byte_vocabulary):
        check_encoding(tested, text)
        assert in_graph(tested, [text]) == [tested.encode(text)]


def check_encoding(vocabulary, text):
    """Ids are in range; spans are ordered, do not overlap and lie in the text."""
    ids, starts, ends = next(vocabulary.encode_with_offsets([text]))
    assert ids == vocabulary.encode(text)
    assert not set(ids) & set(vocabulary.special_ids)
    bounds = [0, *itertools.chain(*zip(starts, ends, strict=True)), len(text)]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("kind", ["vocabulary", "byte_vocabulary"])
def test_offsets_equal_those_of_the_graph_in_bytes(kind, request):
    tested = request.getfixturevalue(kind)
    tokenizer = tested.tokenizer()
    for text in (*DIFFICULT.values(), "a☃b 漢☃"):
        _, starts, ends = next(tested.encode_with_offsets([text]))
        graph = tokenizer.tokenize_with_offsets([text.encode("utf-8")])
        for ours, theirs in zip((starts, ends), graph[1:], strict=True):
            in_bytes = [len(text[:offset].encode("utf-8")) for offset in ours]
            assert [in_bytes] == theirs.to_list()


@settings(max_examples=25)
@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=20))
def test_any_unicode_text_in_the_graph(vocabulary, byte_vocabulary, texts):
    for tested in (vocabulary, byte_vocabulary):
        assert_graph_agrees(tested, texts)
        for text in texts:
            check_encoding(tested, text)
    ids = itertools.chain(*byte_vocabulary.encode_batch(texts))
    assert byte_vocabulary.unk_id not in ids


def test_real_text_in_the_graph(vocabulary, sentences):
    ties = assert_graph_agrees(vocabulary, sentences)
    assert ties < 0.01 * len(sentences)


def serialized(scores):
    """A SentencePiece model file: special pieces, then pieces with these scores."""

    def message(number, content):
        assert len(content) < 128
        return bytes([number << 3 | 2, len(content)]) + content

    def piece(text, score, kind):
        fields = message(1, text.encode()), b"\x15", struct.pack("<f", score)
        return message(1, b"".join([*fields, bytes([3 << 3, kind])]))

    normal, unknown, control = 1, 2, 3
    kinds = dict.fromkeys(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], control)
    kinds["<unk>"] = unknown
    pieces = [piece(text, 0.0, kind) for text, kind in kinds.items()]
    pieces += [piece(text, score, normal) for text, score in scores.items()]
    # A unigram model; text stays as it is.
    unigram = message(2, bytes([3 << 3, 1]))
    return b"".join([*pieces, unigram, message(3, message(1, b"identity") + b"\x20\0")])


def test_scores_of_long_text_have_the_resolution_of_float32_in_the_graph(tmp_path):
    """r + est is better than re + st by 0.00003, which a long sum cannot hold."""
    scores = {"▁": 0.0, "x": -7.3, "r": -5.508579, "est": -8.160132, "re": -6.449142}
    scores |= {"st": -7.219603, "e": -30.0, "s": -30.0, "t": -30.0}
    gap = (scores["r"] + scores["est"]) - (scores["re"] + scores["st"])
    assert 3e-5 < gap < 4e-5
    path = tmp_path / "sentencepiece.model"
    path.write_bytes(serialized(scores))
    vocabulary = open_vocabulary(str(path))
    better, worse = (
        [vocabulary.piece_to_id(piece) for piece in pieces]
        for pieces in (["x", "x", "r", "est"], ["x", "x", "re", "st"])
    )
    text = "xxrest" * 1000
    python, [graph] = vocabulary.encode(text), in_graph(vocabulary, [text])
    python, graph = (
        [ids[start : start + 4] for start in range(1, 4001, 4)]
        for ids in (python, graph)
    )
    assert graph.count(worse) > 100 and python.count(better) > 990
    total = 0.0
    for cut in graph:
        total += 2 * scores["x"] + scores["r"] + scores["est"]
        if cut != better:
            # Two sums of each way are rounded, by half of the resolution at most.
            assert cut == worse and gap < 2 * np.spacing(np.float32(-total))


@pytest.mark.parametrize("unit", ["a", "é value สวัสดี👩 "])
def test_over_long_text(vocabulary, unit):
    text = (unit * 100_000)[:100_000]
    encoding = next(vocabulary.encode_with_offsets([text]))
    assert encoding.ends[-1] == len(text.rstrip())
    assert in_graph(vocabulary, [text]) == [encoding.ids]


def test_half_a_surrogate_pair_is_a_replacement_character(vocabulary):
    text = "a \ud800 b"
    assert vocabulary.encode(text) == vocabulary.encode("a \ufffd b")
    assert next(vocabulary.encode_with_offsets([text])).ends[-1] == 5


def test_byte_fallback_knows_every_character(byte_vocabulary):
    ids = byte_vocabulary.encode("☃ 👩")
    assert byte_vocabulary.unk_id not in ids
    assert pieces(byte_vocabulary, "☃")[1:] == ["<0xE2>", "<0x98>", "<0x83>"]


def test_bytes_follow_the_special_pieces(vocabulary, byte_vocabulary):
    named = [byte_vocabulary.id_to_piece(i) for i in range(6)]
    assert named == ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert byte_vocabulary.special_ids == vocabulary.special_ids == (0, 1, 3, 4, 5)
    assert byte_vocabulary.byte_ids == tuple(range(6, 262))
    assert byte_vocabulary.id_to_piece(6 + 0xE2) == "<0xE2>"
    assert vocabulary.byte_ids == ()


def test_offsets_of_bytes_are_those_of_their_character(byte_vocabulary):
    # The last byte has the character, the ones before it have empty spans.
    assert spans(byte_vocabulary, "☃ 👩") == [
        ("▁", ""),
        *[("<0xE2>", ""), ("<0x98>", ""), ("<0x83>", "☃")],
        ("▁", " "),
        *[("<0xF0>", ""), ("<0x9F>", ""), ("<0x91>", ""), ("<0xA9>", "👩")],
    ]


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 100])
def test_a_file_that_is_no_model(tmp_path, content):
    path = tmp_path / "sentencepiece.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="sentencepiece.model: not a SentencePiece"):
        open_vocabulary(str(path))


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="none.model: cannot read"):
        open_vocabulary(str(tmp_path / "none.model"))


def test_reads_the_spelling_of_released_vocabularies(tmp_path):
    spelling = {"pad_piece": "[PAD]", "unk_piece": "[UNK]"}
    path = train_for_others(tmp_path / "m.model", OTHERS, vocab_size=30, **spelling)
    vocabulary = open_vocabulary(path)
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.mask_id) == (0, 2, 5)


def test_a_missing_special_piece_is_named(tmp_path):
    pieces = {"control_symbols": ["[CLS]", "[SEP]"]}
    path = train_for_others(tmp_path / "m.model", OTHERS, vocab_size=30, **pieces)
    with pytest.raises(UserError, match=r"has no piece \[MASK\]"):
        open_vocabulary(path)
