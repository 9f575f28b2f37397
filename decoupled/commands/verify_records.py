"""Checks a records folder, every byte of it: checksums, schema, ids, counts, SHA-256.

Prints one line and exits with 0 where all is well; otherwise one line per defect, with
file and record, and exits with 2. A corrupt record is passed over and the rest of its
file is checked; only behind a corrupt length nothing can be read.

  decoupled verify_records --records_dir=records \\
    --vocabulary=vocabulary/sentencepiece.model
"""

import sys

from absl import flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("records_dir", None, "Records folder.", required=True)
    flags.DEFINE_string(
        "vocabulary",
        None,
        "SentencePiece model file that the records must have been made with.",
        required=True,
    )
    flags.DEFINE_integer(
        "workers",
        0,
        "Processes that read; 0 chooses: one per core, or one for small records.",
        lower_bound=0,
    )


def main() -> None:
    """Verifies; exits with 2 where there is a defect."""
    # TensorFlow takes seconds to import; mistakes in flags are answered before.
    from decoupled.data.verification import verify_records

    defects = verify_records(FLAGS.records_dir, FLAGS.vocabulary, FLAGS.workers)
    for defect in defects:
        print(defect, file=sys.stderr)
    if defects:
        sys.exit(2)
