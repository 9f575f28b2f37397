"""Requirements are read from the installation or a checkout; a missing one is named."""

import importlib.metadata
import re
import sys

import pytest

from decoupled.core import installed
from decoupled.core.errors import UserError
from decoupled.core.installed import Requirement


def requirement(name):
    return {entry.name: entry for entry in installed.requirements()}[name]


def test_requirements_have_names_limits_and_extras():
    assert requirement("mesh-tensorflow") == ("mesh-tensorflow", "==0.1.21", ())
    assert requirement("ruff").extras == ("dev",)
    extras = {name for entry in installed.requirements() for name in entry.extras}
    assert extras == set(installed.EXTRAS)


def test_a_distribution_may_be_in_several_extras():
    assert set(requirement("polib").extras) == {"data", "demo", "reproduce"}
    assert set(requirement("matplotlib").extras) == {"plots", "demo", "reproduce"}


def test_requirements_of_a_checkout_are_those_of_the_installed_package(monkeypatch):
    def as_sets(entries):
        return {
            (n, frozenset(limits.split(",")), frozenset(e)) for n, limits, e in entries
        }

    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    result = as_sets(installed.requirements())
    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    assert as_sets(installed.requirements()) == result


def test_the_core_is_lean():
    """What only some users need is in an extra, named by what they do."""
    core = {entry.name for entry in installed.requirements() if not entry.extras}
    assert core == {
        "absl-py",
        "filelock",
        "gin-config",
        "mesh-tensorflow",
        "numpy",
        "packaging",
        "rich",
        "safetensors",
        "sentencepiece",
        "setuptools",
        "tensorboard",
        "tensorflow",
        "tensorflow-estimator",
        "tensorflow-text",
    }


@pytest.mark.parametrize(
    "module, distribution",
    [
        ("absl", "absl-py"),
        ("cloud_tpu_client", "cloud-tpu-client"),
        ("django", "Django"),
        ("gin", "gin-config"),
        ("mesh_tensorflow", "mesh-tensorflow"),
    ],
)
def test_modules_have_their_distribution(module, distribution):
    assert installed.requirement_of(module).name == distribution


def test_a_module_that_nothing_requires_has_no_distribution():
    assert installed.requirement_of("torch") is None


def test_what_is_missing_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    message = (
        "sentencex, mwparserfromhell are not installed (needed for dumps); run pip "
        "install 'decoupled[data]', or in a checkout pip install '.[data]'"
    )
    modules = ("sentencex", "polib", "mwparserfromhell")
    with pytest.raises(UserError, match=re.escape(message)):
        installed.need(*modules, purpose="dumps")
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    line = installed.lacking(*modules, "cloud_tpu_client", purpose="all")
    assert "'decoupled[data,tpu]'" in line


def test_nothing_is_reported_of_what_is_there():
    installed.need("numpy", "json", purpose="arrays")
    assert installed.lacking("numpy", purpose="arrays") == ""


@pytest.mark.parametrize(
    "packages, extras",
    [
        # Plots do not need the demo's catalogs.
        (["matplotlib"], "plots"),
        (["polib"], "data"),
        # One extra that brings all is better than two.
        (["polib", "matplotlib"], "demo"),
        (["sentencex", "matplotlib"], "data,plots"),
    ],
)
def test_the_extra_with_least_beside_it_is_named(packages, extras):
    assert f"'decoupled[{extras}]'" in installed.cure(packages)


def test_versions_are_compared_with_their_limits():
    assert Requirement("pytest", ">=1", ("dev",)).fits
    assert not Requirement("pytest", "<1", ("dev",)).fits
    absent = Requirement("no-such-package", ">=1", ())
    assert (absent.installed, absent.fits) == (None, False)
