"""Every example of a setting or a gin file in help, docs and comments can be given,
and the settings of a complete command of pre-training fit each other.

A test looks at all files and shows every example that cannot be given.
"""

import ast
import functools
import pathlib
import re
import shlex

import gin
import pytest

from decoupled import configs
from decoupled.configs.removed import REMOVED, REMOVED_CLASSES
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, gin_reader

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "gin").rglob("*.gin")),
    *sorted((ROOT / "tpu_scripts").glob("*.sh")),
    *sorted((ROOT / "decoupled").rglob("*.py")),
]
# A quoted setting, of --gin_param or as its help has it.
SETTING = re.compile(r"""'(\w+Config\.\w+ = [^']+)'|"(\w+Config\.\w+ = [^"]+)\"""")
PARAM = re.compile(r"""--gin_(?:param|bindings)=(['"])(.+?)\1""")
NAME = re.compile(r"(?<![\w.])(\w+Config)\.(\w+)")
FILE = re.compile(
    r"--gin_file=([\w./-]+\.gin)|\b((?:gin/)?(?:models|runs|tasks|layouts|sweeps|recipes)/\w+\.gin)"
)
# Of a shipped model; commands with variables are in test_examples_of_commands.py.
PRETRAINING = re.compile(
    r"decoupled pretrain( [^\n$]*--gin_file=models/[^\n$]*)$", re.MULTILINE
)
# MODEL, TASK, tableN and the like stand for what the reader has.
PLACEHOLDER = re.compile(r"[A-Z]{2,}|N\.gin")
RECIPES = [str(p.relative_to(ROOT)) for p in (ROOT / "gin/recipes").glob("*.gin")]


def texts_of(path):
    """What a reader of the file sees: all of it, or the strings of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [re.sub(r"\\\n#?", " ", text)]
    return [
        re.sub(r"\\\n", " ", node.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@functools.cache
def found(path):
    """(settings, names, gin files) of a file."""
    settings, names, files = set(), set(), set()
    for text in texts_of(path):
        settings |= {match[1] or match[2] for match in SETTING.finditer(text)}
        settings |= {match[2] for match in PARAM.finditer(text)}
        names |= set(NAME.findall(text))
        files |= {match[1] or match[2] for match in FILE.finditer(text)}
    return settings, names, files


def check(text):
    """Refuses a setting that no command takes; `...` and $variables are values."""
    reader = gin_reader.Reader(configs.PretrainConfig, gin_files.find_file)
    value = re.sub(r"\.\.\.|\$\w+|\{\w*\}", "1", text)
    # The reader takes some of these, which files of earlier versions have.
    owner, _, field = value.partition("=")[0].strip().rpartition(".")
    if owner in REMOVED_CLASSES or (owner, field) in REMOVED:
        raise UserError(f"{text}: is gone")
    try:
        reader.read_param(value)
    finally:
        gin.clear_config()


def refusal(words, *defaults):
    """Why a command of pre-training refuses its settings, "" if it takes them."""
    files, params = (
        [word.partition("=")[2] for word in words if word.startswith(flag)]
        for flag in ("--gin_file=", "--gin_param=")
    )
    try:
        gin_files.configure(configs.PretrainConfig, [*defaults, *files], params)
    except UserError as error:
        return str(error)
    return ""


def pretraining_examples(path):
    """The words of every complete command of a file that pre-trains a model."""
    return [
        shlex.split(words)
        for text in texts_of(path)
        for words in PRETRAINING.findall(text)
        if not PLACEHOLDER.search(words)
    ]


def examples(kind):
    """(File, example) of every setting, name or gin file: `kind` 0, 1 or 2."""
    return [
        (str(path.relative_to(ROOT)), example)
        for path in SOURCES
        for example in sorted(found(path)[kind])
    ]


def test_examples_are_found_where_users_read_them():
    with_settings = {path for path, _ in examples(0)}
    assert {"README.md", "docs/xtreme.md", "decoupled/launch/start.py"} <= with_settings
    with_files = {path for path, _ in examples(2)}
    command = "decoupled/commands/finetune.py"
    assert {"README.md", "gin/tasks/table_10.gin", command} <= with_files
    assert len(examples(0)) > 60


def test_settings_can_be_given():
    broken = []
    for path, setting in examples(0):
        try:
            check(setting)
        except UserError as error:
            broken.append(f"{path}: {error}")
    assert not broken, "\n".join(broken)


def test_names_of_settings_exist():
    broken = []
    for path, (owner, name) in examples(1):
        kind = getattr(configs, owner, None)
        if not hasattr(kind, name) and name not in getattr(kind, "__annotations__", ()):
            broken.append(f"{path}: {owner}.{name}")
    assert not broken, "\n".join(broken)


def test_gin_files_exist():
    broken = []
    for path, name in examples(2):
        try:
            if not PLACEHOLDER.search(name):
                gin_files.find_file(name.removeprefix("gin/"))
        except UserError:
            broken.append(f"{path}: {name}")
    assert not broken, "\n".join(broken)


def test_complete_commands_of_pretraining_have_settings_that_fit():
    found = [(p, words) for p in SOURCES for words in pretraining_examples(p)]
    paths = {str(path.relative_to(ROOT)) for path, _ in found}
    assert {"README.md", "decoupled/commands/pretrain.py", *RECIPES} <= paths
    broken = [
        f"{path}: {shlex.join(words)}: {reason}"
        for path, words in found
        if (reason := refusal(words))
    ]
    assert not broken, "\n".join(broken)


def test_an_example_with_too_long_sequences_is_seen(tmp_path):
    path = tmp_path / "recipe.gin"
    # The demo's models have 128 positions, and pre-training begins with 512 tokens.
    path.write_text(
        "# decoupled pretrain --gin_file=models/demo_decoupled.gin \\\n"
        "#     --gin_param='ModelConfig.vocab_size = 8000' ...\n"
        "# decoupled pretrain --gin_file=models/demo_decoupled.gin "
        "--gin_param='MaskingConfig.sequence_length = 128'\n"
    )
    refused, accepted = map(refusal, pretraining_examples(path))
    assert "512 is more than ModelConfig.max_positions = 128" in refused
    assert accepted == ""


@pytest.mark.parametrize(
    "text",
    [
        "e.g. 'TrainingConfig.train_steps = 100'",
        "decoupled pretrain --gin_param='TrainingConfig.batch_size = '",
        'decoupled pretrain --gin_param="TrainingConfig.batch_size = x"',
        "decoupled pretrain --gin_param='import os'",
    ],
)
def test_an_example_that_cannot_be_given_is_seen(tmp_path, text):
    path = tmp_path / "command.py"
    path.write_text(f'"""{text}"""\n' if "'" in text else f"'''{text}'''\n")
    (setting,) = found(path)[0]
    with pytest.raises(UserError):
        check(setting)
