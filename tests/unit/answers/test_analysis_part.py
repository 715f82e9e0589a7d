"""A range of the events has the figures of the file that `cut` writes of it, and the file's names."""

from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.columns import columns_of
from snapconv.errors import InputError
from tests.builders import MIB
from tests.parted_files import CURVES, FILES, counted_job

FIXTURES = Path(__file__).parents[3] / "fixtures"


def live_bytes(device):
    """The live blocks after every event, by address."""
    table = device.allocations
    states = []
    for event in range(-1, device.n_events, max(device.n_events // 7, 1)):
        live = table.live_at(event)
        states.append(sorted(zip(table.addr[live], table.block_bytes[live], strict=True)))
    return states


@pytest.mark.parametrize("name", FILES)
def test_a_range_is_what_a_cut_file_of_it_is(name, tmp_path):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    for device in session.devices:
        n_events = device.n_events
        if n_events < 3:
            continue
        first, last = n_events // 3, 2 * n_events // 3
        whole = session.of_device(device.device.device)
        (part,) = whole.between(str(first), str(last)).devices
        path = whole.cut(str(first), str(last), output=tmp_path / "part.pickle", force=True)
        (cut,) = snapconv.load(path).of_device(device.device.device).devices
        for curve in CURVES:
            counted, read = getattr(part.replay, curve), getattr(cut.replay, curve)
            assert np.array_equal(counted.after, read.after), curve
            assert counted.peak_event == read.peak_event, curve
        assert live_bytes(part) == live_bytes(cut)
        for column, values in columns_of(part.device.events).items():
            if not column.endswith("_id"):  # which count from the file's first text or stack
                assert np.array_equal(values, getattr(cut.device.events, column)), column
        for column in ("addr", "total_bytes", "stream", "is_small"):
            expected = getattr(cut.device.segments, column)
            assert np.array_equal(getattr(part.device.segments, column), expected), column


def test_figures_are_those_of_the_range_alone(tmp_path):
    """Counted by hand: events 4 to 7 begin with 7 MiB and end with 1 MiB and 512 bytes."""
    session = snapconv.load(counted_job().write(tmp_path / "run.pickle"))
    (whole,) = session.at()
    assert (whole.event, whole.allocated_bytes) == (3, 7 * MIB)
    (late,) = session.between("5", "7").at()
    assert (late.event, late.allocated_bytes) == (4, 5 * MIB)  # just before the range
    assert late.moment == "the peak of the range"
    (end,) = session.between("5", "7").at("end")
    assert (end.event, end.n_events) == (7, 9)
    assert end.allocated_bytes == MIB + 512
    assert end.waiting_bytes == 4 * MIB
    assert [row.line.line_number for row in end.lines] == [1, 7]
    (named,) = session.between("5", "7").at("6")
    assert (named.event, named.moment) == (6, "event 6")
    with pytest.raises(InputError, match="has no event 4; it has events 5 to 7"):
        session.between("5", "7").at("4")


def test_categories_and_iterations_are_those_of_the_whole_file():
    session = snapconv.load(FIXTURES / "training_step.pickle")
    part = session.between("iteration:1", "iteration:1")
    (device,) = session.devices
    event = str((device.iterations[1].first_event + device.iterations[1].last_event) // 2)
    (expected,), (state,) = session.at(event), part.at(event)
    assert state.categories == expected.categories
    assert state.lines == expected.lines
    assert state.modules == expected.modules
    assert (state.event, state.iteration, state.phase) == (expected.event, 1, expected.phase)
    assert part.at("iteration:1")[0].event == session.at("iteration:1")[0].event
    with pytest.raises(InputError, match="has no iteration 0; it has iteration 1"):
        part.at("iteration:0")


def test_growth_of_a_range_is_that_of_its_iterations():
    """Every iteration from 2 on leaves 1.5 MiB behind: the file's own growth says so of all."""
    session = snapconv.load(FIXTURES / "growing.pickle")
    (whole,) = session.growth()[0]
    (part,) = session.between("iteration:2", "iteration:4").growth()[0]
    assert part.bytes_per_iteration == whole.bytes_per_iteration
    assert (part.first_iteration, part.last_iteration) == (2, 4)
    assert part.line == whole.line
    assert session.between("iteration:3", "iteration:4").growth()[0] == ()


def test_a_range_of_the_range_counts_on_in_the_files_own_numbers(tmp_path):
    session = snapconv.load(counted_job().write(tmp_path / "run.pickle"))
    assert session.between("0", "8").at()[0] == session.at()[0]
