"""Files of Tatoeba and BUCC, and any parallel files: what is read, what is refused."""

import pytest

from decoupled.core.errors import UserError
from decoupled.xtreme import parallel_sentences as reader

ENGLISH = ["Where is it?", "Hello.", "A cat sleeps.", "Hello."]
SWAHILI = ["Iko wapi?", "Habari.", "Paka analala.", "Hujambo."]


def write(folder, files):
    """Writes name -> lines; returns the folder as a string."""
    for name, lines in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder)


def tatoeba(folder, english=ENGLISH, swahili=SWAHILI, **more):
    files = {"tatoeba/sw-en.sw": swahili, "tatoeba/sw-en.en": english}
    return write(folder, {**files, **more})


def bucc_files(**changes):
    files = {
        "de-en.dev.de": ["de-1\tEin Haus.", "de-2\tDas Meer."],
        "de-en.dev.en": ["en-1\tThe sea.", "en-2\tA house.", "en-3\tTea."],
        "de-en.dev.gold": ["de-1\ten-2", "de-2\ten-1"],
        "de-en.test.de": ["de-8\tDer Baum.\t"],
        "de-en.test.en": ["en-9\tThe tree."],
    }
    return {f"bucc2018/{name}": lines for name, lines in {**files, **changes}.items()}


def test_unsorted_english_says_what_translates_what(tmp_path):
    pair = reader.read_tatoeba(tatoeba(tmp_path), "sw")
    assert pair.sources == SWAHILI
    assert pair.candidates == ["A cat sleeps.", "Hello.", "Hello.", "Where is it?"]
    assert pair.gold == [3, 1, 0, 2]


def test_sorted_english_gives_the_same_candidates_and_no_gold(tmp_path):
    pair = reader.read_tatoeba(tatoeba(tmp_path, sorted(ENGLISH)), "sw")
    assert pair.candidates == sorted(ENGLISH)
    assert pair.gold is None


def test_labels_beside_sorted_english(tmp_path):
    labels = {"tatoeba/test-sw.tsv": [3, 1, 0, 2]}
    folder = tatoeba(tmp_path, sorted(ENGLISH), **labels)
    assert reader.read_tatoeba(folder, "sw").gold == [3, 1, 0, 2]


def test_labels_beside_unsorted_english_say_the_same_or_are_refused(tmp_path):
    folder = tatoeba(tmp_path, **{"tatoeba/test-sw.tsv": [3, 2, 0, 1]})
    # Equal sentences may change places.
    assert reader.read_tatoeba(folder, "sw").gold == [3, 2, 0, 1]
    tatoeba(tmp_path, **{"tatoeba/test-sw.tsv": [0, 1, 2, 3]})
    with pytest.raises(UserError, match="test-sw.tsv:1 .*: 0 is not the place of Engl"):
        reader.read_tatoeba(folder, "sw")


def test_the_folder_of_parallel_files_will_do(tmp_path):
    files = {"sw-en.sw": SWAHILI, "sw-en.en": ENGLISH}
    folder = write(tmp_path, {f"tatoeba_parallel/{k}": v for k, v in files.items()})
    assert reader.languages("tatoeba", folder) == ["sw"]
    assert reader.read_tatoeba(folder, "sw").gold == [3, 1, 0, 2]


@pytest.mark.parametrize(
    "english, more, message",
    [
        (ENGLISH[:3], {}, "sw-en.en (language sw): 3 lines"),
        ([*ENGLISH[:3], " "], {}, "sw-en.en:4 (language sw): holds no sentence"),
        (ENGLISH, {"tatoeba/test-sw.tsv": [0, 1]}, "test-sw.tsv"),
        (ENGLISH, {"tatoeba/test-sw.tsv": [0, 1, 2, 4]}, "test-sw.tsv"),
    ],
)
def test_sides_and_labels_that_do_not_fit(tmp_path, english, more, message):
    with pytest.raises(UserError) as caught:
        reader.read_tatoeba(tatoeba(tmp_path, english, **more), "sw")
    assert message in str(caught.value)


def test_a_missing_side_is_named_with_a_way_to_get_it(tmp_path):
    folder = write(tmp_path, {"tatoeba/sw-en.sw": SWAHILI})
    assert reader.languages("tatoeba", folder) == ["sw"]
    with pytest.raises(UserError, match=r"sw-en\.en: missing.*'sw'.*download_data"):
        reader.language_files("tatoeba", folder, "sw")


def test_all_missing_files_of_a_language_are_named(tmp_path):
    folder = write(tmp_path, bucc_files())
    for name in ("de-en.dev.gold", "de-en.test.de"):
        (tmp_path / "bucc2018" / name).unlink()
    with pytest.raises(UserError, match="dev.gold, .*de-en.test.de: missing; bucc2018"):
        reader.check_language("bucc2018", folder, "de")


