"""A worker process of Beam on one machine: silent, and gone when its parent is gone.

Beam starts `python -m decoupled.corpora.beam_worker PID`, PID being the process that
runs the pipeline. Where that is killed, Beam's own worker would finish its work first,
and disturb a second run in the same folder.
"""

import logging
import os
import sys
import threading
import time

_SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    """Does what the pipeline of the parent asks for, until there is no more."""
    # What goes wrong is raised there. Before the import, which logs as well.
    logging.disable(logging.CRITICAL)
    from apache_beam.runners.worker import sdk_worker_main

    end_with(int(sys.argv[1]))
    sdk_worker_main.main(sys.argv[:1])


def end_with(parent: int) -> None:
    """Ends this process soon after its parent has ended."""

    def watch():
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
