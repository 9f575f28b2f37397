"""Answers to several files: each is loaded ahead, and nothing is left behind."""

import itertools
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.core.errors import Terminated, UserError
from decoupled.runs import evaluation
from decoupled.runs.evaluation import FilesAhead, answer_languages, ends_with_a_line
from decoupled.tasks.tagging import Tagging
from tests.training.runs import graph_config, run_spec


def test_results_come_in_order_each_loaded_before_it_is_asked_for():
    started = {name: threading.Event() for name in "abc"}

    def load(name):
        started[name].set()
        return name.upper()

    results = FilesAhead(load, [("a",), ("b",), ("c",)])
    assert results[0] == "A"
    assert started["b"].wait(timeout=30) and not started["c"].is_set()
    assert list(results) == ["A", "B", "C"]
    results.close()


def test_a_mistake_in_a_file_is_raised_where_its_turn_is():
    def load(name):
        if name == "b":
            raise UserError("b.tsv:1: empty")
        return name

    results = FilesAhead(load, [("a",), ("b",), ("c",)])
    assert results[0] == "a"
    with pytest.raises(UserError, match="b.tsv:1: empty"):
        results[1]
    results.close()


def test_sigterm_in_an_evaluation_ends_the_command_with_a_line():
    before = signal.getsignal(signal.SIGTERM)

    @ends_with_a_line
    def evaluate():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    with pytest.raises(Terminated, match="in an evaluation; run again"):
        evaluate()
    assert signal.getsignal(signal.SIGTERM) == before


ROWS, BATCH, LANGUAGES = 10, 4, "en de sw ar".split()
BATCHES = ROWS * len(LANGUAGES) // BATCH


def features_of(language):
    start = 100 * LANGUAGES.index(language)
    rows = np.arange(start, start + ROWS, dtype=np.int32)
    ids = np.repeat(rows[:, np.newaxis], 8, axis=1)
    return {"input_word_ids": ids, "input_mask": np.ones((ROWS, 8), np.int32)}


def session_loop(before_batch):
    """`estimator.predict` with a graph that gives back its input.

    Args:
      before_batch: called in the session, with the number of the batch, before it runs.
    """

    def predict(network, spec, batch_size, input_fn, checkpoint):
        with tf.Graph().as_default():
            batch = tf.data.make_one_shot_iterator(input_fn()).get_next()
            with tf.train.MonitoredSession() as session:
                for number in itertools.count():
                    before_batch(number)
                    try:
                        found = session.run(batch)
                    except tf.errors.OutOfRangeError:
                        return
                    for row in range(BATCH):
                        yield {"ids": found["input_word_ids"][row]}

    return predict


def ends(action):
    """What an action raises in a thread; fails if it has not ended after a while."""
    raised = []

    def run():
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "it waits for ever"
    return raised


def answered(monkeypatch, before_batch, load=features_of, answer=lambda *_: None):
    """The languages whose answers came, from a real input pipeline and session."""
    data = SimpleNamespace(
        examples=lambda split, language: language,
        features=lambda split, language, examples: load(language),
        for_graph=lambda features: features,
        task=SimpleNamespace(answers=answer),
    )
    spec = run_spec("")
    monkeypatch.setattr(evaluation, "predict", session_loop(before_batch))
    wanted = [("test", language) for language in LANGUAGES]
    found = answer_languages(NETWORK, spec, BATCH, data, wanted)
    return [one.language for one in found]


# A row holds one example of eight tokens.
TASK = Tagging("tags", ("A", "B"), 8, 0.0)
NETWORK = graph_config(task=TASK).network


def nothing(number):
    """Called before a batch."""


def test_every_language_gets_its_own_rows(monkeypatch):
    seen = {}

    def answer(examples, features, outputs):
        seen[examples] = outputs["ids"][:, 0].tolist()

    assert answered(monkeypatch, nothing, answer=answer) == LANGUAGES
    assert list(seen) == LANGUAGES
    assert [rows[0] for rows in seen.values()] == [0, 100, 200, 300]
    assert [rows[-1] for rows in seen.values()] == [9, 109, 209, 309]


# The first batch, others in a file, the last of a file, the first of the next one, the
# last of all, and the end; the errors take turns, and the first batch has both.
@pytest.mark.parametrize(
    "batch, error",
    [(0, ValueError)]
    + [(n, (KeyboardInterrupt, ValueError)[n % 2]) for n in range(BATCHES + 1)],
)
def test_no_error_while_batches_run_leaves_a_thread_waiting(monkeypatch, batch, error):
    def stop(number):
        if number == batch:
            raise error("here")

    [raised] = ends(lambda: answered(monkeypatch, stop))
    assert type(raised) is error and str(raised) == "here"


# Of the first language, of others and of the last one.
@pytest.mark.parametrize(
    "place, error",
    [
        ("en", KeyboardInterrupt),
        ("de", UserError),
        ("sw", KeyboardInterrupt),
        ("ar", UserError),
    ],
)
def test_no_error_between_batches_leaves_a_thread_waiting(monkeypatch, place, error):
    def answer(examples, features, outputs):
        if examples == place:
            raise error("here")

    def load(language):
        if language == place:
            raise error("there")
        return features_of(language)

    [raised] = ends(lambda: answered(monkeypatch, nothing, answer=answer))
    assert type(raised) is error and str(raised) == "here"
    [raised] = ends(lambda: answered(monkeypatch, nothing, load=load))
    assert type(raised) is error and str(raised) == "there"
