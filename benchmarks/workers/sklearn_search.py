"""Worker: scikit-learn's nearest neighbours by cosine, in both directions.

For a margin its neighbours are the candidates, as in LASER's script.
"""

import numpy as np
import protocol
import synthetic
from sklearn.neighbors import NearestNeighbors


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds what that of `decoupled_search` holds."""
    first, second = synthetic.vector_pairs(case)
    margin = case["scoring"] == "ratio_margin"
    count = case["num_neighbours"] if margin else 1

    def step():
        cosines, places = nearest(first, second, count)
        others, _ = nearest(second, first, count)
        forward = places[:, 0]
        if margin:
            means = (cosines.mean(1)[:, np.newaxis] + others.mean(1)[places]) / 2
            best = (cosines / means).argmax(axis=1)
            forward = places[np.arange(len(first)), best]
        return float((forward == range(len(first))).mean())

    return step, {"versions": protocol.versions("scikit-learn", "numpy")}


def nearest(
    first: np.ndarray, second: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and places of the nearest of `second`, [first, count] each."""
    index = NearestNeighbors(n_neighbors=count, algorithm="brute", metric="cosine")
    distances, places = index.fit(second).kneighbors(first)
    return 1 - distances, places


if __name__ == "__main__":
    protocol.serve(build)
