"""The interpreters of the peers, and the dump that one of them brings."""

import os
import pathlib
import sys

from decoupled.core.errors import UserError

ROOT = pathlib.Path(__file__).parent.parent
# The variable that names an interpreter, and the environment that `make bench` makes.
PEERS = {
    "torch": ("DECOUPLED_INTEROP_PYTHON", ".venv-interop"),
    "mesh_bert": ("DECOUPLED_MESH_BERT_PYTHON", ".venv-mesh-bert"),
    "corpus": ("DECOUPLED_CORPUS_PYTHON", ".venv-corpus"),
}
DATA_DIR = "DECOUPLED_DATA_DIR"
# The place of a dump in DECOUPLED_DATA_DIR.
BUNDLED_DUMP = "wikipedia/enwiki-pages-articles-shortened.xml.bz2"
# The same pages of the English Wikipedia, among gensim's test data.
_GENSIM_DUMP = (
    "lib/python*/site-packages/gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-*-shortened.bz2"
)


def python(framework: str) -> str:
    """The interpreter that has a framework: "decoupled" or one of `PEERS`.

    Raises:
      UserError: it is missing.
    """
    if framework == "decoupled":
        return sys.executable
    variable, folder = PEERS[framework]
    path = os.environ.get(variable) or str(ROOT / folder / "bin" / "python")
    if not os.access(path, os.X_OK):
        raise UserError(
            f"{path}: no interpreter there; run `make bench`, which installs the "
            f"peers, or let {variable} name one"
        )
    return path


def default_dump() -> str:
    """The Wikipedia dump in DECOUPLED_DATA_DIR, or the one that gensim's wheel brings.

    Raises:
      UserError: there is neither.
    """
    folder = os.environ.get(DATA_DIR)
    if folder:
        return os.path.join(folder, BUNDLED_DUMP)
    environment = pathlib.Path(python("corpus")).parent.parent
    paths = sorted(environment.glob(_GENSIM_DUMP))
    if not paths:
        raise UserError(
            f"{environment}: no gensim with a dump in it; give --dump=FILE, or set "
            f"{DATA_DIR}"
        )
    return str(paths[0])
