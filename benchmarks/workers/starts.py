"""Worker: a step starts another worker, waits until it is ready, and ends it.

A case holds "command", the interpreter and script of the other, and its "case".
"""

import json
import subprocess
import sys

import protocol


def build(case: dict) -> tuple[protocol.Step, dict]:
    """Instead of a loss a step gives the seconds that the other worker counted."""
    command = [*case["command"], json.dumps(case["case"])]

    def step():
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            line = process.stdout.readline()
            if not line:
                # Its own message is the last line of the errors, which are shared.
                sys.exit(process.wait())
            start = json.loads(line)["start"]
            process.communicate("quit\n")
        return start

    return step, {}


if __name__ == "__main__":
    protocol.serve(build)
