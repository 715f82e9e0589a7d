"""The commands that pages show, with what they print: every ``<!-- run: … -->`` of a page is run and filled.

A page names its commands itself, separated by ``;``. They run in a folder that has the fixtures
which they name and nothing else, so that a page shows what a reader gets in a checkout.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from snapconv.cli.app import main

ROOT = Path(__file__).parents[2]
PART = re.compile(r"<!-- run: (?P<commands>.+?) -->\n.*?<!-- end -->", re.DOTALL)
# In place of the temporary folder.
HOME = "/home/user/snapconv"
# Ends that are an answer: done, a limit does not hold.
_GOOD_ENDS = (0, 7)


def with_sessions(text: str) -> str:
    """Return a page with every command of it run anew."""
    return PART.sub(
        lambda part: f"{part[0].partition(chr(10))[0]}\n{_shown(part['commands'])}\n<!-- end -->",
        text,
    )


def _shown(commands: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        lines = (
            line
            for command in commands.split("; ")
            for line in (f"$ {command}", ran(command, Path(folder)))
        )
        return "\n".join(("```console", *filter(None, lines), "```"))


def ran(command: str, folder: Path) -> str:
    """Run a command in a folder, and return what a terminal would show."""
    program, *arguments = shlex.split(command)
    for word in arguments:
        _copy(word, folder)
    code, said = (_ran_here if program == "snapconv" else _ran_by_python)(arguments, folder)
    if code not in _GOOD_ENDS:
        raise RuntimeError(f"{command} ended with {code}:\n{said}")
    shown = said.replace(str(folder.resolve()), HOME)
    return "\n".join(line.rstrip() for line in shown.rstrip().splitlines())


def _ran_here(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Run a command of snapconv in this process, which has imported it."""
    said, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ, COLUMNS="80"), redirect_stdout(said), redirect_stderr(said):
            return main(arguments), said.getvalue()
    finally:
        os.chdir(before)


def _ran_by_python(arguments: list[str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout


def _copy(name: str, folder: Path) -> None:
    """Copy what a command names of the checkout."""
    source, target = ROOT / name, folder / name
    if not name.startswith(("fixtures/", "docs/")) or not source.exists() or target.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():  # a capture in it may be there already
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
