"""Lists the commands, in the order in which they are needed.

python -m decoupled
"""

import ast
import os
import pathlib
import sys

# Every module of the package that `python -m` runs.
COMMANDS = {
    "Before anything else": ("doctor", "demo"),
    "Text": ("build_corpus", "build_vocabulary", "build_records", "verify_records"),
    "Models": ("parameters", "plan", "pretrain", "fill_mask"),
    "Tasks": ("finetune", "retrieve", "score"),
    "Models for others": ("export", "convert"),
    "The paper": ("analyze", "sweep", "report", "reproduce"),
    "Several processes, TPUs": ("supervise", "worker", "cluster_demo", "tpu_health"),
}


def listing() -> str:
    """All commands by their purpose, each with the first line of its own help."""
    parts = ["python -m decoupled.COMMAND --help explains a command."]
    for heading, names in COMMANDS.items():
        parts += ["", heading, *map(_line, names)]
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Prints the list; returns 2 where there are words, which only commands take."""
    given = [word for word in arguments if word not in ("-h", "--help", "-help")]
    if not given:
        print(listing())
        return 0
    known = given[0] in [name for names in COMMANDS.values() for name in names]
    advice = (
        f"write python -m decoupled.{given[0]}, with a dot"
        if known
        else "python -m decoupled lists the commands"
    )
    print(f"decoupled: error: {given[0]!r}: {advice}", file=sys.stderr)
    return 2


def _line(name):
    """A command and what it does. Its module is read, not imported."""
    path = pathlib.Path(__file__).parent / f"{name}.py"
    help_text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    first = help_text.splitlines()[0]
    return f"  {name:16} {first}"


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # As `decoupled.launch`, which needs more than Python. What is still buffered
        # goes nowhere: the interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)
