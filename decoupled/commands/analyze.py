"""Measures and compares trained models.

  decoupled analyze NAME --model_dir=... --output_dir=...
  decoupled analyze NAME --help

Each analysis prints tables and writes NAME.json, NAME.png and NAME.svg to --output_dir.
Plots need matplotlib, which the [plots] extra installs. command.1 and config.1.gin have
the command and its settings. Only one analysis at a time writes to a folder.

--model_dir is a run's folder or the prefix of a checkpoint. In a folder, the checkpoint
that fine-tuning selected is used, or else the newest. Repeat --model_dir to compare
models.
"""

import inspect
import os
import textwrap
from collections.abc import Callable
from typing import Any

from absl import flags

from decoupled.configs import analyses as configs
from decoupled.core import console, files, locks
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.launch.start import Subcommand

FLAGS = flags.FLAGS
# Name -> analysis, in the order of the functions below.
SUBCOMMANDS: dict[str, Subcommand] = {}
# Name -> what measures something similar.
GONE = {
    "drift": "layer_drop and neighbours compare the layers of a model",
    "weat": "word_similarity compares the embeddings with what people say of words",
}


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
    *define: Callable[[], Any], settings: type | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the analysis of its name; its docstring is the help.

    The function receives the settings, if there are any. It returns the module that
    shows and plots the result, and the result. A lock lets only one analysis at a time
    write to --output_dir.

    Args:
      define: functions that define the flags, in addition to --output_dir.
      settings: the class of the settings.
    """

    def declare(analysis):
        name, text = analysis.__name__, inspect.cleandoc(analysis.__doc__)

        def define_flags():
            _text("output_dir", "Folder of results, created if missing.")()
            if settings:
                start.define_gin_flags()
            for one in define:
                one()

        def main():
            with locks.hold(FLAGS.output_dir):
                # Made first, so that an analysis of hours does not fail at its end.
                files.make_folder(FLAGS.output_dir)
                given = [start.parse_gin(settings)] if settings else []
                _finish(*analysis(*given))

        main.__doc__ = text
        if settings:
            defaults = textwrap.indent(gin_files.defaults(settings), "  ")
            main.__doc__ = f"{text}\n\nSettings with their defaults:\n\n{defaults}"
        SUBCOMMANDS[name] = Subcommand(define_flags, main)
        return analysis

    return declare


def _finish(module, result):
    """Shows the result; writes it, its settings and its plot.

    The `arrays` of a result have one value per item (a sentence, a word) and are
    written to NAME.items.npz.
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
    _option("data_dir", "Folder; all its *.tsv files are read."),
    _options("word_pairs", "A file of pairs."),
)
def word_similarity():
    """Do embeddings order pairs of words as people do? (paper Table 8)

    A word's vector is the mean of its pieces' vectors, and a pair's score is the dot
    product or the cosine. Prints Spearman's correlation with human scores, its 95%
    interval (Fisher's z with the variance of Bonett and Wright 2000) and the share of
    pairs that the vocabulary covers, for input and output embeddings.

      decoupled analyze word_similarity --model_dir=runs/e_out_768 \\
          --model_dir=runs/e_out_3072 --data_dir=data/word_similarity \\
          --output_dir=results

    A line of a file of pairs has word, word and score, separated by tabs. MEN,
    MTurk-771, Rare Word, SimLex-999 and Verb-143 are read from men.tsv, mturk771.tsv,
    rare_word.tsv, simlex999.tsv and verb143.tsv. Other files are read, too.
    """
    from decoupled.analyses import word_similarity as module

    if not FLAGS.data_dir and not FLAGS.word_pairs:
        raise UserError("--data_dir or --word_pairs must be given")
    sets = module.find_sets(FLAGS.data_dir, FLAGS.word_pairs)
    return module, module.measure(_models(), sets)


@_analysis(_MODELS)
def spectrum():
    """How many dimensions do the embeddings use?

    Measures the singular values of input and output embeddings, their effective rank
    (the exponential of their entropy, Roy and Vetterli 2007) and their participation
    ratio, beside the width E. Each is measured for the table as it is and with its mean
    row subtracted.

      decoupled analyze spectrum --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --output_dir=results
    """
    from decoupled.analyses import spectrum as module

    return module, module.measure(_models())


@_analysis(
    _MODELS,
    _text("corpus_dir", "A corpus; its held-out text is read."),
    settings=configs.GeometrySettings,
)
def geometry(settings):
    """Anisotropy, the logits and their gradient, similarity of embeddings.

    Measures pre-trained models: the mean cosine of hidden vectors of different
    sequences, by layer; the share of the loss's gradient with respect to the logits
    that the output embedding passes on to the encoder; the singular values of the
    logits, and their rank beside H and E_out; linear CKA and common nearest neighbours
    of every two embeddings of one vocabulary, such as a coupled one and the two of a
    decoupled model.

      decoupled analyze geometry --model_dir=runs/coupled --model_dir=runs/e_out_3072 \\
          --corpus_dir=corpus --output_dir=results

    --corpus_dir is a folder that build_corpus wrote. Its held-out text is masked in the
    same way for all models of a vocabulary.
    """
    from decoupled.analyses import geometry as module
    from decoupled.analyses.models import open_models
    from decoupled.corpora.corpus import Corpus

    models = open_models(FLAGS.model_dir, masked_lm=True)
    return module, module.measure(models, Corpus(FLAGS.corpus_dir), settings)


