"""Words to tags in the graph, by the rules of `tasks.tagging.tagging_features`.

Each word is encoded by itself; a word without pieces becomes <unk>. A sentence that is
longer than a row continues in further rows, so that every word has a tag.
"""

from typing import NamedTuple

from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.roots import Root, TaggerRoot, graph_function, trace

# [CLS] and [SEP] of every row.
_SPECIALS = 2

_SCORES = ("logits", "probabilities")
_SENTENCES = tf.TensorSpec([None], tf.string, name="sentences")
_WORDS = tf.RaggedTensorSpec([None, None], tf.string, ragged_rank=1)


class Rows(NamedTuple):
    """The rows of the pieces of words, int64 each.

    sizes: [rows], pieces of each row. starts: [words, 2], row and position of the first
    piece of each word; [CLS] has position 0.
    """

    sizes: tf.Tensor
    starts: tf.Tensor


def ends(sizes: tf.Tensor) -> tf.Tensor:
    """int64 [n] -> [n + 1]: 0, and the end of each of consecutive runs."""
    return tf.concat([[0], tf.cumsum(tf.cast(sizes, tf.int64))], axis=0)


def lay_out(counts: tf.Tensor, splits: tf.Tensor, window: int) -> Rows:
    """Assigns rows to the pieces of words.

    Args:
      counts: int64 [words], pieces of each word, 1 or more.
      splits: int64 [sentences + 1], the first word of each sentence.
      window: most pieces of a row.
    """
    parts = -(-counts // window)
    part_ends = ends(parts)
    words = tf.repeat(tf.range(tf.size(counts, tf.int64)), parts)
    within = tf.range(tf.size(words, tf.int64)) - tf.gather(part_ends, words)
    sizes = tf.minimum(tf.gather(counts, words) - within * window, window)
    begins = _row_begins(sizes, tf.gather(part_ends, splits), window)
    rows = tf.cumsum(begins) - 1
    row_sizes = tf.math.segment_sum(sizes, rows)
    first_parts = part_ends[:-1]
    first_rows = tf.gather(rows, first_parts)
    before = tf.gather(ends(sizes), first_parts) - tf.gather(
        ends(row_sizes), first_rows
    )
    return Rows(row_sizes, tf.stack([first_rows, before + 1], axis=1))


def _row_begins(sizes: tf.Tensor, splits: tf.Tensor, window: int) -> tf.Tensor:
    """int64 [parts]: 1 if a part of a word begins a row, else 0.

    A row takes parts of its sentence while there is room. For every part, the end of a
    row that would begin there is computed. From the first part of each sentence, the
    loop then goes from row to row, in all sentences at once.
    """
    total = ends(sizes)
    limits = tf.repeat(splits[1:], splits[1:] - splits[:-1])
    reached = tf.searchsorted(total, total[:-1] + window, side="right") - 1
    following = tf.minimum(tf.cast(reached, tf.int64), limits)

    def advance(begins, places):
        ones = tf.ones_like(places)
        begins = tf.tensor_scatter_nd_update(begins, places[:, tf.newaxis], ones)
        onward = tf.gather(following, places)
        return begins, tf.boolean_mask(onward, onward < tf.gather(limits, places))

    firsts = tf.boolean_mask(splits[:-1], splits[:-1] < splits[1:])
    begins, _ = tf.while_loop(
        lambda _, places: tf.size(places) > 0,
        advance,
        [tf.zeros_like(sizes), firsts],
        shape_invariants=[tf.TensorShape([None]), tf.TensorShape([None])],
    )
    return begins


class TextTaggerRoot(Root):
    """A tag for every word of raw text.

    Args:
      tagger: the model for ids.
      vocabulary: of the model.
      sequence_length: tokens of a row, [CLS] and [SEP] included.
    """

    def __init__(
        self, tagger: TaggerRoot, vocabulary: Vocabulary, sequence_length: int
    ):
        super().__init__(vocabulary_path=vocabulary.path)
        self.variables = list(tagger.variables)
        self.trainable_variables = list(tagger.trainable_variables)
        self.model = tagger
        self._tokenizer = vocabulary.tokenizer()
        self._vocabulary = vocabulary
        self._window = sequence_length - _SPECIALS
        for spec in (_SENTENCES, _WORDS):
            trace(self.__call__, spec)

    @graph_function
    def __call__(self, sentences):
        """Tags sentences.

        Args:
          sentences: string [batch], whose words are separated by white space (space,
            tab, line break; a no-break space is part of a word); or separate words, a
            ragged tensor string [batch, (words)].

        Returns:
          `words` and `tags`, ragged string [batch, (words)]; `logits` and
          `probabilities`, ragged float32 [batch, (words), labels].
        """
        words = sentences
        if not isinstance(sentences, tf.RaggedTensor):
            words = tf.strings.split(sentences)
        pieces, counts = self._encode(words.values)
        rows = lay_out(counts, words.row_splits, self._window)
        outputs = self.model(self._pack(pieces, rows.sizes))
        logits = tf.gather_nd(outputs["logits"], rows.starts)
        labels = outputs["logits"].shape[-1]
        found = self.model.named(tf.ensure_shape(logits, [None, labels]))
        flat = {"tags": found["label"], **{n: found[n] for n in _SCORES}}
        return {"words": words} | {n: words.with_values(v) for n, v in flat.items()}

    def _encode(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The pieces of all words one after the other, and each word's number of
        pieces."""
        tokens = self._tokenizer.tokenize(words)
        lengths = tokens.row_lengths()
        counts = tf.maximum(lengths, 1)
        owner = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
        within = tf.range(tf.size(owner, tf.int64)) - tf.gather(ends(counts), owner)
        places = tf.gather(tokens.row_splits, owner) + within
        # A last element, for a word without pieces at the end.
        values = tf.concat([tokens.values, [0]], axis=0)
        known = tf.gather(values, places)
        empty = tf.gather(lengths == 0, owner)
        return tf.where(empty, self._vocabulary.unk_id, known), counts

    def _pack(self, pieces: tf.Tensor, sizes: tf.Tensor) -> dict[str, tf.Tensor]:
        """[CLS] pieces [SEP], padded to the longest row."""
        longest = tf.reduce_max(tf.concat([sizes, [0]], axis=0)) + _SPECIALS
        columns, size = tf.range(longest)[tf.newaxis, :], sizes[:, tf.newaxis]
        places = ends(sizes)[:-1, tf.newaxis] + columns - 1
        inside = (columns >= 1) & (columns <= size)
        values = tf.concat([pieces, [0]], axis=0)
        ids = tf.where(
            columns == size + 1, self._vocabulary.sep_id, self._vocabulary.pad_id
        )
        ids = tf.where(inside, tf.gather(values, tf.where(inside, places, 0)), ids)
        ids = tf.where(columns == 0, self._vocabulary.cls_id, ids)
        return {
            "input_word_ids": ids,
            "input_mask": tf.cast(columns <= size + 1, tf.int32),
            "input_type_ids": tf.zeros_like(ids),
        }

    def signatures(self) -> dict:
        """`serving_default` (sentences) and `words` (words, row_splits).

        Both give `words`, `tags`, `logits`, `probabilities` of all words, one after the
        other, and `row_splits` int64 [batch + 1], the first word of each sentence.
        """

        @graph_function(input_signature=[_SENTENCES])
        def serving_default(sentences):
            return _flat(self(sentences))

        @graph_function(
            input_signature=[
                tf.TensorSpec([None], tf.string, name="words"),
                tf.TensorSpec([None], tf.int64, name="row_splits"),
            ]
        )
        def of_words(words, row_splits):
            return _flat(self(tf.RaggedTensor.from_row_splits(words, row_splits)))

        return {"serving_default": serving_default, "words": of_words}


def _flat(outputs: dict[str, tf.RaggedTensor]) -> dict[str, tf.Tensor]:
    flat = {name: value.values for name, value in outputs.items()}
    return flat | {"row_splits": outputs["words"].row_splits}
