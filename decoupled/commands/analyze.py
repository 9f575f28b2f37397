"""Measures what trained models are like.

  decoupled analyze NAME --model_dir=... --output_dir=...
  decoupled analyze NAME --help

  word_similarity   do embeddings order pairs of words as people do? (Table 8)
  weat              are two sets of words associated with two others?
  spectrum          how many dimensions do the embeddings use?
  drift             what does fine-tuning change, and which layers guess words?
  geometry          anisotropy, the logits and their gradient, likeness of embeddings
  masked_lm         how well does it guess masked words of held-out text?
  minimal_pairs     does it prefer the acceptable one of two sentences? (BLiMP)
  probing           what do frozen layers tell of grammar and meaning? (Table 9)
  probing_data      treebanks and entity tags to files for probing
  neighbours        translation by nearest neighbours, layer by layer (Figure 2)
  word_translation  do the rows of embeddings translate words?
  layer_drop        scores with the last layers removed (Figure 1)

Each prints tables and writes NAME.json, NAME.png and NAME.svg to --output_dir (plots
with matplotlib, which the [plots] extra installs), with the command and its settings in
command.1 and config.1.gin. One analysis at a time writes to a folder. --model_dir can
be repeated: models then stand beside each other. It is a run's folder, of which the
best checkpoint that fine-tuning kept is taken or else the newest, or the prefix of a
checkpoint.
"""

import functools
import os
from typing import Any

from absl import flags

from decoupled.configs import analyses as roots
from decoupled.core import console, locks
from decoupled.core.errors import UserError
from decoupled.launch import start
from decoupled.launch.start import Subcommand

FLAGS = flags.FLAGS


def _common_flags(models: bool = True) -> None:
    """Of every analysis: the models and where results go."""
    if models:
        flags.DEFINE_multi_string(
            "model_dir", None, "A run's folder, or the prefix of a checkpoint."
        )
        flags.mark_flag_as_required("model_dir")
    flags.DEFINE_string("output_dir", None, "Folder of results, made if missing.")
    flags.mark_flag_as_required("output_dir")


def word_similarity_flags() -> None:
    """The flags of `word_similarity`."""
    _common_flags()
    flags.DEFINE_string("data_dir", None, "Folder of which all *.tsv are read.")
    flags.DEFINE_multi_string("word_pairs", [], "A file of pairs.")


def run_word_similarity() -> None:
    """Do embeddings order pairs of words as people do? (paper Table 8)

    A word's vector is the mean of its pieces' vectors, a pair's score the dot product
    or the cosine. Prints Spearman's correlation with people's scores, its 95% interval
    (Fisher's z with the variance of Bonett and Wright 2000) and the share of pairs that
    the vocabulary covers, for input and output embeddings.

      decoupled analyze word_similarity --model_dir=runs/e_out_768 \\
          --model_dir=runs/e_out_3072 --data_dir=data/word_similarity \\
          --output_dir=results

    A file of pairs has lines of word, word, score with tabs between them: MEN,
    MTurk-771, Rare Word, SimLex-999 and Verb-143 as men.tsv, mturk771.tsv,
    rare_word.tsv, simlex999.tsv and verb143.tsv, and any other.
    """
    from decoupled.analyses import word_similarity

    if not FLAGS.data_dir and not FLAGS.word_pairs:
        raise UserError("--data_dir or --word_pairs must be given")
    sets = word_similarity.find_sets(FLAGS.data_dir, FLAGS.word_pairs)
    result = word_similarity.measure(_models(), sets)
    _finish(word_similarity, result)


def weat_flags() -> None:
    """The flags of `weat`."""
    _common_flags()
    start.define_gin_flags()
    for name, words in (
        ("targets_x", "Words X, expected to go with A."),
        ("targets_y", "Words Y, expected to go with B."),
        ("attributes_a", "Words A."),
        ("attributes_b", "Words B."),
    ):
        flags.DEFINE_string(name, None, f"File with a word a line: {words}")
        flags.mark_flag_as_required(name)


