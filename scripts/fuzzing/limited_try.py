"""One input -> what came of its commands, each held to bounds of time, memory and output.

A command runs as ``snapconv.cli.app.main`` runs it: in a child, a fork of a process that has
imported all of the offline half, or in this process, where coverage is seen.
"""

import gc
import io
import json
import os
import resource
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from fuzzing.amounts import SIGNED, impossible_json, impossible_text
from fuzzing.file_targets import FIXTURES, ROOT, Command, Target, every_answer, every_output

# What a command may take for N bytes. The fork, and the memory that it begins with, are the
# command's too.
_FREE_SECONDS, _SECONDS_PER_BYTE = 1.0, 3e-6
_FREE_BYTES, _BYTES_PER_BYTE = 150 << 20, 8
# Other work on the machine makes the same work take longer, so the least of so many times counts.
_MOST_TIMES = 3
# What ends a process before it hurts the machine, whatever it may take.
SECONDS = 20
MEMORY_BYTES = 1 << 30
_MOST_WAIT = 120  # seconds of the clock, for what waits without end
# Of a command line that cannot be meant; see errors.py for the others.
REFUSED = 2
EXPECTED_CODES = (0, REFUSED, 3, 4, 7)
_OUTPUT_PER_BYTE, _FREE_OUTPUT = 20, 1 << 20
# The first word of a call of the server for agents: a folder, a tool and its arguments follow.
SERVER = "mcp"
_NOWHERE = os.open(os.devnull, os.O_WRONLY)


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that a command broke; ``place`` is equal for what is most likely the same mistake."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """A command on one input; the time and memory are those of its child, and 0 without one."""

    command: str
    n_bytes: int
    failures: tuple[Failure, ...]
    seconds: float = 0.0
    peak_bytes: int = 0


# A command, the folder with its input, and the bytes of that -> what came of it.
TryCommand = Callable[[Command, Path, int], Run]


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


def most_seconds(n_bytes: int) -> float:
    """Return the processor time that a command may take for an input of so many bytes."""
    return _FREE_SECONDS + _SECONDS_PER_BYTE * n_bytes


def most_bytes(n_bytes: int) -> int:
    """Return the memory that it may take."""
    return _FREE_BYTES + _BYTES_PER_BYTE * n_bytes


def limit_process() -> None:
    """Let this process have no more memory, and no file larger, than the limits say."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, hard))  # a child has its own
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def resident_bytes() -> int:
    """Return the memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def read_ranks_here() -> None:
    """Let `ranks` read its files in this process: starting Python for a worker takes longer than they do."""
    from snapconv.ranks import workers

    def thread(_n_workers: int) -> workers.Workers:
        return workers.Workers(lambda parts: parts.enter_context(ThreadPoolExecutor(1)), 1, ())

    workers.local_workers = thread


def warm_up(targets: Iterable[Target]) -> None:
    """Do before all forks what a process does once: Typer's imports, fields of dataclasses, patterns."""
    with TemporaryDirectory() as name:
        for target in targets:
            try_input(target, target.seeds()[0], Path(name, "trial"), run_here)
        file = str(FIXTURES / "torch_2_13.pickle")
        commands = [*every_answer(file), *every_output(file, Path(name))]
        for command in {command[0]: command for command in commands}.values():
            run_here(command, Path(name), 0)
    gc.collect()
    gc.freeze()


def try_input(target: Target, data: bytes, folder: Path, try_command: TryCommand) -> list[Run]:
    """Run the commands of an input in an empty folder, which is made here and removed again."""
    folder.mkdir()
    os.chdir(folder)
    try:
        commands = target.arrange(folder, data)
        n_bytes = sum(_files(folder).values()) or len(data)
        return [try_command(command, folder, n_bytes) for command in commands]
    finally:
        os.chdir(ROOT)
        shutil.rmtree(folder)


