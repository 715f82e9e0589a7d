"""Changes -> whether a test fails with them, each in a process of its own and in a copy of the checkout.

The process is a fork of one that has pytest, NumPy and hypothesis loaded but nothing of snapconv, which saves
a second for each. The copy is what processes that the tests start see too.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import numpy  # noqa: F401 # loaded before the fork
import pytest

from scripts.mutation.coverage_map import CoverageMap
from scripts.mutation.mutants import Mutant, mutated

# A change may make a loop endless, or a table huge.
_MAX_MEMORY_BYTES = 6 << 30
# What the compiled core does has a twin in Python, which runs where there is no core; scripts/test runs both.
_CORES = {"replay": ("no", "auto")}
# An endless loop ends by its processor time; the clock is for what waits. Six times that time was too little
# where others had the processors: tests that noticed nothing ran out of it.
_WALL_PER_CPU = 60
# Nobody reads how a test failed: no rewriting of assertions, which would compile all of it anew.
_WITHOUT = ("cacheprovider", "cov", "xdist", "unraisableexception", "threadexception")
_PYTEST = ("-x", "-q", "--assert=plain", *(f"-pno:{plugin}" for plugin in _WITHOUT))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one change: ``killed``, ``timeout``, ``survived`` or ``not run`` by any test."""

    mutant: Mutant
    verdict: str
    n_tests: int

    @property
    def is_noticed(self) -> bool:
        """Whether something failed."""
        return self.verdict in ("killed", "timeout")


@contextlib.contextmanager
def working_copy(root: Path) -> Iterator[Path]:
    """Copy all that git has, with the compiled core, to a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder, "project")
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        files = [root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
        for file in [*files, *(root / "snapconv" / "native").glob("core.*")]:
            if file.is_file():
                target = copy / file.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
        if (root.parent / "shared").exists():
            (copy.parent / "shared").symlink_to((root.parent / "shared").resolve())
        # All bytecode is made here and none by a change: two changes of a file in a second look alike to it.
        folders = ("snapconv", "tests", "scripts")
        subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], cwd=copy, check=True)
        yield copy


def run(copy: Path, sample: list[Mutant], lines: CoverageMap, *, seconds: float) -> list[Outcome]:
    """Try every change with the tests that run its line, as many as take ``seconds`` without the change."""
    _check_unchanged(copy, sample, lines, seconds=seconds)
    outcomes = []
    for i, mutant in enumerate(sample, 1):
        tests = lines.tests_of(mutant.path, mutant.line, seconds=seconds)
        outcome = Outcome(mutant, *_try(copy, mutant, tests, seconds=seconds))
        outcomes.append(outcome)
        print(f"{i}/{len(sample)} {outcome.verdict} ({outcome.n_tests} tests) {mutant.id}", flush=True)
    _check_unchanged(copy, sample, lines, seconds=seconds)
    return outcomes


def _check_unchanged(copy: Path, sample: list[Mutant], lines: CoverageMap, *, seconds: float) -> None:
    """Stop where the tests fail without a change: every change would seem to be noticed."""
    for mutant in sample[:: max(1, len(sample) // 3)]:
        tests = lines.tests_of(mutant.path, mutant.line, seconds=seconds)
        if tests and _verdict(_run_tests(copy, tests, seconds=2 * seconds + 5)) != "survived":
            raise SystemExit(
                f"the tests of {mutant.path}:{mutant.line} fail, or take too long, without a change"
            )


def _try(copy: Path, mutant: Mutant, tests: list[str], *, seconds: float) -> tuple[str, int]:
    file = copy / mutant.path
    text, made = file.read_text(encoding="utf-8"), file.stat()
    after = mutated(text, mutant)
    if after is None:
        raise RuntimeError(f"nothing to change: {mutant.id}")
    if not tests:
        return "not run", 0
    try:
        file.write_text(after, encoding="utf-8")
        for core in _CORES.get(mutant.path.split("/")[1], ("auto",)):
            verdict = _verdict(_run_tests(copy, tests, seconds=2 * seconds + 5, core=core))
            if verdict != "survived":
                return verdict, len(tests)
        return "survived", len(tests)
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(made.st_atime_ns, made.st_mtime_ns))  # so that its bytecode is right again


def _verdict(status: int | None) -> str:
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return "timeout"
    return "survived" if status == 0 else "killed"


def _run_tests(copy: Path, tests: list[str], *, seconds: float, core: str = "auto") -> int | None:
    """Run tests in a fork; return how it ended, None where it did not in time."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run_in_fork(copy, tests, seconds=seconds, core=core)
    end = time.monotonic() + seconds * _WALL_PER_CPU
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _run_in_fork(copy: Path, tests: list[str], *, seconds: float, core: str) -> None:
    """Run pytest and end the process with its exit code."""
    status = 3
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        os.chdir(copy)
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "SNAPCONV_NATIVE": core}
        sys.path.insert(0, str(copy))
        for name in [name for name in sys.modules if name.split(".")[0] in ("scripts", "tests", "snapconv")]:
            del sys.modules[name]
        # Nobody reads the smallest example that fails, and looking for it takes most of the time.
        hypothesis.settings.register_profile(
            "mutate",
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            deadline=None,
            derandomize=True,
            database=None,
        )
        hypothesis.settings.load_profile("mutate")
        status = pytest.main([*_PYTEST, *tests])
    finally:
        os._exit(status)
