"""Whose vocabulary a converted model gets, and what a tokenizer may do to text."""

import base64
import json

import pytest

from decoupled.core.errors import UserError
from decoupled.data.tokenizer_folder import TextRules, make_wordpieces
from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.interop.huggingface_config import (
    BERT,
    REMBERT,
    XLM_R,
    make_config,
    read_config,
)
from decoupled.exports.interop.huggingface_tokenizer import (
    open_tokenizer,
    write_tokenizer,
)
from tests.exports.models import VOCABULARY_SIZE, model_config
from tests.vocabularies import train_vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
COUPLED = {"coupled": True, "input_embedding_size": 8, "output_embedding_size": 8}


class Folder:
    """A folder of transformers without weights."""

    def __init__(self, path, vocabulary, family):
        path.mkdir()
        self.path, self.vocabulary = path, vocabulary
        model = model_config(**(COUPLED if family is BERT else {}))
        config = make_config(model, vocabulary, family, None, None, None)
        self.write("config.json", config)

    def write(self, name, content):
        (self.path / name).write_text(json.dumps(content), encoding="utf-8")

    def change(self, name, **changes):
        path = self.path / name
        content = json.loads(path.read_text()) if path.exists() else {}
        self.write(name, content | changes)

    def open(self, given=None):
        """(vocabulary, notes)."""
        notes = []
        described = read_config(str(self.path))
        return open_tokenizer(str(self.path), given, described, notes), notes

    def refuses(self, message, given=None):
        with pytest.raises(UserError, match=message) as error:
            self.open(given)
        assert "\n" not in str(error.value)


def converted(tmp_path, vocabulary, family):
    """A folder with sentencepiece.model and what `to_hf` writes beside it."""
    made = Folder(tmp_path / "hf", vocabulary, family)
    (made.path / "sentencepiece.model").write_bytes(vocabulary.content)
    write_tokenizer(str(made.path), vocabulary, model_config())
    return made


@pytest.fixture
def folder(tmp_path, vocabulary):
    """Such a folder of a RemBERT."""
    return converted(tmp_path, vocabulary, REMBERT)


@pytest.fixture
def bert(tmp_path, vocabulary):
    """A BERT without any file of a tokenizer; ids of special pieces are WordPiece's."""
    made = Folder(tmp_path / "bert", vocabulary, BERT)
    made.change("config.json", pad_token_id=0, bos_token_id=None, eos_token_id=None)
    return made


def wordpieces(*others):
    words = [*SPECIAL, *others]
    return words + [f"w{i}" for i in range(VOCABULARY_SIZE - len(words))]


def bert_tokenizer(words, lower=False, **changes):
    """tokenizer.json as transformers 5 writes it for BERT."""
    ends = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
    pair = [{"Sequence": {"id": "B", "type_id": 1}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]  # fmt: skip
    return {
        "added_tokens": [
            {"id": i, "content": piece, "special": True}
            for i, piece in enumerate(SPECIAL)
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "lowercase": lower,
            "handle_chinese_chars": True, "strip_accents": None,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": ends, "pair": ends + pair,
            "special_tokens": {
                piece: {"id": piece, "ids": [row], "tokens": [piece]}
                for piece, row in (("[CLS]", 2), ("[SEP]", 3))
            },
        },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "vocab": {piece: row for row, piece in enumerate(words)},
        },
    } | changes  # fmt: skip


def other_vocabulary(folder, **changes):
    """As many pieces as the tests' vocabulary, other ones."""
    sentences = ["some entirely different words of texts"] * 50
    changes = {"vocab_size": VOCABULARY_SIZE, "character_coverage": 0.9995} | changes
    return train_vocabulary(folder / "other.model", sentences, **changes)


@pytest.mark.parametrize("family", [REMBERT, BERT], ids=["rembert", "bert"])
def test_what_to_hf_writes_is_accepted(tmp_path, vocabulary, family):
    opened, notes = converted(tmp_path, vocabulary, family).open()
    assert opened.fingerprint == vocabulary.fingerprint
    assert notes == []


