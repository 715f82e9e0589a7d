"""Advice on hand-made jobs: what is kept for nothing, what only looks like it, and what a change saves."""

import numpy as np
import pytest

import snapconv
from snapconv.answers.advice.changes import Demand, freed_from, removed, smaller
from snapconv.cli.app import main
from tests.builders import MIB, TraceBuilder, frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py")
STEP = [frame("_single_tensor_sgd", f"{TORCH}/optim/sgd.py")]


def at(line, *inner):
    """A stack of the script's line, with what it calls."""
    return [*reversed(inner), frame("main", "/home/me/project/train.py", line)]


def layer(number):
    return [CALL, frame(f"layer{number}", "/home/me/project/model.py", number)]


class Loop:
    """A script whose names keep what a line made until the line has made it again."""

    def __init__(self):
        self.trace, self.kept = TraceBuilder().segment(1 << 30), {}

    def alloc(self, size, stack):
        self.trace.alloc(size, frames=stack)
        return self.trace.events[-1]["addr"]

    def assign(self, name, line, *sizes):
        """``name = call()`` in a line: the call allocates in layers, then the name's old value is freed."""
        new = [self.alloc(size, at(line, *layer(i))) for i, size in enumerate(sizes)]
        for addr in self.kept.pop(name, ()):
            self.trace.free(addr, frames=at(line))
        self.kept[name] = new

    def delete(self, name, line):
        for addr in self.kept.pop(name):
            self.trace.free(addr, frames=at(line))


@pytest.fixture
def advice_on(tmp_path):
    def advice_on(loop, **options):
        (found,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).advise(**options)
        return found

    return advice_on


def outputs(*, deletes):
    loop = Loop()
    for _ in range(3):
        loop.assign("out", 20, 10 * MIB)
        loop.trace.alloc(MIB, frames=at(21)).free(frames=at(21))
        if deletes:
            loop.delete("out", 22)
    return loop


def test_a_previous_output_is_a_fault_and_its_saving_is_that_of_the_program_without_it(advice_on):
    kept, deleted = advice_on(outputs(deletes=False)), advice_on(outputs(deletes=True))
    (fault,) = kept.faults
    assert (fault.kind, fault.where.place, fault.line.place) == ("previous-kept", "train.py:20", "model.py:0")
    assert kept.peak.n_bytes == 20 * MIB
    assert kept.together.n_bytes == deleted.peak.n_bytes == 11 * MIB
    assert deleted.findings == ()


def test_a_graph_that_stays_through_the_next_forward_is_a_certain_fault(advice_on):
    loop = Loop()
    for _ in range(2):
        loop.assign("out", 20, *[MIB * (1 + i) for i in range(8)])
    advice = advice_on(loop)
    assert [fault.is_certain for fault in advice.faults] == [True]
    assert (advice.peak.n_bytes, advice.together.n_bytes) == (72 * MIB, 36 * MIB)


def test_a_state_that_the_next_call_reads_is_no_fault(advice_on):
    loop = Loop()
    loop.kept["hidden"] = [loop.alloc(10 * MIB, at(10))]
    for _ in range(3):
        loop.assign("hidden", 20, 10 * MIB)
    assert advice_on(loop).findings == ()


def test_a_cache_that_grows_with_every_call_is_no_fault(advice_on):
    loop = Loop()
    for length in range(1, 5):
        loop.assign("cache", 20, length * 5 * MIB)
    assert advice_on(loop).findings == ()


def test_temporaries_of_one_call_are_no_previous_output(advice_on):
    loop = Loop()
    for _ in range(3):
        addrs = [loop.alloc(5 * MIB, at(20, *layer(i))) for i in (1, 2)]
        for addr in addrs:
            loop.trace.free(addr, frames=at(20))
    assert advice_on(loop).findings == ()


def test_a_saving_ends_at_the_next_summit(advice_on):
    """Without the old output 10 MiB less are needed there, but 4 MiB less than at the loss."""
    loop = Loop()
    for _ in range(3):
        loop.assign("out", 20, 10 * MIB)
        loop.trace.alloc(6 * MIB, frames=at(21)).free(frames=at(21))
    (fault,) = advice_on(loop).faults
    assert (fault.held_bytes, fault.saved_bytes, fault.peak.n_bytes) == (10 * MIB, 4 * MIB, 16 * MIB)


def test_changes_of_one_allocation_count_once_together(tmp_path):
    loop = Loop()
    for size in (10, 20, 30):
        loop.alloc(size * MIB, at(20))
    (analysis,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).devices
    demand, rows = Demand(analysis), np.arange(3)
    assert demand.peak.n_bytes == 60 * MIB
    half = smaller(analysis, rows, 0.5)
    assert demand.without([half]).n_bytes == 30 * MIB
    assert demand.without([removed(analysis, rows[:1]), half]).n_bytes == 25 * MIB
    early = freed_from(analysis, rows[:1], np.array([3]))
    assert demand.without([early]).n_bytes == 50 * MIB


def test_a_failed_request_is_a_part_of_what_the_program_needs(tmp_path):
    loop = Loop()
    loop.alloc(10 * MIB, at(20))
    loop.trace.oom(30 * MIB)
    (analysis,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).devices
    assert Demand(analysis).peak.n_bytes == 40 * MIB


def test_the_command_names_the_line_and_the_new_peak(tmp_path, capsys):
    path = outputs(deletes=False).trace.write(tmp_path / "s.pickle")
    assert main(["advise", str(path)]) == 0
    out = capsys.readouterr().out
    assert "train.py:20 keeps its previous output" in out
    assert "20.00 MiB → 11.00 MiB" in out
