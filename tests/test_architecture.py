"""Who may import whom, and what appears nowhere: read from the source with `ast`.

A test looks at all files and shows every one that breaks its rule.
"""

import ast
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys

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
    "analyses": BELOW_RUNS | {"runs", "exports"},
    "studies": BELOW_RUNS | {"runs", "exports", "analyses", "launch"},
}
# Nobody imports a command.
MAY_IMPORT["commands"] = set(MAY_IMPORT)


def group_of(module):
    """The group of `decoupled.x...`, named by the dotted parts after `decoupled`."""
    return "commands" if module == ("__main__",) else module[0]


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path):
    return tuple(ast.walk(tree_of(path)))


@functools.cache
def imports_of(path):
    """Dotted names that a file imports, also inside functions; ".x" are relative."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += (
                [f"decoupled.{alias.name}" for alias in node.names]
                if module == "decoupled"
                else [module]
            )
    return tuple(dict.fromkeys(found))


def at(path, node=None):
    """A file, or a line of it, as a message names it."""
    name = str(path.relative_to(ROOT))
    return f"{name}:{node.lineno}" if node else name


def test_imports_go_down_only():
    found = []
    for path in SOURCES:
        own = module_of(path)
        if not own:
            continue
        room = group_of(own)
        for name in imports_of(path):
            top, *parts = name.split(".")
            if top != "decoupled" or not parts or parts[0].startswith("__"):
                continue
            other = group_of(parts)
            same_room = other == room != "commands"
            if not same_room and other not in MAY_IMPORT[room]:
                found.append(f"{at(path)}: {room} imports {name}")
    assert not found, "\n".join(found)


def test_imports_are_absolute():
    found = [
        f"{at(path)}: {name}"
        for path in SOURCES
        for name in imports_of(path)
        if name.startswith(".")
    ]
    assert not found, "\n".join(found)


def test_the_package_itself_is_cheap_to_import():
    assert set(imports_of(PACKAGE / "__init__.py")) <= {"os"}


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
    stand_alone = PACKAGE / "exports" / "serving" / "run_text_model.py"
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
    text_of = functools.partial(pathlib.Path.read_text, encoding="utf-8")
    assert [at(path) for path in SOURCES if readers.search(text_of(path))] == []


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
    # Runs in a separate environment, as it says.
    elsewhere = PACKAGE / "planning" / "jax_step.py"
    imported = {name for p in SOURCES if p != elsewhere for name in packages_of(p)}
    lacking = sorted(name for name in imported if not requirement_of(name))
    assert lacking == [], "requirements.txt lacks these"


def packages_of(path):
    """The top-level modules of other packages that a file imports, wherever."""
    names = {name.partition(".")[0] for name in imports_of(path)}
    return names - sys.stdlib_module_names - {"decoupled"}


def files_of(name):
    """The project's files that importing a dotted name runs."""
    first, *rest = name.split(".")
    folder = ROOT / first
    for part in ["__init__", *rest] if first == "decoupled" else []:
        if (path := folder / f"{part}.py").exists():
            yield path
        if part != "__init__":
            folder = folder / part
            if (path := folder / "__init__.py").exists():
                yield path


@functools.cache
def imported_at_once(path):
    """What importing a file imports; functions import later.

    Returns:
      The project's files, and the modules that extras bring.
    """
    names, nodes = set(), list(tree_of(path).body)
    for node in nodes:
        for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if for_types or isinstance(node, ast.FunctionDef):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "")
            names |= {f"{module}.{alias.name}".strip(".") for alias in node.names}
    files = {file for name in names for file in files_of(name)}
    found = {top: requirement_of(top) for top in {n.split(".")[0] for n in names}}
    return files, [top for top, brings in found.items() if brings and brings.extras]


def test_commands_start_with_the_core_alone():
    found = []
    for command in COMMANDS:
        reached, left = set(), {command}
        while left:
            path = left.pop()
            reached.add(path)
            files, extras = imported_at_once(path)
            left |= files - reached
            found += [f"{at(command)}: {at(path)} imports {name}" for name in extras]
    assert not found, "\n".join(found)


def test_what_an_extra_brings_is_checked_before_the_work():
    """By `installed.need`, `lacking` or `NeededModule`, which name the module."""
    checks = ("installed.need", "installed.lacking", "installed.NeededModule")
    named = {
        argument.value
        for path in SOURCES
        for name, call in calls_of(path)
        if name in checks
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    found = [
        f"{at(path)}: nothing says what {name} is needed for"
        for path in SOURCES
        for name in sorted(packages_of(path) - named)
        if (requirement := requirement_of(name)) and requirement.extras
    ]
    assert not found, "\n".join(found)


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in SOURCES}
    assert [f for f in folders if not (f / "__init__.py").exists()] == []


def test_gin_config_is_not_hidden_by_our_folder():
    assert list((ROOT / "gin").rglob("*.py")) == []
    spec = importlib.util.find_spec("gin")
    assert not pathlib.Path(spec.origin).is_relative_to(ROOT / "gin")


@functools.cache
def calls_of(path):
    """(Dotted name of what is called, the call) of every call in a file."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    return tuple((ast.unparse(call.func), call) for call in calls)


def test_json_of_others_is_parsed_in_one_place():
    """`files.parse_json` knows what `json.loads` raises beside its own error."""
    # What these read comes from a process that they started, that started them, or
    # that runs the same command.
    own = {"vocabulary_training.py", "vocabulary_worker.py", "doctor.py"}
    own |= {"jax_step.py", "hosts.py"}
    # A call of the program itself, and a file of this package; both without TensorFlow.
    own |= {"kernels.py", "hardware.py"}
    users = {
        path.name
        for path in SOURCES
        for name, _ in calls_of(path)
        if name in ("json.load", "json.loads")
    }
    assert users == own | {"files.py"}


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput"}
FORBIDDEN_ARGUMENTS = ("shell", "allow_pickle")


def test_data_are_never_run():
    found = []
    for path in SOURCES:
        modules = {name.split(".")[0] for name in imports_of(path)}
        found += [f"{at(path)}: {name}" for name in modules & FORBIDDEN_MODULES]
        for name, call in calls_of(path):
            if name in FORBIDDEN_CALLS:
                found.append(f"{at(path, call)}: {name}")
            for keyword in call.keywords:
                allowed = ast.unparse(keyword.value) == "False"
                if keyword.arg in FORBIDDEN_ARGUMENTS and not allowed:
                    found.append(f"{at(path, call)}: {keyword.arg}")
    assert not found, "\n".join(found)


def test_cores_are_counted_in_one_place():
    """`os.cpu_count` also counts the cores that a container or taskset keeps back."""
    counting = {
        path
        for path in SOURCES
        for name, _ in calls_of(path)
        if name.endswith("cpu_count")
    }
    assert counting == {PACKAGE / "core" / "machine.py"}


def test_temporary_folders_are_made_in_one_place():
    """`files.scratch_folder`: otherwise a command that ends well misses its files."""
    making = {
        path
        for path in SOURCES
        for name, _ in calls_of(path)
        if name in ("tempfile.TemporaryDirectory", "tempfile.mkdtemp")
    }
    assert making == {PACKAGE / "core" / "files.py"}
