"""Minimal pairs: files, scores from logits of a network in numpy, planted answers."""

import json

import numpy as np
import pytest

from decoupled.analyses import minimal_pairs
from decoupled.analyses.minimal_pairs import MinimalPair, find_files, read_pairs
from decoupled.analyses.models import open_models
from decoupled.configs.analyses import MinimalPairSettings
from decoupled.core.errors import UserError
from decoupled.metrics.neighbours import wilson_interval
from tests.analyses.tiny_runs import texts_of, write_finetuned_run, write_run
from tests.exports.reference import Reference

ENTRY = {
    "sentence_good": "Cats sleep.",
    "sentence_bad": "Cats sleeps.",
    "field": "syntax",
    "linguistics_term": "agreement",
    "UID": "regular_plural",
    "pair_id": "0",
}
HEADER = "sen\twrong_sen\tverb\tphenomenon\n"
SETTINGS = MinimalPairSettings("token", None, "refuse", 5)
LEFT_TO_RIGHT = SETTINGS._replace(masking="word_left_to_right")
PAIRS = [
    MinimalPair(good, bad, field, phenomenon, paradigm, f"pairs.jsonl:{number}")
    for number, (good, bad, field, phenomenon, paradigm) in enumerate(
        [
            ("Show the page", "Show page the", "syntax", "order", "noun"),
            ("the blue image", "blue the image", "syntax", "order", "noun"),
            ("Delete the last page", "Delete last the page", "syntax", "order", "end"),
            ("10 other objects", "1 other objects", "syntax", "number", "one"),
            ("user name", "user user", "semantics", "words", "name"),
            ("Zürich", "Zürich Zürich Zürich", "semantics", "words", "name"),
        ]
    )
]


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_blimp(tmp_path):
    other = json.dumps(
        {**ENTRY, "sentence_bad": "Cats\u2028sleeps"}, ensure_ascii=False
    )
    path = write(tmp_path / "a.jsonl", f"{json.dumps(ENTRY)}\n\n{other}\n")
    names = ("syntax", "agreement", "regular_plural")
    assert read_pairs(path) == [
        MinimalPair("Cats sleep.", "Cats sleeps.", *names, f"{path}:1"),
        MinimalPair("Cats sleep.", "Cats\u2028sleeps", *names, f"{path}:3"),
    ]


@pytest.mark.parametrize("name", ["deu/data.tsv", "deu.tsv"])
def test_multiblimp(tmp_path, name):
    quoted = '"Er sagt ""ja""."\t"Er sagst ""ja""."\tsagt\tSV-P\n'
    text = f"{HEADER}Sie gehen.\tSie geht.\tgehen\tSV-#\r\n{quoted}"
    path = write(tmp_path / name, text)
    assert read_pairs(path) == [
        MinimalPair("Sie gehen.", "Sie geht.", "deu", "SV-#", "SV-#", f"{path}:2"),
        MinimalPair(
            'Er sagt "ja".', 'Er sagst "ja".', "deu", "SV-P", "SV-P", f"{path}:3"
        ),
    ]