def test_tokenizer_json_of_transformers_5_is_accepted(folder, vocabulary):
    """As RemBertTokenizer.save_pretrained of 5.23, whose post_processor is mended."""
    path = folder.path / "tokenizer.json"
    content = json.loads(path.read_text())
    charsmap = content["normalizer"]["normalizers"][0]
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "Replace", "pattern": {"String": "''"}, "content": '"'},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            charsmap,
        ],
    }
    content["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": True,
    }  # fmt: skip
    folder.write("tokenizer.json", content)
    folder.change("tokenizer_config.json", keep_accents=True, remove_space=True,
                  do_lower_case=False, add_prefix_space=True, unk_id=2,
                  extra_special_tokens=["<pad>", "</s>", "[MASK]"])  # fmt: skip
    _, notes = folder.open()
    assert notes == [
        "tokenizer.json makes `` and '' a quotation mark, as transformers does for "
        "RemBERT; sentencepiece.model does not, and is used"
    ]


@pytest.mark.parametrize("kept", [(), ("tokenizer_config.json",)])
def test_a_vocabulary_from_elsewhere_is_refused(bert, folder, vocabulary, kept):
    """Nothing in these folders says which piece has which row."""
    bert.refuses("has no sentencepiece.model, sentencepiece.bpe.model", vocabulary.path)
    for path in folder.path.iterdir():
        if path.name not in ("config.json", *kept):
            path.unlink()
    folder.refuses(
        "has no sentencepiece.model, sentencepiece.bpe.model", vocabulary.path
    )


def test_another_vocabulary_than_the_folders_is_refused(folder, vocabulary, tmp_path):
    other = other_vocabulary(tmp_path)
    folder.refuses("is not .*; the folder's own is used", other)
    (folder.path / "sentencepiece.model").unlink()
    # As transformers 5 saves a SentencePiece vocabulary: multilingual E5, MiniLM.
    folder.refuses("name the sentencepiece.model that it was made from")
    folder.refuses("pieces, .*it is another vocabulary|piece 6 is .*another", other)
    assert folder.open(vocabulary.path)[0].fingerprint == vocabulary.fingerprint


def test_one_other_piece_or_score_is_seen(folder):
    content = json.loads((folder.path / "tokenizer.json").read_text())
    listed = content["model"]["vocab"]
    listed[7], listed[8] = listed[8], listed[7]
    folder.write("tokenizer.json", content)
    folder.refuses("piece 7 is .*; it is another vocabulary")
    listed[7], listed[8] = listed[8], [listed[7][0], listed[7][1] - 0.1]
    folder.write("tokenizer.json", content)
    folder.refuses("piece 8 is .*; it is another vocabulary")


def test_wordpieces_come_from_tokenizer_json(bert, vocabulary):
    """A BERT as transformers 5 saves it has no vocab.txt."""
    bert.write("tokenizer.json", bert_tokenizer(wordpieces("S", "##e")))
    bert.change("tokenizer_config.json", do_lower_case=False)
    pieces, notes = bert.open()
    assert (pieces.kind, pieces.size, notes) == ("WordPiece", VOCABULARY_SIZE, [])
    assert pieces.encode("Se S [MASK]") == [5, 6, 5, 1, 1, 1]
    assert (pieces.pad_id, pieces.unk_id, pieces.mask_id) == (0, 1, 4)
    bert.refuses("has its own tokenizer .*convert vocabulary", vocabulary.path)


def test_two_sources_of_wordpieces_must_agree(bert):
    words = wordpieces("s", "##e")
    bert.write("tokenizer.json", bert_tokenizer(words, lower=True))
    (bert.path / "vocab.txt").write_text("\n".join(words) + "\n")
    from_both = bert.open()[0].fingerprint
    (bert.path / "tokenizer.json").unlink()
    assert bert.open()[0].fingerprint == from_both
    bert.write("tokenizer.json", bert_tokenizer(words, lower=True))
    words[5], words[6] = words[6], words[5]
    (bert.path / "vocab.txt").write_text("\n".join(words) + "\n")
    bert.refuses("other pieces than vocab.txt")


def test_two_kinds_of_vocabularies_are_refused(folder):
    words = wordpieces("s")
    (folder.path / "vocab.txt").write_text("\n".join(words))
    folder.refuses("has the vocabulary of two tokenizers")
    # That of a run, and BERT's.
    (folder.path / "sentencepiece.model").unlink()
    content = make_wordpieces(words[::-1], TextRules(True, True))
    (folder.path / "wordpiece.json").write_bytes(content)
    folder.refuses("has the vocabulary of two tokenizers, wordpiece.json and vocab.txt")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("piece", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "", "w"])
