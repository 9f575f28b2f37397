"""Builds a corpus folder: text by language, split into train and eval.

Reads either the message catalogs of installed packages (--source, no download needed),
which also give a labelled zero-shot task and parallel pairs, or files (--input):
MediaWiki dumps (.xml, .xml.bz2, .xml.gz), JSON lines (.jsonl) with a "text" in every
line, else text with one sentence a line and an empty line between documents; .jsonl and
text may be compressed (.gz), and paths may be remote (gs://). Writes
DIR/text/{train,eval}/LANGUAGE/ and, last, DIR/manifest.json. A build that was killed
goes on where it stopped; a corpus that is complete is left as it is.

  decoupled build_corpus --source=catalogs:django --output_dir=corpus
  decoupled build_corpus --output_dir=corpus \\
    --input='en=dumps/enwiki-*.xml*.bz2,sw=dumps/swwiki-*.bz2' --input='de=/cc/*.jsonl'
"""

import concurrent.futures
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from decoupled.configs.corpora import (
    CorpusSettings,
    TaskSettings,
    TextSettings,
    build_corpus,
)
from decoupled.core import console, files, gfile, locks
from decoupled.core.errors import UserError
from decoupled.corpora import assembly, corpus, documents, locales, text
from decoupled.corpora.catalogs import catalog_task, catalogs
from decoupled.corpora.documents import TextJob
from decoupled.corpora.runners import LOCAL, Runner
from decoupled.launch import start

FLAGS = flags.FLAGS
GIN_FILE = "runs/build_corpus.gin"
CATALOGS = "catalogs:"

# Languages of the table; a corpus may have a hundred.
_SHOWN_LANGUAGES = 12


# Input files that are checked at once; most of the time is the disk's.
_FILES_AT_ONCE = 8


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string(
        "source", None, "catalogs:PACKAGE,...: message catalogs of installed packages."
    )
    flags.DEFINE_list(
        "languages",
        [],
        "Only these languages of --source, e.g. de,fr; English is always there.",
    )
    flags.DEFINE_multi_string(
        "input",
        [],
        "LANGUAGE=GLOB,...: dumps, JSON lines or text of languages, which are codes "
        "such as en, zh-Hant, zh_TW or sr@latin.",
    )
    flags.DEFINE_string("output_dir", None, "Corpus folder.", required=True)
    flags.DEFINE_integer(
        "workers",
        0,
        "Processes on this machine that read --input; 0 chooses: one per core, or one "
        "for small files.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "runner",
        LOCAL.name,
        "Who reads --input: local is --workers processes of this machine; a runner of "
        "Apache Beam (DataflowRunner, FlinkRunner, SparkRunner, ...) needs an "
        "--output_dir that all its machines reach; DirectRunner is Beam's own on this "
        "machine, to try a pipeline with.",
    )
    flags.DEFINE_multi_string(
        "beam_option", [], "An option of the Beam runner, e.g. region=europe-west4."
    )
    start.define_gin_flags()


def main() -> None:
    """Builds what is missing and prints a table."""
    settings = start.parse_gin(build_corpus, GIN_FILE)
    runner = Runner(FLAGS.runner, FLAGS.workers, tuple(FLAGS.beam_option))
    with locks.hold(FLAGS.output_dir):
        built = build(
            FLAGS.source,
            FLAGS.input,
            FLAGS.output_dir,
            settings,
            FLAGS.languages,
            runner,
        )
        if built:
            start.save_start(FLAGS.output_dir)


def build(
    source: str | None,
    inputs: list[str],
    output_dir: str,
    settings: CorpusSettings,
    languages: Sequence[str] = (),
    runner: Runner = LOCAL,
) -> bool:
    """Builds the corpus; False where it was complete already.

    Args:
      source: "catalogs:PACKAGE,..." or None. inputs: "LANGUAGE=GLOB", if no source.
      languages: those of `source` to keep; empty keeps all.
      runner: where `inputs` are read.

    Raises:
      UserError: the inputs or the output folder cannot be used.
    """
    if bool(source) == bool(inputs):
        raise UserError("build_corpus: give either --source or --input")
    if source:
        if runner != LOCAL:
            raise UserError(
                "build_corpus: --runner and --workers go with --input, not --source"
            )
        return _build_from_catalogs(source, output_dir, settings.task, languages)
    if languages:
        raise UserError("build_corpus: --languages goes with --source, not --input")
    return _build_from_files(inputs, output_dir, settings.text, runner)


def _build_from_catalogs(
    source: str, output_dir: str, settings: TaskSettings, languages: Sequence[str]
) -> bool:
    packages = source.removeprefix(CATALOGS).split(",")
    if not source.startswith(CATALOGS) or len(set(packages)) != len(packages):
        raise UserError(f"--source={source}: not of the form catalogs:PACKAGE,...")
    catalogs.check_installed(packages)
    inputs = {
        "source": source,
        "rules": catalogs.RULES,
        "libraries": catalogs.libraries(),
        "settings": dataclasses.asdict(settings),
        "languages": sorted(languages),
        "files": catalogs.fingerprint_catalogs(packages),
    }
    if _reuse(output_dir, inputs):
        return False
    messages, dropped = catalogs.read_catalogs(packages)
    if languages:
        messages = _only(messages, languages)
    task = catalog_task.make_task(messages, settings)
    texts = catalog_task.make_text(messages, settings)
    built = corpus.write_corpus(
        output_dir,
        source=source,
        inputs=inputs,
        languages=_message_documents(texts),
        dropped=dropped,
        extra_files={
            **_task_files(task),
            **_pair_files(catalog_task.make_pairs(messages, settings)),
        },
        tasks={"catalogs": _describe_task(task)},
    )
    _report(built)
    return True


