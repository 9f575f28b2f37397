"""A cache of features on disk, so that text is tokenised once and not at each start.

A cache is one file of arrays, FOLDER/DIGEST.npz. DIGEST is a hash of the key: all that
the features depend on. The file holds the key, too. A damaged file is replaced, and a
line says so.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from decoupled.core import files, gfile, hosts
from decoupled.core.errors import UserError

# Not the name of a feature.
_KEY = "__key__"

Features = dict[str, np.ndarray]


def cached_features(
    folder: str,
    key: dict[str, Any],
    build: Callable[[], Features],
    say: Callable[[str], None],
) -> Features:
    """The features of `key`: read from `folder`, or else built and stored there.

    `key` has all that they depend on, as JSON. What `build` returned comes back bit for
    bit. Processes may share a folder, even while they write.
    """
    path, text = cache_path(folder, key), _canonical(key)
    if files.exists(path):
        try:
            features = files.read_arrays(path)
            if features.pop(_KEY, "") == text:
                return features
            problem = "made of other inputs than its name says"
        except UserError:
            problem = "damaged"
        say(f"{path}: {problem}; these features are built anew")
    _make(folder)
    features = build()
    _store(path, {**features, _KEY: np.array(text)}, say)
    return features


# A process finds features that another has just stored, or builds them itself.
@hosts.only_first
def _make(folder):
    files.make_folder(folder)


@hosts.only_first
def _store(path, arrays, say):
    try:
        files.write_arrays(path, arrays)
    except gfile.OpError as error:
        say(
            f"{path}: cannot write ({files.reason(error)}); the next start builds "
            "these features anew"
        )


def cache_path(folder: str, key: dict[str, Any]) -> str:
    """The file of a key."""
    return os.path.join(folder, files.fingerprint(_canonical(key))[:32] + ".npz")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
