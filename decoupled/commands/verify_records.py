"""Checks a records folder, every byte of it: checksums, schema, ids, counts, SHA-256.

Prints one line and exits with 0 where all is well; otherwise one line per defect, with
file and record, and exits with 2. A corrupt record is passed over and the rest of its
file is checked; only behind a corrupt length nothing can be read.

  decoupled verify_records --records_dir=records \\
    --vocabulary=vocabulary/sentencepiece.model
"""

import sys

from absl import flags

from decoupled.core import console, processes
from decoupled.data.records import read_manifest
from decoupled.data.vocabulary import Vocabulary

FLAGS = flags.FLAGS

# Below this, starting worker processes takes longer than the work.
_SMALL_BYTES = 1 << 30


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
    defects = verify(FLAGS.records_dir, FLAGS.vocabulary, FLAGS.workers)
    for defect in defects:
        print(defect, file=sys.stderr)
    if defects:
        sys.exit(2)


def verify(records_dir: str, vocabulary_path: str, workers: int = 0) -> list[str]:
    """All defects of a records folder, a line each; says so where there are none.

    `workers` 0 chooses their number.

    Raises:
      UserError: there is no manifest, or the vocabulary is another one.
    """
    from decoupled.data.verification import all_shards, stray_files, verify_shards

    manifest = read_manifest(records_dir)
    vocabulary = Vocabulary(vocabulary_path)
    manifest.check_vocabulary(vocabulary.fingerprint, vocabulary_path)
    shards = all_shards(manifest)
    are_small = sum(shard.bytes for shard in shards) < _SMALL_BYTES
    workers = processes.choose_workers(workers, len(shards), are_small)
    defects = []
    found = verify_shards(manifest, workers)
    for own in console.track(found, "verifying files", total=len(shards)):
        defects += own
    defects += stray_files(manifest)
    if not defects:
        records = sum(shard.records for shard in shards)
        tokens = sum(shard.tokens for shard in shards)
        console.say(
            f"{records_dir}: {len(shards)} files, {records} records and {tokens} "
            "tokens, as the manifest says"
        )
    return defects
