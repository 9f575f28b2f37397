"""Trains a SentencePiece model, in a process that `vocabulary_training` starts.

It reads from stdin: a line of JSON with the trainer's options, the lines of the text,
and an empty line. It writes the trainer's log to stderr. To stdout it writes a line of
JSON, null or the trainer's error, and then the model.

The trainer is one long call. A separate process can be stopped, does not end the
command if it runs out of memory, and shows its progress through its log.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import BinaryIO

import sentencepiece

_ABANDONED_CODE = 3


def main() -> None:
    """Reads, trains, writes."""
    # Ctrl-C also reaches the parent, which ends this process. If the parent was killed,
    # the next line of the log has no reader, and SIGPIPE ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    source, output = sys.stdin.buffer, sys.stdout.buffer
    options = json.loads(source.readline())
    model, error = io.BytesIO(), None
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(source), model_writer=model, **options
        )
    except RuntimeError as caught:
        error = str(caught)
    # The parent reads the log to its end before it reads the model.
    os.close(sys.stderr.fileno())
    output.write(json.dumps(error).encode() + b"\n")
    output.write(model.getvalue() if error is None else b"")


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """The lines before the empty one; ends the process if there is no empty one."""
    for line in source:
        if line == b"\n":
            return
        yield line[:-1]
    # The parent was killed: half of the text must not become a vocabulary.
    os._exit(_ABANDONED_CODE)


if __name__ == "__main__":
    main()
