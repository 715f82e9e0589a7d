"""The command line as a process of its own: terminals, pipes, full disks, Ctrl-C."""

import json
import os
import pickle
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapconv.cli import main
from snapconv.recorder.allocator import CachingAllocator

ROOT = Path(__file__).parents[2]
COMMANDS = (["to-sqlite", "run.pickle", "--force"], ["info", "run.pickle"])


@dataclass(frozen=True)
class Done:
    """What a process left: its exit code and what it said."""

    code: int
    out: str
    err: str


def write(function="forward"):
    model = CachingAllocator()
    model.malloc(1000, frames=[{"name": function, "filename": "/home/me/project/train.py", "line": 7}])
    Path("run.pickle").write_bytes(pickle.dumps(model.snapshot()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with one snapshot that is the current one."""
    monkeypatch.chdir(tmp_path)
    write()
    return tmp_path


def start(*argv, env=None, **streams):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "TERM": "xterm", **(env or {})}
    warnings = ("-W", "error", "-W", "ignore::ResourceWarning")  # Ctrl-C may hit between open and with
    command = [sys.executable, *warnings, "-m", "snapconv", *argv]
    return subprocess.Popen(command, env=environment, **streams)


def run(*argv, **options):
    """Run it to its end, both streams in pipes unless told otherwise."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with start(*argv, **streams) as process:
        out, err = process.communicate(timeout=60)
    return Done(process.returncode, (out or b"").decode(), (err or b"").decode())


def run_with_terminal(*argv):
    """Run it with stderr on a terminal and stdout in a pipe."""
    ours, theirs = pty.openpty()
    said = bytearray()
    with start(*argv, stdout=subprocess.PIPE, stderr=theirs) as process:
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
    done = run_with_terminal(*argv)
    assert done.code == 0
    assert "\x1b[" in done.err
    assert done.out.replace("\n", "").isprintable()
    assert "cuda:0" in done.out


def test_the_bar_does_not_break_the_json(folder):
    done = run_with_terminal("to-sqlite", "run.pickle", "--json")
    assert json.loads(done.out)["reports"][0]["device"] == 0


def test_quiet_shows_no_bar_either(folder):
    assert run_with_terminal("to-sqlite", "run.pickle", "-q") == Done(0, "", "")


@pytest.mark.parametrize("argv", [*COMMANDS, ["info", "run.pickle", "--json"], ["--help"]], ids=" ".join)
def test_a_reader_that_went_away_causes_no_traceback(folder, argv):
    ours, theirs = os.pipe()
    os.close(ours)
    done = run(*argv, stdout=theirs)
    os.close(theirs)
    assert done.err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_full_disk_under_stdout_ends_with_5(folder, argv):
    with Path("/dev/full").open("wb") as full:
        done = run(*argv, stdout=full)
    assert done.code == 5
    assert "Traceback" not in done.err


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_closed_stderr_does_no_harm(folder, argv):
    command = f'exec "{sys.executable}" -m snapconv {" ".join(argv)} 2>&-'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], env=environment, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert b"cuda:0" in done.stdout


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: argv[0])
def test_a_terminal_without_unicode_gets_escapes_instead(folder, argv):
    Path("run.pickle").rename("пуск.pickle")
    argv = [argument.replace("run", "пуск") for argument in argv]
    done = run(*argv, env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0
    assert "\\u" in done.out


@pytest.mark.parametrize("function", ["\x1b]0;owned\x07", "a\nnote: forged: all is well", "a\rb", "a\x9b2J"])
def test_a_name_in_the_file_cannot_write_to_the_terminal(folder, function):
    write(function)
    done = run("to-sqlite", "run.pickle")
    assert done.code == 0
    assert function not in done.out + done.err
    assert done.out.replace("\n", "").isprintable()


def test_a_name_that_is_no_text_is_escaped_in_the_json(folder):
    write("forward\udc80")
    done = run("to-sqlite", "run.pickle", "--json")
    assert done.code == 0
    assert json.loads(done.out)["reports"][0]["lines_at_peak"][0]["function"] == "forward\\udc80"


@pytest.mark.parametrize("command", ["to-sqlite", "info"])
def test_ctrl_c_ends_with_130_and_leaves_nothing(folder, command):
    os.mkfifo("slow.pickle")
    with start(command, "slow.pickle", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # Opening a pipe for writing waits until the program has opened it for reading.
        writer = os.open("slow.pickle", os.O_WRONLY)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        os.close(writer)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert names() == ["run.pickle", "slow.pickle"]


def test_ctrl_c_while_writing_leaves_nothing(folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("snapconv.reports.skyline_memory.write_rows", interrupt)
    assert main(["to-sqlite", "run.pickle"]) == 130
    assert names() == ["run.pickle"]


def test_ctrl_c_says_that_nothing_was_written(folder, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("snapconv.convert.load_snapshot", interrupt)
    assert main(["to-sqlite", "run.pickle"]) == 130
    assert "nothing was written" in capsys.readouterr().err
