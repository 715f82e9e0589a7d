"""One input -> what came of its commands, each held to limits of time, memory and output.

The commands run in this process, one after the other, as ``snapconv.cli.app.main`` runs them. Where the limit
of processor time ends the process, its parent says so.
"""

import io
import os
import resource
import shutil
import signal
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from fuzzing.amounts import SIGNED, impossible_json, impossible_text
from fuzzing.file_targets import ROOT, Command, Target

# For an input of at most 64 KiB; a command takes some hundredths of a second for it.
SECONDS = 20
MEMORY_BYTES = 1 << 30
# A command line that cannot be meant is 2; see errors.py for the others.
EXPECTED_CODES = (0, 2, 3, 4, 7)
_OUTPUT_PER_BYTE, _FREE_OUTPUT = 20, 1 << 20
_NOWHERE = os.open(os.devnull, os.O_WRONLY)


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that a command broke; ``place`` is equal for what is most likely the same mistake."""

    place: str
    text: str


class OutputTooLarge(RuntimeError):
    """A command printed more than the limit."""


class _Screen(io.StringIO):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._room = most

    def fileno(self) -> int:
        """Where what bypasses this object goes: nowhere."""
        return _NOWHERE

    def write(self, text: str) -> int:
        """Keep the text, up to the limit."""
        self._room -= len(text)
        if self._room < 0:
            raise OutputTooLarge("printed more than the limit")
        return super().write(text)


def limit_process() -> None:
    """Let this process have no more memory, and no file larger, than the limits say."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def resident_bytes() -> int:
    """Return the memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def try_input(target: Target, data: bytes, folder: Path) -> list[Failure]:
    """Run the commands of an input in an empty folder, which is made here and removed again.

    A process that takes too long is ended by SIGPROF.
    """
    folder.mkdir()
    os.chdir(folder)
    try:
        commands = target.arrange(folder, data)
        given = _files(folder)
        failures = []
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        for command in commands:
            failures += _try(command, folder, sum(given.values()) + len(data))
        signal.setitimer(signal.ITIMER_PROF, 0)
        changed = [name for name, size in given.items() if _files(folder).get(name) != size]
        return failures + [Failure("input", f"{name} was changed") for name in changed]
    finally:
        os.chdir(ROOT)
        shutil.rmtree(folder)


def _try(command: Command, folder: Path, n_bytes: int) -> list[Failure]:
    from snapconv.cli.app import main

    said = " ".join(part.replace(str(folder), "FOLDER").replace(str(ROOT), ".") for part in command)
    most = _OUTPUT_PER_BYTE * n_bytes + _FREE_OUTPUT
    out, err = _Screen(most), _Screen(most)
    before = _files(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(command)
    except Exception as error:  # noqa: BLE001  # which is what is looked for
        return [Failure(_place(error), f"{said}\n{''.join(traceback.format_exception(error))}")]
    failures = []
    if code not in EXPECTED_CODES:
        failures.append(Failure(f"code {code}", f"{said}: ended with {code}: {err.getvalue()[-500:]}"))
    if "memory does not suffice" in err.getvalue():
        failures.append(Failure(f"memory {command[0]}", f"{said}: more memory than the limit"))
    written = {name: size for name, size in _files(folder).items() if name not in before}
    # Of a folder of tables, and of several devices, every file is a report of its own.
    if sum(written.values()) > _OUTPUT_PER_BYTE * n_bytes + len(written) * _FREE_OUTPUT:
        failures.append(Failure(f"output {command[0]}", f"{said}: wrote {written} for {n_bytes} bytes"))
    shown = out.getvalue() + err.getvalue()
    if "--json" not in command and command[0] not in SIGNED:
        failures += [Failure(f"amount {command[0]}", f"{said}: {line}") for line in impossible_text(shown)]
    elif "--json" in command and code in (0, 7):
        with suppress(ValueError):  # no JSON
            places = impossible_json(out.getvalue())
            failures += [Failure(f"amount {command[0]}", f"{said}: {place}") for place in places]
    if not shown.replace("\n", "").isprintable():
        failures.append(Failure(f"text {command[0]}", f"{said}: prints what a terminal may obey"))
    for name in written:
        path = folder / name
        path.unlink()
    return failures


def _files(folder: Path) -> dict[str, int]:
    return {
        str(Path(parent, name).relative_to(folder)): Path(parent, name).stat().st_size
        for parent, _, names in os.walk(folder)
        for name in names
    }


def _place(error: Exception) -> str:
    """Return the kind of an error, and the innermost line of our own that it came through."""
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "snapconv" in frame.filename
    ]
    return f"{type(error).__name__} {lines[-1] if lines else ''}"


def share_readings() -> None:
    """Let all commands of an input share one reading of its file, which is most of their time."""
    from snapconv import session
    from snapconv.errors import SnapconvError

    load = session.load
    last: dict[str, object] = {}

    def shared(path: Path, **options: object) -> object:
        stat = path.stat()
        given = sorted((name, value) for name, value in options.items() if name != "progress")
        key = repr((path, stat.st_ino, stat.st_mtime_ns, given))
        if key not in last:
            last.clear()
            try:
                last[key] = load(path, **options)
            except SnapconvError as error:
                last[key] = error
        if isinstance(last[key], SnapconvError):
            raise last[key]
        return last[key]

    session.load = shared
