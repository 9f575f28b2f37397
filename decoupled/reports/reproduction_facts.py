"""What a document of a reproduction says of its data, scale and machine: sentences."""

import os
import platform
import shlex
from collections.abc import Iterator, Sequence

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import files
from decoupled.core.processor import processor, usable_cores
from decoupled.reports.reproduction_inputs import Folders
from decoupled.reports.reproduction_results import Evidence

_LENGTH = (
    "ScheduleConfig.train_steps",
    "TrainingConfig.batch_size",
    "MaskingConfig.sequence_length",
)


def command(name: str, arguments: Sequence[str]) -> str:
    """The command line that makes what a document tells of.

    Absolute paths come without the folders of this machine, and flags of the document
    itself not at all.
    """
    told = [_shorter(one) for one in arguments if not one.startswith("--document")]
    return shlex.join(["decoupled", name, *told])


def _shorter(argument):
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{_name(value)}" if os.path.isabs(value) else argument


def _name(path):
    return os.path.basename(os.path.normpath(path))


def data(corpus_dir: str, sources: Sequence[str]) -> str:
    """The text that is trained on: how much, in how many languages, from where."""
    manifest = files.read_json(os.path.join(corpus_dir, "manifest.json"))
    languages = manifest["splits"]["train"]
    sentences = sum(one["sentences"] for one in languages.values())
    characters = sum(one["characters"] for one in languages.values())
    return (
        f"Text: {sentences:,} sentences ({characters / 1e6:.1f} million characters) in "
        f"{len(languages)} languages, from {', '.join(map(_name, sources))}."
    )


def scale(sweep: SweepConfig, scale: ScaleConfig, evidence: Evidence) -> str:
    """Sizes of models, length of pre-training, and the share of the embeddings."""
    row = next(iter(evidence.rows.values()))
    text = (
        f"Models: the paper's with every width divided by {scale.width_divisor} and "
        f"every depth by {scale.depth_divisor} ({row.name}: H = "
        f"{row.model.hidden_size}, {row.model.num_layers} layers), a vocabulary of "
        f"{row.model.vocab_size:,} pieces."
    )
    settings = dict(param.split(" = ", 1) for param in sweep.pretraining)
    if all(name in settings for name in _LENGTH):
        steps, batch, length = (int(settings[name]) for name in _LENGTH)
        tokens = steps * batch * length
        text += (
            f" Pre-training: {steps:,} steps of {batch} sequences of {length} tokens, "
            f"{tokens:,} tokens; the paper's is 26 billion."
        )
    if "coupled" in evidence.rows:
        coupled = evidence.rows["coupled"]
        table = coupled.model.vocab_size * coupled.model.input_embedding_size
        text += (
            f" Word embeddings are {table / coupled.pretraining:.0%} of the coupled "
            "model; in multilingual BERT they are 52%."
        )
    return text


def missing(folders: Folders) -> Iterator[str]:
    """What was left out or is other than in the paper."""
    if not folders.words:
        yield (
            "Table 8 and half of claim 6 are left out: no files of word similarity "
            "were given (--word_similarity_dir)."
        )
    if folders.pairs.startswith(folders.corpus):
        yield (
            "Figure 2 takes some 150 held-out messages for each language, and not "
            "5,000 sentences of news (--tatoeba_dir takes other pairs)."
        )
    if folders.treebank:
        name = os.path.basename(folders.treebank[0])
        yield f"Probes learn from {name}, two of the ten tasks of Table 9."
    else:
        yield (
            "Table 9 and a part of claim 7 are left out: no treebank was given "
            "(ud/ in --data_dir)."
        )
    yield (
        "The task `catalogs` asks from which part of a program a message comes, "
        "in all languages. There is no task of questions, where the paper finds its "
        "largest differences."
    )
    if folders.xtreme:
        yield "The task `udpos` is tested in the languages with test files."


def machine() -> str:
    """Cores, their model, and the version of Python."""
    version = platform.python_version()
    return f"{usable_cores()} cores ({processor().name}) with Python {version}"


def duration(seconds: float) -> str:
    """Hours and minutes, e.g. "1 h 05 min"."""
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