def test_rows_of_vocab_txt_are_lines_by_line_feeds(bert, end, last, piece):
    text = end.join(wordpieces("s", piece, "##e")) + end * last
    (bert.path / "vocab.txt").write_bytes(text.encode("utf-8"))
    pieces = bert.open()[0]
    assert [pieces.piece_to_id(name) for name in ("s", "##e")] == [5, 7]


def test_white_space_at_the_end_of_a_line_is_ignored(bert):
    words = wordpieces("s ", "\u2028", "##e\t", "d\rx", "y\u3000")
    (bert.path / "vocab.txt").write_bytes("\n".join(words).encode())
    pieces = bert.open()[0]
    # As transformers 5.23.
    assert pieces.encode("Se s y x d") == [5, 7, 5, 9, 1, 1]
    words = [word.rstrip() for word in words]
    bert.write("tokenizer.json", bert_tokenizer(words, lower=True))
    assert bert.open()[0].fingerprint == pieces.fingerprint


def test_ids_in_config_json_do_not_matter_for_wordpieces(bert):
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces()))
    bert.change("config.json", bos_token_id=3)
    assert bert.open()[1] == ["config.json: bos_token_id is 3, which is not used"]


def test_the_last_of_equal_wordpieces_has_the_row(bert):
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces("##e", "w0", "##e")))
    pieces = bert.open()[0]
    assert pieces.encode("w0e w7") == [8, 7, 15]
    assert pieces.size == VOCABULARY_SIZE and pieces.id_to_piece(5) == ""


@pytest.mark.parametrize(
    "words, message",
    [
        ([], r"has no piece \[PAD\]"),
        ([*wordpieces(), "x"], "49 pieces, but config.json says vocab_size 48"),
        ([w for w in [*wordpieces(), "x"] if w != "[SEP]"], r"has no piece \[SEP\]"),
        ([*wordpieces()[:-1], "x" * 300], "a piece has more than 256 bytes"),
    ],
)
def test_a_vocab_txt_of_another_model_is_refused(bert, words, message):
    (bert.path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    bert.refuses(message)


def test_a_much_larger_table_belongs_to_another_vocabulary(bert):
    lines = "\n".join(wordpieces()[:-1])
    (bert.path / "vocab.txt").write_text(f"{lines}\n")
    assert "47 pieces, 48 rows" in bert.open()[1][0]
    # A cut in a line makes another piece of it.
    (bert.path / "vocab.txt").write_text(lines)
    bert.refuses(
        "vocab.txt: 47 pieces, 48 rows of embeddings, and its last line has no"
    )
    (bert.path / "vocab.txt").write_text(f"{lines}\n")
    bert.change("config.json", vocab_size=175)
    bert.refuses("47 pieces, but config.json says vocab_size 175; it is another")


@pytest.mark.parametrize(
    "normalizer, expected",
    [
        ({"lowercase": True}, (True, True, True)),
        ({"lowercase": True, "strip_accents": False}, (True, False, True)),
        ({"lowercase": False, "strip_accents": True}, (False, True, True)),
        ({"lowercase": False, "handle_chinese_chars": False}, (False, False, False)),
    ],
)
def test_rules_of_the_tokenizer_are_read(bert, normalizer, expected):
    """The two files must agree; without tokenizer.json the other one is followed."""
    names = {"lowercase": "do_lower_case", "strip_accents": "strip_accents",
             "handle_chinese_chars": "tokenize_chinese_chars"}  # fmt: skip
    settings = {names[name]: value for name, value in normalizer.items()}
    bert.write("tokenizer_config.json", settings)
    content = bert_tokenizer(wordpieces("s"))
    content["normalizer"] |= normalizer
    bert.write("tokenizer.json", content)
    assert bert.open()[0].rules == (*expected, 100)
    (bert.path / "tokenizer.json").unlink()
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces("s")))
    assert bert.open()[0].rules == (*expected, 100)


