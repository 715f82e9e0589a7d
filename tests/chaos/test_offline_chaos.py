"""Commands in trouble: each ends with a code of its own, and its outputs are whole or as they were before.

What happens, and when, is drawn by a seed, which is printed: SNAPCONV_SEED, else always the same.
The long half runs commands for as many seconds as SNAPCONV_CHAOS_SECONDS says, by another seed each
time, and prints a table of what was tried. scripts/fuzzing/chaos.tsv keeps the tables of such runs.
"""

import datetime
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.chaos.conversations import CONVERSATIONS, Server
from tests.job_builder import write_job

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="looks at /proc, and sends streams to forks"
)

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
LONG_S = int(os.environ.get("SNAPCONV_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("SNAPCONV_SEED", random.SystemRandom().randrange(10**6) if LONG_S else 1))
# A machine that runs other tests may be slow; a command that waits for something that never comes
# is not.
MOST_S = 60
# What a command started must be gone by then: in two seconds on a machine that is not busy, see the
# table.
LEFT_S = 20
NOBODY = 65534
THEIRS = "what another command is writing"

PROGRAM = """
from pathlib import Path
import snapconv
session = snapconv.load("run.pickle")
session.advise()
session.view("run.view.html", force=True)
snapconv.to_sqlite("run.pickle", snapconv.ConvertOptions(output=Path("run.memory.sqlite"), force=True))
"""
REPORTS = tuple(f"made/rank{rank}.cuda0.memory.sqlite" for rank in range(6))


class Command(NamedTuple):
    """What is run, and the files that it writes: in ``made``, or here by names of its own choice."""

    words: str
    outputs: tuple[str, ...] = ()


COMMANDS = {
    "to-sqlite": Command("to-sqlite run.pickle", ("run.memory.sqlite",)),
    "to-sqlite of a capture": Command(
        "to-sqlite run.capture --extended -o made/run",
        ("made/run.memory.sqlite", "made/run.time.sqlite"),
    ),
    "view": Command("view run.pickle", ("run.view.html",)),
    "view of two": Command("view old.pickle run.pickle -o made/two.html", ("made/two.html",)),
    "export": Command("export run.pickle", ("run.trace.json",)),
    "ranks": Command("ranks job -o made/job.sqlite", ("made/job.sqlite",)),
    "ranks without cache": Command("ranks job --no-cache -o made/job.html", ("made/job.html",)),
    "ranks with reports": Command("ranks job --reports made", REPORTS),
    "verdict": Command("run.pickle"),
    "check": Command("check run.pickle --max-peak 1KiB --json"),
    "what-if": Command("what-if run.pickle --search"),
    "notebook": Command("", ("run.view.html", "run.memory.sqlite")),
}
OF_RANKS = ("ranks", "ranks without cache", "ranks with reports")
WRITING = tuple(name for name, command in COMMANDS.items() if command.outputs)
# Others may lay links under names that a command chooses itself.
OF_OWN_NAMES = ("to-sqlite", "view", "export")
IN_A_FOLDER = tuple(name for name in WRITING if COMMANDS[name].outputs[0].startswith("made/"))
SHELL = tuple(name for name in COMMANDS if name != "notebook")


class Case(NamedTuple):
    """A command in a folder of its own, and what is drawn for it."""

    name: str
    folder: Path
    draw: random.Random
    is_forced: bool

    @property
    def command(self) -> Command:
        return COMMANDS[self.name]

    @property
    def words(self) -> list[str]:
        has_option = self.command.outputs and "--reports" not in self.command.words
        return [
            *self.command.words.split(),
            *(["--force"] if self.is_forced and has_option else []),
        ]

    @property
    def input(self) -> Path:
        """One of the files that the command reads."""
        folder = next(one for word in self.words if (one := self.folder / word).exists())
        files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        return self.draw.choice(files)


class Trouble(NamedTuple):
    """What happens to commands.

    ``codes`` are those of one that it reached; any other has its own code, unless it
    ``is_certain``. ``prepare`` changes the folder, and how the command starts; ``strike`` comes at
    a moment while it runs.
    """

    codes: set[int]
    commands: tuple[str, ...] = SHELL
    prepare: Callable[[Case], dict[str, Any]] = lambda _: {}
    strike: Callable[[Case, int, ExitStack], None] | None = None
    is_certain: bool = False
    leaves_partial: bool = False
    changes_input: bool = False


# --- what happens at a moment


def send(*numbers, to=os.kill):
    """Send signals, each some hundredths of a second after the one before."""

    def strike(case, pid, _):
        for number in numbers:
            with suppress(ProcessLookupError):
                to(pid, number)
            time.sleep(case.draw.expovariate(100))

    return strike


def close_its_reader(_, __, reader):
    reader.close()


def cut_input(case, *_):
    os.truncate(case.input, case.draw.randrange(case.input.stat().st_size + 1))


def replace_input(case, *_):
    other = shutil.copy(FIXTURES / "torch_2_13.pickle", case.folder / "tmp")
    Path(other).replace(case.input)


def overwrite_input(case, *_):
    with case.input.open("r+b") as file:
        file.write((FIXTURES / "perceptron.pickle").read_bytes())


def remove_input(case, *_):
    case.input.unlink()


def lay_link(case, *_):
    """Lay a link to a file of the user's under the name of the output."""
    link = case.folder / "tmp" / "link"
    link.symlink_to(case.folder / "theirs" / "precious")
    link.replace(case.folder / case.command.outputs[0])


def remove_folder(case, *_):
    shutil.rmtree(case.folder / "made", ignore_errors=True)


# --- what is so from the beginning


def limit_files(case):
    """Let no file grow larger than a part of what is written: as on a full disk."""
    largest = max(len(content) for content in calm_outputs(case))
    return {"file_bytes": case.draw.randrange(min(8192, largest // 2), largest) // 512 * 512}


def calm_outputs(case):
    return CALM[case.name].outputs.values()


def have_folder_of_another(case):
    """Run where the folders are another user's, but for the temporary one."""
    for folder in (case.folder, case.folder / "made"):
        give_away(folder, 0o755)
    return {"is_without_rights": True}


def use_cache_of_another(case):
    """Run with results that another user keeps, and that may be read, or not even that."""
    caches = case.folder / "cache" / "snapconv" / "ranks"
    shutil.copytree(CALM["ranks"].cache, caches)
    for path in caches.rglob("*"):
        give_away(path, 0o755)
    give_away(caches, case.draw.choice([0o755, 0o700]))
    return {"is_without_rights": True}


def give_away(path, mode):
    """Let a path be another user's; whoever is not root takes away the same rights."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        path.chmod(mode)
    else:
        path.chmod(0o555 if mode == 0o755 else 0)


def damage_cache(case):
    """Run with kept results of which some are damaged, empty, folders, or links to nothing."""
    caches = case.folder / "cache" / "snapconv" / "ranks"
    shutil.copytree(CALM["ranks"].cache, caches, dirs_exist_ok=True)
    for row in sorted(caches.rglob("*.json")):
        content = row.read_bytes()
        damages: list[Callable[[], object]] = [
            lambda row=row: row.write_bytes(b""),
            lambda row=row, content=content: row.write_bytes(
                content[: case.draw.randrange(len(content))]
            ),
            lambda row=row: (row.unlink(), row.mkdir()),
            lambda row=row: (row.unlink(), row.symlink_to("/nothing/there")),
            lambda row=row: (row.unlink(), os.mkfifo(row)),
            lambda: None,
        ]
        case.draw.choice(damages)()
    return {}


def full_stdout(_):
    return {"stdout": os.open("/dev/full", os.O_WRONLY)}


TROUBLES = {
    "calm": Trouble(set(), (*SHELL, "notebook")),
    "ctrl-c": Trouble({130}, strike=send(signal.SIGINT)),
    "ctrl-c twice": Trouble({130}, strike=send(signal.SIGINT, signal.SIGINT)),
    "ctrl-c in a terminal": Trouble({130}, OF_RANKS, strike=send(signal.SIGINT, to=os.killpg)),
    "ctrl-c in a notebook": Trouble({-signal.SIGINT}, ("notebook",), strike=send(signal.SIGINT)),
    "terminated": Trouble({143}, strike=send(signal.SIGTERM)),
    "terminated twice": Trouble({143}, strike=send(signal.SIGTERM, signal.SIGTERM)),
    "hung up": Trouble({129}, strike=send(signal.SIGHUP)),
    "killed": Trouble(
        {-signal.SIGKILL}, (*SHELL, "notebook"), strike=send(signal.SIGKILL), leaves_partial=True
    ),
    "reader gone": Trouble({141}, SHELL, strike=close_its_reader),
    "stdout full": Trouble({5}, SHELL, full_stdout, is_certain=True),
    "disk full": Trouble({5}, tuple(set(WRITING) - {"notebook"}), limit_files, is_certain=True),
    "folder of another": Trouble(
        {5}, tuple(set(WRITING) - {"notebook"}), have_folder_of_another, is_certain=True
    ),
    "cache of another": Trouble(set(), ("ranks", "ranks with reports"), use_cache_of_another),
    "cache damaged": Trouble(set(), ("ranks", "ranks with reports"), damage_cache),
    "input cut": Trouble({3, 4}, strike=cut_input, changes_input=True),
    "input replaced": Trouble({0, 3}, strike=replace_input, changes_input=True),
    "input overwritten": Trouble({0, 3, 4}, strike=overwrite_input, changes_input=True),
    "input removed": Trouble({3}, strike=remove_input, changes_input=True),
    "link laid": Trouble({5}, OF_OWN_NAMES, strike=lay_link),
    "folder removed": Trouble({5}, IN_A_FOLDER, strike=remove_folder),
    "two at once": Trouble({5}, WRITING),
}
# At a moment when the output may be there already.
TAKES_OUTPUT = ("folder removed", "link laid")


# --- running


class Calm(NamedTuple):
    """What a command does that nothing happens to."""

    code: int
    seconds: float
    outputs: dict[str, bytes]
    cache: Path


CALM: dict[str, Calm] = {}


class Launcher:
    """Starts commands; see launcher.py."""

    def __init__(self):
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            }
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "launcher.py"), number],
                pass_fds=[theirs.fileno()],
                env=environment,
            )

    def start(self, case, *, stdout, file_bytes=None, is_without_rights=False, is_new=False):
        """Start a command, with what it says in files beside its folder."""
        with ExitStack() as streams:
            numbers = [os.open(os.devnull, os.O_RDONLY), stdout, self._file(case, "err.txt")]
            for number in numbers:
                streams.callback(os.close, number)
            request = {
                "folder": str(case.folder),
                "command": case.words,
                "program": PROGRAM if case.name == "notebook" else "",
                "environment": {
                    "TMPDIR": str(case.folder / "tmp"),
                    "XDG_CACHE_HOME": str(case.folder / "cache"),
                },
                "file_bytes": file_bytes,
                "is_without_rights": is_without_rights,
                "is_new": is_new,
            }
            return self._answer({"start": request}, numbers)

    def stdout(self, case):
        return self._file(case, "out.txt")

    @staticmethod
    def _file(case, name):
        return os.open(
            case.folder.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
        )

    def code(self, pid):
        """Wait for the end of a command, and of every process that it started; None: it did not end."""
        code = until(MOST_S, lambda: self._answer({"code": pid}))
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            until(MOST_S, lambda: self._answer({"code": pid}))
        return code

    def _answer(self, request, descriptors=()):
        socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
        return json.loads(self._requests.recv(1 << 16))

    def close(self):
        self._requests.close()
        self._process.wait()


def until(seconds, find):
    """Return what is found before so many seconds are over, or None."""
    end = time.monotonic() + seconds
    while (found := find()) is None and time.monotonic() < end:
        time.sleep(0.003)
    return found


def still_running(sessions):
    """Return the command lines of all processes of sessions."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = path.read_text().rpartition(")")[2].split()
            if int(text[3]) in sessions and text[0] != "Z":
                running.append((path.parent / "cmdline").read_text().replace("\0", " "))
    return running


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with inputs, and with hidden files of others."""
    folder = tmp_path_factory.mktemp("template")
    shutil.copy(FIXTURES / "training_step.pickle", folder / "run.pickle")
    shutil.copy(FIXTURES / "growing.pickle", folder / "old.pickle")
    shutil.copytree(FIXTURES / "transformer.capture", folder / "run.capture")
    write_job(folder / "job", 6, leaks={3: 9 << 20})
    for name in ("made", "tmp", "cache", "theirs"):
        (folder / name).mkdir()
    (folder / "theirs" / "precious").write_text("precious")
    for name in sorted({output for command in COMMANDS.values() for output in command.outputs}):
        path = folder / name
        path.with_name(f".{path.name}.0123456789abcdef.partial").write_text(THEIRS)
    return folder


@pytest.fixture(scope="module")
def launcher(template):
    launcher = Launcher()
    with tempfile.TemporaryDirectory() as folder:
        for name in COMMANDS:
            case = new_case(name, Path(folder) / name.replace(" ", "-"), template, random.Random(0))
            began = time.monotonic()
            code = launcher.code(launcher.start(case, stdout=launcher.stdout(case)))
            outputs = {name: (case.folder / name).read_bytes() for name in case.command.outputs}
            CALM[name] = Calm(
                code, time.monotonic() - began, outputs, case.folder / "cache/snapconv/ranks"
            )
        yield launcher
    launcher.close()


def new_case(name, folder, template, draw, *, is_forced=False):
    shutil.copytree(template, folder)
    case = Case(name, folder, draw, is_forced)
    if is_forced:
        for output in case.command.outputs:
            (folder / output).write_text("the report before")
    return case


def run_case(launcher, what, case):
    """Let a trouble come to a command, and check all that must hold.

    Return the seconds from then until neither it nor what it started runs.
    """
    trouble = TROUBLES[what]
    options = trouble.prepare(case)
    is_new = what != "calm" and not options and case.draw.random() < 0.1 and case.name != "notebook"
    with ExitStack() as reader:
        if what == "reader gone":
            read, options["stdout"] = os.pipe()
            reader.callback(os.close, read)
        options.setdefault("stdout", launcher.stdout(case))
        before = files_of(case.folder)
        pids = [launcher.start(case, is_new=is_new, **options)]
        # A new process imports everything first.
        moment = case.draw.uniform(0.001, 1.1 * CALM[case.name].seconds + 0.3 * is_new)
        if what == "two at once":
            time.sleep(moment / 2)
            pids.append(launcher.start(case, stdout=launcher.stdout(case)))
        elif trouble.strike:
            time.sleep(moment)
            trouble.strike(case, pids[0], reader)
        struck = time.monotonic()
        codes = [launcher.code(pid) for pid in pids]
    until(LEFT_S, lambda: None if still_running(pids) else True)
    took = time.monotonic() - struck
    check(what, case, codes, pids, before, is_new=is_new)
    if trouble.leaves_partial:
        again(launcher, case)
    return took


def again(launcher, case):
    """Run a killed command once more: it writes all, whatever is left."""
    code = launcher.code(
        launcher.start(case._replace(is_forced=True), stdout=launcher.stdout(case))
    )
    assert code == CALM[case.name].code, code
    assert outputs_of(case) == CALM[case.name].outputs


def files_of(folder):
    """Return what every file of a folder has, or where it leads to."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def outputs_of(case):
    return {
        name: path.read_bytes()
        for name in case.command.outputs
        if (path := case.folder / name).is_file() and not path.is_symlink()
    }


def check(what, case, codes, pids, before, *, is_new):
    said = "".join(
        case.folder.with_suffix(f".{name}").read_text() for name in ("out.txt", "err.txt")
    )
    where = f"SNAPCONV_SEED={SEED}: {what}, {case.words}, new: {is_new}: {codes}\n{said[-4000:]}"
    # Ctrl-C that comes while Python itself starts may end it with words of its own.
    is_too_early = is_new and codes == [1] and "Fatal Python error: init" in said
    assert is_too_early or set(codes) <= allowed_codes(what, case, is_new=is_new), where
    if what == "two at once":
        assert CALM[case.name].code in codes, where
    trouble = TROUBLES[what]
    # A worker that is starting when its command is killed has lost what it was to read; Python
    # itself answers Ctrl-C while it imports the package, before anything of it runs.
    is_starting = is_too_early or (is_new and codes == [-signal.SIGINT])
    may_trace = case.name == "notebook" or trouble.leaves_partial or is_starting
    assert may_trace or "Traceback" not in said, where
    assert "Exception ignored" not in said, where
    assert still_running(pids) == [], where
    check_files(what, case, codes, before, where)


def allowed_codes(what, case, *, is_new):
    trouble, calm = TROUBLES[what], CALM[case.name]
    codes = set(trouble.codes)
    if (
        case.name in OF_RANKS
        and what in ("disk full", "folder removed")
        and "--reports" in case.words
    ):
        codes = {3}  # of a file whose report could not be written
    if not trouble.is_certain:
        codes.add(calm.code)
    # Python itself ends so where it has no handlers yet, or none any more.
    codes |= {
        128 - code
        for code in trouble.codes
        if code > 128 and trouble.strike is not close_its_reader
    }
    return codes


def check_files(what, case, codes, before, where):
    trouble, calm = TROUBLES[what], CALM[case.name]
    after = files_of(case.folder)
    outputs = outputs_of(case)
    for name, content in outputs.items():
        assert trouble.changes_input or content in (calm.outputs[name], before.get(name)), (
            f"{name}: {where}"
        )
        if trouble.changes_input and content != before.get(name):
            check_whole(case.folder / name)
    if codes[0] == calm.code == 0 and not trouble.changes_input:
        assert what in TAKES_OUTPUT or outputs == calm.outputs, where
    known = {*before, *case.command.outputs}
    # A capture that has lost its times has one report, which has the name that was given.
    if trouble.changes_input and case.name == "to-sqlite of a capture" and "made/run" in after:
        check_whole(case.folder / "made/run", ".sqlite")
        known.add("made/run")
    left = {name for name in after.keys() - known if not name.startswith("cache/")}
    left |= {name for name in after if name.startswith("cache/") and not name.endswith(".json")}
    if trouble.leaves_partial:
        left = {name for name in left if not is_own_partial(name, case)}
    assert left == set(), f"{left}: {where}"
    assert what == "folder removed" or after["theirs/precious"] == b"precious", where
    untouched = [name for name in before if name.endswith("abcdef.partial")]
    assert what == "folder removed" or all(
        after.get(name) == THEIRS.encode() for name in untouched
    ), where


def is_own_partial(name, case):
    return name.endswith(".partial") or name.startswith(("tmp/", "cache/"))


def check_whole(path, suffix=None):
    """Check a file whose content is not known beforehand."""
    suffix = suffix or path.suffix
    if suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as report:
            assert report.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    elif suffix == ".json":
        json.loads(path.read_bytes())
    else:
        assert path.read_text().rstrip().endswith("</html>")


def run_conversation(what, folder, draw):
    """Speak with a server in trouble; return how long its end took."""
    server = Server(folder)
    session = server.process.pid
    before = files_of(folder)
    try:
        code, expected = CONVERSATIONS[what](server, draw)
    finally:
        server.ended()
    began = time.monotonic()
    said = folder.with_suffix(".err.txt").read_text()
    where = f"SNAPCONV_SEED={SEED}: {what}: {code}\n{said[-4000:]}"
    assert code in expected, where
    assert "Traceback" not in said, where
    until(LEFT_S, lambda: None if still_running([session]) else True)
    assert still_running([session]) == [], where
    changed = {"run.pickle"} if what == "mcp: file replaced" else set()
    assert {
        name for name, content in files_of(folder).items() if content != before.get(name)
    } <= changed
    return time.monotonic() - began


# --- many of them


class Row(NamedTuple):
    """A line of the table: how often a kind was tried and failed, and the longest time until its end."""

    tried: int = 0
    failed: int = 0
    slowest_s: float = 0.0


def run_many(launcher, template, kinds):
    """Run what is drawn, all of it whatever fails, and print a table of what became of it."""
    print(f"SNAPCONV_SEED={SEED}")
    draw = random.Random(SEED)
    rows: dict[str, Row] = {}
    failures = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as base:
        for number, what in enumerate(kinds):
            row = rows.get(what, Row())
            folder = Path(base, str(number))
            try:
                took = run_one(
                    launcher, template, what, folder, random.Random(draw.randrange(10**9))
                )
                rows[what] = row._replace(tried=row.tried + 1, slowest_s=max(took, row.slowest_s))
            except AssertionError as error:
                rows[what] = row._replace(tried=row.tried + 1, failed=row.failed + 1)
                failures.append(error)
                print(f"failed: {what}: {error}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    print_table(rows, time.monotonic() - began)
    assert not failures, f"{len(failures)} of {number + 1} runs: {failures[0]}"


def run_one(launcher, template, what, folder, draw):
    if what in CONVERSATIONS:
        shutil.copytree(template, folder)
        return run_conversation(what, folder, draw)
    name = draw.choice(TROUBLES[what].commands)
    case = new_case(
        name, folder, template, draw, is_forced=name == "notebook" or draw.random() < 0.5
    )
    return run_case(launcher, what, case)


def print_table(rows, seconds):
    """Print the lines of scripts/fuzzing/chaos.tsv."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    total = Row(sum(row.tried for row in rows.values()), sum(row.failed for row in rows.values()))
    slowest_s = max(row.slowest_s for row in rows.values())
    for what, row in [*sorted(rows.items()), ("all", total._replace(slowest_s=slowest_s))]:
        print(
            today,
            f"{seconds:.0f}",
            SEED,
            what,
            row.tried,
            row.failed,
            f"{row.slowest_s:.2f}",
            sep="\t",
        )


def has_mcp():
    return find_spec("mcp") is not None


def test_a_command_in_trouble_leaves_what_is_whole_and_ends_with_its_own_code(launcher, template):
    run_many(launcher, template, TROUBLES)


@pytest.mark.skipif(not has_mcp(), reason="needs the extra mcp")
@pytest.mark.parametrize("what", ["mcp: 100 calls at once", "mcp: calls cancelled"])
def test_a_server_in_trouble_answers_or_ends(template, tmp_path, what):
    run_one(None, template, what, tmp_path / "served", random.Random(SEED))


@pytest.mark.skipif(not LONG_S, reason="SNAPCONV_CHAOS_SECONDS=1200 runs commands for so long")
def test_many_commands_in_trouble(launcher, template):
    draw = random.Random(SEED)
    end = time.monotonic() + LONG_S
    every = [*TROUBLES, *(CONVERSATIONS if has_mcp() else ())]

    def kinds():
        while time.monotonic() < end:
            yield draw.choice(every)

    run_many(launcher, template, kinds())