def run_here(command: Command, folder: Path, n_bytes: int) -> Run:
    """Run a command here; SIGPROF ends the process where it takes too long."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    failures = _failures(command, folder, n_bytes)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return Run(command[0], n_bytes, tuple(failures))


def run_in_child(command: Command, folder: Path, n_bytes: int) -> Run:
    """Run a command in a fork of this process, and hold it to its bounds of time and memory."""
    run = _forked(command, folder, n_bytes)
    for _ in range(_MOST_TIMES - 1):
        if not run.failures and run.seconds > most_seconds(n_bytes):
            run = min(run, _forked(command, folder, n_bytes), key=lambda run: run.seconds)
    said, failures = _said(command, folder), list(run.failures)
    if run.seconds > most_seconds(n_bytes):
        text = f"{run.seconds:.2f} s of processor time, more than {most_seconds(n_bytes):.2f} s"
        failures.append(Failure(f"time {run.command}", f"{said}: {text}"))
    if run.peak_bytes > most_bytes(n_bytes):
        text = f"{run.peak_bytes >> 20} MiB of memory, more than {most_bytes(n_bytes) >> 20} MiB"
        inherited = f"the fork began with {resident_bytes() >> 20} MiB"
        failures.append(Failure(f"memory {run.command}", f"{said}: {text}; {inherited}"))
    return replace(run, failures=tuple(failures))


def _forked(command: Command, folder: Path, n_bytes: int) -> Run:
    """Run a command in a child; what it leaves in the folder is removed."""
    before = _files(folder)
    report = folder.with_suffix(".report")
    report.unlink(missing_ok=True)

    def work() -> None:
        failures = _failures(command, folder, n_bytes)
        report.write_text(json.dumps([(failure.place, failure.text) for failure in failures]))

    status, usage = _fork(work)
    if report.exists():
        failures = [Failure(*texts) for texts in json.loads(report.read_text())]
        report.unlink()
    else:
        end = _end_of(os.waitstatus_to_exitcode(status))
        failures = [Failure(f"{end} {command[0]}", f"{_said(command, folder)}: {end}")]
    for name in _files(folder).keys() - before.keys():
        (folder / name).unlink()
    # Linux counts the pages that a fork shares with its parent as the child's own.
    peak_bytes = usage.ru_maxrss << 10
    return Run(command[0], n_bytes, tuple(failures), usage.ru_utime + usage.ru_stime, peak_bytes)


def changed_input(target: Target, seed: str, file: Path) -> bytes:
    """Return an input that is changed by chance in a child, whose time and memory are limited too."""
    file.unlink(missing_ok=True)
    _fork(lambda: file.write_bytes(target.changed_input(Random(seed))))
    return file.read_bytes() if file.exists() else b""


def _fork(work: Callable[[], object]) -> tuple[int, resource.struct_rusage]:
    """Do work in a child, limited as `limit_process` does it; return its status, and what it used."""
    process = os.fork()
    if not process:
        try:
            limit_process()
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.setitimer(signal.ITIMER_REAL, _MOST_WAIT)
            work()
        finally:
            os._exit(0)
    try:
        _, status, usage = os.wait4(process, 0)
    except BaseException:  # Ctrl-C: nobody would ask what came of it
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    return status, usage


def _end_of(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else "ended without a report"


def _said(command: Command, folder: Path) -> str:
    return " ".join(part.replace(str(folder), "FOLDER").replace(str(ROOT), ".") for part in command)


def _failures(command: Command, folder: Path, n_bytes: int) -> list[Failure]:
    """Run a command in this process; what it writes is removed."""
    said = _said(command, folder)
    most = _OUTPUT_PER_BYTE * n_bytes + _FREE_OUTPUT
    out, err = _Screen(most), _Screen(most)
    before = _files(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = _call_tool(*command[1:]) if command[0] == SERVER else _main(command)
    except Exception as error:  # noqa: BLE001  # which is what is looked for
        return [Failure(_place(error), f"{said}\n{''.join(traceback.format_exception(error))}")]
    failures = []
    if code not in EXPECTED_CODES:
        failures.append(
            Failure(f"code {code}", f"{said}: ended with {code}: {err.getvalue()[-500:]}")
        )
    if "memory does not suffice" in err.getvalue():
        failures.append(Failure(f"memory {command[0]}", f"{said}: more memory than the limit"))
    after = _files(folder)
    written = {name: size for name, size in after.items() if name not in before}
    # Of a folder of tables, and of several devices, every file is a report of its own.
    if sum(written.values()) > _OUTPUT_PER_BYTE * n_bytes + len(written) * _FREE_OUTPUT:
        failures.append(
            Failure(f"output {command[0]}", f"{said}: wrote {written} for {n_bytes} bytes")
        )
    changed = [name for name, size in before.items() if after.get(name) != size]
    failures += [Failure("input", f"{said}: {name} was changed") for name in changed]
    shown = out.getvalue() + err.getvalue()
    is_json = "--json" in command or command[0] == SERVER
    # The error of a command line that is refused quotes it.
    if not is_json and command[0] not in SIGNED and code != REFUSED:
        failures += [
            Failure(f"amount {command[0]}", f"{said}: {line}") for line in impossible_text(shown)
        ]
    elif is_json and code in (0, 7):
        with suppress(ValueError):  # no JSON
            places = impossible_json(out.getvalue())
            failures += [Failure(f"amount {command[0]}", f"{said}: {place}") for place in places]
    if not shown.replace("\n", "").isprintable():
        failures.append(Failure(f"text {command[0]}", f"{said}: prints what a terminal may obey"))
    for name in written:
        (folder / name).unlink()
    return failures


def _main(command: Command) -> int:
    from snapconv.cli.app import main

    return main(command)


def _call_tool(folder: str, tool: str, arguments: str) -> int:
    """Print the answer of a tool without the SDK, whose types would be memory of every child."""
    from snapconv.cli.mcp_command import ToolBox
    from snapconv.errors import SnapconvError

    try:
        print(ToolBox((Path(folder),))._answer(tool, json.loads(arguments)))
    except SnapconvError as error:
        print(json.dumps(str(error)))
        return error.exit_code
    return 0


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
