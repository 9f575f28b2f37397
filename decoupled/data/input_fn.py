"""Records -> batches for masked-language-model training and evaluation.

Batches are dictionaries of static shapes: `input_word_ids` int32 [batch, sequence];
`masked_lm_positions`, `masked_lm_ids` int32 and `masked_lm_weights` float32
[batch, predictions]; evaluation adds `example_weights` float32 [batch]. The input mask
and the types of the tokens follow from the ids: the task computes them on the device
(`decoupled.tasks.mlm`), and hosts do not have to send them. Everything is plain graph
operations, so the pipeline also runs on a remote host of a TPU.
"""

from collections.abc import Callable, Sequence

from decoupled.configs import PretrainConfig
from decoupled.core.errors import UserError
from decoupled.core.release import tf, without_autograph
from decoupled.data import sequences
from decoupled.data.masking import mask_sequences
from decoupled.data.records import RecordsManifest
from decoupled.data.sequences import EVAL, SequenceOrder
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import word_tables

# Batches that are masked at once, and batches that are kept ready.
_MASKING_THREADS = 4
_PREFETCHED_BATCHES = 8

InputFn = Callable[..., tf.data.Dataset]


def pretraining_input_fn(
    config: PretrainConfig,
    manifest: RecordsManifest,
    vocabulary: Vocabulary,
    seed: int,
    start_step: int,
) -> InputFn:
    """Training batches from step `start_step` on, without end.

    Step s has the sequences [s * batch_size, (s + 1) * batch_size) of the stream of
    `seed`, whatever `start_step` is: a resumed run gets the data of an uninterrupted
    one. Except for the counting of draws (`SequenceOrder.counts_before`), the time to
    the first batch does not grow with `start_step`.
    """
    manifest.check_vocabulary(vocabulary.fingerprint, vocabulary.path)
    batch_size, length = config.training.batch_size, config.masking.sequence_length
    order = SequenceOrder(manifest, config.sampling, seed, length)
    words = word_tables(vocabulary) if config.whole_words else None

    @without_autograph
    def features(ids, step):
        numbers = step * batch_size + tf.range(batch_size, dtype=tf.int64)
        return mask_sequences(ids, numbers, seed, config.masking, vocabulary, words)

    def input_fn(params=None) -> tf.data.Dataset:
        stream = sequences.training_sequences(
            manifest, order, start_step * batch_size, length, vocabulary
        )
        batches = stream.batch(batch_size, drop_remainder=True)
        steps = tf.data.Dataset.range(start_step, tf.int64.max)
        dataset = tf.data.Dataset.zip((batches, steps)).map(
            features, num_parallel_calls=_MASKING_THREADS
        )
        return _with_options(dataset)

    return input_fn


def languages_input_fn(
    config: PretrainConfig,
    manifest: RecordsManifest,
    vocabulary: Vocabulary,
    languages: Sequence[str],
) -> InputFn:
    """The eval split of some languages, once, in order, with masks fixed by the seed.

    One small graph reads one language after the other. Each language has batches of its
    own, which do not depend on the other languages. Its last batch is filled up with
    padding, whose `example_weights` and `masked_lm_weights` are 0.
    """
    manifest.check_vocabulary(vocabulary.fingerprint, vocabulary.path)
    training, masking = config.training, config.eval_masking
    length, limit = masking.sequence_length, training.eval_sequences
    entries = [manifest.language(EVAL, language) for language in languages]
    counts = [sequences.evaluation_count(entry, length, limit) for entry in entries]
    for language, count in zip(languages, counts, strict=True):
        if not count:
            raise UserError(
                f"{manifest.folder}: no text in split {EVAL!r} of {language!r}; "
                "build a corpus with more text of it"
            )

    @without_autograph
    def features(ids, numbers, count):
        return {
            **mask_sequences(ids, numbers, training.seed, masking, vocabulary),
            "example_weights": tf.cast(numbers < count, tf.float32),
        }

    def input_fn(params=None) -> tf.data.Dataset:
        batches = sequences.evaluation_sequences(
            manifest, entries, counts, training.eval_batch_size, length, vocabulary
        )
        return _with_options(batches.map(features))

    return input_fn


def _with_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # There is a dataset for each language. For 104 languages, rewriting their graph
    # takes 10 s before the first batch, and the rewritten graph is not faster.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)
