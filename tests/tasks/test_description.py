"""Where the files of a task are, of each kind; and what is said of a missing one."""

import pytest

from decoupled.core.errors import UserError
from decoupled.tasks.presets import TASKS

MLQA = "mlqa/MLQA_V1/{0}/{0}-context-{1}-question-{1}.json"
TYDIQA = "tydiqa/tydiqa-goldp-v1.1-{0}/tydiqa.goldp.{1}.{0}.json"
TYDIQA_TOO = "tydiqa/tydiqa-goldp-v1.1-{0}/tydiqa.{1}.{0}.json"
TELUGU = "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa-goldp-dev-telugu.json"
SQUAD = "squad/{}-v1.1.json"
UDPOS = "udpos/{}-{}.tsv"
PROCESSED = "udpos/udpos_processed_maxlen{}/{}/{}.some-model"


def find(folder, task, split, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    found = TASKS[task].find_files(str(folder), split)
    return [(name, path.removeprefix(f"{folder}/")) for name, path in found.items()]


# Task, split, languages and their files, other files.
FOUND = [
    # English, then XTREME's languages in its order, then others by name.
    (
        "xnli",
        "test",
        {name: f"xnli/test-{name}.tsv" for name in ("en", "ar", "sw", "my", "zh-TW")},
        [
            "xnli/dev-fr.tsv",
            "xnli/test-v2.tsv",
            "xnli/test-ur.txt",
        ],
    ),
    ("udpos", "dev", {}, [UDPOS.format("test", "en")]),
    (
        "udpos",
        "test",
        {name: UDPOS.format("test", name) for name in ("en", "af", "de", "zh", "xx")},
        [UDPOS.format("dev", "fr"), "udpos/test-ar.conll"],
    ),
    # XTREME's preprocessed files need an index, and come after plain ones.
    (
        "udpos",
        "test",
        {
            "de": PROCESSED.format(128, "de", "test"),
            "th": UDPOS.format("test", "th"),
            "yo": PROCESSED.format(96, "yo", "test"),
        },
        [
            PROCESSED.format(128, "de", "test") + ".idx",
            PROCESSED.format(128, "th", "test"),
            PROCESSED.format(128, "th", "test") + ".idx",
            PROCESSED.format(96, "yo", "test") + ".idx",
            PROCESSED.format(96, "ru", "dev") + ".idx",
            PROCESSED.format(96, "fi", "test"),
            PROCESSED.format(96, "fr", "test") + ".idx",
        ],
    ),
    ("xquad", "train", {"en": SQUAD.format("train")}, []),
    ("xquad", "dev", {"en": SQUAD.format("dev")}, ["xquad/xquad.de.json"]),
    # Japanese is no language of XTREME's XQuAD.
    ("xquad", "test", {n: f"xquad/xquad.{n}.json" for n in ("en", "zh", "ja")}, []),
    ("mlqa", "train", {"en": SQUAD.format("train")}, []),
    (
        "mlqa",
        "dev",
        {name: MLQA.format("dev", name) for name in ("en", "hi")},
        [SQUAD.format("dev"), "mlqa/MLQA_V1/dev/dev-context-en-question-hi.json"],
    ),
    ("mlqa", "dev", {"en": SQUAD.format("dev"), "hi": MLQA.format("dev", "hi")}, []),
    ("mlqa", "test", {"en": MLQA.format("test", "en")}, []),
    (
        "tydiqa",
        "train",
        {"en": TYDIQA.format("train", "en")},
        [TYDIQA.format("train", "ko"), TYDIQA_TOO.format("train", "en")],
    ),
    ("tydiqa", "train", {"en": TYDIQA_TOO.format("train", "en")}, []),
    ("tydiqa", "dev", {"en": TYDIQA.format("dev", "en")}, [TELUGU]),
    ("tydiqa", "dev", {"en": TYDIQA_TOO.format("dev", "en")}, []),
    # As published; XTREME's script renames the files.
    (
        "tydiqa",
        "test",
        {
            "en": TYDIQA.format("dev", "en"),
            "te": TELUGU,
            "ja": TYDIQA.format("dev", "ja"),
        },
        [TYDIQA_TOO.format("dev", "en"), "tydiqa/test-ko.json"],
    ),
    # A corpus has the languages that its user named.
    (
        "catalogs",
        "dev",
        {name: f"catalogs/dev-{name}.tsv" for name in ("en", "b", "sr@latin")},
        ["catalogs/labels.txt"],
    ),
    ("sib200", "test", {n: f"sib200/test-{n}.tsv" for n in ("en", "ar", "my")}, []),
]


@pytest.mark.parametrize("task, split, files, others", FOUND)
def test_files_of_a_split_by_language(tmp_path, task, split, files, others):
    found = find(tmp_path, task, split, *files.values(), *others)
    assert found == list(files.items())


@pytest.mark.parametrize(
    "task, split, language, message",
    [
        ("xnli", "dev", "th", r"xnli/dev-th\.tsv: missing; xnli needs its dev file of "
         r"language 'th': XTREME's scripts/download_data\.sh writes it from XNLI"),
        ("udpos", "dev", "zh", r"udpos/dev-zh\.tsv: missing; .*Universal Dependencies"),
        ("panx", "dev", "sw", r"panx/dev-sw\.tsv: missing; .* fetched by hand"),
        ("xquad", "test", "th", r"xquad/xquad\.th\.json: missing; xquad needs its test "
         r"file of language 'th': XTREME's scripts/download_data\.sh fetches"),
        ("mlqa", "dev", "zh", r"dev-context-zh-question-zh\.json: missing"),
        ("mlqa", "train", "en", r"squad/train-v1\.1\.json: missing"),
        ("tydiqa", "test", "sw", r"tydiqa\.goldp\.sw\.dev\.json: missing"),
        ("xquad", "train", "de", "xquad has its train file in 'en' only, not"),
        ("tydiqa", "dev", "te", "tydiqa has its dev file in 'en' only"),
        ("catalogs", "train", "en", r"train-en\.tsv: missing; .* build_corpus "),
    ],
)  # fmt: skip
def test_a_missing_file_says_which_and_how_to_get_it(
    tmp_path, task, split, language, message
):
    error = TASKS[task].missing_file(str(tmp_path), split, language)
    assert isinstance(error, UserError) and "\n" not in str(error)
    with pytest.raises(UserError, match=message):
        raise error
