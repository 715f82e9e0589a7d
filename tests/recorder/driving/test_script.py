import sys
from contextlib import suppress
from pathlib import Path

import pytest

from snapconv.errors import EntryPointError
from snapconv.recorder.program.entry import find_file, find_module
from snapconv.recorder.program.script import run_script

# What a program can learn of how it was started.
LOOK = """\
import os, sys
from neighbour import seen
seen.update(
    name=__name__, file=__file__, argv=sys.argv, first=sys.path[0], cwd=os.getcwd(), package=__package__,
    spec=__spec__ and __spec__.name, is_main=sys.modules["__main__"].__dict__ is globals(),
)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project in a folder below the current one; the modules it imports are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "neighbour.py").write_text("seen = {}")
    (project / "train.py").write_text(LOOK)
    known = set(sys.modules)
    yield project
    for name in set(sys.modules) - known:
        del sys.modules[name]


def run(path, *argv):
    entry = find_file(path)
    run_script(entry, argv)
    return sys.modules["neighbour"].seen


def test_a_script_runs_as_python_would_run_it(folder):
    seen = run("project/train.py", "--lr", "1")
    assert seen == {
        "name": "__main__",
        "file": str(folder / "train.py"),
        "argv": ["project/train.py", "--lr", "1"],
        "first": str(folder),
        "cwd": str(folder.parent),
        "package": None,
        "spec": None,
        "is_main": True,
    }


def test_a_script_reached_by_a_link_finds_its_neighbours(folder):
    (folder.parent / "linked.py").symlink_to(folder / "train.py")
    seen = run("linked.py")
    assert seen["first"] == str(folder)
    assert seen["file"] == str(folder.parent / "linked.py")


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)\n", "1 / 0\n"])
def test_everything_is_as_before_when_the_script_is_over(folder, ending):
    (folder / "train.py").write_text(LOOK + "sys.argv.clear(); sys.path.insert(0, 'x')\n" + ending)
    before = sys.argv, sys.argv[:], sys.path, sys.path[:], sys.modules["__main__"]
    with suppress(SystemExit, ZeroDivisionError):
        run("project/train.py")
    assert (sys.argv, sys.argv[:], sys.path, sys.path[:], sys.modules["__main__"]) == before


def test_a_future_import_of_ours_is_not_the_scripts(folder):
    (folder / "train.py").write_text(
        "from neighbour import seen\ndef f(x: int): pass\nseen.update(f.__annotations__)"
    )
    assert run("project/train.py") == {"x": int}


@pytest.fixture
def package(folder, monkeypatch):
    """A package in the current folder, as ``python -m`` finds it."""
    monkeypatch.chdir(folder)
    for name, text in {"__init__.py": "", "train.py": LOOK, "__main__.py": LOOK}.items():
        (folder / "package").mkdir(exist_ok=True)
        (folder / "package" / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "spec", "file"),
    [
        ("package.train", "package.train", "package/train.py"),
        ("package", "package.__main__", "package/__main__.py"),
        ("train", "train", "train.py"),
    ],
)
def test_a_module_runs_as_python_m_would_run_it(package, name, spec, file):
    run_script(find_module(name), ["a"])
    seen = sys.modules["neighbour"].seen
    assert seen == {
        "name": "__main__",
        "file": str(package / file),
        "argv": [str(package / file), "a"],
        "first": str(Path.cwd()),
        "cwd": str(package),
        "package": spec.rpartition(".")[0],
        "spec": spec,
        "is_main": True,
    }


@pytest.mark.parametrize("name", ["missing", "package.missing", "missing.train", "train.missing"])
def test_a_missing_module_is_named(package, name):
    with pytest.raises(EntryPointError, match=f"there is no module {name}"):
        run_script(find_module(name), [])


def test_what_a_package_fails_to_import_is_its_own_affair(package):
    (package / "package" / "__init__.py").write_text("import not_there")
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        run_script(find_module("package.train"), [])