def run_weat() -> None:
    """Are two sets of words associated with two others? (WEAT, Caliskan et al. 2017)

    X and Y are target words (flowers, insects), A and B attributes (pleasant,
    unpleasant). Prints the effect size, from -2 to 2 and above 0 where X goes with A
    and Y with B, and the one-sided p-value over divisions of the targets, the given one
    among them. Files hold a word a line; words that the vocabulary cannot write are
    left out, and the number of those used is shown.

      decoupled analyze weat --model_dir=runs/e_out_768 \\
          --targets_x=flowers.txt --targets_y=insects.txt \\
          --attributes_a=pleasant.txt --attributes_b=unpleasant.txt \\
          --output_dir=results

    Settings: runs/analyze_weat.gin.
    """
    from decoupled.analyses import weat as analysis

    settings = start.parse_gin(roots.weat, "runs/analyze_weat.gin")
    sets = analysis.read_sets({name: getattr(FLAGS, name) for name in analysis.SETS})
    _finish(analysis, analysis.measure(_models(), sets, settings))


def run_spectrum() -> None:
    """How many dimensions do the embeddings use?

    Singular values of input and output embeddings, effective rank (the exponential of
    their entropy, Roy and Vetterli 2007) and participation ratio, beside the width E;
    each for the table as it is and with its mean row taken away.

      decoupled analyze spectrum --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --output_dir=results
    """
    from decoupled.analyses import spectrum

    _finish(spectrum, spectrum.measure(_models()))


def drift_flags() -> None:
    """The flags of `drift`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_multi_string(
        "finetuned_dir", [], "What --model_dir was fine-tuned to, in the same order."
    )
    flags.DEFINE_multi_string("texts", None, "A file with a text a line.")
    flags.mark_flag_as_required("texts")


def run_drift() -> None:
    """What does fine-tuning change, and which layers can guess masked words?

    Prints the accuracy of guessing masked words with the pre-trained head on each
    layer's output; with --finetuned_dir also for the fine-tuned encoder under the same
    head, and layer by layer how alike both models' vectors are: linear CKA (Kornblith
    et al. 2019) and mean cosine. The head was trained for the last layer, so lower ones
    score less even where they know as much.

      decoupled analyze drift --model_dir=runs/e_out_768 \\
          --finetuned_dir=runs/e_out_768_xnli --texts=texts.txt --output_dir=results

    Texts: one a line. --finetuned_dir is left out, or given once for each --model_dir
    in the same order. Settings: runs/analyze_drift.gin.
    """
    from decoupled.analyses import drift as analysis

    settings = start.parse_gin(roots.drift, "runs/analyze_drift.gin")
    pairs = analysis.open_pairs(FLAGS.model_dir, FLAGS.finetuned_dir)
    texts = analysis.read_texts(FLAGS.texts, settings.max_texts)
    _finish(analysis, analysis.measure(pairs, texts, settings))


def geometry_flags() -> None:
    """The flags of `geometry`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_string("corpus_dir", None, "A corpus, whose held-out text is read.")
    flags.mark_flag_as_required("corpus_dir")


def run_geometry() -> None:
    """Anisotropy, the logits and their gradient, and likeness of embeddings.

    Of pre-trained models: the mean cosine of hidden vectors of different sequences, by
    layer; the share of the loss's gradient by the logits that the output embedding
    passes on to the encoder; the singular values of the logits, and their rank beside H
    and E_out; linear CKA and common nearest neighbours of every two embeddings of one
    vocabulary, such as a coupled one and the two of a decoupled model.

      decoupled analyze geometry --model_dir=runs/coupled --model_dir=runs/e_out_3072 \\
          --corpus_dir=corpus --output_dir=results

    --corpus_dir is what build_corpus wrote; its held-out text is masked in the same way
    for all models of a vocabulary. Settings: runs/analyze_geometry.gin.
    """
    from decoupled.analyses import geometry as analysis
    from decoupled.analyses.models import open_models
    from decoupled.corpora.corpus import Corpus

    settings = start.parse_gin(roots.geometry, "runs/analyze_geometry.gin")
    models = open_models(FLAGS.model_dir, masked_lm=True)
    _finish(analysis, analysis.measure(models, Corpus(FLAGS.corpus_dir), settings))


