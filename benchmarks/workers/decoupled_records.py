"""Worker: a corpus to TFRecords with this project's writer, a text file at a time."""

import multiprocessing
import os
import shutil

import protocol

from decoupled.corpora.corpus import Corpus
from decoupled.data import encoding
from decoupled.data.vocabulary import Vocabulary


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "folder", with "corpus" and "pieces.model", "processes" and
    "tokens_per_shard"; a step writes all records."""
    corpus = Corpus(os.path.join(case["folder"], "corpus"))
    vocabulary = Vocabulary(os.path.join(case["folder"], "pieces.model"))
    job = encoding.EncodingJob(
        corpus.folder,
        vocabulary.path,
        os.path.join(case["folder"], "records"),
        case["tokens_per_shard"],
        {"corpus": corpus.fingerprint, "vocabulary": vocabulary.fingerprint},
    )
    texts = encoding.text_files(corpus)
    # TensorFlow, which writes the files, has threads that a fork would lose.
    pool = multiprocessing.get_context("spawn").Pool(case["processes"])

    def step() -> float:
        shutil.rmtree(job.output_dir, ignore_errors=True)
        os.makedirs(job.work_dir)
        results = pool.map(job.run, texts, chunksize=1)
        (train,) = encoding.gather(job, texts, results)
        return float(train.records.tokens)

    return step, {
        "tokens": int(step()),
        "versions": protocol.versions("sentencepiece", "tensorflow"),
    }


if __name__ == "__main__":
    protocol.serve(build)
