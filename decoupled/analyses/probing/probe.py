"""The probe: a small network on frozen vectors of spans, its training and its score.

The network is a learned mix of the layers, a projection, self-attentive pooling over
each span, and an MLP of two layers. Every label is a binary decision (Tenney et al.
2019). As in that paper, the learning rate is halved when the development score stops
improving, training ends when it still does not improve, and the best step is kept.

A probe must beat a lookup of words, which sees no vectors. A probe on
vectors can tell words apart, and most words have only one part of speech. Only the gain
over the word lookup shows knowledge of the sentence.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.analyses.probing.frozen_vectors import ProbingData, SpanBatch
from decoupled.analyses.probing.task_files import Example, Target
from decoupled.configs.analyses import ProbeSettings
from decoupled.core import console
from decoupled.core.release import tf
from decoupled.metrics.labels import count_scores

Dense = tuple[tf.Variable, tf.Variable]
Spans = tuple[tuple[tf.Tensor, tf.Tensor], ...]


class Probe(tf.Module):
    """The network for vectors [pieces, layers, width] and 1 or 2 spans per target."""

    def __init__(
        self, layers: int, width: int, labels: int, spans: int, settings: ProbeSettings
    ):
        super().__init__()
        self._settings = settings
        self._generator = np.random.default_rng(settings.seed)
        size = settings.projection_size
        self.mix_weights = tf.Variable(np.zeros(layers, np.float32))
        self.mix_scale = tf.Variable(np.float32(1))
        self.projections = [self._dense(width, size) for _ in range(spans)]
        self.attention = [self._dense(size, 1) for _ in range(spans)]
        self.hidden = self._dense(spans * size, settings.hidden_size)
        self.output = self._dense(settings.hidden_size, labels)

    def __call__(
        self, vectors: tf.Tensor, spans: Spans, step: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Scores of all labels, float32 [targets, labels]; one above 0 is predicted.

        `step`, an int32 scalar, seeds the dropout; None for no dropout.
        """
        mix = tf.einsum("plh,l->ph", vectors, tf.nn.softmax(self.mix_weights))
        mix *= self.mix_scale
        span_vectors = [
            self._pool(_apply(projection, mix), attention, rows, segments)
            for projection, attention, (rows, segments) in zip(
                self.projections, self.attention, spans, strict=True
            )
        ]
        x = self._drop(tf.concat(span_vectors, -1), step, 0)
        x = self._drop(tf.tanh(_apply(self.hidden, x)), step, 1)
        return _apply(self.output, x)

    def _dense(self, inputs: int, outputs: int) -> Dense:
        bound = np.sqrt(6 / (inputs + outputs))
        kernel = self._generator.uniform(-bound, bound, [inputs, outputs])
        return (
            tf.Variable(kernel.astype(np.float32)),
            tf.Variable(np.zeros(outputs, np.float32)),
        )

    def _pool(
        self, x: tf.Tensor, attention: Dense, rows: tf.Tensor, segments: tf.Tensor
    ) -> tf.Tensor:
        """The mean of each span's vectors, weighted by a softmax of their scores."""
        scores = tf.gather(_apply(attention, x)[:, 0], rows)
        highest = tf.math.segment_max(scores, segments)
        shares = tf.exp(scores - tf.gather(highest, segments))
        shares /= tf.gather(tf.math.segment_sum(shares, segments), segments)
        weighted_vectors = tf.gather(x, rows) * shares[:, tf.newaxis]
        return tf.math.segment_sum(weighted_vectors, segments)

    def _drop(self, x: tf.Tensor, step: tf.Tensor | None, place: int) -> tf.Tensor:
        if step is None or not self._settings.dropout:
            return x
        seed = tf.stack([self._settings.seed * 2 + place, step])
        return tf.nn.experimental.stateless_dropout(x, self._settings.dropout, seed)


class ProbeResult(NamedTuple):
    """A trained probe's scores by split, and its mix of the layers.

    scores: `f1`, `precision` and `recall`, 0 to 1, micro-averaged over all labels of
    all `targets`; a label that the training data do not have counts as missed. hits:
    bool [targets of "test", or of "dev" if there is no test data], whether the label
    with the highest score is one of the target's. mix: softmax of the layers' weights.
    steps: of the best development score.
    """

    scores: dict[str, dict[str, float]]
    hits: np.ndarray
    mix: list[float]
    steps: int


