"""Every example of a setting or a gin file in help, docs and comments can be given."""

import ast
import functools
import pathlib
import re

import pytest

from decoupled import configs
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
    r"--gin_file=([\w./-]+\.gin)|\b((?:gin/)?(?:models|runs|tasks|layouts|sweeps)/\w+\.gin)"
)
# MODEL, TASK, tableN and the like stand for what the reader has.
PLACEHOLDER = re.compile(r"[A-Z]{2,}|N\.gin")


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
    reader = gin_reader.Reader(configs.pretrain, gin_files.find_file)
    value = re.sub(r"\.\.\.|\$\w+|\{\w*\}", "1", text)
    reader.check_setting(value, text, ("build_corpus",))


def ids(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


WITH_SETTINGS = [path for path in SOURCES if found(path)[0]]
WITH_NAMES = [path for path in SOURCES if found(path)[1]]
WITH_FILES = [path for path in SOURCES if found(path)[2]]


def test_examples_are_found_where_users_read_them():
    assert {"README.md", "docs/xtreme.md", "decoupled/launch/start.py"} <= set(
        ids(WITH_SETTINGS)
    )
    assert {"README.md", "gin/tasks/xnli.gin", "decoupled/commands/finetune.py"} <= set(
        ids(WITH_FILES)
    )
    assert sum(len(found(path)[0]) for path in SOURCES) > 60


@pytest.mark.parametrize("path", WITH_SETTINGS, ids=ids(WITH_SETTINGS))
def test_settings_can_be_given(path):
    for setting in found(path)[0]:
        check(setting)


@pytest.mark.parametrize("path", WITH_NAMES, ids=ids(WITH_NAMES))
def test_names_of_settings_exist(path):
    for owner, name in found(path)[1]:
        kind = getattr(configs, owner)
        assert hasattr(kind, name) or name in kind.__annotations__, f"{owner}.{name}"


@pytest.mark.parametrize("path", WITH_FILES, ids=ids(WITH_FILES))
def test_gin_files_exist(path):
    for name in found(path)[2]:
        if not PLACEHOLDER.search(name):
            assert gin_files.find_file(name.removeprefix("gin/"))


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
