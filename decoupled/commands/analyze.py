"""Measures what trained models are like.

  decoupled analyze NAME --model_dir=... --output_dir=...
  decoupled analyze NAME --help

Each prints tables and writes NAME.json, NAME.png and NAME.svg to --output_dir (plots
with matplotlib, which the [plots] extra installs), with the command and its settings in
command.1 and config.1.gin. One analysis at a time writes to a folder. --model_dir can
be repeated: models then stand beside each other. It is a run's folder, of which the
best checkpoint that fine-tuning kept is taken or else the newest, or the prefix of a
checkpoint.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

from absl import flags

from decoupled.configs import analyses as roots
from decoupled.core import console, files, locks
from decoupled.core.errors import UserError
from decoupled.launch import start
from decoupled.launch.start import Subcommand

FLAGS = flags.FLAGS
# Every analysis by its name, in the order of their functions.
SUBCOMMANDS: dict[str, Subcommand] = {}


def _text(name, text):
    return lambda: flags.DEFINE_string(name, None, text, required=True)


def _option(name, text):
    return lambda: flags.DEFINE_string(name, None, text)


def _texts(name, text):
    return lambda: flags.DEFINE_multi_string(name, None, text, required=True)


def _options(name, text):
    return lambda: flags.DEFINE_multi_string(name, [], text)


def _list(name, text, default=None):
    return lambda: flags.DEFINE_list(name, default, text)


_MODELS = _texts("model_dir", "A run's folder, or the prefix of a checkpoint.")


def _analysis(
    *define: Callable[[], Any], settings: Callable[[], Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function the analysis of its name; its text is the help.

    The function is given the settings, if there are any. It returns the module that
    shows and plots the result, and the result. One at a time writes to --output_dir.

    Args:
      define: the flags, beside --output_dir. settings: their root;
        runs/analyze_NAME.gin gives the usual ones.
    """

    def declare(analysis):
        name, text = analysis.__name__, inspect.cleandoc(analysis.__doc__)
        gin_file = f"runs/analyze_{name}.gin"

        def define_flags():
            _text("output_dir", "Folder of results, made if missing.")()
            if settings:
                start.define_gin_flags()
            for one in define:
                one()

        def main():
            with locks.hold(FLAGS.output_dir):
                # It must be there before an analysis of hours, not behind it.
                files.make_folder(FLAGS.output_dir)
                given = [start.parse_gin(settings, gin_file)] if settings else []
                _finish(*analysis(*given))

        main.__doc__ = f"{text}\n\nSettings: {gin_file}." if settings else text
        SUBCOMMANDS[name] = Subcommand(define_flags, main)
        return analysis

    return declare


def _finish(module, result):
    """Shows the result; writes it, its settings and its plot.

    `arrays` of a result, one value an item (a sentence, a word), become
    NAME.items.npz.
    """
    from decoupled.core import plots

    module.show(result)
    start.save_start(FLAGS.output_dir)
    stem = os.path.join(FLAGS.output_dir, result["analysis"])
    arrays = result.pop("arrays", None)
    if arrays is not None:
        files.write_arrays(f"{stem}.items.npz", arrays)
    files.write_json(f"{stem}.json", result)
    written = [f"{stem}.json", *plots.draw(module.plot, result, stem)]
    console.say(f"wrote {', '.join(written)}")


def _models():
    from decoupled.analyses.models import open_models

    return open_models(FLAGS.model_dir)


@_analysis(
    _MODELS,
    _option("data_dir", "Folder of which all *.tsv are read."),
    _options("word_pairs", "A file of pairs."),
)
def word_similarity():
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
    from decoupled.analyses import word_similarity as module

    if not FLAGS.data_dir and not FLAGS.word_pairs:
        raise UserError("--data_dir or --word_pairs must be given")
    sets = module.find_sets(FLAGS.data_dir, FLAGS.word_pairs)
    return module, module.measure(_models(), sets)


@_analysis(
    _MODELS,
    _text("targets_x", "File with a word a line: words X, expected to go with A."),
    _text("targets_y", "File with a word a line: words Y, expected to go with B."),
    _text("attributes_a", "File with a word a line: words A."),
    _text("attributes_b", "File with a word a line: words B."),
    settings=roots.weat,
)
def weat(settings):
    """Are two sets of words associated with two others?

    WEAT (Caliskan et al. 2017): X and Y are target words (flowers, insects), A and B
    attributes (pleasant, unpleasant). Prints the effect size, from -2 to 2 and above 0
    where X goes with A and Y with B, and the one-sided p-value over divisions of the
    targets, the given one among them. Files hold a word a line; words that the
    vocabulary cannot write are left out, and the number of those used is shown.

      decoupled analyze weat --model_dir=runs/e_out_768 \\
          --targets_x=flowers.txt --targets_y=insects.txt \\
          --attributes_a=pleasant.txt --attributes_b=unpleasant.txt \\
          --output_dir=results
    """
    from decoupled.analyses import weat as module

    sets = module.read_sets({name: getattr(FLAGS, name) for name in module.SETS})
    return module, module.measure(_models(), sets, settings)