@pytest.mark.parametrize(
    "settings, message",
    [
        # BertTokenizer lower-cases unless tokenizer_config.json says otherwise.
        ({}, "do_lower_case is True for BertTokenizer, but False in tokenizer.json"),
        ({"do_lower_case": True}, "do_lower_case is True for BertTokenizer"),
        ({"do_lower_case": False, "strip_accents": True}, "strip_accents is True for"),
        ({"do_lower_case": False, "tokenize_chinese_chars": False}, "chinese_chars is"),
        ({"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"},
         "do_lower_case is True for PreTrainedTokenizer, but"),
        ({"tokenizer_class": "MPNetTokenizer"}, "'MPNetTokenizer', which is not known"),
        ({"do_lower_case": False, "never_split": ["a"]}, "never_split"),
    ],
)  # fmt: skip
def test_contradictions_of_two_files_are_refused(bert, settings, message):
    bert.write("tokenizer.json", bert_tokenizer(wordpieces("S")))
    bert.write("tokenizer_config.json", settings)
    bert.refuses(message)


def test_rows_without_a_piece_are_empty_lines_at_the_end_too(bert):
    words = wordpieces("s")
    bert.write("tokenizer.json", bert_tokenizer(words[:-3], lower=True))
    (bert.path / "vocab.txt").write_text("\n".join(words[:-3]) + "\n\n\n\n")
    assert bert.open()[0].pieces == words[:-3]


def test_a_word_is_not_true(bert):
    """transformers raises a TypeError."""
    for name in ("lowercase", "strip_accents", "handle_chinese_chars"):
        rules = {"type": "BertNormalizer", "lowercase": True} | {name: "no"}
        content = bert_tokenizer(wordpieces("s"), lower=True, normalizer=rules)
        bert.write("tokenizer.json", content)
        bert.refuses(f"tokenizer.json: {name} is 'no', not true or false")
    (bert.path / "tokenizer.json").unlink()
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces("s")))
    for name in ("do_lower_case", "strip_accents"):
        bert.write("tokenizer_config.json", {name: "false"})
        bert.refuses(f"tokenizer_config.json: {name} is 'false', not true or false")


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("config.json", {"tokenizer_class": "BertJapaneseTokenizer"},
         "config.json: tokenizer_class is 'BertJapaneseTokenizer', which is not known"),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab"},
         "word_tokenizer_type is 'mecab'; text is not cut in this way here"),
        ("tokenizer_config.json", {"subword_tokenizer_type": "character"},
         "subword_tokenizer_type is 'character'; text is not"),
    ],
)  # fmt: skip
def test_words_that_another_program_cuts_are_refused(bert, name, settings, message):
    """As Japanese BERTs have them."""
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces("s")))
    bert.change(name, **settings)
    bert.refuses(message)
    # tokenizer_config.json comes first, as in AutoTokenizer.
    if name == "config.json":
        bert.write("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
        bert.open()


def test_any_class_but_bert_follows_tokenizer_json(bert):
    content = bert_tokenizer(wordpieces("S"))
    content["model"]["max_input_chars_per_word"] = 5
    bert.write("tokenizer.json", content)
    bert.write("tokenizer_config.json", {"do_lower_case": False})
    bert.refuses("longest_word is 100 for BertTokenizer, but 5 in tokenizer.json")
    bert.write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    assert bert.open()[0].rules == (False, False, True, 5)


def test_upper_case_without_a_word_on_lower_casing_is_refused(bert):
    (bert.path / "vocab.txt").write_text("\n".join(wordpieces("S")))
    bert.refuses("does not say do_lower_case, but vocab.txt has pieces in upper case")
    bert.write("tokenizer_config.json", {"do_lower_case": False})
    assert not bert.open()[0].lower


@pytest.mark.parametrize(
    "part, value, message",
    [
        ("normalizer", {"type": "Lowercase"}, "text passes Lowercase"),
        ("normalizer", None, "text passes BertPreTokenizer"),
        ("normalizer", {"type": "BertNormalizer", "clean_text": False}, "clean_text"),
        ("pre_tokenizer", {"type": "Whitespace"}, "text passes BertNormalizer, White"),
        ("post_processor", None, "its post_processor does not make"),
        ("padding", {"direction": "Left"}, "padding is on the left"),
        ("truncation", {"direction": "Left"}, "truncation is on the left"),
        ("model", {"type": "BPE", "vocab": {}, "merges": []}, "of type 'BPE'"),
        ("model", {"type": "WordLevel", "vocab": {}}, "of type 'WordLevel'"),
        ("model", {"vocab": {}, "merges": []}, "of type 'None'"),
        ("model", {"type": ["x"]}, r"of type .\['x'\]"),
        ("model", {"type": "WordPiece", "vocab": {"a": 0, "b": 0}}, "have one id"),
        ("model", {"type": "WordPiece", "vocab": {"a": "0"}}, "is no number"),
        ("model", {"type": "WordPiece", "vocab": {"a": 10**9}}, "have ids to 1000"),
        ("model", {"type": "WordPiece", "vocab": {"a": 0},
                   "continuing_subword_prefix": "@@"}, "prefix is '@@'"),
        ("added_tokens", [{"id": 48, "content": "<url>"}], "adds the token '<url>'"),
        ("added_tokens", [{"id": 7, "content": "w2"}], "adds the token 'w2'"),
    ],
)  # fmt: skip
def test_other_tokenizers_of_bert_are_refused(bert, part, value, message):
    content = bert_tokenizer(wordpieces("s"), lower=True, **{part: value})
    bert.write("tokenizer.json", content)
    bert.refuses(message)


def test_byte_level_bpe_is_refused(bert):
    (bert.path / "vocab.json").write_text("{}")
    (bert.path / "merges.txt").write_text("#version: 0.2\n")
    bert.refuses("byte-level BPE, merges.txt, is not known")


def lower(steps):
    return [*steps, {"type": "Lowercase"}]


def other_map(steps):
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"x")
             .decode()}, *steps[1:]]  # fmt: skip


