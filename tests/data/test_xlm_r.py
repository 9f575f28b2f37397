"""XLM-R's SentencePiece: the ids of its tokenizer, without any shift in between."""

import numpy as np
import pytest
import sentencepiece

from decoupled.core.errors import UserError
from decoupled.data.sentencepiece_file import USER_DEFINED, with_types
from decoupled.data.vocabulary import XLM_R, Pairs, open_vocabulary
from decoupled.data.words import word_tables
from decoupled.exports.interop.huggingface_tokenizer import write_tokenizer
from decoupled.exports.serving.masked_words import encode_masked
from decoupled.exports.serving.text import BertPackInputs
from decoupled.tasks.classification import pack_texts
from tests.corpora.builds import edit_json
from tests.exports.models import model_config
from tests.refusals import refusal
from tests.vocabularies import xlm_r_folder

SENTENCES = ["the quick brown fox jumps over the lazy dog and the sleepy cat"] * 20
TEXTS = [
    "the fox",
    "",
    "  lazy   dogs ½ ﬁ",
    "☃ the☃☃",
    "<mask> </s> <s>a",
    "jum\u00a0ps",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return xlm_r_folder(tmp_path_factory.mktemp("xlm_r") / "hf", SENTENCES)


@pytest.fixture(scope="module")
def vocabulary(folder):
    return open_vocabulary(str(folder))


def test_ids_are_those_of_fairseq_moved_by_one(folder, vocabulary):
    model = str(folder / "sentencepiece.bpe.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    moved = [3, 0, 2, *range(4, processor.GetPieceSize() + 1)]
    expected = [[moved[index] for index in ids] for ids in processor.encode(TEXTS)]
    assert vocabulary.encode_batch(TEXTS) == expected
    assert vocabulary.size == processor.GetPieceSize() + 2
    assert vocabulary.tokenizer().tokenize(TEXTS).to_list() == expected


def test_special_pieces_and_pairs(vocabulary):
    ids = (vocabulary.cls_id, vocabulary.pad_id, vocabulary.sep_id, vocabulary.unk_id)
    assert (*ids, vocabulary.mask_id) == (0, 1, 2, 3, vocabulary.size - 1)
    assert vocabulary.special_ids == (0, 1, 2, vocabulary.size - 1)
    assert (vocabulary.kind, vocabulary.pairs) == (XLM_R, Pairs(2, 0))
    assert vocabulary.mask_text == "<mask>"
    the = vocabulary.encode("the")
    assert word_tables(vocabulary).begins[the[0]]
    # As transformers: what follows a mask is encoded by itself.
    assert encode_masked(vocabulary, "the<mask>the.") == [
        0, *the, vocabulary.mask_id, *vocabulary.encode("the."), 2,
    ]  # fmt: skip
    with pytest.raises(UserError, match="has no <mask> to fill"):
        encode_masked(vocabulary, "the [MASK]")


@pytest.mark.parametrize("length", [7, 12])
def test_pairs_have_two_separators_and_one_type(vocabulary, length):
    first, second = "the the the", "the fox"
    packed = pack_texts(vocabulary, [(first, second), (second,)], length)
    left, right = vocabulary.encode(first), vocabulary.encode(second)
    while len(left) + len(right) > length - 4:
        max((right, left), key=len).pop()
    row = [0, *left, 2, 2, *right, 2]
    assert packed["input_word_ids"][0].tolist() == row + [1] * (length - len(row))
    assert not packed["input_type_ids"].any()
    assert packed["input_mask"][0].sum() == len(row)
    # The graph of exports packs the same.
    tokenizer = vocabulary.tokenizer()
    texts = [tokenizer.tokenize([text]) for text in (first, second)]
    pack = BertPackInputs(vocabulary, length)
    for name, value in pack(texts).items():
        np.testing.assert_array_equal(value, packed[name][:1])
    alone = pack([tokenizer.tokenize([second])])
    for name, value in alone.items():
        np.testing.assert_array_equal(value, packed[name][1:])


@pytest.mark.parametrize("lost", [0, 3])
def test_what_to_hf_writes_gives_the_same_file(vocabulary, tmp_path, lost):
    """Also of a vocabulary that `convert vocabulary` has made smaller."""
    if lost:
        last = vocabulary.size - 1
        vocabulary = vocabulary.trimmed([*range(last - lost), last])
    write_tokenizer(str(tmp_path), vocabulary, model_config())
    for names in ((), ("tokenizer.json",), ("sentencepiece.bpe.model",)):
        for name in ("tokenizer.json", "sentencepiece.bpe.model"):
            hidden = tmp_path / f"{name}.away"
            if name in names:
                (tmp_path / name).rename(hidden)
            elif hidden.exists():
                hidden.rename(tmp_path / name)
        assert open_vocabulary(str(tmp_path)).fingerprint == vocabulary.fingerprint
    # And the file of a run says by itself what it is.
    run = tmp_path / "sentencepiece.model"
    run.write_bytes(vocabulary.content)
    assert open_vocabulary(str(run)).kind == XLM_R


def change(name, edit):
    return lambda folder: edit_json(folder / name, edit)


def other_model(folder):
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(with_types(path.read_bytes(), {9: USER_DEFINED}))


def first_pieces(folder):
    (folder / "tokenizer.json").unlink()
    xlm_r_folder(folder, SENTENCES, unk_id=1, bos_id=0)


@pytest.mark.parametrize(
    "damage, message",
    [
        (change("tokenizer.json", lambda t: t["model"].update(byte_fallback=True)),
         "byte_fallback is True"),
        (change("tokenizer.json", lambda t: t["model"].update(unk_id=0)), "unk_id is"),
        (change("tokenizer.json", lambda t: t["model"]["vocab"].pop()),
         "and <mask> at the end"),
        (change("tokenizer.json", lambda t: t["model"]["vocab"][9].append(1)),
         "piece 9 is damaged"),
        (change("tokenizer.json", lambda t: t["model"]["vocab"][9].__setitem__(1, -9)),
         "has other pieces, scores or normalisation than sentencepiece.bpe.model"),
        (change("tokenizer.json", lambda t: t["normalizer"]["normalizers"].append(
            {"type": "Lowercase"})), "text passes 'Lowercase'"),
        (change("tokenizer.json", lambda t: t["normalizer"]["normalizers"].pop(0)),
         "has other pieces, scores or normalisation"),
        (change("tokenizer.json", lambda t: t["post_processor"]["pair"].pop(2)),
         "<s> A </s> </s> B </s> of a pair"),
        (change("tokenizer.json", lambda t: t["added_tokens"].append(
            {"id": 99, "content": "<url>"})), "adds the token '<url>'"),
        (change("tokenizer_config.json", lambda c: c.update(do_lower_case=True)),
         "do_lower_case is True"),
        (change("tokenizer_config.json", lambda c: c.update(
            tokenizer_class="CamembertTokenizer")), "which is not known for"),
        (change("tokenizer_config.json", lambda c: c.update(mask_token="[MASK]")),
         "mask_token is '[MASK]'"),
        (other_model, "has special pieces of its own"),
        (first_pieces, "does not begin with <unk>, <s>, </s>"),
        (lambda folder: (folder / "sentencepiece.bpe.model").write_bytes(b"x"),
         "not a SentencePiece model"),
    ],
)  # fmt: skip
def test_other_folders_are_refused_in_one_line(vocabulary, tmp_path, damage, message):
    write_tokenizer(str(tmp_path), vocabulary, model_config())
    damage(tmp_path)
    assert message in refusal(open_vocabulary, str(tmp_path))
