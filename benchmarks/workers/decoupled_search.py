"""Worker: best matches between two sets of vectors, in both directions, in blocks."""

import protocol
import synthetic

from decoupled.metrics.neighbours import best_matches


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "scoring", "num_neighbours" and the sizes of `vector_pairs`."""
    first, second = synthetic.vector_pairs(case)

    def step():
        found = best_matches(first, second, case["scoring"], case["num_neighbours"])
        return float((found.forward == range(len(first))).mean())

    return step, {"versions": protocol.versions("decoupled", "numpy")}


if __name__ == "__main__":
    protocol.serve(build)