@pytest.mark.parametrize(
    "change, message",
    [
        (lower, "text passes 'Lowercase'"),
        (lambda steps: [{"type": "NFKD"}, {"type": "StripAccents"}, *steps], "'NFKD'"),
        (lambda steps: steps[1:], "normalises characters in another way"),
        (other_map, "normalises characters in another way"),
        (lambda steps: [*steps, {"type": "Replace", "pattern": {"String": "a"},
                                 "content": "b"}], "text passes .'Replace' of 'a'"),
        (lambda steps: [*steps, {"type": "Replace", "pattern": {"String": " "},
                                 "content": ""}], "'Replace' of ' ' by ''"),
        (lambda steps: [s for s in steps if "{2,}" not in str(s)],
         "keeps repeated spaces, unlike sentencepiece.model"),
        (lambda steps: [*steps, {"type": "Precompiled", "precompiled_charsmap": "é"}],
         "precompiled_charsmap is damaged"),
    ],
)  # fmt: skip
def test_another_normalisation_is_refused(folder, change, message):
    content = json.loads((folder.path / "tokenizer.json").read_text())
    content["normalizer"]["normalizers"] = change(content["normalizer"]["normalizers"])
    folder.write("tokenizer.json", content)
    folder.refuses(message)


def test_steps_in_steps_without_end_are_refused(folder):
    content = json.loads((folder.path / "tokenizer.json").read_text())
    whole = json.dumps(content | {"normalizer": "STEPS"})
    begin = '{"type": "Sequence", "normalizers": ['
    steps = begin * 200 + json.dumps(content["normalizer"]) + "]}" * 200
    text = whole.replace('"STEPS"', steps)
    (folder.path / "tokenizer.json").write_text(text)
    folder.refuses("tokenizer.json: nested too deeply")


@pytest.mark.parametrize(
    "part, value, message",
    [
        ("pre_tokenizer", {"type": "Digits"}, "text is cut by 'Digits'"),
        ("pre_tokenizer", None, "adds no space before a text"),
        ("pre_tokenizer", {"type": "Metaspace", "prepend_scheme": "never"},
         "adds no space before a text"),
        ("post_processor", {"type": "ByteLevel"}, "its post_processor does not make"),
        ("padding", {"direction": "Left"}, "padding is on the left"),
        ("truncation", {"direction": "Left", "max_length": 8}, "truncation is on"),
        ("added_tokens", [{"id": 48, "content": "<url>"}], "adds the token '<url>'"),
        ("added_tokens", ["x"], "adds the token 'x'"),
        ("added_tokens", [{"id": 9, "content": "[MASK]"}], r"token '\[MASK\]'"),
    ],
)  # fmt: skip
def test_other_parts_of_tokenizer_json_are_refused(folder, part, value, message):
    folder.change("tokenizer.json", **{part: value})
    folder.refuses(message)


