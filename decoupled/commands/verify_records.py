"""Checks every byte of a records folder: the SHA-256 of each file is the manifest's.

If there is no defect, prints one line and exits with code 0. Otherwise prints a line
for each bad file, and exits with code 2. Training names the damaged record of a file.

  decoupled verify_records --records_dir=records \\
    --vocabulary=vocabulary/sentencepiece.model
"""

import sys

from absl import flags

from decoupled.core.errors import in_one_line

FLAGS = flags.FLAGS
GONE = {"--workers": "threads of one process read several files at once"}


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("records_dir", None, "Records folder.", required=True)
    flags.DEFINE_string(
        "vocabulary",
        None,
        "The file or folder that the records must have been made with.",
        required=True,
    )


def main() -> None:
    """Verifies the records; exits with code 2 if there is a defect."""
    # Imported here, because it takes seconds: mistakes in flags are reported first.
    from decoupled.data.reading import verify_records

    defects = verify_records(FLAGS.records_dir, FLAGS.vocabulary)
    for defect in defects:
        print(in_one_line(defect), file=sys.stderr)
    if defects:
        sys.exit(2)
