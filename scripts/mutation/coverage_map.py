"""Tests that need no torch -> which of them run which line of snapconv, and how long each takes.

Measured by one run with coverage.py's contexts, and one without for the seconds, as coverage doubles them;
kept in .mutate/. A line that no test runs in a function, such as a constant of its module, has the tests
that run any line of its file, and all of its package.
"""

import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

_FOLDER = Path(".mutate")
_DATA, _SECONDS = "coverage", "seconds.json"
# Where the run that times the tests leaves their seconds.
_OUTPUT = "MUTATE_SECONDS"
# Tests of what is built on the packages, too, but none of whole files: they are slow, and any change breaks
# them.
_TRIED = (
    *(
        f"tests/unit/{name}"
        for name in ("native", "replay", "allocator", "phases", "classification", "naming", "findings")
    ),
    "tests/property",
    "tests/golden",
    "tests/unit/test_recorded_capture.py",
)

# Tests of what the compiled core does run these instead where there is no core.
_TWINS = (
    "snapconv/replay/lifetimes.py",
    "snapconv/replay/block_sizes.py",
)
_COMPILED = "snapconv/replay/compiled_replay.py"


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """Which tests run a line: ``by_line[path][line]``."""

    by_line: dict[str, dict[int, frozenset[str]]]
    seconds: dict[str, float]

    def tests_of(self, path: str, line: int, *, seconds: float) -> list[str]:
        """Return the tests that run a line, in the order in which to try them, until the seconds are used."""
        lines = self.by_line.get(path, {})
        package, module = path.split("/")[1], Path(path).stem
        # Those of the module come first: where thousands run a line, the quickest of the package are others.
        own = (f"tests/unit/{package}/", f"/test_{module}.py::")
        of_import = {test for test in self.seconds if test.startswith(own[0])}.union(*lines.values())
        tests = lines.get(line) or of_import
        if path in _TWINS:
            tests = tests.union(*self.by_line.get(_COMPILED, {}).values())

        def order(test: str) -> tuple[bool, bool, float, str]:
            return own[1] not in test, not test.startswith(own[0]), self.seconds.get(test, 1.0), test

        ordered = sorted(tests, key=order)
        used = itertools.accumulate(self.seconds.get(test, 1.0) for test in ordered)
        return [test for test, until in zip(ordered, used, strict=True) if until <= seconds] or ordered[:1]


def load(root: Path, *, is_anew: bool, package: str | None = None) -> CoverageMap:
    """Read which tests run which lines; measure it first if that was not done yet.

    ``package``: only that package's own tests, which takes a minute.
    """
    folder = root / _FOLDER / (package or "all")
    if is_anew or not (folder / _SECONDS).exists():
        _measure(root, folder, _TRIED if package is None else (f"tests/unit/{package}",))
    data = coverage.CoverageData(str(folder / _DATA))
    data.read()
    by_line: dict[str, dict[int, frozenset[str]]] = {}
    for file in data.measured_files():
        lines: dict[int, set[str]] = defaultdict(set)
        for line, contexts in data.contexts_by_lineno(file).items():
            lines[line] = {context.partition("|")[0] for context in contexts if context}
        path = Path(file).relative_to(root).as_posix()
        by_line[path] = {line: frozenset(tests) for line, tests in lines.items() if tests}
    return CoverageMap(by_line, json.loads((folder / _SECONDS).read_text(encoding="utf-8")))


def _measure(root: Path, folder: Path, tests: tuple[str, ...]) -> None:
    """Run the tests once under coverage, and once as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"COVERAGE_FILE": str(folder / _DATA), _OUTPUT: str(folder / _SECONDS)}
    plain = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    measured = ("-n2", "--cov=snapconv", "--cov-branch", "--cov-context=test", "--cov-report=")
    timed = ("-p", "scripts.mutation.coverage_map", "-p", "no:cov")
    for options in (measured, timed):
        subprocess.run(
            [*plain, *options, *tests],
            cwd=root,
            env=os.environ | files | {"PYTHONPATH": str(root)},
            check=False,  # a test that measures time may fail under coverage
        )


_seconds: dict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep the processor's seconds of a test, as others may be at work; pytest calls it in its plugin."""
    before = sum(os.times()[:4])
    result = yield
    _seconds[item.nodeid] = sum(os.times()[:4]) - before
    return result


def pytest_sessionfinish() -> None:
    """Keep the seconds of all tests."""
    Path(os.environ[_OUTPUT]).write_text(json.dumps(_seconds), encoding="utf-8")
