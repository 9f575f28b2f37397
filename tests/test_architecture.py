"""Who may import whom, and what appears nowhere: read from the source with `ast`."""

import ast
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from decoupled.core import dependencies
from decoupled.core.installed import requirement_of

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "decoupled"
SOURCES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = sorted((PACKAGE / "commands").glob("[!_]*.py"))

# What each room may import beside itself. What computes knows of no flags.
BELOW_TASKS = {"core", "configs", "corpora", "data", "metrics", "xtreme"}
BELOW_TASKS |= {"ops", "model"}
BELOW_RUNS = BELOW_TASKS | {"tasks", "training"}
MAY_IMPORT = {
    "core": set(),
    "configs": {"core"},
    "launch": {"core", "configs"},
    "corpora": {"core", "configs"},
    "data": {"core", "configs", "corpora"},
    "metrics": set(),
    "xtreme": {"core", "configs", "metrics"},
    "ops": {"core", "configs"},
    "model": {"core", "configs", "ops"},
    "tasks": BELOW_TASKS,
    "training": BELOW_TASKS | {"tasks"},
    "planning": BELOW_RUNS,
    "runs": BELOW_RUNS,
    "exports": BELOW_RUNS | {"runs"},
    "sweeps": {"core", "configs", "launch"},
    "analyses": BELOW_RUNS | {"runs", "exports"},
    "reports": BELOW_RUNS | {"runs", "exports", "analyses"},
}
# Nobody imports a command.
MAY_IMPORT["commands"] = set(MAY_IMPORT)


def group_of(module):
    """The group of `decoupled.x...`, named by the dotted parts after `decoupled`."""
    return "commands" if module == ("__main__",) else module[0]


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(path):
    """Dotted names that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = node.module == "decoupled"
                yield name if is_module else node.module


def own_imports(path):
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "decoupled" and len(parts) > 1:
            yield parts[1:]


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_imports_go_down_only(path):
    own = module_of(path)
    if not own:
        assert set(imports_of(path)) <= {"os"}, "import decoupled must stay cheap"
        return
    group = group_of(own)
    for imported in own_imports(path):
        if imported[0].startswith("__"):
            continue
        other = group_of(imported)
        same_folder = other == group != "commands"
        assert same_folder or other in MAY_IMPORT[group], (
            f"{group} ({'.'.join(own)}) imports {other} ({'.'.join(imported)})"
        )


def importers_of(module):
    return {
        path
        for path in SOURCES
        for name in imports_of(path)
        if name.split(".")[0] == module
    }


def test_mesh_tensorflow_is_imported_by_compat_only():
    assert importers_of("mesh_tensorflow") == {PACKAGE / "core" / "compat.py"}


def test_tensorflow_is_imported_where_its_release_is_checked():
    """Elsewhere it would print lines, and be of any release."""
    own = {PACKAGE / "core" / "release.py", PACKAGE / "core" / "compat.py"}
    stand_alone = PACKAGE / "exports" / "run_text_model.py"
    assert importers_of("tensorflow") == {*own, stand_alone}
    assert importers_of("tensorflow_estimator") == {PACKAGE / "core" / "compat.py"}


def test_gin_is_imported_by_configurations_and_what_reads_them():
    # Mesh-TensorFlow registers functions with gin while compat.py imports it.
    allowed = {PACKAGE / "core" / "compat.py"}
    rooms = {group_of(module_of(path)) for path in importers_of("gin") - allowed}
    assert rooms == {"configs", "launch"}


def test_gin_reads_no_text_itself():
    """gin imports modules where a text says so; `gin_reader` refuses that."""
    readers = re.compile(r"\bgin(?:\.config)?(?:\.| import )parse_")
    for path in SOURCES:
        assert not readers.search(path.read_text(encoding="utf-8")), path


def test_flags_need_no_tensorflow():
    """`--help` and mistakes in flags are answered at once, not after seconds."""
    commands = [path.stem for path in COMMANDS]
    assert len(commands) > 20
    # Flags of all commands would clash in one registry; the slow one is finetune's.
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(f'decoupled.commands.{name}')\n"
        "    if name == 'finetune': module.define_flags()\n"
        "    assert 'tensorflow' not in sys.modules, name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *commands],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_everything_imported_is_required():
    for name in dependencies.other_modules(SOURCES):
        assert requirement_of(name), f"requirements.txt lacks {name}"


def imported_at_once(path):
    """The files and the other modules that importing a file imports, not functions."""
    files, others, left = set(), set(), [path]
    while left:
        path = left.pop()
        if path in files:
            continue
        files.add(path)
        nodes = list(ast.parse(path.read_text(encoding="utf-8")).body)
        for node in nodes:
            if isinstance(node, ast.FunctionDef) or "TYPE_CHECKING" in ast.unparse(
                node
            ):
                continue
            nodes.extend(ast.iter_child_nodes(node))
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", "")
                for alias in node.names:
                    name = f"{module}.{alias.name}".strip(".")
                    left.extend(dependencies.files_of(name))
                    others.add(name.split(".")[0])
    return files, others


@pytest.mark.parametrize("path", COMMANDS, ids=names(COMMANDS))
def test_commands_start_with_the_core_alone(path):
    _, others = imported_at_once(path)
    found = filter(None, map(requirement_of, others))
    assert [entry.name for entry in found if entry.extras] == []


@pytest.mark.parametrize("path", COMMANDS, ids=names(COMMANDS))
def test_what_an_extra_brings_is_checked_before_the_work(path):
    """By `installed.need` or `lacking`, somewhere in what the command imports."""
    for need in dependencies.needs([path]):
        assert need.purpose, f"nothing says what {need.modules} are needed for"


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in SOURCES}
    assert [f for f in folders if not (f / "__init__.py").exists()] == []


def test_gin_config_is_not_hidden_by_our_folder():
    assert list((ROOT / "gin").rglob("*.py")) == []
    spec = importlib.util.find_spec("gin")
    assert not pathlib.Path(spec.origin).is_relative_to(ROOT / "gin")


def calls_of(path):
    """Dotted names of what a file calls, with the call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_json_of_others_is_parsed_in_one_place():
    """`files.parse_json` knows what `json.loads` raises beside its own error."""
    # What these read comes from a process that they started, or that started them.
    own = {"vocabulary_training.py", "vocabulary_worker.py", "doctor.py"}
    users = {
        path.name
        for path in SOURCES
        for name, _ in calls_of(path)
        if name in ("json.load", "json.loads")
    }
    assert users == own | {"files.py"}


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput"}


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_data_are_never_run(path):
    modules = {name.split(".")[0] for name in imports_of(path)}
    assert modules & FORBIDDEN_MODULES == set()
    for name, call in calls_of(path):
        assert name not in FORBIDDEN_CALLS, f"line {call.lineno}: {name}"
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("shell", "False") == "False", f"line {call.lineno}: shell"
        assert given.get("allow_pickle", "False") == "False", f"line {call.lineno}"


def test_cores_are_counted_in_one_place():
    """`os.cpu_count` also counts the cores that a container or taskset keeps back."""
    counting = {
        path
        for path in SOURCES
        for name, _ in calls_of(path)
        if name.endswith("cpu_count")
    }
    assert counting == {PACKAGE / "core" / "processor.py"}
