"""Worker: pairs of sentences through this project's encoder and search.

A step does what `decoupled retrieve` does for sentences that are tokenised:
it builds the graph, reads the checkpoint, encodes and searches, in both directions.
"""

import tempfile
from typing import NamedTuple

import numpy as np
import protocol
import synthetic
from random_weights import write_checkpoint

from decoupled.analyses.models import layer_vectors
from decoupled.analyses.retrieval import search
from decoupled.configs import ModelConfig, RetrievalConfig
from decoupled.model.variables import NO_HEAD
from decoupled.runs.saved_run import Model
from decoupled.training.checkpoint_files import CheckpointFile


class NumberedPieces(NamedTuple):
    """A vocabulary whose texts are numbers of pieces, with spaces between them."""

    pad_id: int = synthetic.PAD_ID
    cls_id: int = synthetic.CLS_ID
    sep_id: int = synthetic.SEP_ID

    def encode_batch(self, texts):
        """The pieces of each text."""
        return [[int(number) for number in text.split()] for text in texts]


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "pairs" and the fields of configurations: "model" and "retrieval";
    see also `synthetic`."""
    model = ModelConfig(**case["model"])
    config = RetrievalConfig(**case["retrieval"])
    # The step keeps the folder until the process ends.
    folder = tempfile.TemporaryDirectory()
    prefix = f"{folder.name}/model.ckpt"
    parameters = write_checkpoint(prefix, model, NO_HEAD)
    weights = CheckpointFile(prefix)
    analysis_model = Model("model", folder.name, model, NumberedPieces(), weights, None)
    first, second = (
        [" ".join(map(str, ids)) for ids in side]
        for side in synthetic.sentence_pairs(case)
    )

    def step(checkpoint=folder):
        vectors = layer_vectors(analysis_model, first + second, config)
        halves = np.split(vectors, 2)
        matches = search(*halves, config, "searching blocks")
        return float(matches.forward_scores.mean() + matches.backward_scores.mean())

    layer_vectors(analysis_model, first[: config.batch_size], config)
    return step, {
        "parameters": parameters,
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


if __name__ == "__main__":
    protocol.serve(build)