@pytest.mark.parametrize("kind", ["single", "pair"])
def test_other_special_pieces_around_text_are_refused(folder, kind):
    content = json.loads((folder.path / "tokenizer.json").read_text())
    template = content["post_processor"][kind]
    content["post_processor"][kind] = template[:-1]
    folder.write("tokenizer.json", content)
    folder.refuses("its post_processor does not make")
    content["post_processor"][kind] = template
    ids = content["post_processor"]["special_tokens"]["[CLS]"]["ids"]
    ids[0] += 1
    folder.write("tokenizer.json", content)
    folder.refuses("its post_processor does not make")


def test_bert_processing_is_the_same_template(folder, vocabulary):
    ends = {"cls": ["[CLS]", vocabulary.cls_id], "sep": ["[SEP]", vocabulary.sep_id]}
    folder.change("tokenizer.json", post_processor={"type": "BertProcessing"} | ends)
    folder.open()
    ends["sep"][1] += 1
    folder.change("tokenizer.json", post_processor={"type": "BertProcessing"} | ends)
    folder.refuses("its post_processor does not make")


@pytest.mark.parametrize("is_json_there", [True, False])
@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case is True"),
        ("tokenizer_config.json", {"strip_accents": True}, "strip_accents is True"),
        ("tokenizer_config.json", {"keep_accents": False}, "keep_accents is False"),
        ("tokenizer_config.json", {"padding_side": "left"}, "padding_side is 'left'"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"enable_sampling": True}},
         "sp_model_kwargs"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": "x"}}, "auto_map"),
        ("tokenizer_config.json", {"cls_token": "</s>"}, "cls_token is '</s>'"),
        ("tokenizer_config.json", {"mask_token": {"content": "<mask>"}}, "mask_token"),
        ("special_tokens_map.json", {"sep_token": "</s>"}, "sep_token is '</s>'"),
        ("special_tokens_map.json", {"additional_special_tokens": ["<e>"]}, "'<e>'"),
        ("added_tokens.json", {"<url>": 48}, "added_tokens.json: adds the token"),
        ("added_tokens.json", {"[MASK]": 48}, "added_tokens.json: adds the token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<e>"}}},
         "adds the token '<e>'"),
        ("tokenizer_config.json", {"extra_special_tokens": {"x": "<e>"}}, "'<e>'"),
        ("config.json", {"pad_token_id": 5}, "pad_token_id is 5, but"),
        ("config.json", {"bos_token_id": 9}, "bos_token_id is 9, but"),
        ("adapter_config.json", {"peft_type": "LORA"}, "has an adapter"),
    ],
)  # fmt: skip
def test_other_settings_are_refused(folder, name, changes, message, is_json_there):
    if not is_json_there:
        (folder.path / "tokenizer.json").unlink()
    folder.change(name, **changes)
    folder.refuses(message)


@pytest.mark.parametrize("is_wordpiece", [False, True])
def test_positions_of_xlm_r_need_its_id_of_padding(tmp_path, vocabulary, is_wordpiece):
    """transformers 5.23 gives a token of id 1 the position of padding."""
    folder = converted(tmp_path, vocabulary, XLM_R)
    folder.change("config.json", pad_token_id=1, type_vocab_size=1)
    if is_wordpiece:
        for name in ("sentencepiece.model", "tokenizer.json", "tokenizer_config.json"):
            (folder.path / name).unlink()
        (folder.path / "vocab.txt").write_text("\n".join(wordpieces()))
    folder.refuses("gives tokens of id 1 the position of padding, but .* has id 0")


def test_what_is_not_used_is_said(folder):
    folder.change("config.json", vocab_size=50, bos_token_id=312)
    folder.change("tokenizer_config.json", model_max_length=16, wordplay=True)
    modules = [
        {"type": f"sentence_transformers.models.{name}"} for name in ("X", "Dense")
    ]
    folder.write("modules.json", modules)
    assert folder.open()[1] == [
        "modules.json: the model alone is converted, without Dense",
        "tokenizer_config.json: not known and not used: wordplay",
        "48 pieces, 50 rows of embeddings: no text uses the last rows",
        "config.json: bos_token_id is 312, which is not used",
        "its tokenizer cuts texts at 16 tokens; to do the same, give "
        "--sequence_length=16 to export",
    ]
    folder.write("modules.json", modules[:1])
    assert not any("modules.json" in note for note in folder.open()[1])
    folder.write("sentence_bert_config.json", {"max_seq_length": 12})
    assert folder.open()[1][-1].endswith("--sequence_length=12 to export")
    folder.write("sentence_bert_config.json", {"do_lower_case": True})
    folder.refuses("sentence_bert_config.json: do_lower_case is true")
    # In folders of older versions, modules.json is one folder above.
    (folder.path / "modules.json").unlink()
    folder.refuses("sentence_bert_config.json: do_lower_case is true")


