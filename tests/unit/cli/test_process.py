"""The command line as a process of its own: terminals, pipes, full disks, Ctrl-C."""

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.cli.app import main
from tests.unit.cli.conftest import Done

pty = pytest.importorskip("pty", reason="needs pseudo-terminals, and the signals of Unix")

ROOT = Path(__file__).parents[3]
COMMANDS = (["to-sqlite", "run.pickle", "--force"], ["info", "run.pickle"])


def write(function="forward"):
    model = RecordedAllocator()
    model.malloc(
        1000, frames=[{"name": function, "filename": "/home/me/project/train.py", "line": 7}]
    )
    Path("run.pickle").write_bytes(pickle.dumps(model.snapshot()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with one snapshot that is the current one."""
    monkeypatch.chdir(tmp_path)
    write()
    return tmp_path


# Progress is shown of what takes half a second; of these files nothing does.
AT_ONCE = """
import sys
from snapconv.cli import app, terminal
terminal._WORTH_A_BAR_S = 0
sys.exit(app.main(sys.argv[1:]))
"""


def start(*argv, env=None, program=("-m", "snapconv"), **streams):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "TERM": "xterm",
        **(env or {}),
    }
    warnings = (
        "-W",
        "error",
        "-W",
        "ignore::ResourceWarning",
    )  # Ctrl-C may hit between open and with
    command = [sys.executable, *warnings, *program, *argv]
    return subprocess.Popen(command, env=environment, **streams)


def run(*argv, **options):
    """Run it to its end, both streams in pipes by default."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with start(*argv, **streams) as process:
        killer = Timer(60, process.kill)
        killer.start()
        out, err = process.communicate()
        killer.cancel()
    return Done(process.returncode, (out or b"").decode(), (err or b"").decode())


def run_with_terminal(*argv, **options):
    """Run it with stderr on a terminal and stdout in a pipe."""
    ours, theirs = pty.openpty()
    said = bytearray()
    with start(*argv, stdout=subprocess.PIPE, stderr=theirs, **options) as process:
        os.close(theirs)
        # Linux ends a terminal that nobody else holds with an error instead of an empty read.
        with suppress(OSError):
            while part := os.read(ours, 4096):
                said += part
        out = process.stdout.read().decode()
    os.close(ours)
    return Done(process.returncode, out, said.decode())


def names():
    return sorted(path.name for path in Path.cwd().iterdir())


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_pipe_gets_no_bar_and_no_control_characters(folder, argv):
    done = run(*argv)
    assert done.code == 0
    assert done.err.replace("\n", "").isprintable()
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_terminal_gets_a_bar_on_stderr_only(folder, argv):
    done = run_with_terminal(*argv, program=("-c", AT_ONCE))
    assert done.code == 0
    assert "\x1b[" in done.err
    assert done.out.replace("\n", "").isprintable()
    assert "cuda:0" in done.out


def test_what_takes_no_time_shows_no_bar(folder):
    assert "\x1b[" not in run_with_terminal("info", "run.pickle").err


def test_quiet_shows_no_bar_either(folder):
    done = run_with_terminal("to-sqlite", "run.pickle", "-q", program=("-c", AT_ONCE))
    assert done == Done(0, "", "")


@pytest.fixture
def closed_pipe():
    """The end of a pipe whose reader has gone away."""
    ours, theirs = os.pipe()
    os.close(ours)
    yield theirs
    os.close(theirs)


@pytest.mark.parametrize(
    "argv", [*COMMANDS, ["info", "run.pickle", "--json"], ["--help"], ["--version"]], ids=" ".join
)
def test_a_reader_that_went_away_ends_it_with_141_and_in_silence(folder, closed_pipe, argv):
    assert run(*argv, stdout=closed_pipe) == (141, "", "")


def test_a_reader_of_the_notes_that_went_away_ends_it_with_141_too(folder, closed_pipe):
    Path("run.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    assert run("info", "run.pickle", stderr=closed_pipe).code == 141


def test_an_error_that_cannot_be_printed_keeps_its_code(folder, closed_pipe):
    assert run("info", "missing.pickle", stderr=closed_pipe).code == 3


def test_stdin_is_a_pipe_too(folder):
    done = run("info", "/dev/stdin", stdin=subprocess.PIPE)
    assert (done.code, done.out) == (3, "")
    assert "save it to a file first" in done.err


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no device that is always full"
)
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_full_disk_under_stdout_ends_with_5(folder, argv):
    with Path("/dev/full").open("wb") as full:
        done = run(*argv, stdout=full)
    assert done.code == 5
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), (">&-", 5), ("--json >&-", 5)])
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_closed_stdout_is_an_error_and_a_closed_stderr_is_none(folder, argv, closed, code):
    command = f'exec "{sys.executable}" -m snapconv {" ".join(argv)} {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, check=False)
    assert done.returncode == code
    assert b"cuda:0" in done.stdout or code
    assert b"error: the standard output cannot be written: it is closed" in done.stderr or not code


