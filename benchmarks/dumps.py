"""The Wikipedia dump that suites read where the command line names none."""

import os
import pathlib

from benchmarks import command
from decoupled.core.errors import UserError

BUNDLED = "wikipedia/enwiki-pages-articles-shortened.xml.bz2"
# The same pages of the English Wikipedia, among gensim's test data.
_IN_GENSIM = (
    "lib/python*/site-packages/gensim/test/test_data/"
    "enwiki-latest-pages-articles1.xml-*-shortened.bz2"
)


def default_dump() -> str:
    """The dump in DECOUPLED_DATA_DIR, or else the one that gensim's wheel brings.

    Raises:
      UserError: there is neither.
    """
    folder = os.environ.get("DECOUPLED_DATA_DIR")
    if folder:
        return os.path.join(folder, BUNDLED)
    environment = pathlib.Path(command.python("corpus")).parent.parent
    found = sorted(environment.glob(_IN_GENSIM))
    if not found:
        raise UserError(
            f"{environment}: no gensim with a dump in it; give --dump=FILE, or set "
            "DECOUPLED_DATA_DIR"
        )
    return str(found[0])