def train_probe(
    data: dict[str, ProbingData], settings: ProbeSettings, name: str
) -> ProbeResult:
    """Trains on "train", keeps the best step on "dev", scores "dev" and "test".

    "test" may be missing. `name` is for the progress shown.
    """
    layers, width = data["train"].vectors.shape[1:]
    labels, spans = data["train"].num_labels, data["train"].sentences[0].spans.shape[1]
    probe = Probe(layers, width, labels, spans, settings)
    optimizer = tf.keras.optimizers.Adam(
        settings.learning_rate, global_clipnorm=settings.clip_norm
    )
    optimizer.build(probe.trainable_variables)
    learn, logits = _compiled(probe, optimizer, [layers, width], labels, spans)
    best_scores = {"f1": -1.0}
    best_step = checks_without_gain = 0
    values = [variable.numpy() for variable in probe.trainable_variables]
    batches = _batches(data["train"], settings)
    steps = zip(range(1, settings.train_steps + 1), batches, strict=False)
    for step, batch in console.track(steps, name, settings.train_steps):
        learn(batch.vectors, batch.spans, batch.labels, step)
        if step % settings.eval_every_steps and step != settings.train_steps:
            continue
        dev_scores, _ = _score(logits, data["dev"], settings.batch_size)
        if dev_scores["f1"] > best_scores["f1"]:
            best_scores, best_step, checks_without_gain = dev_scores, step, 0
            values = [variable.numpy() for variable in probe.trainable_variables]
            continue
        checks_without_gain += 1
        if checks_without_gain == settings.stop_after:
            break
        if checks_without_gain % settings.halve_after == 0:
            optimizer.learning_rate.assign(optimizer.learning_rate / 2)
    for variable, value in zip(probe.trainable_variables, values, strict=True):
        variable.assign(value)
    split = "test" if "test" in data else "dev"
    scores, hits = _score(logits, data[split], settings.batch_size)
    mix = tf.nn.softmax(probe.mix_weights).numpy().tolist()
    return ProbeResult({"dev": best_scores, split: scores}, hits, mix, best_step)


def _compiled(probe, optimizer, sizes, labels, spans):
    """A step of the optimizer, and the probe's scores without dropout."""
    variables, rows = probe.trainable_variables, tf.TensorSpec([None], tf.int32)
    inputs = (tf.TensorSpec([None, *sizes], tf.float32), ((rows, rows),) * spans)

    def learn(
        vectors: tf.Tensor, spans: Spans, labels: tf.Tensor, step: tf.Tensor
    ) -> None:
        with tf.GradientTape() as tape:
            logits = probe(vectors, spans, step)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(tf.reduce_sum(losses, -1))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    specs = [tf.TensorSpec([None, labels], tf.float32), tf.TensorSpec([], tf.int32)]
    return (
        tf.function(learn, [*inputs, *specs], autograph=False),
        tf.function(lambda *args: probe(*args), inputs, autograph=False),
    )


def _batches(data: ProbingData, settings: ProbeSettings) -> Iterator[SpanBatch]:
    """Yields training batches endlessly, in a new order in each epoch."""
    generator = np.random.default_rng(settings.seed)
    while True:
        order = generator.permutation(len(data.sentences))
        for start in range(0, len(order), settings.batch_size):
            yield data.batch(order[start : start + settings.batch_size])


def _score(logits, data: ProbingData, size: int) -> tuple[dict, np.ndarray]:
    """The scores of a split, and `ProbeResult.hits`."""
    right_count = predicted_count = label_count = 0
    rows, hits = range(len(data.sentences)), []
    for start in rows[::size]:
        batch = data.batch(rows[start : start + size])
        scores = logits(batch.vectors, batch.spans).numpy()
        is_predicted, is_label = scores > 0, batch.labels > 0
        hits.append(is_label[np.arange(len(is_label)), scores.argmax(-1)])
        right_count += int((is_predicted & is_label).sum())
        predicted_count += int(is_predicted.sum())
        label_count += int(is_label.sum()) + batch.unknown_labels
    scores = count_scores(right_count, predicted_count, label_count)
    return {**scores, "targets": len(data.places)}, np.concatenate(hits)


def _apply(dense: Dense, x: tf.Tensor) -> tf.Tensor:
    kernel, bias = dense
    return tf.matmul(x, kernel) + bias


def word_lookup(
    train: Sequence[Example],
    examples: Sequence[Example],
    places: Sequence[tuple[int, int]],
) -> tuple[float, np.ndarray]:
    """Predicts the most frequent label of the target's words in the training data.

    Targets with two spans are looked up by the words of both. If this pair is not in
    the training data, the words of the first span are looked up alone. Unknown words
    get the most frequent label of all. Of equally frequent labels the first is taken.
    `places` are the sentences of `examples`, and which of their targets are scored.

    Returns:
      F1 with one label per target; bool [targets], which are right.
    """
    by_words: defaultdict[tuple, Counter[str]] = defaultdict(Counter)
    for words, targets in train:
        for target in targets:
            for key in _keys(words, target):
                by_words[key].update(target.labels)
    hits, labels = [], 0
    for sentence, place in places:
        words, targets = examples[sentence]
        key = next(k for k in _keys(words, targets[place]) if by_words.get(k))
        [(answer, _)] = by_words[key].most_common(1)
        hits.append(answer in targets[place].labels)
        labels += len(targets[place].labels)
    return count_scores(sum(hits), len(hits), labels)["f1"], np.array(hits)


def _keys(words: list[str], target: Target) -> list[tuple]:
    """What a target is looked up by, the best first; the last one is that of all."""
    spans = [span for span in (target.span1, target.span2) if span is not None]
    texts = tuple(tuple(words[slice(*span)]) for span in spans)
    return list(dict.fromkeys([texts, texts[:1], ()]))
