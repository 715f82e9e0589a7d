"""Ctrl-C in any stage ends the command, and nothing is left.

How soon follows from the pieces that the core gets: tests/unit/native/test_pieces.py.
"""

import importlib
import signal
import subprocess
import sys
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from snapconv import files
from snapconv.cli.app import main
from snapconv.native.library import core

FIXTURES = Path(__file__).parents[3] / "fixtures"
STAGES = {
    "the reader": "snapconv.snapshot.readers.compiled_pickle:_feed",
    "the ids of stacks": "snapconv.snapshot.load:bound_stacks",
    "pairing": "snapconv.replay.lifetimes:_pair_compiled",
    "the walk": "snapconv.replay.block_sizes:_walk_compiled",
    "curves": "snapconv.replay.device_replay:_block_curve",
    "classification": "snapconv.analysis:classify",
    "naming": "snapconv.analysis:name_allocations",
    "writing": "snapconv.convert:write_databases",
}
OF_THE_CORE = {"the reader", "pairing", "the walk"}
ENDED = "stopped: no unfinished file is left behind\n"


@pytest.fixture(params=STAGES)
def stage(request):
    if request.param in OF_THE_CORE and core() is None:
        pytest.skip("a stage of the compiled core, which is not in use")
    module, name = STAGES[request.param].split(":")
    return importlib.import_module(module), name


@pytest.fixture
def convert(tmp_path):
    file, report = str(FIXTURES / "training_step.pickle"), str(tmp_path / "report.sqlite")
    return lambda: main(["to-sqlite", file, "-o", report, "-q"])


@pytest.fixture
def ctrl_c_as_python_has_it():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
@pytest.mark.parametrize("is_lost", [False, True], ids=["heard", "lost"])
def test_ctrl_c_in_a_stage_ends_the_command_also_where_it_is_lost(
    stage, is_lost, convert, tmp_path, monkeypatch, capsys
):
    module, name = stage
    whole = getattr(module, name)

    def interrupted(*values, **named):
        with suppress(KeyboardInterrupt) if is_lost else nullcontext():
            signal.raise_signal(signal.SIGINT)
        return whole(*values, **named)

    monkeypatch.setattr(module, name, interrupted)
    assert convert() == 130
    assert capsys.readouterr().err == ENDED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
def test_ctrl_c_that_numpy_clears_ends_the_command(convert, tmp_path, monkeypatch, capsys):
    module = importlib.import_module("snapconv.replay.device_replay")
    whole = module.pair_events

    class Interrupting(type):
        def __getattr__(cls, name):
            signal.raise_signal(signal.SIGINT)
            raise AttributeError(name)

    class Member(int, metaclass=Interrupting):
        pass

    def comparing(*values):
        _ = np.zeros(2, np.int8) == Member(1)
        return whole(*values)

    monkeypatch.setattr(module, "pair_events", comparing)
    assert convert() == 130
    assert capsys.readouterr().err == ENDED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
def test_ctrl_c_twice_leaves_nothing_either(convert, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    def interrupted_too(file):
        signal.raise_signal(signal.SIGINT)
        remove(file)

    remove = files._remove
    monkeypatch.setattr(files, "_remove", interrupted_too)
    monkeypatch.setattr(
        importlib.import_module("snapconv.writers.sqlite.tables"), "write_rows", interrupted
    )
    assert convert() == 130
    assert capsys.readouterr().err == ENDED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_finalizer_prints_nothing_and_ends_the_command(convert, monkeypatch, capsys):
    class Column:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    module = importlib.import_module("snapconv.analysis")
    whole = module.classify

    def finalizing(*values, **named):
        column = Column()
        del column
        return whole(*values, **named)

    monkeypatch.setattr(module, "classify", finalizing)
    assert convert() == 130
    assert capsys.readouterr().err == ENDED


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_the_callback_of_a_weak_reference_prints_nothing_and_ends_the_command(
    convert, monkeypatch, capsys
):
    class Lock:
        pass

    module = importlib.import_module("snapconv.analysis")
    classify = module.classify

    def dying(*values, **named):
        lock = Lock()
        reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
        del lock
        assert reference() is None
        return classify(*values, **named)

    monkeypatch.setattr(module, "classify", dying)
    assert convert() == 130
    assert capsys.readouterr().err == ENDED


@pytest.mark.skipif(core() is None, reason="of the compiled core, which is not in use")
@pytest.mark.filterwarnings("error")
def test_ctrl_c_before_the_core_has_a_reader_is_no_error_of_its_end():
    reader = importlib.import_module("snapconv.snapshot.readers.compiled_pickle")._Reader
    reader.__new__(reader).__del__()


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
def test_after_a_command_ctrl_c_is_as_before(convert):
    assert convert() == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert convert() != 130


@pytest.mark.parametrize(("exit_code", "is_ignored"), [(130, True), (143, True), (5, False)])
def test_who_presses_ctrl_c_twice_sees_no_traceback_of_the_end(exit_code, is_ignored):
    """The interpreter prints one where it is interrupted while it ends, after the command."""
    program = (
        "import atexit, signal, snapconv.__main__, snapconv.cli.app as app\n"
        f"app.main = lambda: {exit_code}\n"
        "atexit.register(lambda: print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN))\n"
        "snapconv.__main__.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (exit_code, [str(is_ignored)])


@pytest.mark.skipif(sys.platform == "win32", reason="it ends otherwise there")
@pytest.mark.parametrize("exit_code", [0, 130])
def test_ctrl_c_between_the_command_and_the_end_prints_nothing(exit_code):
    """A second one came while the interpreter was told to look for no garbage."""
    program = (
        "import gc, os, signal, snapconv.__main__, snapconv.cli.app as app\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"app.main = lambda: {exit_code}\n"
        "gc.freeze = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "snapconv.__main__.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_another_error_that_nothing_caught_has_its_traceback():
    program = (
        "import snapconv.__main__, snapconv.cli.app as app\n"
        "app.main = lambda: 1 / 0\n"
        "snapconv.__main__.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