@_analysis(
    _MODELS,
    _text("records_dir", "Folder that build_records wrote."),
    _list("languages", "Only these languages, e.g. de,sw. Default: all."),
    settings=configs.MaskedLmSettings,
)
def masked_lm(settings):
    """Loss and accuracy on held-out text, where every token is masked once.

    Which tokens are masked together depends only on the text and these settings, so
    that all models and seeds predict the same tokens from the same contexts. Prints the
    loss in nats per token, accuracy and perplexity, by language and as means over the
    languages. Compares the loss with the unigram entropy, which is the loss of a model
    that knows only the frequencies of the pieces. A second table has loss and accuracy
    by the count of the target in the training text. masked_lm.items.npz has the sums of
    every held-out sequence.

      decoupled analyze masked_lm --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --records_dir=data/records \\
          --gin_param='MaskingConfig.sequence_length = 128' --output_dir=results

    Models must have the vocabulary of the records. To compare vocabularies, run the
    analysis once for each and compare the losses relative to the unigram entropy. Set
    the length and the masking rate of pre-training.
    """
    from decoupled.analyses import masked_lm as module
    from decoupled.analyses.held_out_text import read_held_out
    from decoupled.analyses.models import open_models

    models = open_models(FLAGS.model_dir, masked_lm=True)
    text = read_held_out(FLAGS.records_dir, models, settings, FLAGS.languages)
    return module, module.measure(models, text, settings)


