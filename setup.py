"""Packaging: requirements from requirements.txt, gin files as `decoupled/gin`."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent


def read_requirements() -> tuple[list[str], dict[str, list[str]]]:
    """What is always installed, and what each extra adds, from requirements.txt."""
    sections = {"": []}
    names = [""]
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        header = re.fullmatch(r"# \[([\w ]+)\]", line)
        alone = re.fullmatch(r"# \[(\w+)\] (.+)", line)
        if header:
            names = header[1].split()
        elif alone:
            sections[alone[1]] = [alone[2]]
        elif line and not line.startswith("#"):
            for name in names:
                sections.setdefault(name, []).append(line)
    return sections.pop(""), sections


def read_version() -> str:
    """`__version__` of the package, without importing it."""
    text = (ROOT / "decoupled" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


install_requires, extras_require = read_requirements()

setup(
    name="decoupled",
    version=read_version(),
    description=(
        "RemBERT-style encoders with decoupled input and output embeddings "
        "on Mesh-TensorFlow"
    ),
    license="Apache-2.0",
    # gin/ keeps its own place in the checkout: an `__init__.py` there, or a package
    # named `gin`, would hide gin-config.
    packages=[*find_packages(include=["decoupled*"]), "decoupled.gin"],
    package_dir={"decoupled.gin": "gin"},
    package_data={
        "decoupled.gin": ["*.gin", "*/*.gin", "*/*/*.gin"],
        "decoupled.corpora.wikipedia": ["*.json"],
        "decoupled.planning": ["cards/*.json"],
        "decoupled.data": ["*.npz"],
    },
    entry_points={"console_scripts": ["decoupled = decoupled.__main__:main"]},
    python_requires=">=3.10,<3.14",
    classifiers=[
        f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)
    ],
    install_requires=install_requires,
    extras_require=extras_require,
    zip_safe=False,
)
