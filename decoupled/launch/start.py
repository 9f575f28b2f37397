"""The common start of all commands: flags, settings, records.

`decoupled NAME` runs the module `decoupled.commands.NAME`. Its settings are gin
bindings, which build the dataclasses of `decoupled.configs`; its paths and machines are
flags. `decoupled.core.endings` says how commands end.

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
from collections.abc import Callable, Collection
from types import ModuleType
from typing import NamedTuple, TypeVar

from absl import app, flags
from absl import logging as absl_logging

import decoupled
from decoupled.core import endings, files, gfile, hosts
from decoupled.core.errors import UserError, close_names
from decoupled.launch import gin_files

T = TypeVar("T")
# The positional arguments of the command line.
_words: list[str] = []
# The settings of the command, as a gin file; "" for a command without settings.
_settings_text = ""
FLAGS = flags.FLAGS

# absl's message for a missing flag that is marked as required.
_NOT_GIVEN = "must have a value other than None"
# Flags whose values are no paths. In all others `~` is the home folder.
_NO_PATHS = {
    *("allow_partial", "beam_option", "gin_bindings", "gin_param", "languages"),
    *("runner", "tasks", "topology", "variants", "coordinator"),
    *("gcp_project", "tpu", "tpu_job_name", "tpu_zone"),
}
# The names of flags whose values are folders end so.
_FOLDERS = ("_dir", "_folder")
# "~" after the language or the kind of an input, as in --input=en=~/a.txt,de=~/b.txt.
_INNER_HOME = re.compile(r"(?<=[=:,])~[^/,:=]*(?=[/,]|$)")
# The variable of the environment with the command that restarts this one.
SUPERVISOR = "DECOUPLED_SUPERVISOR"
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
        "A file of settings, e.g. models/rembert.gin; later files win. Found from "
        "here, then below --gin_location_prefix, then among the files of the package.",
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


def define_runner_flags(what: str) -> None:
    """Defines --workers, --runner and --beam_option; `what` begins the help."""
    flags.DEFINE_integer(
        "workers",
        0,
        f"Processes on this machine that {what}; 0 chooses: one per core, or one if "
        "there is little to do.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "runner",
        "local",
        f"Where processes {what}. local: on this machine. A runner of Apache Beam "
        "(DataflowRunner, FlinkRunner, SparkRunner, ...) needs folders that all its "
        "machines can reach. Beam's DirectRunner runs on this machine, to test a "
        "pipeline.",
    )
    flags.DEFINE_multi_string(
        "beam_option", [], "An option of the Beam runner, e.g. region=europe-west4."
    )


def parse_gin(
    root: type[T],
    *defaults: str,
    task: str | None = None,
    tasks: Collection[str] = (),
) -> T:
    """A command's settings from the gin flags, after `defaults`, files of the package.

    TASK/Name.parameter = value is a setting of one of `tasks`.
    """
    names = [*defaults, *FLAGS.gin_file]
    prefixes = FLAGS.gin_location_prefix
    params = FLAGS.gin_param
    config = gin_files.configure(root, names, params, prefixes, task, tasks)
    keep_settings()
    return config


def keep_settings() -> None:
    """Makes the settings that were read last those that `save_start` records.

    A command may read others, too: those of its jobs, or the defaults in a help.
    """
    global _settings_text
    _settings_text = gin_files.settings_text()


@hosts.by_first
def save_start(folder: str) -> None:
    """Records the start of a command: folder/command.N and folder/config.N.gin.

    N is the next free number. A shell can run command.N. config.N.gin has every setting
    that `parse_gin` used and can be given to --gin_file.
    """
    files.make_folder(folder)

    def names(number):
        kinds = (f"command.{number}", f"config.{number}.gin")
        return [os.path.join(folder, kind) for kind in kinds]

    number = 1
    while any(map(files.exists, names(number))):
        number += 1
    command_file, config_file = names(number)
    moment = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    # The supervisor does not restart the commands that this one starts.
    supervisor_command = os.environ.pop(SUPERVISOR, None)
    command = supervisor_command or shlex.join(["decoupled", *sys.argv[1:]])
    endings.resume_with(command)
    heading = f"# decoupled {decoupled.__version__}, {moment}, in {os.getcwd()}"
    files.write_text(command_file, f"{heading}\n{command}\n")
    if _settings_text:
        files.write_text(config_file, _settings_text)


def facts() -> dict[str, str]:
    """Flags and settings, which are the same in all processes that train together."""
    # The settings are what the flags of gin make.
    given_flags = {
        f"--{flag.name}": str(flag.value)
        for flag in _own_flags()
        if flag.name not in ("process", "gin_file", "gin_param", "gin_bindings")
        and not flag.using_default_value
    }
    return {"a setting": _settings_text, **given_flags}


def words() -> list[str]:
    """The arguments of a command with TAKES_WORDS that belong to no flag."""
    return _words


def command_to_run() -> list[str]:
    """The command after "--" on the command line, for commands that run another."""
    command = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    if not command:
        raise UserError(
            "no command: write it after --, as in -- decoupled pretrain ..."
        )
    return command


def run(command: ModuleType) -> None:
    """Parses the flags and runs the command; `endings.end` catches how it ends.

    The module has `define_flags()` and `main()`, or SUBCOMMANDS, name -> `Subcommand`.
    GONE: name of a former subcommand or flag -> what to use now. TAKES_WORDS = True: it
    also takes `words()`. RUNS_COMMAND = True: "--" and another command follow,
    `command_to_run()`. --help prints the docstring above the flags.
    """
    global _settings_text
    name = f"decoupled {sys.argv[1]}"
    endings.call_command(name)
    _settings_text = ""
    subcommand, usage, arguments = _choose(command, name, sys.argv[2:])
    gfile.forget_written()
    app.run(
        lambda _: _run_main(subcommand),
        argv=[name, *arguments],
        flags_parser=lambda argv: _parse_flags(command, argv, usage),
    )


def _run_main(subcommand):
    """Runs the command, then looks whether what it wrote is still there."""
    subcommand.main()
    if paths := gfile.lost_files():
        verb = f" and {len(paths) - 1} more files are" if paths[1:] else " is"
        raise UserError(
            f"{paths[0]}{verb} gone: something else removed what this command wrote "
            "while it ran, so that its results are incomplete; run it again"
        )


def _choose(command, name, arguments):
    """The command or its subcommand, its help and its words; defines its flags."""
    subcommands = getattr(command, "SUBCOMMANDS", None)
    if subcommands is None:
        command.define_flags()
        return command, command.__doc__, arguments
    word, *rest = arguments or [""]
    if word in _HELP:
        print(_with_list(command.__doc__, subcommands))
        sys.exit(0)
    if not word or word.startswith("-"):
        raise UserError(f"choose a subcommand: {', '.join(subcommands)} (--help)")
    if word in getattr(command, "GONE", {}):
        raise UserError(f"{word} is gone (CHANGELOG.md); {command.GONE[word]}")
    if word not in subcommands:
        hint = close_names(word, list(subcommands))
        raise UserError(f"unknown subcommand {word!r}{hint}")
    endings.call_command(f"{name} {word}")
    subcommands[word].define_flags()
    return subcommands[word], inspect.cleandoc(subcommands[word].main.__doc__), rest


def _with_list(text, subcommands):
    """The help of a command, and the first line of each of its subcommands."""
    width = max(map(len, subcommands))
    lines = [
        f"  {name:{width}}  {inspect.cleandoc(part.main.__doc__).splitlines()[0]}"
        for name, part in subcommands.items()
    ]
    return "\n".join([text.strip(), "", *lines])


def _parse_flags(command, argv, usage):
    global _words
    end = argv.index("--") if "--" in argv else len(argv)
    if any(word in _HELP for word in argv[1:end]):
        print(_help(usage))
        sys.exit(0)
    if getattr(command, "RUNS_COMMAND", False):
        argv = argv[:end]
    try:
        argv = FLAGS(argv)
    except flags.Error as error:
        flag = f"--{getattr(error, 'flagname', '')}"
        if flag in getattr(command, "GONE", {}):
            line = f"{flag} is gone (CHANGELOG.md); {command.GONE[flag]}"
            raise UserError(line) from error
        raise UserError(f"{_flag_mistake(error)}; --help lists the flags") from error
    if getattr(command, "TAKES_WORDS", False):
        _words = argv[1:]
    elif len(argv) > 1:
        raise UserError(
            f"unexpected argument {argv[1]!r}; write --flag=value (--help lists them)"
        )
    names = [
        name for name in FLAGS if _is_required(FLAGS[name]) and not FLAGS[name].value
    ]
    if names:
        raise UserError(f"--{', --'.join(names)} must be given; --help lists the flags")
    for flag in _own_flags():
        if flag.present > 1 and not isinstance(flag, flags.MultiFlag):
            line = f"--{flag.name} is given {flag.present} times; only the last counts"
            print(line, file=sys.stderr)
        if flag.name not in _NO_PATHS:
            flag.value = _with_homes(flag.name, flag.value)
        if flag.name.endswith(_FOLDERS):
            flag.value = _without_slash(flag.value)
    _set_log_level()
    return argv


def _own_flags():
    return [
        flag
        for module, defined in FLAGS.flags_by_module_dict().items()
        if module == sys.argv[0] or module.startswith("decoupled.")
        for flag in defined
    ]


def _with_homes(name, value):
    """The value of a flag, a path or several, with `~` as a shell expands it."""
    if isinstance(value, list):
        return [_with_homes(name, item) for item in value]
    if not isinstance(value, str) or "~" not in value:
        return value
    try:
        value = files.expand_home(value)
    except UserError as error:
        raise UserError(f"--{name}={error}") from None
    return _INNER_HOME.sub(lambda home: os.path.expanduser(home[0]), value)


def _without_slash(value):
    """The value of a flag, a folder or several, without slashes at the end: what is
    joined to one could be named "run//a", which is not "run/a" on gs://."""
    if isinstance(value, list):
        return [_without_slash(item) for item in value]
    return value and (value.rstrip("/") or "/")


