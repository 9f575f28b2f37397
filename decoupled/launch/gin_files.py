"""Turns gin files and bindings into a configuration; reports mistakes in one line.

Files are found here and bound by `gin_reader`. gin's own file search asks Python's
import system for packages with the names of the folders. This fails for some folders
and logs errors about files that it then finds.
"""

import functools
import importlib.resources
import os
import re
from collections.abc import Collection, Sequence
from typing import TypeVar

import gin

from decoupled import configs
from decoupled.core import files as core_files
from decoupled.core import gfile
from decoupled.core.errors import UserError, close_names
from decoupled.core.files import expand_home
from decoupled.launch.gin_reader import Reader, first_line

T = TypeVar("T")

# Files that are no longer shipped, and what to give now.
_REMOVED_FILES = {
    r"models/base\.gin|runs/(pretrain|finetune|parameters|plan|plan_gpus|retrieve|"
    r"convert|sweep|sweep_row|reproduce|build_corpus|build_vocabulary|analyze_\w+)"
    r"\.gin": "its settings are the defaults of the command: leave it out",
    r"models/english_base\.gin": "set ModelConfig.vocab_size = 30000",
    r"models/english_additional_layers_(\d+)\.gin": r"give models/additional_layers_23."
    r"gin, ModelConfig.vocab_size = 30000 and ModelConfig.num_layers = \1",
    r"models/english_(\w+)\.gin": r"give models/\1.gin and ModelConfig.vocab_size = "
    "30000",
    r"models/demo_base\.gin": "give models/demo_coupled.gin",
    r"models/rembert_fresh_output\.gin": "give models/rembert.gin and ModelConfig."
    "output_embedding_size = 768",
    r"models/e_out_768_rank_128\.gin": "give models/e_out_128.gin, whose scores have "
    "the same rank",
    r"models/mini_(base|coupled)\.gin": "give models/mini.gin",
    r"models/mini_(\w+)\.gin": r"give models/mini.gin and the settings of \1 in sweeps/"
    "reproduce.gin",
    r"tasks/qa\.gin": "its settings are defaults, but for the length: give "
    "FinetuningConfig.max_sequence_length = 384",
    r"tasks/(xnli|pawsx|panx|udpos|xquad|mlqa|tydiqa)\.gin": r"tasks/table_10.gin has "
    r"the settings of \1 and of the other tasks",
    r"tasks/rembert_(\w+)\.gin": r"tasks/rembert.gin has the settings of \1 and of the "
    "other tasks",
    r"tasks/(tatoeba|bucc2018)\.gin": r"tasks/retrieval.gin has the settings of \1 and "
    "of the other task",
}
_INCLUDE = re.compile(r"^\s*include\s+['\"](.+?)['\"]", re.MULTILINE)
_BINDING = re.compile(r"^([\w./]+) =", re.MULTILINE)
_settings_text = ""


def configure(
    root: type[T],
    files: Sequence[str],
    params: Sequence[str],
    prefixes: Sequence[str] = (),
    task: str | None = None,
    tasks: Collection[str] = (),
) -> T:
    """Reads gin files, then single bindings, and calls `root`; later bindings win.

    Args:
      root: a gin configurable of `decoupled.configs`; its DEFAULTS are bound first.
      files: each a path or a name below one of the search folders.
      prefixes: folders to search after the current one and before the package's.
      task, tasks: see `Reader`.
    """
    global _settings_text
    gin.clear_config()
    try:
        for name, value in getattr(root, "DEFAULTS", {}).items():
            gin.bind_parameter(name, value)
        find = functools.partial(find_file, prefixes=prefixes)
        reader = Reader(root, find, task, tasks)
        for name in files:
            reader.read_file(find_file(name, prefixes))
        for param in params:
            reader.read_param(param)
        config = _call(root)
        unused_names = [n for n in _unused_bindings() if n not in reader.macros]
        if unused_names:
            raise UserError(_unused_mistake(unused_names, root))
        _settings_text = gin.operative_config_str()
    finally:
        # Objects that are made later have the defaults of their classes again.
        gin.clear_config()
    return config


def settings_text() -> str:
    """The settings that the last `configure` used, as a gin file."""
    return _settings_text