@pytest.mark.parametrize(
    "places",
    [
        {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": 3},
        # XLM-R's own places, but for <mask>.
        {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3},
        {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3, "byte_fallback": True,
         "vocab_size": 310},
    ],
)  # fmt: skip
def test_tokenizer_json_beside_xlm_r_s_pieces_in_other_places_is_checked(
    tmp_path, places
):
    path = tmp_path / "hf" / "sentencepiece.model"
    sentences = ["the quick brown fox jumps over the lazy dog."] * 20
    path.parent.mkdir()
    train_vocabulary(path, sentences, **places, control_symbols=["<mask>"])
    vocabulary = open_vocabulary(str(path))
    model = model_config(vocab_size=vocabulary.size)
    write_tokenizer(str(path.parent), vocabulary, model)
    names = {each.name for each in path.parent.iterdir()}
    assert "sentencepiece.bpe.model" not in names
    config = json.loads((path.parent / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert open_vocabulary(str(path.parent)).fingerprint == vocabulary.fingerprint
    content = json.loads((path.parent / "tokenizer.json").read_text())
    content["model"]["vocab"].reverse()
    (path.parent / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="it is another vocabulary"):
        open_vocabulary(str(path.parent))


@pytest.mark.parametrize("damage", ["[]", '{"model": []}', '{"model": {"vocab": 3}}'])
def test_a_damaged_tokenizer_json_is_refused(folder, damage):
    (folder.path / "tokenizer.json").write_text(damage)
    folder.refuses("not an object|its model is of type 'None'")


def test_readers_need_types_of_pairs(tmp_path, vocabulary):
    made = Folder(tmp_path / "hf", vocabulary, REMBERT)
    (made.path / "sentencepiece.model").write_bytes(vocabulary.content)
    made.write("tokenizer_config.json", {"model_input_names": ["input_ids"]})
    assert made.open()[1] == []
    made.change("config.json", architectures=["RemBertForSequenceClassification"])
    assert "the second text of a pair has type 1" in made.open()[1][0]
    made.change("config.json", architectures=["RemBertForQuestionAnswering"])
    made.refuses("pairs get no token types")


def test_the_spelling_of_padding_may_differ(tmp_path, vocabulary):
    path = other_vocabulary(tmp_path, pad_piece="[PAD]", unk_piece="[UNK]")
    made = Folder(tmp_path / "hf", open_vocabulary(path), REMBERT)
    (made.path / "sentencepiece.model").write_bytes(open_vocabulary(path).content)
    made.change("config.json", vocab_size=open_vocabulary(path).size)
    made.write("special_tokens_map.json", {"pad_token": "<pad>", "unk_token": "<unk>"})
    made.open()


def test_user_defined_pieces_are_found_on_both_sides(tmp_path):
    path = other_vocabulary(tmp_path, user_defined_symbols=["<url>", "e-"])
    pieces = open_vocabulary(path)
    made = Folder(tmp_path / "hf", pieces, REMBERT)
    (made.path / "sentencepiece.model").write_bytes(pieces.content)
    made.change("config.json", vocab_size=pieces.size)
    write_tokenizer(str(made.path), pieces, model_config())
    assert made.open()[1] == []
    made.write("added_tokens.json", {"<url>": pieces.piece_to_id("<url>")})
    made.open()


def test_earlier_folders_of_to_hf_are_read(folder):
    """They added the space before a text in the normalizer."""
    content = json.loads((folder.path / "tokenizer.json").read_text())
    charsmap = content["normalizer"]["normalizers"][0]

    def replace(pattern, text):
        return {"type": "Replace", "pattern": pattern, "content": text}

    content["normalizer"]["normalizers"] = [
        charsmap,
        replace({"Regex": " {2,}"}, " "),
        replace({"Regex": "^ | $"}, ""),
        {"type": "Prepend", "prepend": "▁"},
        replace({"String": " "}, "▁"),
    ]
    content["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never",
        "split": True,
    }  # fmt: skip
    folder.write("tokenizer.json", content)
    assert folder.open()[1] == []
