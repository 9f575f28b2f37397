"""Files and folders that are never half written, and the reading of users' files.

Every path may be local or remote (`gs://`), see `gfile`. A file or a folder is written
under a temporary name beside its own, and renamed when it is complete and on disk. So
neither a killed process nor a power failure leaves a file that looks finished.
"""

import codecs
import collections
import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shlex
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from decoupled.core import gfile, hosts
from decoupled.core.errors import UserError, quoted

# Imported where it is needed: every command reads files, few read arrays.
if TYPE_CHECKING:
    import numpy as np

# Other characters that Unicode counts as line ends are text.
LINE_END = re.compile("\r\n|\r|\n")
BYTE_ORDER_MARK = "\ufeff"
# UTF-32's marks begin with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# Encoding -> for each byte of a character, whether it is NUL in ASCII text.
_NULS = {
    "UTF-32LE": (False, True, True, True),
    "UTF-32BE": (True, True, True, False),
    "UTF-16LE": (False, True),
    "UTF-16BE": (True, False),
}
# This many bytes of a file without a byte order mark tell its encoding.
_SAMPLE = 1 << 10
_GZIP = b"\x1f\x8b"
_FEWEST_NULS = 6
# TensorFlow's file that lists the checkpoints of a folder.
CHECKPOINT_LIST = "checkpoint"
# A file for every line of which the file beside it has the number of the sentence.
INDEX = ".idx"
# The cause is on the line after the node's name, after the name of a file.
_SESSION_FAILED = re.compile(
    r"\AGraph execution error:\n.*^Node: [^\n]*\n"
    r"(?:\d+ root error\(s\) found\.\n\s*\(0\) \w+: )?(?:/\S+; )?([^\n]+)$",
    re.DOTALL | re.MULTILINE,
)
# The names of nodes and operations that TensorFlow puts around the cause.
_NODES = re.compile(
    r"(?:\[\[)?\{\{(?:function_)?node [^}]*\}\}(?:\]\])?|\[Op:\w+\](?: name:.*)?"
)
# Escapes of JSON; the group is half a surrogate pair, which UTF-8 cannot encode.
_ESCAPES = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)", re.DOTALL
)
# The deepest nesting: no file needs more, and Python's recursion can follow it.
_DEEPEST = 20
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{8}$")
# A part of a path: neither "." nor "..", no separator, and no character with a special
# meaning for a file system or a terminal.
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+"
_BELOW = re.compile(rf"{_PART}(?:/{_PART})*")


exists = gfile.exists


def expand_home(path: str) -> str:
    """A path whose `~` or `~user` at the beginning is that home, as in a shell."""
    expanded_path = os.path.expanduser(path)
    if expanded_path.startswith("~"):
        user = path.split("/")[0]
        raise UserError(f"{path}: no home folder of {user}; ./{path} is a local path")
    return expanded_path


@hosts.by_first
def make_folder(path: str) -> str:
    """Creates the folder and its parents, and checks that it can be written to."""
    try:
        gfile.makedirs(path)
        probe = temporary_name(os.path.join(path, "probe"))
        with gfile.GFile(probe, "w") as handle:
            handle.write("")
        gfile.remove(probe)
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot write here ({reason(error)})") from error
    return path


def check_distinct(paths: Iterable[str]) -> None:
    """Refuses a path that is given twice, also in another spelling."""
    keys = set()
    for path in paths:
        key = path.rstrip("/") if gfile.is_remote(path) else os.path.realpath(path)
        if key in keys:
            raise UserError(f"{path}: is given twice")
        keys.add(key)


def temporary_name(path: str) -> str:
    """A name in the folder of `path` that no reader takes for a finished file."""
    return f"{path}.tmp-{uuid.uuid4().hex[:8]}"


