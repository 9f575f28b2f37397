"""How a command ends: its exit code, its last line, and what Ctrl-C does until then.

The only place that catches what ends a command. What the user can mend ends in one line
on stderr: a mistake, a full disk, a file that cannot be read, too little memory. Any
other exception is a defect and keeps its traceback.

Needs only Python itself: it is imported before everything else.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from decoupled.core.errors import (
    WORKER_LOST_CODE,
    Interrupted,
    Terminated,
    UserError,
    WorkerLost,
    in_one_line,
    printable,
)

USER_ERROR_CODE = 2
INTERRUPTED_CODE = 130
BROKEN_PIPE_CODE = 141
# The exit code that a shell shows after SIGTERM (15): 128 + 15.
TERMINATED_CODE = 143
# Seconds after which a KeyboardInterrupt that Python dropped comes again.
_PAUSE = 0.01
_IMPORT = "<frozen importlib._bootstrap>"
_STDOUT = "stdout"
# TensorFlow's errors about files and memory; all others are defects.
_USER_ERRORS = (
    "DataLossError",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
)

# Functions that are called however the process ends.
_clean_ups: list[Callable[[], None]] = []
_report_unraisable = sys.unraisablehook
# The descriptor of the terminal, to which this module writes its lines.
_terminal = 2
# Whether the process ends without the clean-up of the interpreter.
_ends_at_once = False
# The running command, and the command line that resumes it.
_name, _resume_command = "", ""


def call_command(name: str) -> None:
    """Gives the name that begins the last line, such as "decoupled plan"."""
    global _name
    _name = name


def in_command() -> bool:
    """Whether this process runs a command, and is not a user's own Python."""
    return bool(_name)


def resume_with(command: str) -> None:
    """Gives the command line that is printed if Ctrl-C ends the command from now on."""
    global _resume_command
    _resume_command = command


def command() -> str:
    """What begins the last line."""
    return _name


def write_line(line: str) -> None:
    """Writes a line on the terminal, also from a handler of signals: without locks."""
    with contextlib.suppress(OSError):
        os.write(_terminal, f"{line}\n".encode("utf-8", "backslashreplace"))


def keep_messages(path: str) -> None:
    """From now on what libraries write on the terminal is added to a file instead."""
    global _terminal
    sys.stderr.flush()
    _terminal = os.dup(2)
    sys.stderr = open(_terminal, "w", buffering=1, errors="backslashreplace")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 2)
    os.close(file)


def end_at_once() -> None:
    """From now on `end` does not wait for threads of others, which may never end."""
    global _ends_at_once
    _ends_at_once = True


def leave(code: int) -> NoReturn:
    """Ends the process from any thread."""
    for clean_up in reversed(_clean_ups):
        clean_up()
    os._exit(code)


def end(work: Callable[[], int | None]) -> NoReturn:
    """Does the work of a command and exits with its code, or 0.

    docs/configuration.md lists the codes. An exception that is a defect is raised.
    """
    try:
        _handle_interrupts()
        _open_streams()
        try:
            code = work()
        except SystemExit as stop:
            code = stop.code
        sys.stdout.flush()
    except BaseException as error:
        _leave_at_once_on_interrupts()
        code, line = code_and_line(error)
        if code is None:
            if _ends_at_once:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            raise
        _discard_output()
        if line:
            with contextlib.suppress(OSError):
                print(f"{printable(_name or 'decoupled')}: {line}", file=sys.stderr)
    _leave_at_once_on_interrupts()
    if _ends_at_once:
        _discard_output()
        os._exit(code or 0)
    sys.exit(code)


def _handle_interrupts():
    # If Ctrl-C is ignored, as under nohup, it stays so.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable


def _leave_at_once_on_interrupts():
    signal.setitimer(signal.ITIMER_REAL, 0)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave_at_once)


@contextlib.contextmanager
def cleaned_up(clean_up: Callable[[], None]) -> Iterator[None]:
    """Calls `clean_up` after the block, also if Ctrl-C ends it in an import."""
    _clean_ups.append(clean_up)
    try:
        yield
    finally:
        _clean_ups.remove(clean_up)
        clean_up()


def _leave_at_once(number, frame):
    leave(INTERRUPTED_CODE)


def _interrupt(number, frame):
    """Raises KeyboardInterrupt, but leaves at once if it comes in an import.

    NumPy and TensorFlow turn an exception in their import into another one, or into an
    abort.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            _leave_at_once(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _unraisable(unraisable):
    """Python drops an exception in a destructor; a KeyboardInterrupt comes again."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _PAUSE)
    else:
        _report_unraisable(unraisable)


class _Stdout(io.TextIOWrapper):
    """Stdout, whose errors name it, and which can print any text.

    Where stdout is ASCII, other characters appear as in "\\xe9".
    """

    def write(self, text: str) -> int:
        with _errors_name_stdout():
            return super().write(text)

    def flush(self) -> None:
        with _errors_name_stdout():
            super().flush()


@contextlib.contextmanager
def _errors_name_stdout():
    try:
        yield
    except OSError as error:
        error.filename = _STDOUT
        raise


def _open_streams():
    """Opens closed streams, and stdout as `_Stdout`.

    A file that is opened later would take the number of a closed stream, and get what
    libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    stdout = sys.stdout
    if stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
        raise UserError(f"{_STDOUT}: is closed; send it to a file or to /dev/null")
    if stdout is sys.__stdout__:
        options = {
            "encoding": stdout.encoding,
            "errors": "backslashreplace",
            "line_buffering": stdout.line_buffering,
            "write_through": stdout.write_through,
        }
        sys.stdout = sys.__stdout__ = _Stdout(stdout.detach(), **options)


def code_and_line(error: BaseException) -> tuple[int | None, str]:
    """The exit code for an exception, None for a defect; and the last line, or ""."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        if not _resume_command:
            return INTERRUPTED_CODE, ""
        message = str(error) or "interrupted"
        return INTERRUPTED_CODE, printable(f"{message}; go on with: {_resume_command}")
    if isinstance(error, Terminated):
        return TERMINATED_CODE, in_one_line(str(error))
    if isinstance(error, WorkerLost):
        return WORKER_LOST_CODE, f"error: {in_one_line(str(error))}"
    if isinstance(error, BrokenPipeError) and error.filename == _STDOUT:
        return BROKEN_PIPE_CODE, ""
    message = _message(error)
    if message is None:
        return None, ""
    return USER_ERROR_CODE, f"error: {in_one_line(message)}"


def _message(error: BaseException) -> str | None:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError):
        amount = f" ({error})" if str(error) else ""
        return (
            f"not enough memory{amount}; end other programs, use a larger machine, or "
            "give the command less at once"
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{error.strerror}"
    errors = getattr(sys.modules.get("tensorflow"), "errors", None)
    kinds = tuple(getattr(errors, kind) for kind in _USER_ERRORS) if errors else ()
    if isinstance(error, kinds):
        from decoupled.core.files import reason

        return reason(error)
    return None


def _discard_output():
    """Prints what is buffered; if that fails, nothing is printed any more.

    The interpreter would try again at its end, and fail with a traceback.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
