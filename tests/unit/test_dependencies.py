"""What is imported is declared: in snapconv what its users install, elsewhere also what developers do.

A package that another one happens to bring (typer brings rich) is gone the day that the other drops it.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
# Extras for people who use snapconv, and not for those who work on it.
FOR_USERS = EXTRAS.keys() - {"test", "test-torch", "test-browser", "lint", "mutate", "fuzz"}
# Where a package is imported by another name than it is installed by.
IMPORTED_AS = {"pyyaml": "yaml", "cosmic-ray": "cosmic_ray", "pytest-cov": "pytest_cov", "pillow": "PIL"}
# Programs of the user's own environment: integrations/ has callbacks for them, and nothing without them.
OF_THE_USER = {"transformers", "lightning", "pytorch_lightning"}
STANDARD = sys.stdlib_module_names | {"tomllib"}
LOCAL = {"snapconv", "scripts", "tests", "__future__"}
# Imports that fail on purpose, and of files that a test writes.
NOT_THERE = {"not_there_at_all", "imported_late", "other"}
# DeepView's trackers, which are run where somebody installed them: they bring an old torch of their own.
WHERE_INSTALLED = {"deepview_profile"}
# A script finds what lies beside it by its bare name, and a test puts the script's folder on the path.
BESIDE = {
    path.stem for folder in ("scripts", "tests", "fixtures") for path in (ROOT / folder).rglob("*.py")
} | {"fuzzing"}


def names_of(requirements):
    """The modules that requirements install, as far as their names say."""
    names = {re.match(r"[\w.-]+", line).group().lower() for line in requirements}
    return {IMPORTED_AS.get(name, name).replace("-", "_") for name in names}


@cache
def declared_for_users():
    return names_of(
        PROJECT["project"]["dependencies"] + [one for extra in FOR_USERS for one in EXTRAS[extra]]
    )


@cache
def declared_for_developers():
    files = [ROOT / "tests" / "ecosystem" / name for name in ("requirements.txt", "torchvision.txt")]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    listed = [line for line in lines if line.strip() and not line.startswith("#")]
    developers = [one for extra in EXTRAS.values() for one in extra]
    return declared_for_users() | names_of(listed + developers + PROJECT["build-system"]["requires"])


@cache
def imports_of(path):
    """The top-level names of the modules that a file imports anywhere, but for relative imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def files_of(folder):
    """Python's files below a folder, those without a suffix too."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix == ".py" or (path.is_file() and not path.suffix and is_python(path)):
            yield path


def is_python(path):
    return path.read_bytes().startswith(b"#!/usr/bin/env python3")


def undeclared(folder, known):
    """Imports that nothing declares, with the files that have them."""
    found = {}
    for path in files_of(folder):
        for name in imports_of(path) - STANDARD - LOCAL - known:
            found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return found


def test_users_install_all_that_snapconv_imports():
    assert undeclared("snapconv", declared_for_users() | OF_THE_USER | {"pytest"}) == {}


@pytest.mark.parametrize("folder", ["scripts", "tests"])
def test_developers_install_all_that_tests_and_scripts_import(folder):
    assert undeclared(folder, declared_for_developers() | BESIDE | NOT_THERE | WHERE_INSTALLED) == {}


def test_all_that_is_always_installed_is_imported():
    imported = {name for path in files_of("snapconv") for name in imports_of(path)}
    assert names_of(PROJECT["project"]["dependencies"]) - imported == set()
