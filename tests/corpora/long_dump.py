"""A real dump, made longer by its pages, each with a different title and text."""

import bz2
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parent.parent.parent


def repeat_dump(source, path, times):
    """Writes the .xml.bz2 dump `source` to `path` with its pages `times` times.

    Copy N of a page has " (copy N)" after its title and N in the first sentence of its
    text, so that no document equals another.
    """
    xml = bz2.decompress(pathlib.Path(source).read_bytes())
    start = xml.index(b"<page>")
    end = xml.rindex(b"</page>") + len(b"</page>")
    with open(path, "wb") as handle:
        handle.write(bz2.compress(xml[:start]))
        for number in range(times):
            # A separate stream, as in Wikipedia's multistream dumps.
            pages = xml[start:end].replace(b"</title>", b" (copy %d)</title>" % number)
            sentence = b"This is copy number %d of a page in this long dump." % number
            pages = re.sub(rb"(<text\b[^>/]*>)(?!#)", rb"\1%s\n\n" % sentence, pages)
            handle.write(bz2.compress(pages + b"\n", 5))
        handle.write(bz2.compress(xml[end:]))


def run_measured(command):
    """Runs a command in the checkout; returns its seconds and its peak of memory.

    Returns:
      seconds; bytes resident in the process and all below it, most at one time.
    """
    start = time.monotonic()
    peak = 0
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    while process.poll() is None:
        peak = max(peak, sum(map(_resident, family(process.pid))))
        time.sleep(0.1)
    assert process.returncode == 0
    return time.monotonic() - start, peak


def family(root):
    """The process and all below it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path(f"/proc/{name}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    members = {root}
    while children := {p for p, q in parents.items() if q in members} - members:
        members |= children
    return members


def _resident(process):
    try:
        pages = pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