@pytest.mark.skipif(
    not os.access("/proc/kmsg", os.R_OK), reason="needs the right to read the kernel's log"
)
@pytest.mark.parametrize("argv", [["info"], ["oom", "--message"]], ids=" ".join)
def test_a_file_of_the_system_that_waits_is_as_empty_as_it_says(folder, argv):
    assert run(*argv, "/proc/kmsg").code == 3


def test_a_device_as_input_is_refused(folder):
    done = run("info", "/dev/zero")
    assert (done.code, done.out) == (3, "")
    assert "expected a file, not a pipe or device" in done.err


def capture_with_times_in(make):
    Path("one.capture").mkdir()
    Path("run.pickle").rename("one.capture/snapshot.pickle")
    make(Path("one.capture/timing.json"))


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("none"),
    ],
    ids=["pipe", "folder", "device", "nothing"],
)
def test_times_that_are_no_regular_file_are_left_out_with_a_note(folder, capsys, make):
    capture_with_times_in(make)
    assert main(["to-sqlite", "one.capture"]) == 0
    err = capsys.readouterr().err
    assert "note: unreadable-times: timing.json is no regular file: there are no times" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["to-sqlite", "pipe.json"],
        ["to-sqlite", "run.pickle", "--rules", "pipe.json"],
        ["oom", "--message", "pipe.json"],
        ["check", "run.pickle", "--fail-over", "1%", "--baseline", "pipe.json"],
        ["diff", "run.pickle", "pipe.json"],
        ["diff", "pipe.json", "run.pickle"],
        ["view", "run.pickle", "pipe.json"],
    ],
    ids=" ".join,
)
def test_a_pipe_as_an_input_is_refused_at_once(folder, argv):
    os.mkfifo("pipe.json")
    done = run(*argv)  # nobody writes to it: to open it would wait for ever
    assert (done.code, done.out) == (3, "")
    assert "save it to a file first" in done.err or argv[0] == "oom"
    assert "pipe.json" in done.err


@pytest.mark.parametrize("argv", [["info"], ["verdict"], ["to-sqlite"], ["diff", "run.pickle"], []])
def test_a_name_that_no_system_has_is_an_input_that_cannot_be_read(folder, capsys, argv):
    assert main([*argv, f"./{'a' * 5000}"]) == 3
    assert "standard output" not in capsys.readouterr().err


@pytest.mark.parametrize("size", ["9" * 5000 + "GiB", "1048576TiB", "0.0001B"])
def test_a_size_that_no_memory_has_is_a_wrong_command_line(folder, capsys, size):
    assert main(["check", "run.pickle", "--max-peak", size]) == 2
    assert main(["oom", "run.pickle", "--device-total", size]) == 2
    assert (
        main(["check", "run.pickle", "--baseline", "run.pickle", "--fail-over", "9" * 5000 + "%"])
        == 2
    )
    assert len(capsys.readouterr().err) < 20_000


def test_a_log_of_other_bytes_than_text_has_no_message(folder):
    Path("log").write_bytes(b"\xff\xfe\x80" * 100)
    with Path("log").open("rb") as log:
        done = run("oom", "--message", "-", stdin=log)
    assert (done.code, done.out) == (3, "")
    assert "no out-of-memory message" in done.err


