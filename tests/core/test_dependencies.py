"""What a command needs is found by following its imports, without running it."""

import pathlib
import textwrap

import pytest

from decoupled.core import dependencies
from decoupled.core.dependencies import Need, command_path, needs

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
        ("reproduce", {"django", "matplotlib", "polib", *DUMPS}),
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