@_analysis(
    _MODELS,
    _texts("pairs", "A .jsonl or .tsv file, or a folder of such files."),
    settings=configs.MinimalPairSettings,
)
def minimal_pairs(settings):
    """Does a masked LM prefer the acceptable one of two sentences? (BLiMP)

    A sentence's score is its pseudo-log-likelihood: each token is masked in turn, and
    the log probabilities of the tokens are summed (Salazar et al. 2020). Prints for
    each phenomenon how often the acceptable sentence scores higher, with Wilson's 95%
    interval. Nothing is fine-tuned.

      decoupled analyze minimal_pairs --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --pairs=blimp/data --output_dir=results

    *.jsonl are files of BLiMP: a line has sentence_good, sentence_bad, field,
    linguistics_term and UID. LANGUAGE/data.tsv or LANGUAGE.tsv are files of MultiBLiMP,
    with the columns sen, wrong_sen and phenomenon. minimal_pairs.items.npz has the
    scores of every pair.

    A rare word of several tokens scores too high, because each token reveals the
    others. To mask also the later tokens of the word (Kauf and Ivanova 2023):

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
    _list("tasks", "Only these tasks, e.g. pos,dependencies. Default: all."),
    _list("variants", "Any of mix, layers, cumulative.", "mix"),
    _option(
        "cache_dir",
        "Folder for temporary files of vectors, 2 * (layers + 1) * H bytes per token. "
        "Default: the system's folder of temporary files.",
    ),
    settings=configs.ProbeSettings,
)
def probing(settings):
    """What do frozen layers encode of grammar and meaning? (paper Table 9)

    Edge probing (Tenney et al. 2019) trains a probe for each task: a learned mix of the
    layers, pooling over the span or spans, and a network of two layers. F1 is
    micro-averaged over all labels. --variants=layers trains a probe on each layer
    alone, and cumulative one on layers 0 to l for each l.

      decoupled analyze probing --model_dir=runs/e_out_768 --data_dir=edges \\
          --variants=mix,layers --output_dir=results

    --data_dir has a folder per task with train.jsonl, dev.jsonl and optionally
    test.jsonl (or .json; development or val for dev), in the format of the edge-probing
    suite:

      {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

    Spans are of words, and their ends are exclusive. Tasks of two spans also have
    span2. label may be a list. `decoupled analyze probing_data` makes such files. The
    best step is chosen on dev, so only the score on test is unbiased by selection.
    """
    from decoupled.analyses.probing import edge_probing as module
    from decoupled.analyses.probing.task_files import find_tasks

    tasks = find_tasks(FLAGS.data_dir, FLAGS.tasks)
    variants, cache = FLAGS.variants, FLAGS.cache_dir
    return module, module.measure(_models(), tasks, variants, settings, cache)


def probing_data() -> None:
    """Makes a file of a probing task.

      pos            CoNLL-U -> the universal part of speech of each word
      dependencies   CoNLL-U -> span1 is a word, span2 its head, and the label their
                     relation
      entities       BIO tags, a word per line (the first column is the word, the last
                     its tag; empty lines between sentences) -> the type of each entity

      decoupled analyze probing_data --task=pos \\
          --input=en_ewt-ud-dev.conllu --output=edges/pos/dev.jsonl
    """
    from decoupled.analyses.probing.conversion import convert

    convert(FLAGS.task, FLAGS.input, FLAGS.output)


def _probing_data_flags():
    kinds = ["pos", "dependencies", "entities"]
    flags.DEFINE_enum("task", None, kinds, "The labels to make.", required=True)
    _text("input", "CoNLL-U file, or file of tagged words.")()
    _text("output", "File to write, e.g. edges/pos/train.jsonl.")()


SUBCOMMANDS["probing_data"] = Subcommand(_probing_data_flags, probing_data)


@_analysis(
    _MODELS,
    _option("data_dir", "Folder of files XX-en.en and XX-en.XX."),
    _list("languages", "Only these languages, e.g. de,sw. Default: all."),
    _option("source", "File with a sentence per line."),
    _option("target", "File with their translations, line by line."),
    _option("sentences", "Folder of LANGUAGE.tsv: lines of id, tab, sentence."),
    settings=configs.NeighbourSettings,
)
def neighbours(settings):
    """Translation by nearest neighbours, layer by layer (paper Figure 2).

    A sentence's vector in a layer is the mean over its tokens. Prints how often the
    nearest vector of the other language is that of the translation, in both directions,
    with Wilson's 95% intervals. If the last layers are specialised on predicting masked
    words, this accuracy falls towards the last layer.

      decoupled analyze neighbours --model_dir=runs/e_out_768 \\
          --data_dir=data/tatoeba_parallel --languages=de,sw --output_dir=results

    --data_dir has files XX-en.en and XX-en.XX, and line i of one is the translation of
    line i of the other. --source and --target name any other pair of such files.

    --sentences is a folder of LANGUAGE.tsv, a file for each language, with lines of id,
    tab, sentence. The sentences whose ids all languages have are compared between all
    pairs of languages in both directions. neighbours.items.npz then has the hits of
    every sentence:

      decoupled analyze neighbours --model_dir=runs/e_out_768 \\
          --sentences=data/corpus/parallel/test/sentences --output_dir=results
    """
    from decoupled.analyses import multi_parallel
    from decoupled.analyses import neighbours as module

    retrieval, max_pairs = settings.retrieval, settings.max_pairs
    models, languages = FLAGS.model_dir, FLAGS.languages
    if FLAGS.sentences:
        if FLAGS.data_dir or FLAGS.source or FLAGS.target:
            raise UserError("give --sentences without --data_dir, --source, --target")
        module = multi_parallel
        text = module.read_shared(FLAGS.sentences, languages, max_pairs)
    else:
        source, target = FLAGS.source, FLAGS.target
        text = module.find_parallel(FLAGS.data_dir, languages, source, target)
    return module, module.measure(models, text, max_pairs, retrieval)


@_analysis(
    _MODELS,
    _text("corpus_dir", "Corpus of parallel text."),
    settings=configs.WordTranslationSettings,
)
def word_translation(settings):
    """Do the rows of the input and the output embedding translate words?

    Two pieces of the vocabulary that are whole words translate each other if each has
    its highest Dice coefficient with the other, in the training sentences of two
    languages. Equal pieces, such as names, are left out. Each piece of a pair is a
    query for the other among the frequent whole words of the other language, by dot
    product and by cosine. Prints the mean reciprocal rank x 100 of both directions with
    its 95% interval.

      decoupled analyze word_translation --model_dir=runs/e_out_128 \\
          --model_dir=runs/e_out_768 --corpus_dir=data/corpus --output_dir=results

    --corpus_dir is a corpus of parallel text, such as one that
    `decoupled build_corpus --source=aligned:FOLDER` wrote. word_translation.items.npz
    has the reciprocal rank of every pair.
    """
    from decoupled.analyses import word_translation as module
    from decoupled.corpora.corpus import Corpus

    corpus = Corpus(FLAGS.corpus_dir)
    return module, module.measure(_models(), corpus, settings)


@_analysis(
    _texts("finetuned_dir", "Folder of a fine-tuning run."),
    lambda: flags.DEFINE_enum("split", "dev", ["dev", "test"], "Split of the scores."),
    _option("metric", "Name of a metric in results.json; default: the task's score."),
)
def layer_drop():
    """Scores with the last layers removed (paper Figure 1).

    Reads results.json of fine-tuning runs that kept only the first layers
    (FinetuningConfig.keep_layers) of one pre-trained model or of several. Runs with
    equal sizes and layers count as seeds: their mean and standard deviation are shown.

      decoupled analyze layer_drop --finetuned_dir=runs/e_out_768_keep_12 \\
          --finetuned_dir=runs/e_out_768_keep_11 --output_dir=results
    """
    from decoupled.analyses import layer_drop as module

    return module, module.measure(FLAGS.finetuned_dir, FLAGS.split, FLAGS.metric)
