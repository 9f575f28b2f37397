"""tokenizer.json, read by the library of that name, gives the ids of the vocabulary."""

import json

import pytest
import tokenizers

from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.interop.huggingface_tokenizer import (
    tokenizer_json,
    write_tokenizer,
)
from decoupled.exports.serving.masked_words import encode_masked
from tests.exports.models import model_config
from tests.vocabularies import train_vocabulary

LINES = [
    "",
    "   ",
    "Select the blue page",
    "  Zürich   and\tZu\u0308rich\n",
    "ﬁve ½ １２ ☃ x",
    "unknown 漢字 in between",
    "▁the ▁",
    "thethethe ggg",
    "(see <url>) now",
    "a<url>b superuser e-the.",
    " user's",
    "the-end (x) the-user-",
]
SENTENCES = [
    "Select the blue page and 10 other objects",
    "Delete the hidden user name in Zürich",
    "five 12 1/2 x",
] * 20


def train(folder, **changes):
    path = folder / "sentencepiece.model"
    return open_vocabulary(train_vocabulary(path, SENTENCES, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"byte_fallback": True, "vocab_size": 310},
        {"pad_piece": "[PAD]", "unk_piece": "[UNK]"},
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"split_by_whitespace": False, "vocab_size": 90},
        {"user_defined_symbols": ["<url>", "user", "e-", "(", ".", "the"]},
    ],
    ids=["ours", "bytes", "released", "identity", "case", "across words", "symbols"],
)
def test_ids_are_those_of_the_vocabulary(tmp_path, changes):
    vocabulary = train(tmp_path, **changes)
    content = json.dumps(tokenizer_json(vocabulary))
    tokenizer = tokenizers.Tokenizer.from_str(content)
    for line in LINES:
        encoding = tokenizer.encode(line, add_special_tokens=False)
        assert encoding.ids == vocabulary.encode(line), line
    cls, sep = vocabulary.cls_id, vocabulary.sep_id
    pair = tokenizer.encode("Select x", "the page")
    left, right = vocabulary.encode("Select x"), vocabulary.encode("the page")
    assert pair.ids == [cls, *left, sep, *right, sep]
    assert pair.type_ids == [0] * (len(left) + 2) + [1] * (len(right) + 1)


@pytest.mark.parametrize(
    "text",
    [
        "Select the [MASK] page",
        "Select the [MASK].",
        "Select [MASK]s, (and [MASK]) [MASK]!",
        "[MASK] page",
        "[MASK]",
        " [MASK] ",
        "[MASK], the [MASK][MASK] [MASK]",
        "the blue page[MASK]",
        "the <url>[MASK](user) [MASK] <url>",
    ],
)
@pytest.mark.parametrize("symbols", [[], ["<url>", "user", "("]])
def test_text_beside_a_mask_has_the_pieces_of_the_whole_text(tmp_path, text, symbols):
    vocabulary = train(tmp_path, user_defined_symbols=symbols)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    encoding = tokenizer.encode(text, add_special_tokens=True)
    assert encoding.ids == encode_masked(vocabulary, text)


def test_decoding_gives_the_text_back(tmp_path):
    vocabulary = train(tmp_path, byte_fallback=True, vocab_size=310)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    for text in ("Select the blue page", "漢字 and Zürich"):
        assert tokenizer.decode(vocabulary.encode(text)) == text


def test_settings_name_the_specials_and_the_length(tmp_path):
    vocabulary = train(tmp_path)
    write_tokenizer(str(tmp_path), vocabulary, model_config(max_positions=24))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_max_length"] == 24
    assert config["model_input_names"][1] == "token_type_ids"
    assert config["added_tokens_decoder"]["5"]["lstrip"] is True
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special["pad_token"] == "<pad>" and special["mask_token"] == "[MASK]"
    assert special == {key: config[key] for key in special}


def test_other_kinds_of_models_are_refused(tmp_path):
    vocabulary = train(tmp_path, model_type="bpe")
    with pytest.raises(UserError, match="not a unigram model"):
        tokenizer_json(vocabulary)
    vocabulary = train(tmp_path, remove_extra_whitespaces=False)
    with pytest.raises(UserError, match="keeps repeated spaces; no tokenizer.json"):
        tokenizer_json(vocabulary)
    vocabulary = train(tmp_path, user_defined_symbols=["½"])
    with pytest.raises(UserError, match="normalisation changes its user-defined piece"):
        tokenizer_json(vocabulary)