def _build_from_files(
    inputs: list[str], output_dir: str, settings: TextSettings, runner: Runner
) -> bool:
    paths = text.find_inputs(inputs)
    found = [path for language in paths.values() for path in language]
    documents.check_installed(found, settings)
    sources = _describe_sources(paths)
    given = {
        "source": "text",
        "rules": documents.cleaning_rules(found, settings),
        "libraries": documents.libraries(found, settings),
        "settings": dataclasses.asdict(settings),
        "languages": {
            language: {
                "files": len(own),
                "sha256": files.fingerprint("\n".join(file.sha256 for file in own)),
            }
            for language, own in sources.items()
        },
    }
    if _reuse(output_dir, given):
        return False
    job = TextJob(output_dir, settings)
    _report(assembly.build_text(job, sources, given, runner))
    return True


def _describe_sources(paths: dict[str, list[str]]) -> dict[str, list[assembly.Source]]:
    """Language -> its input files with their SHA-256."""
    ordered = [path for found in paths.values() for path in found]
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        described = pool.map(_describe_source, ordered)
        tracked = console.track(described, "checking the input files", len(ordered))
        sources = dict(zip(ordered, tracked, strict=True))
    return {
        language: [sources[path] for path in found] for language, found in paths.items()
    }


def _describe_source(path: str) -> assembly.Source:
    try:
        size = gfile.size(path)
        return assembly.Source(path, files.file_fingerprint(path), size)
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error


def _reuse(output_dir: str, inputs: dict[str, Any]) -> bool:
    found = corpus.find_corpus(output_dir, inputs)
    if found is None:
        return False
    console.say(f"{output_dir}: complete already, reused")
    if corpus.is_unfinished(output_dir):
        assembly.clean_up(output_dir)
    _report(found)
    return True


def _only(
    messages: list[catalogs.Message], languages: Sequence[str]
) -> list[catalogs.Message]:
    """The messages with the translations into some languages, and the English text."""
    known = set().union(*(message.translations for message in messages))
    unknown = sorted(set(languages) - known)
    if unknown:
        raise UserError(
            f"--languages: the catalogs have no {', '.join(unknown)}; "
            f"they have {', '.join(sorted(known))}"
        )
    kept = {locales.ENGLISH, *languages}
    return [
        message._replace(
            translations={k: v for k, v in message.translations.items() if k in kept}
        )
        for message in messages
    ]


def _message_documents(
    texts: dict[str, dict[str, list[str]]],
) -> Iterator[tuple[str, Iterable[tuple[str, corpus.Document]]]]:
    """Every message is a document of one sentence."""
    languages = sorted({language for split in texts.values() for language in split})
    for language in languages:
        yield (
            language,
            [
                (split, [sentence])
                for split in corpus.SPLITS
                for sentence in texts[split].get(language, [])
            ],
        )


def _task_files(task: catalog_task.Task) -> dict[str, str]:
    named = {"tasks/catalogs/labels.txt": "".join(f"{x}\n" for x in task.labels)}
    for (split, language), examples in task.examples.items():
        lines = [f"{example.text}\t{example.label}\n" for example in examples]
        named[f"tasks/catalogs/{split}-{language}.tsv"] = "".join(lines)
    return named


def _pair_files(pairs: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    named = {}
    for language, lines in pairs.items():
        for index, side in enumerate((language, "en")):
            content = "".join(f"{pair[index]}\n" for pair in lines)
            named[f"parallel/{language}-en.{side}"] = content
    return named


def _describe_task(task: catalog_task.Task) -> dict[str, Any]:
    examples: dict[str, dict[str, int]] = {"train": {}, "dev": {}, "test": {}}
    for (split, language), rows in task.examples.items():
        examples[split][language] = len(rows)
    return {"labels": task.labels, "examples": examples}


def _report(built: corpus.Corpus) -> None:
    """Prints the largest languages and the totals."""
    units = ("documents", "sentences", "characters")
    train = {unit: built.counts("train", unit) for unit in units}
    held_out = built.counts("eval")
    languages = sorted(train["sentences"], key=lambda x: (-train["sentences"][x], x))
    rows = [
        [
            language,
            *(train[unit][language] for unit in units),
            held_out.get(language, 0),
        ]
        for language in languages
    ]
    shown, rest = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if rest:
        shown.append([f"{len(rest)} more", *_sums(rest)])
    shown.append([f"all {len(rows)}", *_sums(rows)])
    title = f"{built.folder}: corpus of {built.manifest['source']}"
    console.table(title, ["language", *units, "eval sentences"], shown)
    if warning := corpus.without_held_out(train["sentences"], held_out):
        console.say(warning)
    if left_out := built.manifest["dropped"]:
        counts = (f"{count:,} {reason}" for reason, count in left_out.items())
        console.say(f"left out: {', '.join(counts)}")
    for name, task in built.manifest["tasks"].items():
        sizes = ", ".join(
            f"{task['examples'][split].get('en', 0)} {split}"
            for split in ("train", "dev", "test")
        )
        console.say(
            f"task {name}: {len(task['labels'])} labels "
            f"({', '.join(task['labels'])}); English {sizes}; "
            f"tested in {len(task['examples']['test'])} languages"
        )


def _sums(rows: list[list[Any]]) -> list[int]:
    return [sum(column) for column in list(zip(*rows, strict=True))[1:]]
