"""Ctrl-C in the middle of a stage ends the command, wherever in the stage it comes, and nothing is left.

How soon follows from the pieces that the core gets: tests/unit/native/test_pieces.py.
"""

import importlib
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

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


def with_each_call(function, see):
    """The function, whose first run shows every call of a function in it to ``see``, by its number."""
    runs = []

    def run(*values, **named):
        if runs:
            return function(*values, **named)
        runs.append(True)
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1
                see(calls)

        sys.setprofile(count)
        try:
            return function(*values, **named)
        finally:
            sys.setprofile(None)

    return run


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
def test_ctrl_c_half_way_through_a_stage_ends_the_command(stage, convert, tmp_path, monkeypatch, capsys):
    assert convert() == 0  # what is done once is done, and the next two are alike
    (tmp_path / "report.sqlite").unlink()
    module, name = stage
    whole, calls = getattr(module, name), []
    monkeypatch.setattr(module, name, with_each_call(whole, calls.append))
    assert convert() == 0
    (tmp_path / "report.sqlite").unlink()
    half = len(calls) // 2
    assert half > 1
    interrupt = lambda number: signal.raise_signal(signal.SIGINT) if number == half else None  # noqa: E731
    monkeypatch.setattr(module, name, with_each_call(whole, interrupt))
    assert convert() == 130
    assert capsys.readouterr().err == ENDED
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("ctrl_c_as_python_has_it")
def test_ctrl_c_that_is_lost_in_a_stage_ends_the_command_all_the_same(
    stage, convert, tmp_path, monkeypatch, capsys
):
    module, name = stage
    whole = getattr(module, name)

    def losing(*values, **named):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return whole(*values, **named)

    monkeypatch.setattr(module, name, losing)
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
def test_after_a_command_ctrl_c_is_as_before(convert):
    assert convert() == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert convert() != 130
