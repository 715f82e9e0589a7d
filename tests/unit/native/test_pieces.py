"""Ctrl-C waits for one call of the core at most, so each gets a small piece of the work."""

import ctypes
from pathlib import Path

import pytest

from snapconv import columns
from snapconv.native.library import core
from snapconv.replay import block_sizes, lifetimes
from snapconv.replay.device_replay import replay
from snapconv.snapshot import load

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not in use")
FIXTURE = Path(__file__).parents[3] / "fixtures" / "training_step.pickle"
# What takes the core 5 ms, on a machine of 2023.
MOST_EVENTS, MOST_BYTES = 1 << 16, 1 << 18


class Counting:
    """The core, which keeps how much every call gets."""

    def __init__(self):
        self.amounts = {}

    def __getattr__(self, name):
        function = getattr(core(), name)
        place = {"snapconv_reader_feed": 2, "snapconv_pairing_add": 2, "snapconv_walk_undo": 1}.get(
            name
        )

        def call(*values):
            if place is not None:
                self.amounts.setdefault(name, []).append(values[place])
            return function(*values)

        return call


def counted(monkeypatch):
    counting = Counting()
    for module in (load, lifetimes, block_sizes):
        monkeypatch.setattr(module, "core", lambda: counting)
    snapshot = load.load_snapshot(FIXTURE)
    replay(snapshot, snapshot.devices[0])
    return counting.amounts, len(snapshot.devices[0].events)


def test_a_call_gets_no_more_than_takes_it_some_milliseconds(monkeypatch):
    amounts, _ = counted(monkeypatch)
    assert max(amounts["snapconv_reader_feed"]) <= MOST_BYTES
    assert columns._CHUNK_ROWS <= MOST_EVENTS


def test_pairing_and_the_walk_get_their_events_in_pieces(monkeypatch):
    monkeypatch.setattr(columns, "_CHUNK_ROWS", 1000)
    amounts, n_events = counted(monkeypatch)
    pieces = [1000] * (n_events // 1000) + [n_events % 1000]
    assert n_events > 2000
    assert amounts["snapconv_pairing_add"] == pieces
    assert sorted(amounts["snapconv_walk_undo"], reverse=True) == pieces


def test_other_threads_run_while_the_core_works():
    assert isinstance(core(), ctypes.CDLL)
    assert not isinstance(core(), ctypes.PyDLL)  # which keeps the lock of the interpreter
