"""Ids agree between Python, the graph, SentencePiece and the exported tokenizer.json.

The differences that docs/interop.md names are looked for in each line that differs;
anything else fails.
"""

import json
import unicodedata

import pytest
import sentencepiece

from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.interop.huggingface_tokenizer import write_tokenizer
from tests.exports.models import model_config
from tests.interop.reference import NEEDS_TRANSFORMERS, call
from tests.interop.stress_lines import FIRST_REAL, real_lines, stress_lines

pytestmark = NEEDS_TRANSFORMERS

PAIRS = [["One sentence.", "Eine andere."], ["a", ""], ["日本語 テキスト", "text"]]

# Ours; with byte pieces; and the released RemBERT's spelling, with other places.
KINDS = {
    "ours": {
        "pad_piece": "<pad>",
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    },
    "bytes": {
        "pad_piece": "<pad>",
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "byte_fallback": True,
    },
    "released": {
        "pad_piece": "[PAD]",
        "unk_piece": "[UNK]",
        "control_symbols": [f"<unused{i}>" for i in range(9)]
        + ["[CLS]", "[SEP]", "[MASK]"],
    },
    # XLM-R's names in SentencePiece's usual places, which XLM-R's class does not know.
    "xlm_r_names": {
        **{"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3},
        "control_symbols": ["<mask>"],
    },
}
# Where a kind says nothing else.
PLACES = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@pytest.fixture(scope="module")
def lines(data_dir):
    return stress_lines(data_dir)


@pytest.fixture(scope="module", params=KINDS)
def case(request, lines, data_dir, tmp_path_factory):
    """(vocabulary, what transformers made of the lines)."""
    folder = tmp_path_factory.mktemp("tokenizer")
    path = folder / "sentencepiece.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(real_lines(data_dir)[::9]),
        model_prefix=str(path.with_suffix("")),
        vocab_size=5000,
        character_coverage=0.9995,
        normalization_rule_name="nmt_nfkc",
        num_threads=2,
        minloglevel=2,
        **PLACES | KINDS[request.param],
    )
    vocabulary = open_vocabulary(str(path))
    write_tokenizer(str(folder), vocabulary, model_config())
    asked = {"folder": str(folder), "lines": lines, "pairs": PAIRS}
    call("tokenize", asked, folder / "out")
    return vocabulary, json.loads((folder / "out" / "tokens.json").read_text())


def changed(characters):
    return unicodedata.normalize("NFKC", characters) != characters


def is_mark(character):
    jamo = "\u1160" <= character <= "\u11ff"
    return unicodedata.category(character).startswith("M") or jamo


def has_changed_cluster(line):
    """A mark after a character that normalisation changes alone or with the mark."""
    pairs = zip(line, line[1:], strict=False)
    return any(is_mark(b) and (changed(a) or changed(a + b)) for a, b in pairs)


def is_tie(vocabulary, ids, others):
    """Whether two segmentations are of the same characters and equally likely."""
    scores = vocabulary.scores()
    texts = ["".join(map(vocabulary.id_to_piece, row)) for row in (ids, others)]
    totals = [sum(scores[index] for index in row) for row in (ids, others)]
    return texts[0] == texts[1] and totals[0] == pytest.approx(totals[1], abs=1e-3)


def test_sentencepiece_alone_gives_the_ids_of_the_vocabulary(case, lines):
    vocabulary, _ = case
    processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)
    assert vocabulary.encode_batch(lines) == processor.encode(lines)


def test_graph_differs_in_ties_only(case, lines):
    vocabulary, _ = case
    expected = vocabulary.encode_batch(lines)
    actual = vocabulary.tokenizer().tokenize(lines).to_list()
    differing = [i for i in range(len(lines)) if actual[i] != expected[i]]
    assert [
        i for i in differing if not is_tie(vocabulary, actual[i], expected[i])
    ] == []
    assert len(differing) < 0.005 * len(lines)


def test_transformers_differs_in_ties_and_clusters_that_change_only(case, lines):
    vocabulary, theirs = case
    expected, actual = vocabulary.encode_batch(lines), theirs["ids"]
    differing = [i for i in range(len(lines)) if actual[i] != expected[i]]
    unexplained = [
        lines[i]
        for i in differing
        if not is_tie(vocabulary, actual[i], expected[i])
        and not has_changed_cluster(lines[i])
    ]
    assert unexplained == []
    assert len([i for i in differing if i >= FIRST_REAL]) < 0.001 * len(lines)
    assert len(differing) < 0.005 * len(lines)


def test_pairs_have_specials_and_types(case):
    vocabulary, theirs = case
    cls, sep = vocabulary.cls_id, vocabulary.sep_id
    for row, (first, second) in enumerate(PAIRS):
        left, right = vocabulary.encode(first), vocabulary.encode(second)
        separators, second_type = vocabulary.pairs
        between = [sep] * separators
        assert theirs["pairs"]["input_ids"][row] == [cls, *left, *between, *right, sep]
        types = [0] * (len(left) + 1 + separators) + [second_type] * (len(right) + 1)
        assert theirs["pairs"]["token_type_ids"][row] == types


def test_special_tokens_are_found_and_none_is_outside_of_the_vocabulary(case):
    vocabulary, theirs = case
    assert theirs["special"] == {
        "bos_token": vocabulary.cls_id,
        "eos_token": vocabulary.sep_id,
        "unk_token": vocabulary.unk_id,
        "sep_token": vocabulary.sep_id,
        "pad_token": vocabulary.pad_id,
        "cls_token": vocabulary.cls_id,
        "mask_token": vocabulary.mask_id,
    }
    assert max(max(row, default=0) for row in theirs["ids"]) < vocabulary.size
    assert theirs["longest"] == model_config().max_positions


def test_decoding_gives_the_text_of_the_vocabulary(case):
    vocabulary, theirs = case
    processor = sentencepiece.SentencePieceProcessor(model_file=vocabulary.path)
    for ids, text in zip(theirs["ids"], theirs["decoded"], strict=False):
        if vocabulary.unk_id not in ids:
            assert text == processor.decode(ids)