@_analysis(_MODELS)
def spectrum():
    """How many dimensions do the embeddings use?

    Singular values of input and output embeddings, effective rank (the exponential of
    their entropy, Roy and Vetterli 2007) and participation ratio, beside the width E;
    each for the table as it is and with its mean row taken away.

      decoupled analyze spectrum --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --output_dir=results
    """
    from decoupled.analyses import spectrum as module

    return module, module.measure(_models())


@_analysis(
    _MODELS,
    _options("finetuned_dir", "What --model_dir was fine-tuned to, in the same order."),
    _texts("texts", "A file with a text a line."),
    settings=roots.drift,
)
def drift(settings):
    """What does fine-tuning change, and which layers guess masked words?

    Prints the accuracy of guessing masked words with the pre-trained head on each
    layer's output; with --finetuned_dir also for the fine-tuned encoder under the same
    head, and layer by layer how alike both models' vectors are: linear CKA (Kornblith
    et al. 2019) and mean cosine. The head was trained for the last layer, so lower ones
    score less even where they know as much.

      decoupled analyze drift --model_dir=runs/e_out_768 \\
          --finetuned_dir=runs/e_out_768_xnli --texts=texts.txt --output_dir=results

    Texts: one a line. --finetuned_dir is left out, or given once for each --model_dir
    in the same order.
    """
    from decoupled.analyses import drift as module

    pairs = module.open_pairs(FLAGS.model_dir, FLAGS.finetuned_dir)
    texts = module.read_texts(FLAGS.texts, settings.max_texts)
    return module, module.measure(pairs, texts, settings)


@_analysis(
    _MODELS,
    _text("corpus_dir", "A corpus, whose held-out text is read."),
    settings=roots.geometry,
)
def geometry(settings):
    """Anisotropy, the logits and their gradient, likeness of embeddings.

    Of pre-trained models: the mean cosine of hidden vectors of different sequences, by
    layer; the share of the loss's gradient by the logits that the output embedding
    passes on to the encoder; the singular values of the logits, and their rank beside H
    and E_out; linear CKA and common nearest neighbours of every two embeddings of one
    vocabulary, such as a coupled one and the two of a decoupled model.

      decoupled analyze geometry --model_dir=runs/coupled --model_dir=runs/e_out_3072 \\
          --corpus_dir=corpus --output_dir=results

    --corpus_dir is what build_corpus wrote; its held-out text is masked in the same way
    for all models of a vocabulary.
    """
    from decoupled.analyses import geometry as module
    from decoupled.analyses.models import open_models
    from decoupled.corpora.corpus import Corpus

    models = open_models(FLAGS.model_dir, masked_lm=True)
    return module, module.measure(models, Corpus(FLAGS.corpus_dir), settings)


@_analysis(
    _MODELS,
    _text("records_dir", "What build_records wrote."),
    _list("languages", "Only these held-out ones, e.g. de,sw. Default: all."),
    settings=roots.masked_lm,
)
def masked_lm(settings):
    """Loss and accuracy on held-out text, every token masked once.

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
    for each and compare losses relative to the unigram entropy. Give
    the length and the rate of pre-training.
    """
    from decoupled.analyses import masked_lm as module
    from decoupled.analyses.held_out_text import read_held_out
    from decoupled.analyses.models import open_models

    models = open_models(FLAGS.model_dir, masked_lm=True)
    text = read_held_out(FLAGS.records_dir, models, settings, FLAGS.languages)
    return module, module.measure(models, text, settings)


@_analysis(
    _MODELS,
    _texts("pairs", "A .jsonl or .tsv file, or a folder of which all are read."),
    settings=roots.minimal_pairs,
)
def minimal_pairs(settings):
    """Does a masked LM prefer the acceptable one of two sentences? (BLiMP)

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
    """
    from decoupled.analyses import minimal_pairs as module
    from decoupled.analyses.models import open_models
    from decoupled.core import files

    paths = module.find_files(FLAGS.pairs)
    pairs = [pair for path in paths for pair in module.read_pairs(path)]
    models = open_models(FLAGS.model_dir, masked_lm=True)
    result = module.measure(models, pairs, settings)
    result["files"] = {path: files.file_fingerprint(path) for path in paths}
    return module, result