def test_files_are_found_in_folders_and_a_level_below(tmp_path):
    paths = [
        write(tmp_path / name, "x")
        for name in ("b.jsonl", "c.tsv", "deu/data.tsv", "fin/data.tsv")
    ]
    write(tmp_path / "README.md", "x")
    assert find_files([str(tmp_path)]) == paths
    assert find_files([paths[2], paths[0]]) == [paths[2], paths[0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sentence_good": \n', "a.jsonl:1: not JSON at column 19"),
        ("\n[1]\n", "a.jsonl:2: not an object with sentence_good, sentence_bad"),
        (json.dumps({**ENTRY, "UID": 3}), 'a.jsonl:1: "UID" is missing, empty or no'),
        (json.dumps({**ENTRY, "field": " "}), 'a.jsonl:1: "field" is missing, empty'),
        (
            json.dumps({**ENTRY, "sentence_bad": "Cats sleep."}),
            "a.jsonl:1: both sentences are 'Cats sleep.'",
        ),
        ("\n", "a.jsonl: holds no minimal pairs"),
        (b"{}\n\xff", "a.jsonl: not UTF-8 at byte 3"),
    ],
)
def test_refused_json_lines(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_pairs(write(tmp_path / "a.jsonl", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sen\tphenomenon\n", "a.tsv:1: must have one column 'wrong_sen'; its columns"),
        ("", "a.tsv:1: must have one column 'sen'"),
        (HEADER, "a.tsv: holds no minimal pairs"),
        (f"{HEADER}a\tb\tc\n", "a.tsv:2: 3 columns, but the first line has 4"),
        (f"{HEADER}a\tb\tc\td\na\t \tc\td", "a.tsv:3: column 'wrong_sen' is empty"),
        (f'{HEADER}"a\tb\tc\n', "a.tsv:2: 3 columns, but the first line has 4"),
        (f"{HEADER}a\ta\tc\td\n", "a.tsv:2: both sentences are 'a'"),
    ],
)
def test_refused_tables(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_pairs(write(tmp_path / "a.tsv", text))


def test_refused_paths(tmp_path):
    path = write(tmp_path / "some" / "a.csv", "x")
    with pytest.raises(UserError, match=r"a.csv: is neither .jsonl \(BLiMP\) nor"):
        find_files([path])
    with pytest.raises(UserError, match=r"some: has neither \*.jsonl nor \*.tsv"):
        find_files([str(tmp_path / "some")])
    path = write(tmp_path / "a.tsv", "x")
    with pytest.raises(UserError, match=r"a.tsv: is given twice"):
        find_files([path, str(tmp_path)])
    with pytest.raises(UserError, match=r"missing.tsv: cannot read"):
        read_pairs(str(tmp_path / "missing.tsv"))


@pytest.fixture(scope="module")
def models(pretrained_dir, coupled_dir):
    return open_models([pretrained_dir, coupled_dir], masked_lm=True)


@pytest.fixture(scope="module")
def result(models):
    return minimal_pairs.measure(models, PAIRS, SETTINGS)


def direct_score(reference, vocabulary, text, left_to_right):
    """Sentence by sentence, without padding; a row for each token that is masked."""
    ids = [vocabulary.cls_id, *vocabulary.encode(text), vocabulary.sep_id]
    pieces = [vocabulary.id_to_piece(number) for number in ids]
    places = np.arange(1, len(ids) - 1)
    seen = np.tile(ids, (len(places), 1))
    for row, place in zip(seen, places, strict=True):
        row[place] = vocabulary.mask_id
        after = place + 1
        while left_to_right and pieces[after][0] not in "▁[":
            row[after] = vocabulary.mask_id
            after += 1
    batch = {
        "input_word_ids": seen,
        "input_mask": np.ones_like(seen),
        "input_type_ids": np.zeros_like(seen),
    }
    last = reference.encode(batch)[-1]
    logits = reference.masked_lm(last, places[:, np.newaxis])[:, 0]
    own = logits[np.arange(len(places)), np.array(ids)[places]]
    return (own - np.log(np.exp(logits).sum(1))).sum()


@pytest.mark.parametrize("settings", [SETTINGS, LEFT_TO_RIGHT])
def test_scores_are_sums_of_the_networks_log_probabilities(models, settings):
    found = minimal_pairs.measure(models, PAIRS, settings)["arrays"]
    for number, model in enumerate(models):
        weights = {name: model.weights[name] for name in model.weights}
        network = Reference(model.config, weights), model.vocabulary
        for side in ("good", "bad"):
            expected = [
                direct_score(*network, getattr(pair, side), settings is LEFT_TO_RIGHT)
                for pair in PAIRS
            ]
            np.testing.assert_allclose(found[f"{number}/{side}"], expected, rtol=1e-5)


def test_batches_change_nothing(models, result):
    found = minimal_pairs.measure(models, PAIRS, SETTINGS._replace(batch_size=64))
    for name, values in result["arrays"].items():
        np.testing.assert_allclose(found["arrays"][name], values, rtol=1e-5)


def test_accuracies_are_shares_of_pairs_with_intervals(result):
    for number, model in enumerate(result["models"]):
        right = result["arrays"][f"{number}/good"] > result["arrays"][f"{number}/bad"]
        entries = {
            (e["field"], e["phenomenon"], e["paradigm"]): e for e in model["accuracies"]
        }
        for key, own in {
            ("all", "all", "all"): right,
            ("syntax", "all", "all"): right[:4],
            ("syntax", "order", "all"): right[:3],
            ("syntax", "order", "noun"): right[:2],
            ("semantics", "words", "name"): right[4:],
        }.items():
            entry = entries[key]
            assert (entry["pairs"], entry["right"]) == (len(own), own.sum())
            assert entry["accuracy"] == own.mean()
            bounds = wilson_interval(int(own.sum()), len(own))
            assert (entry["low"], entry["high"]) == bounds
        assert len(entries) == 1 + 2 + 3 + 4
        assert next(iter(entries)) == ("all", "all", "all")
    assert result["items"] == [pair.where for pair in PAIRS]


def test_a_model_that_knows_frequencies_alone_prefers_frequent_words(
    vocabulary, tmp_path
):
    """Its score is a sum of log frequencies, in whatever order."""
    bias = np.zeros(48, np.float32)
    frequent = vocabulary.encode("image")[-1]
    bias[frequent] = 5
    weights = {
        "cls/predictions/output_bias": bias,
        "cls/predictions/output_embedding": np.zeros([48, 10], np.float32),
    }
    folder = write_run(tmp_path / "run", vocabulary, weights=weights)
    [model] = open_models([folder], masked_lm=True)
    names = ("a", "b", "c", "here")
    texts = ["user image", "image user", "user image image"]
    ids = [vocabulary.encode(text) for text in texts]
    log_sum = np.log(47 + np.exp(5))
    scores = [5 * own.count(frequent) - len(own) * log_sum for own in ids]
    pairs = [MinimalPair(good, bad, *names) for good in texts for bad in texts]
    found = minimal_pairs.measure([model], pairs, SETTINGS)
    np.testing.assert_allclose(
        found["arrays"]["0/good"], np.repeat(scores, 3), rtol=1e-5
    )
    assert scores[0] == scores[1] > scores[2]
    # Equal scores are wrong: two of nine are right.
    assert found["models"][0]["accuracies"][0]["right"] == 2


def test_long_sentences_are_refused_or_left_out_for_all_models(models):
    settings = SETTINGS._replace(max_tokens=20)
    lengths = [
        max(len(models[0].vocabulary.encode(text)) for text in (p.good, p.bad))
        for p in PAIRS
    ]
    kept = [p.where for p, length in zip(PAIRS, lengths, strict=True) if length <= 18]
    assert 0 < len(kept) < len(PAIRS)
    with pytest.raises(UserError, match=r"pairs.jsonl:\d: a sentence has \d+ tokens, "):
        minimal_pairs.measure(models, PAIRS, settings)
    settings = settings._replace(long_pairs="leave_out")
    found = minimal_pairs.measure(models, PAIRS, settings)
    assert found["items"] == kept
    assert found["left_out"] == len(PAIRS) - len(kept)
    with pytest.raises(UserError, match="every pair has a sentence that is longer"):
        minimal_pairs.measure(models, PAIRS, settings._replace(max_tokens=3))
    with pytest.raises(UserError, match="minimal_pairs.max_tokens: 99, but pretrained"):
        minimal_pairs.measure(models, PAIRS, settings._replace(max_tokens=99))


def test_refused_settings_models_and_sentences(models, vocabulary, tmp_path):
    for changes, message in (
        ({"masking": "word"}, "minimal_pairs.masking: 'word' is unknown; one of token"),
        ({"long_pairs": "cut"}, "minimal_pairs.long_pairs: 'cut' is unknown"),
        ({"batch_size": 0}, "minimal_pairs.batch_size: 0 is no whole number >= 1"),
        ({"max_tokens": 2}, "minimal_pairs.max_tokens: 2 is no whole number >= 3"),
    ):
        with pytest.raises(UserError, match=message):
            minimal_pairs.measure(models, PAIRS, SETTINGS._replace(**changes))
    with pytest.raises(UserError, match="x:3: a sentence without text"):
        empty = MinimalPair("\u200b", "page", "a", "b", "c", "x:3")
        minimal_pairs.measure(models, [empty], SETTINGS)
    finetuned = write_finetuned_run(tmp_path / "tuned", vocabulary)
    with pytest.raises(UserError, match="holds no MLM head"):
        open_models([finetuned], masked_lm=True)


def test_result_table_and_plot(result, tmp_path, capsys):
    shown = {name: value for name, value in result.items() if name != "arrays"}
    json.dumps(shown, allow_nan=False)
    minimal_pairs.show(shown)
    printed = capsys.readouterr().out
    assert "Acceptable sentence preferred" in printed and "semantics" in printed
    _, svg = minimal_pairs.plot(shown, str(tmp_path / "plot"))
    assert {"pretrained", "coupled", "syntax: order"} <= set(texts_of(svg))


def test_quotes_and_line_ends_in_a_table(tmp_path):
    rows = [
        'Er sagt.\t"Er ""sag""\nt."\tsagt\tSV', '"""Ja"""\t"a\tb"\tsagt\tSV',
    ]  # fmt: skip
    path = write(tmp_path / "deu.tsv", "\ufeff" + HEADER + "\n".join(rows))
    first, second = read_pairs(path)
    assert (first.bad, first.where) == ('Er "sag"\nt.', f"{path}:2")
    assert (second.good, second.bad, second.where) == ('"Ja"', "a\tb", f"{path}:4")
    rows = ['"Er sagt.\tEr "sagt.\tsagt\tSV ', '"""x\tEr sagt."\tsagt\tSV']
    first, second = read_pairs(write(tmp_path / "deu.tsv", HEADER + "\r".join(rows)))
    assert (first.good, first.bad, first.phenomenon) == ('"Er sagt.', 'Er "sagt.', "SV")
    assert (second.good, second.bad) == ('"""x', 'Er sagt."')


def test_names_of_phenomena_have_no_control_characters(tmp_path):
    text = json.dumps({**ENTRY, "UID": "a\nb"})
    with pytest.raises(UserError, match="a.jsonl:1: label .* control character U"):
        read_pairs(write(tmp_path / "a.jsonl", text))


def test_phenomena_that_look_the_same_are_refused(tmp_path):
    rows = "a\tb\tv\taccordé\nc\td\tv\taccorde\u0301\n"
    with pytest.raises(UserError, match=r"fra\.tsv:3: labels .* look the same"):
        read_pairs(write(tmp_path / "fra.tsv", HEADER + rows))


def test_a_pair_of_a_field_called_all_counts_once():
    pairs = [PAIRS[0]._replace(field="all"), PAIRS[1]._replace(phenomenon="all")]
    entries = minimal_pairs._accuracies(pairs, np.array([True, False]))
    counts = {
        (entry["field"], entry["phenomenon"], entry["paradigm"]): entry["pairs"]
        for entry in entries
    }
    assert counts["all", "all", "all"] == 2
    assert counts["syntax", "all", "all"] == 1