def defaults(root: type) -> str:
    """The settings of a command without gin files and bindings, one a line."""
    configure(root, [], [])
    lines = settings_text().splitlines()
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def packaged_folder() -> str:
    """Where the gin files of the package lie: inside it, or beside it in a checkout."""
    package = importlib.resources.files("decoupled")
    for folder in (str(package / "gin"), str(package / ".." / "gin")):
        if os.path.isdir(folder):
            return os.path.normpath(folder)
    raise UserError(
        f"{package / 'gin'}: the package's gin files are missing; reinstall"
    )


def find_file(name: str, prefixes: Sequence[str] = ()) -> str:
    """The path of a gin file: as given, below a prefix, or in the package."""
    name = expand_home(name)
    if os.path.isabs(name) or "://" in name:
        if _is_file(name):
            return name
        raise UserError(f"{name}: no such gin file")
    folders = ["", *prefixes, packaged_folder()]
    for folder in folders:
        path = os.path.join(folder, name)
        if _is_file(path):
            return path
    for pattern, advice in _REMOVED_FILES.items():
        if match := re.fullmatch(rf"(?:.*\bgin/)?(?:{pattern})", name):
            raise UserError(f"{name}: is gone (CHANGELOG.md); {match.expand(advice)}")
    searched = ", ".join(folder or "." for folder in folders)
    raise UserError(
        f"{name}: no such gin file in {searched}{close_names(name, _packaged_files())}"
    )


def with_includes(names: Sequence[str]) -> list[str]:
    """The paths of gin files and of all files that they include.

    Raises:
      UserError: there is no such file, or it cannot be read.
    """
    paths, queue = [], [find_file(name) for name in names]
    while queue:
        path = queue.pop()
        if path not in paths:
            paths.append(path)
            included_names = _INCLUDE.findall(core_files.read_text(path))
            queue += [find_file(name) for name in included_names]
    return sorted(paths)


def _packaged_files():
    folder = packaged_folder()
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(".gin")
    )


def _is_file(path):
    if "://" not in path:
        return os.path.isfile(path)
    try:
        return gfile.exists(path) and not gfile.isdir(path)
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({first_line(error)})") from error


def _call(root):
    try:
        gin.finalize()
        return gin.get_configurable(root)()
    except UserError as error:
        # gin re-raises it as another class and appends lines about the call.
        raise UserError(first_line(error)) from None
    except RecursionError as error:
        raise UserError(
            "gin: a macro or a class refers to itself, or a value is nested too deeply"
        ) from error
    except (RuntimeError, TypeError, ValueError) as error:
        message = _call_mistake(str(error))
        if message is None:
            raise
        raise UserError(message) from error


def _call_mistake(message):
    macro = re.match(r"No bindings specified for '(.+?)/(?:gin\.)?macro'", message)
    if macro:
        return f"gin: %{macro[1]} is used but defined nowhere; add {macro[1]} = ..."
    arguments = re.match(r"(\w+)\.__init__\(\) missing \d+ required", message)
    if arguments:
        owner, names = arguments[1], re.findall(r"'(\w+)'", message.splitlines()[0])
        return (
            f"gin: {owner} needs {', '.join(names)}; give a --gin_file that sets them "
            f"or --gin_param='{owner}.{names[0]} = ...'"
        )
    return None


def _unused_bindings():
    used_names = set(_BINDING.findall(gin.operative_config_str()))
    return sorted(
        name
        for name in set(_BINDING.findall(gin.config_str()))
        if not any(other == name or other.endswith("/" + name) for other in used_names)
    )


def _unused_mistake(names, root):
    mistake = f"gin: {', '.join(names)}: set, but {root.gin_name} has no such setting"
    if root is configs.SweepRoot and any("." in name for name in names):
        return (
            f"{mistake}; the runs of a sweep take theirs from SweepConfig.pretraining "
            "and SweepConfig.finetuning: add it there, as a string"
        )
    if root is configs.FinetuneConfig and all("OwnTaskConfig." in n for n in names):
        return f"{mistake}; for --task=own, add finetune.own_task = @OwnTaskConfig()"
    return f"{mistake}; remove it or correct the name"
