"""Fewer pieces, or those of another file: kept text, rows, and whole models."""

import functools
import json
import os

import numpy as np
import pytest
import tokenizers

from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.data.tokenizer_folder import TextRules, make_wordpieces
from decoupled.data.vocabulary import WordPiece, open_vocabulary
from decoupled.exports.interop.huggingface import to_huggingface
from decoupled.exports.interop.new_vocabulary import (
    NewRows,
    matching_rows,
    mean_rows,
    replace_vocabulary,
    trim_vocabulary,
)
from decoupled.exports.served_task import read_task
from decoupled.model import variables as names
from decoupled.runs.saved_run import open_model
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    write_model_dir,
)
from tests.exports.reference import Reference
from tests.vocabularies import train_vocabulary, xlm_r_folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Text in English and Swahili."""
    folder = tmp_path_factory.mktemp("corpus")
    return str(make_corpus(folder / "corpus").folder)


@pytest.fixture(scope="module")
def texts(corpus):
    return list(Corpus(corpus).sentences("train", "sw"))


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """The vocabulary of both languages."""
    folder = tmp_path_factory.mktemp("vocabulary")
    return make_vocabulary(folder / "sentencepiece.model")


def write_model(folder, vocabulary, coupled=False, labels=(), data=None, types=2):
    width = {"output_embedding_size": 8, "input_embedding_size": 8} if coupled else {}
    config = model_config(
        vocab_size=vocabulary.size, coupled=coupled, type_vocab_size=types, **width
    )
    weights = (
        finetuned_weights(config, len(labels)) if labels else pretrained_weights(config)
    )
    words = "bert/embeddings/word_embeddings"
    weights |= {name: weights[words] for name in names.slots(words)}
    task = {"name": "catalogs", "labels": list(labels)} if labels else None
    return write_model_dir(folder, vocabulary, config, weights, task, data)


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory, big, corpus):
    """A function: a model, what trimming to Swahili made of it, and the report."""

    @functools.cache
    def trim(coupled=False):
        folder = tmp_path_factory.mktemp("trimmed")
        source, target = write_model(folder / "source", big, coupled), folder / "target"
        report = trim_vocabulary(source, None, str(target), corpus, ["sw"], 1)
        return source, str(target), report

    return trim


@pytest.fixture
def source(trimmed):
    """The folder of the model; not to be changed."""
    return trimmed()[0]


def reference(folder):
    model = open_model(folder)
    weights = {name: np.asarray(model.weights[name]) for name in model.weights}
    return model.vocabulary, Reference(model.config, weights)


def batch_of(vocabulary, text):
    ids = [vocabulary.cls_id, *vocabulary.encode(text), vocabulary.sep_id]
    row = np.array([ids], np.int32)
    return {
        "input_word_ids": row,
        "input_mask": np.ones_like(row),
        "input_type_ids": np.zeros_like(row),
    }


@pytest.mark.parametrize("coupled", [False, True])
def test_kept_text_has_the_same_pieces_and_hidden_states(trimmed, texts, coupled):
    source, target, report = trimmed(coupled)
    old, before = reference(source)
    new, after = reference(target)
    assert new.size == report["vocabulary"]["after"] < old.size
    for text in texts[:5]:
        pieces = [
            [vocabulary.id_to_piece(i) for i in vocabulary.encode(text)]
            for vocabulary in (old, new)
        ]
        assert pieces[0] == pieces[1]
        result, expected = (
            model.encode(batch_of(vocabulary, text))
            for vocabulary, model in ((new, after), (old, before))
        )
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_kept_pieces_have_the_same_logits_and_slots_stay_behind(trimmed):
    old, new = (open_model(folder) for folder in trimmed()[:2])
    kept = [
        old.vocabulary.piece_to_id(new.vocabulary.id_to_piece(i))
        for i in range(new.vocabulary.size)
    ]
    for name in (
        "bert/embeddings/word_embeddings",
        "cls/predictions/output_embedding",
        "cls/predictions/output_bias",
    ):
        np.testing.assert_array_equal(new.weights[name], old.weights[name][kept])
    slots = {*old.weights.shapes} - {*old.weights, "global_step"}
    assert slots and {*new.weights.shapes} == {*new.weights, "global_step"}


def test_a_higher_threshold_keeps_fewer_pieces_and_all_their_characters(
    tmp_path, source, corpus
):
    sizes = []
    for least in (1, 50):
        target = str(tmp_path / f"target{least}")
        trim_vocabulary(source, None, target, corpus, [], least)
        vocabulary = open_model(target).vocabulary
        sizes.append(vocabulary.size)
        pieces = {vocabulary.id_to_piece(i) for i in range(vocabulary.size)}
        ordinary = set(range(vocabulary.size)) - {
            *vocabulary.special_ids, vocabulary.unk_id,
        }  # fmt: skip
        characters = {c for i in ordinary for c in vocabulary.id_to_piece(i)}
        assert characters <= pieces
    assert sizes[1] < sizes[0]


def test_a_classifier_keeps_its_labels_and_the_columns_of_its_files(
    tmp_path, big, corpus
):
    features = {"texts": [3], "label": 1, "max_sequence_length": 9}
    described = {"labels": ["a", "b", "c"], "data": {"features": features}}
    source = write_model(tmp_path / "source", big, **described)
    (tmp_path / "source" / "answers.json").write_text('{"n_best": 7}')
    target = str(tmp_path / "target")
    trim_vocabulary(source, None, target, corpus, ["sw"], 1)
    task = read_task(open_model(target))
    assert task == read_task(open_model(source))
    assert (task.labels, task.columns) == (["a", "b", "c"], [3])
    assert (tmp_path / "target" / "answers.json").read_text() == '{"n_best": 7}'


def test_a_piece_of_unknown_text_takes_the_mean_of_all_rows(big, tmp_path):
    sentences = ["東京 大東京 東 京"] * 20
    new = open_vocabulary(train_vocabulary(tmp_path / "other.model", sentences))
    sources = matching_rows(big, new).sources
    pieces = [new.id_to_piece(index) for index in range(new.size)]
    ordinary = big.size - len({*big.special_ids, big.unk_id})
    for piece in ("▁東", "東"):
        assert len(sources[pieces.index(piece)]) == ordinary
    assert sources[pieces.index("▁")] == [big.blank_id]


def test_another_vocabulary_takes_rows_of_equal_pieces_and_means_of_others(
    tmp_path, source, big, vocabulary
):
    other = vocabulary
    target = str(tmp_path / "target")
    report = replace_vocabulary(source, None, target, other.path)
    old, new = (open_model(folder) for folder in (source, target))
    assert new.vocabulary.fingerprint == other.fingerprint
    table = "cls/predictions/output_embedding"
    means = 0
    for index in range(other.size):
        piece = other.id_to_piece(index)
        same = big.piece_to_id(piece)
        row = new.weights[table][index]
        if big.id_to_piece(same) == piece:
            np.testing.assert_array_equal(row, old.weights[table][same])
        else:
            means += 1
            parts = [i for i in big.encode(piece.replace("▁", " ")) if i != big.unk_id]
            # The blank alone says nothing.
            if piece.startswith("▁") and parts not in ([], [big.blank_id]):
                expected = np.mean(old.weights[table][parts], axis=0)
                np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-9)
    assert report["vocabulary"]["mean_of_others"] == means > 0


def test_rows_of_the_same_vocabulary_are_its_own(big):
    rows = matching_rows(big, big)
    assert rows.sources == [[index] for index in range(big.size)]
    assert rows.copied_count == big.size


def test_bytes_take_the_row_of_their_character_or_the_mean_of_all(big, tmp_path):
    with_bytes = make_vocabulary(tmp_path / "bytes.model", 310, byte_fallback=True)
    sources = matching_rows(big, with_bytes).sources
    ordinary = big.size - len({*big.special_ids, big.unk_id})
    for name in ("<0x00>", "<0x20>", "<0xC3>"):
        assert len(sources[with_bytes.piece_to_id(name)]) == ordinary
    letter = next(c for c in "abcdefghijkl" if big.id_to_piece(big.piece_to_id(c)) == c)
    of_letter = sources[with_bytes.piece_to_id(f"<0x{ord(letter):02X}>")]
    assert of_letter == [big.piece_to_id(letter)]
    rows = matching_rows(with_bytes, with_bytes)
    assert rows.sources == [[index] for index in range(with_bytes.size)]


@pytest.fixture(scope="module")
def words(texts, corpus):
    """WordPieces of both languages."""
    every = " ".join([*texts, *Corpus(corpus).sentences("train", "en")]).split()
    letters = sorted({c for word in every for c in word})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [*letters, *(f"##{c}" for c in letters), *sorted(set(every))[:40:2]]
    content = make_wordpieces([*dict.fromkeys(pieces)], TextRules(False, False))
    return WordPiece("words", content)


def test_trimmed_wordpieces_give_the_same_ids(tmp_path, words, corpus, texts):
    source = write_model(tmp_path / "source", words)
    target = str(tmp_path / "target")
    report = trim_vocabulary(source, None, target, corpus, ["sw"], 1)
    new = open_model(target)
    assert new.vocabulary.size == report["vocabulary"]["after"] < words.size
    old = open_model(source)
    for text in texts[:20]:
        ids = words.encode(text), new.vocabulary.encode(text)
        names = [
            [vocabulary.id_to_piece(i) for i in row]
            for vocabulary, row in zip((words, new.vocabulary), ids, strict=True)
        ]
        assert names[0] == names[1]
        rows = [
            model.weights["bert/embeddings/word_embeddings"][row]
            for model, row in zip((old, new), ids, strict=True)
        ]
        np.testing.assert_array_equal(*rows)


def test_vocabularies_of_two_kinds_share_rows(big, words):
    """ "▁the" is "the", and "ing" is "##ing"."""
    for old, new, pairs in (
        (big, words, (("{}", "▁{}"), ("##{}", "{}"))),
        (words, big, (("▁{}", "{}"), ("{}", "##{}"))),
    ):
        rows = matching_rows(old, new)
        assert rows.sources[new.mask_id] == [old.mask_id]
        assert rows.sources[new.sep_id] == [old.sep_id]
        shared = 0
        for text in ["a", "e", "n", "i", *words.pieces[-20:]]:
            for ours, theirs in pairs:
                index = new.piece_to_id(ours.format(text))
                source = old.piece_to_id(theirs.format(text))
                if index != new.unk_id and source != old.unk_id:
                    assert rows.sources[index] == [source]
                    shared += 1
        assert shared > 3
        assert all(rows.sources) and rows.copied_count < new.size


def test_parts_of_a_new_wordpiece_begin_or_continue_a_word():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    old, new = (
        WordPiece("x", make_wordpieces([*special, *pieces], TextRules(True, True)))
        for pieces in (("n", "##n", "##a"), ("na", "##na", "Ñ", "q"))
    )
    rows = matching_rows(old, new)
    # A piece without any known part gets the mean of all.
    assert rows.sources[5:] == [[5, 7], [6, 7], [5], [5, 6, 7]]
    assert rows.copied_count == 5


def test_what_is_a_word_of_its_own_keeps_its_row(tmp_path):
    """Text reaches "," and "中" of WordPieces, and never "##," or "##中"."""
    text = "the cat, the dog. 我是中国人。"
    letters = sorted({*text} - {" "})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
    words = WordPiece("x", make_wordpieces(pieces, TextRules(True, True)))
    path = train_vocabulary(tmp_path / "s.model", [text] * 9, vocab_size=40)
    sentence_pieces = open_vocabulary(path)
    for old, new in ((words, sentence_pieces), (sentence_pieces, words)):
        sources = matching_rows(old, new).sources
        rows_of_text = {*old.encode(text)}
        for letter in ",.中国人我是。":
            index = new.piece_to_id(letter)
            if index != new.unk_id:
                [source] = sources[index]
                assert source in rows_of_text
                assert old.id_to_piece(source).removeprefix("▁") == letter


def test_pairs_get_the_type_that_they_need(tmp_path, big, texts):
    """XLM-R has one type for both texts; these pieces give the second text type 1."""
    pieces = open_vocabulary(str(xlm_r_folder(tmp_path / "pieces", texts)))
    source = write_model(tmp_path / "source", pieces, types=1)
    target = str(tmp_path / "target")
    report = replace_vocabulary(source, None, target, big.path)
    assert report["repeated_types"] == 1
    old, new = (open_model(folder) for folder in (source, target))
    assert new.config.type_vocab_size == 2
    [row] = old.weights[names.TYPE_EMBEDDINGS]
    np.testing.assert_array_equal(new.weights[names.TYPE_EMBEDDINGS], [row, row])
    # A model that never had types for pairs gets none.
    single = write_model(tmp_path / "single", big, types=1)
    again = replace_vocabulary(single, None, str(tmp_path / "again"), big.path)
    assert "repeated_types" not in again


def test_means_of_vectors_and_tables():
    rows = NewRows([[2], [0, 1], [1]], 2)
    table = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 7.0]], np.float32)
    assert mean_rows(table, rows).tolist() == [[5, 7], [2, 4], [3, 6]]
    assert mean_rows(table[:, 0], rows).tolist() == [5, 2, 3]


def test_transformers_files_of_a_trimmed_model_have_its_ids(tmp_path, trimmed, texts):
    _, target, _ = trimmed()
    hf_dir = str(tmp_path / "hf")
    to_huggingface(target, None, hf_dir, encoder_only=False)
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(hf_dir, "tokenizer.json"))
    vocabulary = open_model(target).vocabulary
    for text in texts[:5]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == vocabulary.encode(text)
    with open(os.path.join(hf_dir, "config.json"), encoding="utf-8") as handle:
        assert json.load(handle)["vocab_size"] == vocabulary.size


def test_mistakes(tmp_path, source, corpus):
    target = str(tmp_path / "target")
    with pytest.raises(UserError, match="--min_count: no piece occurs 100000000 times"):
        trim_vocabulary(source, None, target, corpus, [], 10**8)
    with pytest.raises(UserError, match="--languages: .* has no xx; it has en, sw"):
        trim_vocabulary(source, None, target, corpus, ["xx"], 1)
    with pytest.raises(UserError, match="none.model: cannot read"):
        replace_vocabulary(source, None, target, str(tmp_path / "none.model"))
    with pytest.raises(UserError, match="exists; choose a new folder"):
        trim_vocabulary(source, None, source, corpus, ["sw"], 1)
    assert not os.path.exists(target)
