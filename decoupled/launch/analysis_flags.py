"""The flags of `decoupled analyze`, a function for each analysis."""

from absl import flags

from decoupled.launch import start


def common(models: bool = True) -> None:
    """Of every analysis: the models and where results go."""
    if models:
        flags.DEFINE_multi_string(
            "model_dir", None, "A run's folder, or the prefix of a checkpoint."
        )
        flags.mark_flag_as_required("model_dir")
    flags.DEFINE_string("output_dir", None, "Folder of results, made if missing.")
    flags.mark_flag_as_required("output_dir")


def word_similarity() -> None:
    """Of `word_similarity`."""
    common()
    flags.DEFINE_string("data_dir", None, "Folder of which all *.tsv are read.")
    flags.DEFINE_multi_string("word_pairs", [], "A file of pairs.")


def weat() -> None:
    """Of `weat`."""
    common()
    start.define_gin_flags()
    for name, words in (
        ("targets_x", "Words X, expected to go with A."),
        ("targets_y", "Words Y, expected to go with B."),
        ("attributes_a", "Words A."),
        ("attributes_b", "Words B."),
    ):
        flags.DEFINE_string(name, None, f"File with a word a line: {words}")
        flags.mark_flag_as_required(name)


def drift() -> None:
    """Of `drift`."""
    common()
    start.define_gin_flags()
    flags.DEFINE_multi_string(
        "finetuned_dir", [], "What --model_dir was fine-tuned to, in the same order."
    )
    flags.DEFINE_multi_string("texts", None, "A file with a text a line.")
    flags.mark_flag_as_required("texts")


def probing() -> None:
    """Of `probing`."""
    common()
    start.define_gin_flags()
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_list("tasks", None, "Only these, e.g. pos,dependencies. Default: all.")
    flags.DEFINE_list("variants", "mix", "Of mix, layers, cumulative.")
    flags.DEFINE_string(
        "cache_dir",
        None,
        "Where vectors lie meanwhile: 2 bytes * (layers + 1) * H a token. Default: the "
        "system's folder of temporary files.",
    )
    flags.mark_flag_as_required("data_dir")


def probing_data() -> None:
    """Of `probing_data`."""
    kinds = ["pos", "dependencies", "entities"]
    flags.DEFINE_enum("task", None, kinds, "What to tell of words.")
    flags.DEFINE_string("input", None, "CoNLL-U file, or file of tagged words.")
    flags.DEFINE_string("output", None, "File to write, e.g. edges/pos/train.jsonl.")
    flags.mark_flags_as_required(["task", "input", "output"])


def neighbours() -> None:
    """Of `neighbours`."""
    common()
    start.define_gin_flags()
    flags.DEFINE_string("data_dir", None, "Folder of files XX-en.en and XX-en.XX.")
    flags.DEFINE_list(
        "languages", None, "Only these of --data_dir, e.g. de,sw. Default: all."
    )
    flags.DEFINE_string("source", None, "A sentence a line.")
    flags.DEFINE_string("target", None, "Their translations, line by line.")


def layer_drop() -> None:
    """Of `layer_drop`."""
    common(models=False)
    flags.DEFINE_multi_string("finetuned_dir", None, "Folder of a fine-tuning run.")
    flags.DEFINE_enum("split", "dev", ["dev", "test"], "Whose scores.")
    flags.DEFINE_string(
        "metric", None, "Name of a metric in results.json; default: the task's score."
    )
    flags.mark_flag_as_required("finetuned_dir")
