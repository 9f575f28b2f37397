"""Memory does not grow with the input; a real dump, as it is and 20 times as long."""

import pytest

from decoupled.corpora.corpus import Corpus
from tests.corpora.long_dump import repeat_dump, run_measured

DUMP = "wikipedia/enwiki-pages-articles-shortened.xml.bz2"


def build(path, folder, workers):
    return run_measured(
        [
            "-m",
            "decoupled",
            "build_corpus",
            f"--input=en={path}",
            f"--output_dir={folder}",
            f"--workers={workers}",
            "--gin_param=build_corpus.part_bytes = 600000",
        ]
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_dump_20_times_as_long_takes_the_same_memory(data_dir, tmp_path, workers):
    source = f"{data_dir}/{DUMP}"
    repeat_dump(source, tmp_path / "long.xml.bz2", 20)
    _, short = build(source, tmp_path / "short", workers)
    seconds, long = build(tmp_path / "long.xml.bz2", tmp_path / "long", workers)
    counts = [
        Corpus(str(tmp_path / name)).counts("train", "documents")["en"]
        + Corpus(str(tmp_path / name)).counts("eval", "documents").get("en", 0)
        for name in ("short", "long")
    ]
    # A page without other text has that sentence now.
    assert counts[1] >= 20 * counts[0]
    print(f"{workers} workers: {short >> 20} MiB, 20 times {long >> 20} MiB")
    print(f"{seconds:.0f} s for {(tmp_path / 'long.xml.bz2').stat().st_size} bytes")
    # Python's own heap differs from run to run.
    assert long < short * 1.15
