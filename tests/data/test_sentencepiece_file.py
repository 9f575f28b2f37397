"""Settings inside sentencepiece.model: honoured, or refused where it is opened."""

import numpy as np
import pytest
import sentencepiece

from decoupled.core.errors import UserError
from decoupled.data import sentencepiece_file
from decoupled.data.sentencepiece_file import (
    CONTROL,
    UNKNOWN_TYPE,
    USER_DEFINED,
    Piece,
    make_model,
    read_pieces,
    read_settings,
    with_pieces,
    with_types,
)
from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.words import word_starts, word_tables
from tests.refusals import refusal
from tests.vocabularies import train_vocabulary

SENTENCES = [
    "Select the blue page and ten other objects",
    "Delete the hidden user name in Zurich",
    "Change the last image with a password",
] * 20
SPECIAL = ["[CLS]", "[SEP]", "[MASK]"]


def train(folder, **changes):
    return train_vocabulary(folder / "sentencepiece.model", SENTENCES, **changes)


def test_settings_are_those_of_training(tmp_path):
    settings = open_vocabulary(train(tmp_path)).settings
    assert settings.model_type == 1
    assert settings.remove_whitespace and not settings.byte_fallback
    assert len(settings.charsmap) > 100_000  # nmt_nfkc
    path = train(
        tmp_path,
        model_type="bpe",
        byte_fallback=True,
        vocab_size=310,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )
    assert open_vocabulary(path).settings == (2, b"", False, True)


@pytest.mark.parametrize(
    "setting, value",
    [
        ("treat_whitespace_as_suffix", True),
        ("add_dummy_prefix", False),
        ("escape_whitespaces", False),
    ],
)
def test_words_that_do_not_begin_with_the_mark_are_refused(tmp_path, setting, value):
    if setting == "escape_whitespaces":
        # No flag of the trainer: the last field of the normaliser's settings, 5.
        path = tmp_path / "sentencepiece.model"
        model = train_bytes(tmp_path)
        path.write_bytes(model + b"\x1a\x02\x28\x00")
    else:
        path = train(tmp_path, **{setting: value})
    message = refusal(open_vocabulary, str(path))
    assert f"{setting} is {str(value).lower()}" in message


def train_bytes(folder):
    with open(train(folder), "rb") as handle:
        return handle.read()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "bpe"},
        {"model_type": "char"},
        {"remove_extra_whitespaces": False},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"normalization_rule_name": "identity"},
        {"user_defined_symbols": ["user", "pass"]},
    ],
    ids=str,
)
def test_words_are_those_between_spaces(tmp_path, changes):
    vocabulary = open_vocabulary(train(tmp_path, **changes))
    tables = word_tables(vocabulary)
    for line in SENTENCES[:3]:
        ids = np.array(vocabulary.encode(line))
        starts = word_starts(*(table[ids] for table in tables))
        assert 1 + starts.sum() == len(line.split()), line


@pytest.mark.parametrize("kind", ["control_symbols", "user_defined_symbols"])
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_text_never_becomes_a_special_piece(tmp_path, kind, model_type):
    """Also not where they are user-defined, as published recipes have them."""
    changes = {"control_symbols": [], kind: SPECIAL, "model_type": model_type}
    vocabulary = open_vocabulary(train(tmp_path, **changes))
    special = {*vocabulary.special_ids, vocabulary.unk_id}
    assert {vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id} < special
    assert vocabulary.user_defined_ids == ()
    for text in ("[MASK]", "the [SEP] page[CLS]", "<pad> [MASK]"):
        without = text.translate(str.maketrans("", "", "[]<>"))
        known = [vocabulary.encode(without), vocabulary.encode(text)]
        assert not ({vocabulary.mask_id, vocabulary.sep_id, vocabulary.cls_id,
                     vocabulary.pad_id} & {*known[0], *known[1]})  # fmt: skip
        graph = vocabulary.tokenizer().tokenize([text]).to_list()[0]
        assert graph == vocabulary.encode(text)
        offsets = next(vocabulary.encode_with_offsets([text]))
        assert offsets.ids == graph and offsets.ends[-1] == len(text)
    mask, the = vocabulary.mask_id, vocabulary.encode("the")
    assert vocabulary.encode_masked("the[MASK]") == [*the, mask]