def is_temporary(path: str) -> bool:
    """True for a name made by `temporary_name`: the leftover of a killed process."""
    return _TEMPORARY.search(path.rstrip("/")) is not None


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Yields a new local folder that is removed after the block.

    `tempfile` alone would leave its files in `gfile.lost_files`.
    """
    with tempfile.TemporaryDirectory(prefix="decoupled-") as folder:
        try:
            yield folder
        finally:
            with hosts.private():
                gfile.rmtree(folder)


@hosts.by_first
def remove_temporaries(folder: str) -> None:
    """Removes unfinished files of killed processes directly below `folder`."""
    if not gfile.isdir(folder):
        return
    for name in gfile.listdir(folder):
        path = os.path.join(folder, name.rstrip("/"))
        if not is_temporary(path):
            continue
        if gfile.isdir(path):
            gfile.rmtree(path)
        else:
            gfile.remove(path)


@contextlib.contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """Yields a name for a file or a new folder, which is renamed to `path` at the end.

    On an error it is removed, and `path` is unchanged. Of several processes the first
    writes it (`hosts`); what the others write is dropped.
    """
    if not hosts.writes():
        with scratch_folder() as folder:
            yield os.path.join(folder, os.path.basename(path))
            gfile.rename(folder, path, overwrite=True)
        return
    temporary = temporary_name(path)
    try:
        yield temporary
        gfile.rename(temporary, path, overwrite=True)
    except BaseException as error:
        # The user knows the file by its final name.
        if isinstance(error, OSError) and error.errno is not None:
            name = os.fsdecode(error.filename or temporary)
            error.filename = name.replace(temporary, path)
        with hosts.private():
            if gfile.isdir(temporary):
                gfile.rmtree(temporary)
            elif gfile.exists(temporary):
                gfile.remove(temporary)
        raise


@contextlib.contextmanager
def atomic_write(path: str, mode: str = "w") -> Iterator[IO]:
    """Opens `path` to write UTF-8 ("w") or bytes ("wb"); it appears when closed."""
    with atomic_path(path) as temporary:
        with gfile.GFile(temporary, mode) as handle:
            yield handle


def check_regular(path: str) -> None:
    """Refuses a pipe or a device, which cannot be read twice and may never end."""
    is_local = "://" not in path and os.path.exists(path)
    if is_local and not os.path.isfile(path) and not os.path.isdir(path):
        raise UserError(
            f"{path}: a pipe or a device, which cannot be read twice; write its "
            "content to a file first"
        )


def read_bytes(path: str) -> bytes:
    """The content of a file that fits into memory."""
    check_regular(path)
    try:
        with gfile.GFile(path, "rb") as handle:
            return handle.read()
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({reason(error)})") from error
    except MemoryError as error:
        raise UserError(f"{path}: does not fit into memory") from error


def read_text(path: str) -> str:
    """The content of a UTF-8 file, without a byte order mark."""
    content = read_bytes(path)
    # Without a byte order mark, UTF-16 of ASCII and others is valid UTF-8 with NULs.
    encoding = wide_encoding(content)
    advice = f"; it is {encoding}, save it as UTF-8" if encoding else ""
    try:
        text = content.decode("utf-8").lstrip(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        if content.startswith(_GZIP):
            advice = f"; unpack it: gzip -dc {shlex.quote(path)} > NEW_FILE"
        line = content.count(b"\n", 0, error.start) + 1
        where = f"byte {error.start}, line {line}"
        raise UserError(f"{path}: not UTF-8 at {where}{advice}") from error
    head = content[:4096]
    if encoding or 4 * head.count(0) > len(head):
        raise UserError(f"{path}: not UTF-8{advice or ', but mostly NUL bytes'}")
    return text


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, by the byte order mark or by the NUL bytes.

    In UTF-16 of text in any script, blanks, line ends and digits have a NUL byte, in
    the same half of each character.
    """
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    for encoding, is_nul in _NULS.items():
        sample = head[: min(_SAMPLE, len(head)) // len(is_nul) * len(is_nul)]
        units = [sample[index :: len(is_nul)] for index in range(len(is_nul))]
        shares = [unit.count(0) / max(1, len(unit)) for unit in units]
        if all(
            share > 0.5 if nul else share < 0.1
            for share, nul in zip(shares, is_nul, strict=True)
        ):
            return encoding
    sample = head[: min(4 * _SAMPLE, len(head)) // 2 * 2]
    low, high = (sample[half::2].count(0) for half in (1, 0))
    if max(low, high) >= max(_FEWEST_NULS, len(sample) // 200) and not min(low, high):
        return "UTF-16LE" if low else "UTF-16BE"
    return None


def split_lines(text: str) -> list[str]:
    r"""The lines of a text, which end at \n, \r\n or \r."""
    # Not `str.splitlines`, which also cuts at form feeds, U+0085, U+2028 and others.
    lines = LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def split_blanks(line: str) -> list[str]:
    """The parts of a line between blanks and tabs."""
    # Not `str.split`, which also cuts at no-break spaces, which words contain.
    return [part for part in line.replace("\t", " ").split(" ") if part]


def parse_json(text: str | bytes, *, unique_names: bool = False) -> Any:
    """The value of JSON text that is not trusted; bytes are UTF-8.

    Raises:
      json.JSONDecodeError: it is not JSON, is nested too deeply for Python, or has a
        number with too many digits for Python.
      UserError: with `unique_names`, it has two values under one name.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    try:
        return json.loads(text, object_pairs_hook=_to_dict if unique_names else None)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", text, 0) from error
    except ValueError as error:
        raise json.JSONDecodeError(reason(error), text, 0) from error


def _to_dict(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        name = counts.most_common(1)[0][0]
        raise UserError(f"has two values under the name {name!r}")
    return value


def parse_json_line(line: str, where: str) -> Any:
    """The value of a line of JSON that is not trusted; a message names `where`."""
    try:
        return parse_json(line, unique_names=True)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not JSON at column {error.colno} ({error.msg})"
        ) from error
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def read_json(path: str) -> Any:
    """The value in a JSON file that has no two values under one name, no text that
    cannot be written, and no deep nesting."""
    text = read_text(path)
    try:
        value = parse_json(text, unique_names=True)
        for escape in _ESCAPES.finditer(text):
            if escape[1]:
                place = escape.start()
                raise json.JSONDecodeError("half a surrogate pair", text, place)
        _check_depth(value)
        return value
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path}: not JSON at {place} ({error.msg})") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _check_depth(value):
    level = [[value]]
    for _ in range(1 + _DEEPEST):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        inner = itertools.chain.from_iterable(parts)
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise UserError("nested too deeply")


def typed(value: Any, kind: type) -> Any:
    """A value of a JSON file, which raises a TypeError if it is of another type."""
    if type(value) is not kind:
        raise TypeError(f"{quoted(value)} is not of type {kind.__name__}")
    return value


def check_checkpoint_path(path: str) -> None:
    """Refuses a folder or a prefix whose checkpoint TensorFlow would not find.

    It looks for the files of a checkpoint by a pattern that begins with its path.
    """
    if sign := re.search(r"[*?\[\\]", path):
        raise UserError(
            f"{path}: TensorFlow takes {sign[0]} in the name of a folder for a "
            "pattern, and would not find the checkpoints in it; use another name"
        )


def check_output(flag: str, path: str) -> None:
    """Makes the folder of a file that a command writes when its work is done."""
    if gfile.isdir(path):
        raise UserError(f"{flag}: {path} is a folder; name a file in it")
    # The file takes the place of what has its name: /dev/null would be gone.
    is_device = os.path.dirname(os.path.abspath(path)) in ("/dev", "/dev/fd")
    if is_device or (os.path.exists(path) and not os.path.isfile(path)):
        raise UserError(f"{flag}: {path} is no regular file; name one")
    make_folder(os.path.dirname(path) or ".")


def is_below(name: Any) -> bool:
    """True for the name of a file below a folder, such as "train/en/a.txt"."""
    # A manifest or a note may hold anything: absolute paths, "..", numbers.
    return isinstance(name, str) and _BELOW.fullmatch(name) is not None


def path_below(folder: str, name: Any, source: str) -> str:
    """The path of a file below a folder that `source`, which is not trusted, names."""
    if not is_below(name):
        raise UserError(
            f"{source}: {name!r} is not the name of a file below {folder}; this folder "
            "is damaged or was made elsewhere; build it again"
        )
    return os.path.join(folder, name)


def write_text(path: str, text: str) -> None:
    """Writes UTF-8 text atomically."""
    with atomic_write(path) as handle:
        handle.write(text)


def write_json(path: str, value: Any) -> None:
    """Writes `value` as readable JSON, keys in their own order, atomically."""
    write_text(path, json_text(path, value))


def json_text(path: str, value: Any) -> str:
    """What `write_json` writes, or its refusal."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{path}: not written, a name or a text in it has half a surrogate pair, "
            f"{text[error.start]!r}"
        ) from error
    except ValueError as error:
        raise UserError(f"{path}: not written, a number is NaN or infinite") from error
    return text + "\n"


def write_arrays(path: str, arrays: Mapping[str, "np.ndarray"]) -> None:
    """Writes arrays of numbers or strings to one compressed .npz file, atomically."""
    from numpy.lib import format as npy

    # Level 1: features are mostly padding, and NumPy's own level takes four times as
    # long.
    options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with atomic_write(path, "wb") as handle:
        # While a file of TensorFlow's is written, its `seek` is an error.
        target = io.BytesIO() if gfile.is_remote(path) else handle
        with zipfile.ZipFile(target, "w", **options) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)
        if target is not handle:
            handle.write(target.getvalue())


def read_arrays(path: str) -> dict[str, "np.ndarray"]:
    """Reads a file of `write_arrays`. Objects, which could run code, are refused."""
    import numpy as np

    content = io.BytesIO(read_bytes(path))
    try:
        with np.load(content, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if any(isinstance(array, bytes) for array in arrays.values()):
            raise ValueError("holds something that is no array")
        return arrays
    # NumPy, zipfile and zlib raise errors of many kinds for damaged bytes.
    except Exception as error:
        raise UserError(
            f"{path}: not a file of arrays ({reason(error)}); run what wrote it again"
        ) from error


def fingerprint(content: bytes | str) -> str:
    """The SHA-256 of bytes, or of a text's UTF-8, in hexadecimal."""
    if isinstance(content, str):
        content = content.encode("utf-8")
    return hashlib.sha256(content).hexdigest()


def file_fingerprint(path: str) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    check_regular(path)
    digest = hashlib.sha256()
    with gfile.GFile(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def shard_name(stem: str, index: int, count: int, suffix: str) -> str:
    """`shard_name("text", 3, 10, ".txt")` is `text-00003-of-00010.txt`."""
    return f"{stem}-{index:05d}-of-{count:05d}{suffix}"


def reason(error: BaseException) -> str:
    """The first line of an error's message, for use in messages of this package.

    For a failed TensorFlow session it is the cause, which TensorFlow writes below the
    location of the code that built the failing node. The names of nodes are left out.
    """
    message = (
        getattr(error, "message", None)
        or getattr(error, "strerror", None)
        or str(error)
        or type(error).__name__
    )
    cause = _SESSION_FAILED.search(message)
    line = cause[1] if cause else message.strip().splitlines()[0]
    return _NODES.sub("", line).strip() or type(error).__name__


def check_target(folder: str) -> None:
    """Refuses to write to a folder that is not new or empty."""
    if exists(folder) and not is_empty_folder(folder):
        raise UserError(f"{folder}: exists; choose a new folder")


def check_is_no_link(folder: str) -> None:
    """Refuses to remove files of a folder that lies elsewhere."""
    if not gfile.is_remote(folder) and os.path.islink(folder.rstrip("/")):
        raise UserError(
            f"{folder}: is a link, and files of another folder are not removed; put a "
            "folder in its place"
        )


def is_empty_folder(path: str) -> bool:
    """True for an empty folder that is not a link."""
    # A link cannot be replaced: the rename would fail.
    if "://" not in path and os.path.islink(path.rstrip("/")):
        return False
    return gfile.isdir(path) and not gfile.listdir(path)


@contextlib.contextmanager
def new_folder(folder: str, replaces: bool = False) -> Iterator[str]:
    """Yields a temporary name for a folder; on a clean exit it becomes `folder`.

    On an error nothing is left, and after a kill the temporary name. A rename replaces
    only an empty folder, so that files that another process writes there in the
    meantime are kept. With `replaces`, the existing content is removed when the new
    folder is complete.

    Raises:
      UserError: the folder exists.
    """
    target, old_folder = folder.rstrip("/"), None
    if not gfile.is_remote(target) and os.path.realpath(target) == os.getcwd():
        raise UserError(f"{folder}: is the current folder; name a new one in it")
    if not replaces:
        check_target(target)
    make_folder(os.path.dirname(target) or ".")
    try:
        with atomic_path(target) as temporary:
            gfile.makedirs(temporary)
            yield temporary
            if replaces and exists(target):
                # Before the earlier folder moves: this may take long.
                gfile.sync(temporary)
                old_folder = temporary_name(target)
                gfile.rename(target, old_folder)
            check_target(target)
    except BaseException as error:
        # Ctrl-C too leaves the earlier folder where it was.
        if old_folder and not exists(target):
            gfile.rename(old_folder, target)
        if isinstance(error, gfile.OpError):
            raise UserError(f"{folder}: cannot write ({_cause(error)})") from error
        raise
    if old_folder:
        gfile.rmtree(old_folder)


def _cause(error):
    # TensorFlow adds names of operations and files.
    disk_full = "No space left on device"
    return disk_full if disk_full in str(error) else reason(error)