def masked_lm_flags() -> None:
    """The flags of `masked_lm`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_string("records_dir", None, "What build_records wrote.")
    flags.DEFINE_list(
        "languages", None, "Only these held-out ones, e.g. de,sw. Default: all."
    )
    flags.mark_flag_as_required("records_dir")


def run_masked_lm() -> None:
    """Masked-LM loss and accuracy on held-out text, every token masked once.

    Which tokens are masked together depends on the text and these settings alone, so
    that all models and seeds answer the same questions. Prints, by language and as the
    mean of the languages, the loss in nats a token, accuracy and perplexity, and the
    loss beside the unigram entropy: what a model would reach that knows nothing but how
    frequent the pieces are. Then loss and accuracy by how often the target occurs in
    the training text. masked_lm.items.npz has the sums of every held-out sequence.

      decoupled analyze masked_lm --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --records_dir=data/records \\
          --gin_param='MaskingConfig.sequence_length = 128' --output_dir=results

    Models must have the vocabulary of the records. To compare vocabularies, run it once
    for each and compare losses relative to the unigram entropy. Settings:
    runs/analyze_masked_lm.gin; give the length and the rate of pre-training.
    """
    from decoupled.analyses import masked_lm as analysis
    from decoupled.analyses.held_out_text import read_held_out
    from decoupled.analyses.models import open_models

    settings = start.parse_gin(roots.masked_lm, "runs/analyze_masked_lm.gin")
    models = open_models(FLAGS.model_dir, masked_lm=True)
    text = read_held_out(FLAGS.records_dir, models, settings, FLAGS.languages)
    _finish(analysis, analysis.measure(models, text, settings))


def minimal_pairs_flags() -> None:
    """The flags of `minimal_pairs`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_multi_string(
        "pairs", None, "A .jsonl or .tsv file, or a folder of which all are read."
    )
    flags.mark_flag_as_required("pairs")


def run_minimal_pairs() -> None:
    """Does a masked LM prefer the acceptable one of two sentences? (BLiMP, MultiBLiMP)

    A sentence's score is its pseudo-log-likelihood: each token in turn is masked, and
    the log probabilities are summed (Salazar et al. 2020). Prints for each phenomenon
    how often the acceptable sentence scores higher, with 95% intervals (Wilson's).
    Nothing is fine-tuned.

      decoupled analyze minimal_pairs --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --pairs=blimp/data --output_dir=results

    *.jsonl are BLiMP's: sentence_good, sentence_bad, field, linguistics_term and UID in
    a line. LANGUAGE/data.tsv or LANGUAGE.tsv are MultiBLiMP's: columns sen, wrong_sen
    and phenomenon. minimal_pairs.items.npz has the scores of every pair.

    A rare word that is cut into several tokens scores too high, because each gives the
    others away. To mask the rest of the word too (Kauf and Ivanova 2023):

      decoupled analyze minimal_pairs --model_dir=runs/e_out_768 \\
          --pairs=multiblimp/eng/data.tsv --output_dir=results \\
          --gin_param='minimal_pairs.masking = "word_left_to_right"'

    Settings: runs/analyze_minimal_pairs.gin.
    """
    from decoupled.analyses import minimal_pairs as analysis
    from decoupled.analyses.minimal_pair_files import find_files, read_pairs
    from decoupled.analyses.models import open_models
    from decoupled.core import files

    settings = start.parse_gin(roots.minimal_pairs, "runs/analyze_minimal_pairs.gin")
    paths = find_files(FLAGS.pairs)
    pairs = [pair for path in paths for pair in read_pairs(path)]
    models = open_models(FLAGS.model_dir, masked_lm=True)
    result = analysis.measure(models, pairs, settings)
    result["files"] = {path: files.file_fingerprint(path) for path in paths}
    _finish(analysis, result)