def test_an_ordinary_mask_piece_is_no_text_either(tmp_path):
    path = train(tmp_path)
    with open(path, "rb") as handle:
        model = handle.read()
    with open(path, "wb") as handle:
        handle.write(with_types(model, {3: 1, 4: 1, 5: 1, 0: 1}))
    assert sentencepiece.SentencePieceProcessor(model_file=path).encode("[MASK]")[-1:]
    vocabulary = open_vocabulary(path)
    assert vocabulary.special_ids == (0, 1, 3, 4, 5)
    assert not set(vocabulary.encode("[MASK] <pad>")) & set(vocabulary.special_ids)


def types_of(model):
    return [piece.type for piece in read_pieces(model, "x")[:8]]


def test_types_of_pieces(tmp_path):
    path = train(tmp_path, user_defined_symbols=["<url>"])
    vocabulary = open_vocabulary(path)
    assert types_of(vocabulary.content) == [3, 3, 2, 3, 3, 3, 4, 1]
    assert vocabulary.user_defined_ids == (6,)
    changed = with_types(vocabulary.content, {5: USER_DEFINED, 6: CONTROL})
    assert types_of(changed) == [3, 3, 2, 3, 3, 4, 3, 1]
    assert with_types(vocabulary.content, {}) == vocabulary.content
    processor = sentencepiece.SentencePieceProcessor(model_proto=changed)
    assert processor.encode("<url>[MASK]")[-1] == 5
    assert processor.get_score(9) == vocabulary.scores()[9]


def test_pieces_are_taken_away_with_nothing_else(tmp_path):
    model = train_bytes(tmp_path)
    kept = with_pieces(model, set(range(20)))
    processor = sentencepiece.SentencePieceProcessor(model_proto=kept)
    assert processor.get_piece_size() == 20
    assert read_settings(kept, "x") == read_settings(model, "x")
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    assert with_pieces(model, set(range(size))) == model


def test_a_piece_that_is_not_utf8_is_refused(tmp_path):
    model = train_bytes(tmp_path)
    index = open_vocabulary(str(tmp_path / "sentencepiece.model")).piece_to_id("the")
    path = tmp_path / "damaged.model"
    path.write_bytes(model.replace(b"\x0a\x03the", b"\x0a\x03t\xffe"))
    with pytest.raises(UserError, match=f"piece {index} is not UTF-8"):
        open_vocabulary(str(path))


@pytest.mark.parametrize("kept", [20, 30, -2, -1])
def test_a_file_that_was_cut_off_between_two_fields_is_refused(tmp_path, kept):
    # Pieces, then the settings of training and of normalisation.
    fields = [
        field
        for number, _, field in sentencepiece_file._fields(train_bytes(tmp_path))
        if number <= 3
    ]
    path = tmp_path / "cut.model"
    path.write_bytes(b"".join(fields))
    open_vocabulary(str(path))
    path.write_bytes(b"".join(fields[:kept]))
    with pytest.raises(UserError, match="cut.model: ends before its settings; it was"):
        open_vocabulary(str(path))


@pytest.mark.parametrize("tail", [b"\x12\x01\x0b", b"\x1a\x02\x12", b"\x13"])
def test_a_damaged_file_is_refused(tmp_path, tail):
    path = tmp_path / "damaged.model"
    path.write_bytes(train_bytes(tmp_path) + tail)
    with pytest.raises(UserError, match="not a SentencePiece model"):
        open_vocabulary(str(path))


@pytest.mark.parametrize("read", [read_settings, read_pieces])
def test_an_integer_without_an_end_is_refused(read):
    # An unknown field, as a model may have.
    longest = b"\x28" + b"\xff" * 9
    model = make_model([Piece("<unk>", 0, UNKNOWN_TYPE)], b"", 0, None)
    read(model + longest + b"\x01", "a.model")
    with pytest.raises(UserError, match="a.model: not a SentencePiece model"):
        read(model + longest + b"\xff\x01", "a.model")