@_analysis(
    _MODELS,
    _text("data_dir", "Folder with a folder per task."),
    _list("tasks", "Only these, e.g. pos,dependencies. Default: all."),
    _list("variants", "Of mix, layers, cumulative.", "mix"),
    _option(
        "cache_dir",
        "Where vectors lie meanwhile: 2 bytes * (layers + 1) * H a token. Default: the "
        "system's folder of temporary files.",
    ),
    settings=roots.probing,
)
def probing(settings):
    """What do frozen layers tell of grammar and meaning? (paper Table 9)

    Edge probing trains a probe for each task: a learned mix of the layers, pooling over
    the span or spans, a network of two layers (Tenney et al. 2019). F1 is averaged over
    all labels. --variants=layers trains one on each layer by itself, cumulative one on
    layers 0 to l for each l.

      decoupled analyze probing --model_dir=runs/e_out_768 --data_dir=edges \\
          --variants=mix,layers --output_dir=results

    --data_dir has a folder per task with train.jsonl, dev.jsonl and perhaps test.jsonl
    (or .json; development or val for dev), in the format of the edge-probing suite:

      {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

    Spans are of words, ends exclusive; span2 is there in tasks of two spans, label may
    be a list. `decoupled analyze probing_data` makes such files. The best step is
    chosen on dev, so that only test is unseen.
    """
    from decoupled.analyses.probing import edge_probing as module
    from decoupled.analyses.probing.task_files import find_tasks

    tasks = find_tasks(FLAGS.data_dir, FLAGS.tasks)
    variants, cache = FLAGS.variants, FLAGS.cache_dir
    return module, module.measure(_models(), tasks, variants, settings, cache)


def probing_data() -> None:
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


def _probing_data_flags():
    kinds = ["pos", "dependencies", "entities"]
    flags.DEFINE_enum("task", None, kinds, "What to tell of words.", required=True)
    _text("input", "CoNLL-U file, or file of tagged words.")()
    _text("output", "File to write, e.g. edges/pos/train.jsonl.")()


SUBCOMMANDS["probing_data"] = Subcommand(_probing_data_flags, probing_data)


@_analysis(
    _MODELS,
    _option("data_dir", "Folder of files XX-en.en and XX-en.XX."),
    _list("languages", "Only these of a folder, e.g. de,sw. Default: all."),
    _option("source", "A sentence a line."),
    _option("target", "Their translations, line by line."),
    _option("sentences", "Folder of L.tsv, a language each: id, tab, sentence."),
    settings=roots.neighbours,
)
def neighbours(settings):
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
    """
    from decoupled.analyses import multi_parallel
    from decoupled.analyses import neighbours as module

    retrieval, mesh, max_pairs = settings
    models, languages = FLAGS.model_dir, FLAGS.languages
    if FLAGS.sentences:
        if FLAGS.data_dir or FLAGS.source or FLAGS.target:
            raise UserError("give --sentences without --data_dir, --source, --target")
        module = multi_parallel
        text = module.read_shared(FLAGS.sentences, languages, max_pairs)
    else:
        source, target = FLAGS.source, FLAGS.target
        text = module.find_parallel(FLAGS.data_dir, languages, source, target)
    return module, module.measure(models, text, max_pairs, retrieval, mesh)


@_analysis(
    _MODELS,
    _text("corpus_dir", "Corpus of parallel text."),
    settings=roots.word_translation,
)
def word_translation(settings):
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
    of every pair.
    """
    from decoupled.analyses import word_translation as module
    from decoupled.corpora.corpus import Corpus

    corpus = Corpus(FLAGS.corpus_dir)
    return module, module.measure(_models(), corpus, settings)


@_analysis(
    _texts("finetuned_dir", "Folder of a fine-tuning run."),
    lambda: flags.DEFINE_enum("split", "dev", ["dev", "test"], "Whose scores."),
    _option("metric", "Name of a metric in results.json; default: the task's score."),
)
def layer_drop():
    """Scores with the last layers removed (paper Figure 1).

    Reads results.json of fine-tuning runs that kept more or fewer layers
    (FinetuningConfig.keep_layers) of one pre-trained model or of several. Runs of the
    same sizes and layers are seeds: their mean and standard deviation are shown.

      decoupled analyze layer_drop --finetuned_dir=runs/e_out_768_keep_12 \\
          --finetuned_dir=runs/e_out_768_keep_11 --output_dir=results
    """
    from decoupled.analyses import layer_drop as module

    return module, module.measure(FLAGS.finetuned_dir, FLAGS.split, FLAGS.metric)
