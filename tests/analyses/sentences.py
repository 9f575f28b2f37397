"""Sentences in several scripts, and a model of random weights for their pieces."""

from decoupled.analyses.models import open_models
from decoupled.configs import RetrievalConfig
from decoupled.data.vocabulary import open_vocabulary
from tests.analyses.tiny_runs import write_run
from tests.vocabularies import train_vocabulary

ENGLISH = [
    "The train leaves at seven.",
    "She has two brothers and a sister.",
    "Rain fell on the mountains all night.",
    "We bought bread, milk and 12 eggs.",
    "Nobody knows where the old map is.",
    "The school was built in 1954.",
    "My neighbour repairs bicycles.",
    "Please close the window before you go.",
    "The river is deeper than it looks.",
    "They sang until the sun rose.",
]
OTHER_LANGUAGES = [
    "Der Zug fährt um sieben ab.",
    "Сестра читает книгу.",
    "昨天晚上下雨了。",
    "हम बाज़ार जा रहे हैं।",
    "الطقس جميل اليوم.",
    "Το παιδί κοιμάται.",
]


def open_model(path):
    """The model of a folder or a checkpoint."""
    [model] = open_models([str(path)])
    return model


def retrieval(**changes):
    """Batches of 4 sentences of up to 24 tokens; keywords change single fields."""
    sizes = dict(num_neighbours=2, max_sequence_length=24, batch_size=4)
    return RetrievalConfig(**sizes | changes)


def write_trained_model(folder):
    """A model folder (a pathlib.Path that exists); returns it as a string."""
    path = train_vocabulary(
        folder / "vocabulary.model", ENGLISH + OTHER_LANGUAGES, vocab_size=150
    )
    vocabulary = open_vocabulary(path)
    return write_run(folder / "model", vocabulary, {"vocab_size": vocabulary.size})
