"""The common start of all commands: flags, settings, errors, records.

`decoupled NAME` runs the module `decoupled.commands.NAME`. Its settings are gin
bindings, which build the dataclasses of `decoupled.configs`; its paths and machines are
flags. A mistake that the user can fix gives one line on stderr and exit code 2.

Only code that needs TensorFlow imports it, so that `--help` and mistakes in flags are
answered at once.
"""

import datetime
import inspect
import logging
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, NoReturn, TypeVar

from absl import app, flags
from absl import logging as absl_logging

import decoupled
from decoupled.core import gfile
from decoupled.core.errors import (
    WORKER_LOST_CODE,
    Interrupted,
    Terminated,
    UserError,
    WorkerLost,
    close_names,
)
from decoupled.launch import gin_files

T = TypeVar("T")
# The command lines that `save_start` has recorded.
_started: list[str] = []
# The name of the running command, and its words that are no flags.
_name, _words = "decoupled", []
FLAGS = flags.FLAGS

USER_ERROR_CODE = 2
INTERRUPTED_CODE = 130
BROKEN_PIPE_CODE = 141
# The exit code that a shell shows after SIGTERM (15): 128 + 15.
TERMINATED_CODE = 143
# absl's message for a missing flag that is marked as required.
_NOT_GIVEN = "must have a value other than None"
_HELP = ("-h", "-help", "--help", "--helpfull")


class Subcommand(NamedTuple):
    """The part of a command that its second word selects; `main`'s text is its help."""

    define_flags: Callable[[], None]
    main: Callable[[], None]


def define_gin_flags() -> None:
    """Defines --gin_file, --gin_param (or --gin_bindings) and --gin_location_prefix."""
    flags.DEFINE_multi_string(
        "gin_file",
        [],
        "A file of settings, e.g. models/base.gin; later files win. Found from here, "
        "then below --gin_location_prefix, then among the files of the package.",
    )
    flags.DEFINE_multi_string(
        "gin_param",
        [],
        "One setting, e.g. 'ScheduleConfig.train_steps = 100'; wins over files.",
    )
    flags.DEFINE_alias("gin_bindings", "gin_param")
    flags.DEFINE_multi_string(
        "gin_location_prefix", [], "A folder to find gin files in, local or gs://."
    )


def define_open_ports_flag() -> None:
    """Defines --accept_open_ports."""
    flags.DEFINE_bool(
        "accept_open_ports",
        False,
        "Serve also where other hosts can reach the port: whoever does can run "
        "programs here, so that a firewall must close it to strangers.",
    )


def parse_gin(root: Callable[[], T], defaults: str | None) -> T:
    """Builds a command's configuration from its defaults and the gin flags.

    Args:
      root: the command's `@gin.configurable`, whose keyword arguments are the
        dataclasses that the command needs. It is called without arguments.
      defaults: the package's gin file that is read first, e.g. "runs/pretrain.gin".

    Returns:
      the result of `root`.

    Raises:
      UserError: a file is missing or wrong, a name is unknown, a value is missing or
        impossible, or a setting has no effect.
    """
    files = [*([defaults] if defaults else []), *FLAGS.gin_file]
    return gin_files.configure(root, files, FLAGS.gin_param, FLAGS.gin_location_prefix)


def save_start(folder: str) -> None:
    """Records the start of a command: folder/command.N and folder/config.N.gin.

    N is the next free number. A shell can run command.N. config.N.gin has every setting
    that `parse_gin` used and can be given to --gin_file. A command without settings
    writes only command.N.

    Raises:
      UserError: the folder cannot be written to.
    """
    from decoupled.core import files

    files.make_folder(folder)
    number = 1
    while any(files.exists(path) for path in _start_files(folder, number)):
        number += 1
    command_file, config_file = _start_files(folder, number)
    moment = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command = shlex.join(["decoupled", *sys.argv[1:]])
    _started.append(command)
    heading = f"# decoupled {decoupled.__version__}, {moment}, in {os.getcwd()}"
    files.write_text(command_file, f"{heading}\n{command}\n")
    settings = gin_files.used_text()
    if settings:
        files.write_text(config_file, settings)


def words() -> list[str]:
    """The arguments of a command with TAKES_WORDS that belong to no flag."""
    return _words


def command_to_run() -> list[str]:
    """The command after "--" on the command line, for commands that run another.

    Raises:
      UserError: there is none.
    """
    command = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    if not command:
        raise UserError(
            "no command: write it after --, as in -- decoupled pretrain ..."
        )
    return command


def run(command: ModuleType) -> NoReturn:
    """Parses the flags, runs the command and exits.

    A UserError or a mistake in a flag is printed in one line, with exit code 2. Ctrl-C
    exits with code 130; if `save_start` has recorded a command, a line shows the
    command that resumes the run. A closed output, as with `| head`, exits with code
    141. Both print no traceback. `Terminated` exits with code 143 and `WorkerLost` with
    code 75: a launcher may run the same command again. Any other exception is a defect
    and keeps its traceback.

    Args:
      command: a module of `decoupled.commands`. Its name is the first word of the
        command line, and --help prints its docstring above the flags. It has
        `define_flags()` and `main()`, or SUBCOMMANDS, name -> `Subcommand`, from which
        the second word selects. TAKES_WORDS = True: it also takes `words()`.
        RUNS_COMMAND = True: "--" and another command follow, `command_to_run()`.
    """
    global _name
    _name = f"decoupled {sys.argv[1]}"
    try:
        chosen, usage, given = _choose(command, sys.argv[2:])
        gfile.forget_written()
        app.run(
            lambda _: _run_main(chosen),
            argv=[_name, *given],
            flags_parser=lambda argv: _parse_flags(command, argv, usage),
        )
    except UserError as error:
        _exit_with_error(" ".join(str(error).split()))
    except Terminated as stop:
        print(f"{_name}: {stop}", file=sys.stderr)
        sys.exit(TERMINATED_CODE)
    except WorkerLost as error:
        print(f"{_name}: error: {error}", file=sys.stderr)
        sys.exit(WORKER_LOST_CODE)
    except Interrupted as stop:
        _tell_how_to_go_on(str(stop))
        _flush_and_exit(INTERRUPTED_CODE)
    except KeyboardInterrupt:
        _tell_how_to_go_on("interrupted")
        _exit_quietly(INTERRUPTED_CODE)
    except BrokenPipeError:
        _exit_quietly(BROKEN_PIPE_CODE)
    except SystemExit as stop:
        _flush_and_exit(stop.code)


