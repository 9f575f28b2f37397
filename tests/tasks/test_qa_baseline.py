"""The sliding window, in places counted by hand."""

from decoupled.tasks.qa_baseline import sliding_window_answer, usual_length
from tests.tasks.question_samples import question


def ask(context, text):
    return question(context, context[:1], text)


def test_usual_length_is_the_median_in_words():
    lengths = ["a b c", "a", "a b"]
    asked = [question(answer, answer) for answer in lengths]
    assert usual_length(asked) == 2
    # A character is a word where a script has no spaces.
    assert usual_length([question("巨人山脉", "巨人山脉")]) == 4
    assert usual_length([]) == 1


def test_the_words_beside_those_of_the_question():
    filler = " ".join(["filler"] * 30)
    asked = ask(f"{filler}. The river Elbe rises in mountains. {filler}", "the Elbe?")
    # The first place within ten words of both: eight fillers, The, river.
    assert sliding_window_answer(asked, 2) == "filler filler"
    asked = ask("Elbe rises in mountains", "What rises in Elbe?")
    assert sliding_window_answer(asked, 1) == "mountains"


def test_short_contexts():
    assert sliding_window_answer(ask("Elbe", "Where?"), 3) == "Elbe"
    assert sliding_window_answer(ask("...", "Where?"), 3) == ""
    assert sliding_window_answer(ask("Elbe river", "Elbe river?"), 2) == "Elbe river"
