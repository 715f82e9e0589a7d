"""The package as people get it: its wheel and its source archive run, and its texts agree."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "fixtures" / "out_of_memory.pickle"
VERSION = runpy.run_path(str(ROOT / "snapconv" / "version.py"))["VERSION"]


def run(*words: object, folder: Path, path: Path | None = None) -> str:
    """Run Python in a folder with these modules before all installed ones."""
    environment = {**os.environ, "PYTHONPATH": str(path or ""), "SNAPCONV_NATIVE": "auto"}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(target: str, sources: Path, folder: Path) -> Path:
    run("-m", "hatchling", "build", "-t", target, "-d", folder, folder=sources)
    (archive,) = folder.iterdir()
    return archive


def test_name_version_and_changelog_agree():
    """Until the first release its part is the unreleased one, which names it."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (newest, text), *_ = re.findall(r"^## \[([^\]]+)\].*\n+(.+)", changelog, re.MULTILINE)
    assert '\nname = "snapconv"\ndynamic = ["version",' in (ROOT / "pyproject.toml").read_text()
    assert VERSION in (newest, *re.findall(r"^The first release, (\S+)\. ", text))


def test_the_first_command_of_the_readme_installs_a_checkout_and_the_next_a_release():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.+?)```", readme, re.DOTALL)[:1]
    words = [line.partition("#")[0].split() for line in commands.splitlines()]
    assert words[:2] == [["pip", "install", "."], ["pip", "install", "snapconv"]]


@pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed"
)
def test_the_wheel_of_the_source_archive_answers_as_the_checkout_does(tmp_path):
    """The archive holds what its own wheel and tests need; the wheel needs nothing beside it."""
    archive = built("sdist", ROOT, tmp_path / "archives")
    assert archive.name == f"snapconv-{VERSION}.tar.gz"
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "sources", filter="data")
    (sources,) = (tmp_path / "sources").iterdir()
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "tests/builders.py", "docs/index.md"):
        assert (sources / name).is_file()
    wheel = built("wheel", sources, tmp_path / "wheels")
    assert wheel.name.startswith(f"snapconv-{VERSION}-py3-none-")
    modules = tmp_path / "modules"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(modules)
        (metadata,) = [name for name in file.namelist() if name.endswith("/METADATA")]
        assert f"\nName: snapconv\nVersion: {VERSION}\n" in file.read(metadata).decode()
    words = ("-m", "snapconv")
    shown = run(*words, "--version", folder=tmp_path, path=modules)
    assert shown.startswith(f"snapconv {VERSION}")
    assert ("compiled core" in shown) == ("-none-any" not in wheel.name)
    place = run("-c", "import snapconv; print(snapconv.__file__)", folder=tmp_path, path=modules)
    assert Path(place.strip()).is_relative_to(modules)
    answers = [run(*words, SNAPSHOT, folder=tmp_path, path=path) for path in (modules, ROOT)]
    assert answers[0] == answers[1] != ""
    page = tmp_path / "page.html"
    run(*words, "view", SNAPSHOT, "-o", page, folder=tmp_path, path=modules)
    assert page.stat().st_size > 100_000
