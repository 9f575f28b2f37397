"""`decoupled COMMAND ...`, or `python -m decoupled COMMAND ...`: runs a command.

Without a command it lists all, in the order in which they are needed.
"""

import gc
import os
import signal
import sys

# Every module of decoupled/commands.
COMMANDS = {
    "Before anything else": ("doctor", "demo"),
    "Text": ("build_corpus", "build_vocabulary", "build_records", "verify_records"),
    "Models": ("parameters", "plan", "pretrain", "fill_mask"),
    "Tasks": ("finetune", "retrieve", "score"),
    "Models for others": ("export", "predict", "convert"),
    "The paper": ("analyze", "sweep", "report", "reproduce"),
    "Several processes, TPUs": ("supervise", "tpu_health"),
}
# Commands of earlier versions, and what to use now.
GONE = {
    "cluster_demo": "supervise --processes=2 -- decoupled pretrain --accelerator=cpu "
    "trains on two processes of a host",
    "worker": "run the same pretrain or finetune on every host, with --accelerator, "
    "--coordinator, --processes and --process",
}
# Python's garbage collector looks for cycles after so many new objects, and among older
# ones after so many searches. TensorFlow's modules and graphs are hundreds of thousands
# of objects that stay alive. The defaults (2,000, 10 and 10 in Python 3.13) scan them
# again and again, which is 6% of the time of a small job.
GARBAGE_THRESHOLDS = (100_000, 20, 100)
# Works also where absl and gin, which `decoupled.launch` imports, are missing.
NEEDS_PYTHON_ALONE = "doctor"


def listing() -> str:
    """All commands by their purpose, each with the first line of its help."""
    parts = ["decoupled COMMAND --help explains a command."]
    for heading, names in COMMANDS.items():
        parts += ["", heading, *map(_line, names)]
    return "\n".join(parts)


def main() -> None:
    """Runs the command that the first word names, or lists all; exits."""
    # Before any other import, so that Ctrl-C during the imports ends quietly. If Ctrl-C
    # is ignored, as under nohup, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    from decoupled.core import endings

    endings.call_command("decoupled")
    endings.end(lambda: _run(sys.argv[1:]))


def _run(words):
    if not words or words[0] in ("-h", "--help", "-help"):
        print(listing())
        return 0
    from decoupled.core.errors import UserError, close_names

    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder is gone; change to another one") from error
    known = [name for names in COMMANDS.values() for name in names]
    if words[0] not in known:
        if words[0] in GONE:
            raise UserError(f"{words[0]} is gone (CHANGELOG.md); {GONE[words[0]]}")
        raise UserError(f"no command {words[0]!r}{close_names(words[0], known)}")
    import importlib

    command = importlib.import_module(f"decoupled.commands.{words[0]}")
    if words[0] == NEEDS_PYTHON_ALONE:
        return command.main()
    from decoupled.launch import start

    return start.run(command)


def _line(name):
    """A command and what it does. Its module is read, not imported."""
    import ast
    import pathlib

    path = pathlib.Path(__file__).parent / "commands" / f"{name}.py"
    help_text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    first = help_text.splitlines()[0]
    return f"  {name:16} {first}"


if __name__ == "__main__":
    main()