def _run_main(chosen):
    """Runs the command, then looks whether what it wrote is still there."""
    chosen.main()
    if lost := gfile.lost_files():
        others = f" and {len(lost) - 1} more files are" if lost[1:] else " is"
        raise UserError(
            f"{lost[0]}{others} gone: something else removed what this command wrote "
            "while it ran, so that its results are incomplete; run it again"
        )


def _choose(command, given):
    """The command or its subcommand, its help and its words; defines its flags."""
    global _name
    subcommands = getattr(command, "SUBCOMMANDS", None)
    if subcommands is None:
        command.define_flags()
        return command, command.__doc__, given
    first, *rest = given or [""]
    if first in _HELP:
        print(_with_list(command.__doc__, subcommands))
        sys.exit(0)
    if not first or first.startswith("-"):
        raise UserError(f"say first which of {', '.join(subcommands)} (--help)")
    if first not in subcommands:
        raise UserError(f"no {first!r} here{close_names(first, list(subcommands))}")
    _name = f"{_name} {first}"
    subcommands[first].define_flags()
    return subcommands[first], inspect.cleandoc(subcommands[first].main.__doc__), rest


def _with_list(text, subcommands):
    """The help of a command, and the first line of each of its subcommands."""
    width = max(map(len, subcommands))
    lines = [
        f"  {name:{width}}  {inspect.cleandoc(one.main.__doc__).splitlines()[0]}"
        for name, one in subcommands.items()
    ]
    return "\n".join([text.strip(), "", *lines])


def _start_files(folder, number):
    names = (f"command.{number}", f"config.{number}.gin")
    return [os.path.join(folder, name) for name in names]


def _parse_flags(command, argv, usage):
    global _words
    end = argv.index("--") if "--" in argv else len(argv)
    if any(word in _HELP for word in argv[1:end]):
        print(_help(usage))
        sys.exit(0)
    if getattr(command, "RUNS_COMMAND", False):
        argv = argv[:end]
    try:
        rest = FLAGS(argv)
    except flags.Error as error:
        raise UserError(f"{_flag_mistake(error)}; --help lists the flags") from error
    if getattr(command, "TAKES_WORDS", False):
        _words = rest[1:]
    elif len(rest) > 1:
        raise UserError(
            f"{rest[1]!r} belongs to no flag; write --flag=value (--help lists them)"
        )
    empty = [
        name for name in FLAGS if _is_required(FLAGS[name]) and not FLAGS[name].value
    ]
    if empty:
        raise UserError(f"--{', --'.join(empty)} must be given; --help lists the flags")
    _set_log_level()
    return rest


def _flag_mistake(error):
    required = re.findall(rf"Flag (--\S+) {_NOT_GIVEN}", str(error))
    if required:
        return f"{', '.join(required)} must be given"
    return str(error).rstrip(".")


def _is_required(flag):
    return any(_NOT_GIVEN in validator.message for validator in flag.validators)


def _set_log_level():
    """Logs our warnings and TensorFlow's errors, unless --verbosity is given."""
    quiet = FLAGS["verbosity"].using_default_value
    if quiet:
        # Only marked as given, or absl would raise it to "info".
        FLAGS["verbosity"].using_default_value = False
    absl_logging.set_verbosity(
        absl_logging.WARNING if quiet else FLAGS["verbosity"].value
    )
    level = logging.ERROR if quiet else absl_logging.get_absl_logger().level
    logging.getLogger("tensorflow").setLevel(level)


def _help(usage):
    modules = FLAGS.flags_by_module_dict()
    own = [
        flag
        for module, defined in modules.items()
        if module == sys.argv[0] or module.startswith("decoupled.")
        for flag in defined
    ]
    listed = [_flag_help(flag) for flag in sorted(own, key=lambda flag: flag.name)]
    return "\n".join([usage.strip(), "", "Flags:", *listed])


def _flag_help(flag):
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}=..."
    mark = "  (required)" if _is_required(flag) else ""
    default = "" if flag.default in (None, [], "") else f" (default: {flag.default})"
    # absl appends a line to the help of flags that can be repeated.
    text, _, repeated = flag.help.partition(";\n    repeat this option")
    again = " Can be repeated." if repeated else ""
    text = f"{' '.join(text.split())}{again}{default}"
    lines = textwrap.wrap(text, 88, initial_indent="      ", subsequent_indent="      ")
    return "\n".join([f"  {name}{mark}", *lines])


def _tell_how_to_go_on(message):
    if _started:
        told = f"{_name}: {message}; go on with: {_started[-1]}"
        print(told, file=sys.stderr)


def _exit_with_error(message):
    sys.stdout.flush()
    print(f"{_name}: error: {message}", file=sys.stderr)
    sys.exit(USER_ERROR_CODE)


def _flush_and_exit(code):
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _exit_quietly(BROKEN_PIPE_CODE)
    sys.exit(code)


def _exit_quietly(code):
    # Discards the buffered output, which the interpreter flushes again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
