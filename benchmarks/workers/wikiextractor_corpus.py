"""Worker: a dump to text with wikiextractor, whose command it runs."""

import pathlib
import re
import subprocess
import sys
import tempfile

import leftovers
import protocol

_DOCUMENT = re.compile(r"^</?doc\b.*$\n?", re.MULTILINE)


def extract(path: str, processes: int) -> list[str]:
    """Runs the command; returns the contents of the files that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "wikiextractor.WikiExtractor", path, "-q",
            "--no-templates", "--processes", str(processes), "-o", folder,
        ]  # fmt: skip
        subprocess.run(command, check=True)
        files = sorted(pathlib.Path(folder).rglob("wiki_*"))
        return [file.read_text(encoding="utf-8") for file in files]


def build(case: dict) -> tuple[protocol.Step, dict]:
    """The case is that of `decoupled_corpus`."""

    def step() -> float:
        return float(sum(map(len, extract(case["path"], case["processes"]))))

    text = _DOCUMENT.sub("", "".join(extract(case["sample"], case["processes"])))
    return step, {
        "characters": len(text),
        "leftovers": leftovers.count(text),
        "versions": protocol.versions("wikiextractor"),
    }


if __name__ == "__main__":
    protocol.serve(build)
