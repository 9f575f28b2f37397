"""`decoupled COMMAND ...`, or `python -m decoupled COMMAND ...`: runs a command.

Without a command it lists all, in the order in which they are needed.
"""

import ast
import gc
import importlib
import os
import pathlib
import sys

from decoupled.core.errors import close_names

# Every module of decoupled/commands.
COMMANDS = {
    "Before anything else": ("doctor", "demo"),
    "Text": ("build_corpus", "build_vocabulary", "build_records", "verify_records"),
    "Models": ("parameters", "plan", "pretrain", "fill_mask"),
    "Tasks": ("finetune", "retrieve", "score"),
    "Models for others": ("export", "predict", "convert"),
    "The paper": ("analyze", "sweep", "report", "reproduce"),
    "Several processes, TPUs": ("supervise", "worker", "cluster_demo", "tpu_health"),
}
# Python's garbage collector looks for cycles after so many new objects, and among older
# ones after so many searches. TensorFlow's modules and graphs are hundreds of thousands
# of objects that stay alive. The defaults (2,000, 10 and 10 in Python 3.13) scan them
# again and again, which is 6% of the time of a small job.
GARBAGE_THRESHOLDS = (100_000, 20, 100)
# Works also where absl and gin, which `decoupled.launch` imports, are missing.
NEEDS_PYTHON_ALONE = "doctor"


def listing() -> str:
    """All commands by their purpose, each with the first line of its own help."""
    parts = ["decoupled COMMAND --help explains a command."]
    for heading, names in COMMANDS.items():
        parts += ["", heading, *map(_line, names)]
    return "\n".join(parts)


def main() -> None:
    """Runs the command that the first word names, or lists all; exits."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # As `decoupled.launch`, which needs more than Python. What is still buffered
        # goes nowhere: the interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)


def _run(words):
    if not words or words[0] in ("-h", "--help", "-help"):
        print(listing())
        return 0
    known = [name for names in COMMANDS.values() for name in names]
    if words[0] not in known:
        print(
            f"decoupled: error: no command {words[0]!r}{close_names(words[0], known)}",
            file=sys.stderr,
        )
        return 2
    command = importlib.import_module(f"decoupled.commands.{words[0]}")
    if words[0] == NEEDS_PYTHON_ALONE:
        return command.main()
    from decoupled.launch import start

    start.run(command)


def _line(name):
    """A command and what it does. Its module is read, not imported."""
    path = pathlib.Path(__file__).parent / "commands" / f"{name}.py"
    help_text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    first = help_text.splitlines()[0]
    return f"  {name:16} {first}"


if __name__ == "__main__":
    main()