def test_languages_outside_xtreme_are_read_too(tmp_path):
    folder = write(tmp_path, {"tatoeba/mt-en.mt": SWAHILI, "tatoeba/mt-en.en": ENGLISH})
    assert reader.languages("tatoeba", folder) == ["mt"]
    reader.check_language("tatoeba", folder, "mt")


@pytest.mark.parametrize("split", [reader.DEV, reader.TEST])
def test_the_check_of_a_language_reads_its_files(tmp_path, split):
    files = {**bucc_files(), f"bucc2018/de-en.{split}.en": ["no tab"]}
    with pytest.raises(UserError, match=f"de-en.{split}.en:1 .language de.: not id"):
        reader.check_language("bucc2018", write(tmp_path, files), "de")


def test_no_folder_and_no_files(tmp_path):
    with pytest.raises(UserError, match="no folder bucc2018; get it with"):
        reader.languages("bucc2018", str(tmp_path))
    (tmp_path / "bucc2018").mkdir()
    with pytest.raises(UserError, match="no files such as de-en.test.de"):
        reader.languages("bucc2018", str(tmp_path))


def test_bucc(tmp_path):
    folder = write(tmp_path, bucc_files())
    assert reader.languages("bucc2018", folder) == ["de"]
    dev = reader.read_bucc(folder, reader.DEV, "de")
    assert dev.source == reader.Text(["de-1", "de-2"], ["Ein Haus.", "Das Meer."])
    assert dev.english.ids == ["en-1", "en-2", "en-3"]
    assert dev.gold == {("de-1", "en-2"), ("de-2", "en-1")}
    test = reader.read_bucc(folder, reader.TEST, "de")
    assert test.source.sentences == ["Der Baum."]
    assert test.gold is None


@pytest.mark.parametrize("name", ["bucc2018/de-en.test.gold", "bucc2018/test-de.tsv"])
def test_gold_pairs_of_the_test_set_may_be_there(tmp_path, name):
    folder = write(tmp_path, {**bucc_files(), name: ["de-8\ten-9"]})
    assert reader.read_bucc(folder, reader.TEST, "de").gold == {("de-8", "en-9")}


@pytest.mark.parametrize(
    "name, lines, message",
    [
        ("de-en.dev.de", ["de-1\tEin Haus.", "Das Meer."], ":2 (language de): not id"),
        ("de-en.dev.de", ["\tEin Haus."], ":1 (language de): not id"),
        ("de-en.dev.en", ["en-1\ta", "en-1\tb"], "id 'en-1' occurs 2 times"),
        ("de-en.dev.en", [], "empty"),
        ("de-en.dev.en", ["en-1\ta", "en-2\t "], ":2 (language de): holds no sent"),
        (
            "de-en.dev.gold",
            ["de-1\ten-2", "de-1\ten-7"],
            ":2 (language de): no sentence",
        ),
        ("de-en.dev.gold", ["de-1"], ":1 (language de): 'de-1' is not two ids"),
    ],
)
def test_bucc_files_that_are_wrong(tmp_path, name, lines, message):
    folder = write(tmp_path, bucc_files(**{name: lines}))
    with pytest.raises(UserError) as caught:
        reader.read_bucc(folder, reader.DEV, "de")
    assert name in str(caught.value)
    assert message in str(caught.value)


def test_parallel_files(tmp_path):
    sides = {"a": ["x 1", " y ", "", "w"], "b": ["X 1", "Y", "Z", "W"]}
    write(tmp_path, sides)
    paths = [str(tmp_path / name) for name in sides]
    expected = ["x 1", "y", "w"], ["X 1", "Y", "W"]
    assert reader.read_parallel(*paths, "xx", 0) == expected
    assert reader.read_parallel(*paths, "xx", 2) == tuple(s[:2] for s in expected)


def test_parallel_files_that_do_not_belong_together(tmp_path):
    write(tmp_path, {"a": ["x", "y"], "b": ["X"], "c": ["", "Y"], "d": ["x", ""]})
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    with pytest.raises(UserError, match=r"b \(language xx\): 1 lines"):
        reader.read_parallel(a, b, "xx", 0)
    with pytest.raises(UserError, match="no pair of sentences"):
        reader.read_parallel(c, d, "xx", 0)


def test_real_files(data_dir):
    assert len(reader.languages("tatoeba", data_dir)) == 11
    with open(f"{data_dir}/tatoeba_parallel/ja-en.en", encoding="utf-8") as handle:
        english = [line.strip() for line in handle]
    pair = reader.read_tatoeba(data_dir, "ja")
    assert [pair.candidates[place] for place in pair.gold] == english


def test_a_byte_order_mark_moves_no_translation(tmp_path):
    folder = tatoeba(tmp_path, ENGLISH)
    plain = reader.read_tatoeba(folder, "sw")
    for side in ("sw", "en"):
        path = tmp_path / "tatoeba" / f"sw-en.{side}"
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert reader.read_tatoeba(folder, "sw") == plain