@pytest.mark.parametrize(
    "argv",
    [
        ["diff", "unreadable.json", "run.pickle"],
        ["diff", "run.pickle", "unreadable.json"],
        ["check", "run.pickle", "--fail-over", "1%", "--baseline", "unreadable.json"],
        ["to-sqlite", "-q", "unreadable.json"],
        ["to-sqlite", "-q", "run.pickle", "--rules", "unreadable.json"],
    ],
    ids=" ".join,
)
def test_whether_a_file_can_be_read_is_seen_by_reading_it(folder, monkeypatch, argv):
    # Said of a file that it cannot be read: a wrong command line (2) is not what that is.
    texts = {"--rules": b"input = []"}
    before = argv[argv.index("unreadable.json") - 1]
    Path("unreadable.json").write_bytes(texts.get(before, Path("run.pickle").read_bytes()))
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, *more, **how: Path(path).name != "unreadable.json" and access(path, *more),
    )
    assert main(argv) == 0


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_terminal_without_unicode_gets_escapes_instead(folder, argv):
    Path("run.pickle").rename("пуск.pickle")
    argv = [argument.replace("run", "пуск") for argument in argv]
    done = run(*argv, env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "\\u" in done.out


@pytest.mark.parametrize(
    "function", ["\x1b]0;owned\x07", "a\nnote: forged: all is well", "a\rb", "a\x9b2J"]
)
def test_a_name_in_the_file_cannot_write_to_the_terminal(folder, function):
    write(function)
    done = run("to-sqlite", "run.pickle")
    assert done.code == 0
    assert function not in done.out + done.err
    assert done.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("function", ["a\x9b2J", "a\x7f", "\u202eb", "a\U000e0041"])
def test_a_name_in_the_json_cannot_write_to_the_terminal_and_is_whole(folder, function):
    write(function)
    done = run("summary", "run.pickle", "--json")
    assert done.out.replace("\n", "").isprintable()
    assert json.loads(done.out)["devices"][0]["lines"][0]["line"]["function"] == function


def test_a_name_that_is_no_text_is_escaped_in_the_json(folder):
    write("forward\udc80")
    done = run("summary", "run.pickle", "--json")
    assert done.code == 0
    assert json.loads(done.out)["devices"][0]["lines"][0]["line"]["function"] == "forward\\udc80"


# A program that hangs at a chosen place, and prints when it does.
HANGS = """
import sys, time
from importlib import import_module
from snapconv.cli.app import main
from tests.unit.cli.conftest import Done

def hang(*_, **__):
    print("hanging", flush=True)
    time.sleep(60)

module, name = sys.argv[1].rsplit(".", 1)
setattr(import_module(module), name, hang)
sys.exit(main(sys.argv[2:]))
"""
READING, WRITING = (
    "snapconv.snapshot.load.as_snapshot_dict",
    "snapconv.writers.sqlite.tables.write_rows",
)
STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@contextmanager
def hanging(place, *argv, before=()):
    """A process that hangs by now in the function that ``place`` names."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-W", "error", "-c", HANGS, place, *argv]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"hanging\n"
        yield process


@pytest.mark.parametrize(("number", "code"), STOPS, ids=["ctrl-c", "terminated", "hung up"])
@pytest.mark.parametrize(
    ("place", "command"), [(READING, "to-sqlite"), (READING, "info"), (WRITING, "to-sqlite")]
)
def test_a_run_that_is_stopped_is_reported_in_a_line_and_leaves_nothing(
    folder, number, code, place, command
):
    with hanging(place, command, "run.pickle") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")
    assert err == b"stopped: no unfinished file is left behind\n"
    assert names() == ["run.pickle"]


def test_a_run_under_nohup_goes_on_when_the_terminal_hangs_up(folder):
    with hanging(READING, "info", "run.pickle", before=["nohup"]) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()


def test_the_signals_are_as_before_when_main_returns(folder):
    before = [signal.getsignal(number) for number, _ in STOPS]
    assert main(["--version"]) == 0
    assert [signal.getsignal(number) for number, _ in STOPS] == before


def test_a_snapshot_comes_from_the_standard_input(folder):
    whole = run("summary", "run.pickle")
    with Path("run.pickle").open("rb") as snapshot:
        done = run("summary", "-", stdin=snapshot)
    assert (done.code, done.out) == (0, whole.out)
    with Path("run.pickle").open("rb") as snapshot:
        assert run("-", stdin=snapshot).out.splitlines()[0] == run("run.pickle").out.splitlines()[0]
    with Path("run.pickle").open("rb") as snapshot:
        assert run("diff", "-", "run.pickle", stdin=snapshot).code == 0
    with Path("run.pickle").open("rb") as snapshot:
        assert run("view", "-", stdin=snapshot).code == 0
    assert "stdin.view.html" in names()