def _flag_mistake(error):
    required = re.findall(rf"Flag (--\S+) {_NOT_GIVEN}", str(error))
    if required:
        return f"{', '.join(required)} must be given"
    return str(error).rstrip(".")


def _is_required(flag):
    return any(_NOT_GIVEN in validator.message for validator in flag.validators)


def _set_log_level():
    """Logs our warnings and TensorFlow's errors, unless --verbosity is given."""
    is_quiet = FLAGS["verbosity"].using_default_value
    if is_quiet:
        # The flag is marked as given, because absl would set its default to "info".
        FLAGS["verbosity"].using_default_value = False
    absl_logging.set_verbosity(
        absl_logging.WARNING if is_quiet else FLAGS["verbosity"].value
    )
    level = logging.ERROR if is_quiet else absl_logging.get_absl_logger().level
    logging.getLogger("tensorflow").setLevel(level)


def _help(usage):
    own_flags = sorted(_own_flags(), key=lambda flag: flag.name)
    entries = [_flag_help(flag) for flag in own_flags]
    return "\n".join([usage.strip(), "", "Flags:", *entries])


def _flag_help(flag):
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}=..."
    mark = "  (required)" if _is_required(flag) else ""
    default = "" if flag.default in (None, [], "") else f" (default: {flag.default})"
    # absl appends a line to the help of flags that can be repeated.
    text, _, repeat_mark = flag.help.partition(";\n    repeat this option")
    repeat_note = " Can be repeated." if repeat_mark else ""
    text = f"{' '.join(text.split())}{repeat_note}{default}"
    lines = textwrap.wrap(text, 88, initial_indent="      ", subsequent_indent="      ")
    return "\n".join([f"  {name}{mark}", *lines])