def probing_flags() -> None:
    """The flags of `probing`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_list("tasks", None, "Only these, e.g. pos,dependencies. Default: all.")
    flags.DEFINE_list("variants", "mix", "Of mix, layers, cumulative.")
    flags.DEFINE_string(
        "cache_dir",
        None,
        "Where vectors lie meanwhile: 2 bytes * (layers + 1) * H a token. Default: the "
        "system's folder of temporary files.",
    )
    flags.mark_flag_as_required("data_dir")


def run_probing() -> None:
    """What do frozen layers tell of grammar and meaning? (edge probing, paper Table 9)

    A probe is trained for each task: a learned mix of the layers, pooling over the span
    or spans, a network of two layers (Tenney et al. 2019). F1 is averaged over all
    labels. --variants=layers trains one on each layer by itself, cumulative one on
    layers 0 to l for each l.

      decoupled analyze probing --model_dir=runs/e_out_768 --data_dir=edges \\
          --variants=mix,layers --output_dir=results

    --data_dir has a folder per task with train.jsonl, dev.jsonl and perhaps test.jsonl
    (or .json; development or val for dev), in the format of the edge-probing suite:

      {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

    Spans are of words, ends exclusive; span2 is there in tasks of two spans, label may
    be a list. `decoupled analyze probing_data` makes such files. The best
    step is chosen on dev, so that only test is unseen. Settings:
    runs/analyze_probing.gin.
    """
    from decoupled.analyses.probing import edge_probing as analysis
    from decoupled.analyses.probing.task_files import find_tasks

    settings = start.parse_gin(roots.probing, "runs/analyze_probing.gin")
    tasks = find_tasks(FLAGS.data_dir, FLAGS.tasks)
    result = analysis.measure(
        _models(), tasks, FLAGS.variants, settings, FLAGS.cache_dir
    )
    _finish(analysis, result)


def probing_data_flags() -> None:
    """The flags of `probing_data`."""
    kinds = ["pos", "dependencies", "entities"]
    flags.DEFINE_enum("task", None, kinds, "What to tell of words.")
    flags.DEFINE_string("input", None, "CoNLL-U file, or file of tagged words.")
    flags.DEFINE_string("output", None, "File to write, e.g. edges/pos/train.jsonl.")
    flags.mark_flags_as_required(["task", "input", "output"])


def run_probing_data() -> None:
    """Makes a file for probing.

      pos            CoNLL-U -> the universal part of speech of each word
      dependencies   CoNLL-U -> span1 a word, span2 its head, the label their relation
      entities       BIO tags, a word a line (first column the word, last its tag, empty
                     lines between sentences) -> the type of each entity

      decoupled analyze probing_data --task=pos \\
          --input=en_ewt-ud-dev.conllu --output=edges/pos/dev.jsonl
    """
    from decoupled.analyses.probing.conversion import convert

    convert(FLAGS.task, FLAGS.input, FLAGS.output)


def neighbours_flags() -> None:
    """The flags of `neighbours`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_string("data_dir", None, "Folder of files XX-en.en and XX-en.XX.")
    flags.DEFINE_list(
        "languages", None, "Only these of a folder, e.g. de,sw. Default: all."
    )
    flags.DEFINE_string("source", None, "A sentence a line.")
    flags.DEFINE_string("target", None, "Their translations, line by line.")
    flags.DEFINE_string(
        "sentences", None, "Folder of L.tsv, a language each: id, tab, sentence."
    )


def run_neighbours() -> None:
    """Translation by nearest neighbours, layer by layer (paper Figure 2)

    A sentence's vector in a layer is the mean over its tokens. Prints how often the
    nearest vector of the other language is that of the translation, in both directions,
    with 95% intervals (Wilson's). Where the last layers are specialised on guessing
    words, it falls towards the end.

      decoupled analyze neighbours --model_dir=runs/e_out_768 \\
          --data_dir=data/tatoeba_parallel --languages=de,sw --output_dir=results

    --data_dir has files XX-en.en and XX-en.XX, line i of one the translation of line i
    of the other; --source and --target name any other pair of such files.

    --sentences is a folder of L.tsv, a language each, with id, tab, sentence in a line.
    Those whose ids all languages have are compared between all of them in both
    directions; neighbours.items.npz then has the hits of every sentence:

      decoupled analyze neighbours --model_dir=runs/e_out_768 \\
          --sentences=data/corpus/parallel/test/sentences --output_dir=results

    Settings: runs/analyze_neighbours.gin.
    """
    from decoupled.analyses import multi_parallel
    from decoupled.analyses import neighbours as analysis

    retrieval, mesh, max_pairs = start.parse_gin(
        roots.neighbours, "runs/analyze_neighbours.gin"
    )
    if FLAGS.sentences:
        if FLAGS.data_dir or FLAGS.source or FLAGS.target:
            raise UserError("give --sentences without --data_dir, --source, --target")
        shared = multi_parallel.read_shared(FLAGS.sentences, FLAGS.languages, max_pairs)
        result = multi_parallel.measure(
            FLAGS.model_dir, shared, max_pairs, retrieval, mesh
        )
        _finish(multi_parallel, result)
        return
    parallel = analysis.find_parallel(
        FLAGS.data_dir, FLAGS.languages, FLAGS.source, FLAGS.target
    )
    result = analysis.measure(FLAGS.model_dir, parallel, max_pairs, retrieval, mesh)
    _finish(analysis, result)


def word_translation_flags() -> None:
    """The flags of `word_translation`."""
    _common_flags()
    start.define_gin_flags()
    flags.DEFINE_string("corpus_dir", None, "Corpus of parallel text.")
    flags.mark_flag_as_required("corpus_dir")


def run_word_translation() -> None:
    """Do the rows of the input and the output embedding translate words?

    Pieces of the vocabulary that are whole words translate each other if each has with
    the other the highest Dice coefficient in the training sentences of two languages
    (equal pieces, as of names, are left out). Each asks for the other among the
    frequent whole words of its language, by dot product and by cosine. Prints the mean
    reciprocal rank x 100 of both directions with its 95% interval.

      decoupled analyze word_translation --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --corpus_dir=data/corpus --output_dir=results

    --corpus_dir is a folder that `decoupled build_corpus --source=aligned:FOLDER`
    wrote, or of other parallel text. word_translation.items.npz has the reciprocal rank
    of every pair. Settings: runs/analyze_word_translation.gin.
    """
    from decoupled.analyses import word_translation as analysis
    from decoupled.corpora.corpus import Corpus

    settings = start.parse_gin(
        roots.word_translation, "runs/analyze_word_translation.gin"
    )
    corpus = Corpus(FLAGS.corpus_dir)
    _finish(analysis, analysis.measure(_models(), corpus, settings))


def layer_drop_flags() -> None:
    """The flags of `layer_drop`."""
    _common_flags(models=False)
    flags.DEFINE_multi_string("finetuned_dir", None, "Folder of a fine-tuning run.")
    flags.DEFINE_enum("split", "dev", ["dev", "test"], "Whose scores.")
    flags.DEFINE_string(
        "metric", None, "Name of a metric in results.json; default: the task's score."
    )
    flags.mark_flag_as_required("finetuned_dir")


def run_layer_drop() -> None:
    """Scores with the last layers removed (paper Figure 1).

    Reads results.json of fine-tuning runs that kept more or fewer layers
    (FinetuningConfig.keep_layers) of one pre-trained model or of several. Runs of the
    same sizes and layers are seeds: their mean and standard deviation are shown.

      decoupled analyze layer_drop --finetuned_dir=runs/e_out_768_keep_12 \\
          --finetuned_dir=runs/e_out_768_keep_11 --output_dir=results
    """
    from decoupled.analyses import layer_drop

    result = layer_drop.measure(FLAGS.finetuned_dir, FLAGS.split, FLAGS.metric)
    _finish(layer_drop, result)


def _locked(define_flags, run):
    """An analysis that writes to --output_dir, one at a time."""

    @functools.wraps(run)
    def main():
        with locks.hold(FLAGS.output_dir):
            run()

    return Subcommand(define_flags, main)


SUBCOMMANDS = {
    "word_similarity": _locked(word_similarity_flags, run_word_similarity),
    "weat": _locked(weat_flags, run_weat),
    "spectrum": _locked(_common_flags, run_spectrum),
    "drift": _locked(drift_flags, run_drift),
    "geometry": _locked(geometry_flags, run_geometry),
    "masked_lm": _locked(masked_lm_flags, run_masked_lm),
    "minimal_pairs": _locked(minimal_pairs_flags, run_minimal_pairs),
    "probing": _locked(probing_flags, run_probing),
    "probing_data": Subcommand(probing_data_flags, run_probing_data),
    "neighbours": _locked(neighbours_flags, run_neighbours),
    "word_translation": _locked(word_translation_flags, run_word_translation),
    "layer_drop": _locked(layer_drop_flags, run_layer_drop),
}


def _models():
    from decoupled.analyses.models import open_models

    return open_models(FLAGS.model_dir)


def _finish(analysis: Any, result: dict[str, Any]) -> None:
    """Shows the result; writes it, its settings and its plot.

    `arrays` of a result, one value an item (a sentence, a word), become
    NAME.items.npz.
    """
    from decoupled.core import files, plots

    analysis.show(result)
    start.save_start(FLAGS.output_dir)
    stem = os.path.join(FLAGS.output_dir, result["analysis"])
    arrays = result.pop("arrays", None)
    if arrays is not None:
        files.write_arrays(f"{stem}.items.npz", arrays)
    files.write_json(f"{stem}.json", result)
    written = [f"{stem}.json", *plots.draw(analysis.plot, result, stem)]
    console.say(f"wrote {', '.join(written)}")
