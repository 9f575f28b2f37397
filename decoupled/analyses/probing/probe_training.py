"""Trains a probe and scores it: Adam, halved rates, the best step kept.

As Tenney et al. (2019) do: the learning rate is halved where the development score
rests, and training ends where it keeps resting.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from decoupled.analyses.probing.probe import Probe
from decoupled.analyses.probing.probing_data import Batch, ProbingData
from decoupled.configs.analyses import ProbeSettings
from decoupled.core import console
from decoupled.core.release import tf


class Score(NamedTuple):
    """Micro-averaged over all labels of all targets; shares, not percent.

    A label that the training data do not have counts as missed.
    """

    f1: float
    precision: float
    recall: float
    targets: int


class Trained(NamedTuple):
    """A trained probe's scores by split, and what it made of the layers.

    mix: softmax of the layers' weights. steps: of the best development score.
    """

    scores: dict[str, Score]
    mix: list[float]
    steps: int


def train_probe(
    data: dict[str, ProbingData], layers: slice, settings: ProbeSettings, name: str
) -> Trained:
    """Trains on "train", keeps what is best on "dev", scores "dev" and "test".

    Args:
      data: splits; "test" may be missing. layers: those that the probe sees.
      name: for the progress shown.
    """
    trainer = _Trainer(data["train"], layers, settings)
    best = Score(-1, 0, 0, 0)
    best_step = resting = 0
    values = trainer.values()
    numbered = zip(range(1, settings.train_steps + 1), trainer.batches(), strict=False)
    for step, batch in console.track(numbered, name, settings.train_steps):
        trainer.learn(batch, step)
        if step % settings.eval_every_steps and step != settings.train_steps:
            continue
        found = trainer.score(data["dev"])
        if found.f1 > best.f1:
            best, best_step, resting, values = found, step, 0, trainer.values()
            continue
        resting += 1
        if resting == settings.stop_after:
            break
        if resting % settings.halve_after == 0:
            trainer.halve_rate()
    trainer.restore(values)
    scores = {"dev": best}
    if "test" in data:
        scores["test"] = trainer.score(data["test"])
    return Trained(scores, trainer.mix(), best_step)


def micro_score(right: int, said: int, there: int, targets: int) -> Score:
    """From counts of labels: said and right, said, and there.

    Where nothing is said or there, what would be divided by it is 0.
    """
    precision = right / said if said else 0.0
    recall = right / there if there else 0.0
    f1 = 2 * right / (said + there) if said + there else 0.0
    return Score(f1, precision, recall, targets)


def majority_score(train: ProbingData, other: ProbingData) -> Score:
    """Of always saying the most frequent label of the training data."""
    flat = [label for labels in train.labels for label in labels]
    most = int(np.bincount(flat).argmax())
    right = sum(most in labels for labels in other.labels)
    there = sum(map(len, other.labels))
    return micro_score(right, other.targets, there, other.targets)


class _Trainer:
    """A probe with its optimizer and compiled steps."""

    def __init__(self, data: ProbingData, layers: slice, settings: ProbeSettings):
        self._data, self._layers, self._settings = data, layers, settings
        count, width = data.vectors[:1, layers].shape[1:]
        spans = len(data.spans)
        self._probe = Probe(count, width, data.num_labels, spans, settings)
        self._variables = self._probe.trainable_variables
        self._optimizer = tf.keras.optimizers.Adam(
            settings.learning_rate, global_clipnorm=settings.clip_norm
        )
        self._optimizer.build(self._variables)
        rows = tf.TensorSpec([None], tf.int32)
        signature = (
            tf.TensorSpec([None, count, width], tf.float32),
            ((rows, rows),) * spans,
        )
        labels = tf.TensorSpec([None, data.num_labels], tf.float32)
        step = tf.TensorSpec([], tf.int32)
        self._learn = tf.function(
            self._step, [*signature, labels, step], autograph=False
        )
        self._logits = tf.function(
            lambda vectors, spans: self._probe(vectors, spans),
            signature,
            autograph=False,
        )

    def batches(self) -> Iterator[Batch]:
        """Training batches without end, in a new order in each pass."""
        generator = np.random.default_rng(self._settings.seed)
        size = self._settings.batch_size
        while True:
            order = generator.permutation(self._data.sentences)
            for start in range(0, len(order), size):
                yield self._data.batch(order[start : start + size], self._layers)

    def learn(self, batch: Batch, step: int) -> None:
        """One step of the optimizer."""
        spans = _tensors(batch.spans)
        self._learn(tf.constant(batch.vectors), spans, tf.constant(batch.labels), step)

    def score(self, data: ProbingData) -> Score:
        """Over all of a split."""
        right = said = there = 0
        for batch in data.batches(self._settings.batch_size, self._layers):
            logits = self._logits(tf.constant(batch.vectors), _tensors(batch.spans))
            yes, true = logits.numpy() > 0, batch.labels > 0
            right += int((yes & true).sum())
            said += int(yes.sum())
            there += int(true.sum()) + batch.missed
        return micro_score(right, said, there, data.targets)

    def halve_rate(self) -> None:
        """Halves the learning rate."""
        rate = self._optimizer.learning_rate
        rate.assign(rate / 2)

    def values(self) -> list[np.ndarray]:
        """A copy of the probe's variables."""
        return [variable.numpy() for variable in self._variables]

    def restore(self, values: list[np.ndarray]) -> None:
        """The reverse of `values`."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)

    def mix(self) -> list[float]:
        """The share of each layer."""
        return tf.nn.softmax(self._probe.mix_weights).numpy().tolist()

    def _step(self, vectors, spans, labels, step):
        with tf.GradientTape() as tape:
            logits = self._probe(vectors, spans, step)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(tf.reduce_sum(losses, -1))
        gradients = tape.gradient(loss, self._variables)
        self._optimizer.apply_gradients(zip(gradients, self._variables, strict=True))


def _tensors(spans):
    return tuple((tf.constant(rows), tf.constant(owners)) for rows, owners in spans)
