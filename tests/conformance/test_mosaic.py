"""Parts of files as mosaic (github.com/facebookresearch/mosaic) reads them: its curves are ours.

Its curve begins with zero at the first event, counts requested bytes, and ends an allocation when its
memory can be reused. What no event of a file touches it calls static, from the blocks of segments.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest

import snapconv
from tests.builders import MIB
from tests.parted_files import FILES, counted_job

_reader = pytest.importorskip(
    "mosaic.libmosaic.analyzer.memory_snapshot", reason="mosaic is not importable"
)

pytestmark = pytest.mark.smoke("viewer")

FIXTURES = Path(__file__).parents[2] / "fixtures"


def read_by_mosaic(path):
    snapshot = _reader.MemorySnapshot(str(path))
    snapshot.load_memory_snapshot()
    return snapshot


def curve_of_mosaic(snapshot, device, begin=-1, end=-1):
    """Its bytes in use by time; of several events at one time the last one counts."""
    snapshot.stat_memory_usage_range(device, begin, end)
    return {time: usage.value for time, usage in snapshot.memory_usage_history.items()}


def curve_of_ours(analysis, first, last):
    """Our bytes in use by time, from zero before the first event."""
    table = analysis.allocations
    change = np.zeros(analysis.n_events, np.int64)
    for events, sign in ((table.alloc_event, 1), (table.end_event, -1)):
        is_event = (events >= 0) & (events < analysis.n_events)
        np.add.at(change, events[is_event], sign * table.requested_bytes[is_event])
    times = analysis.device.events.time_us[first : last + 1].tolist()
    return dict(zip(times, change[first : last + 1].cumsum().tolist(), strict=True))


def parts_of(session):
    """The middle third of each device's events, begun and ended where the time changes."""
    for analysis in session.devices:
        device, events = int(analysis.device.device), analysis.device.events
        if device >= 0 and analysis.n_events >= 3 and events.time_us is not None:
            times, third = events.time_us, analysis.n_events // 3
            first = int(np.searchsorted(times, times[third]))
            last = int(np.searchsorted(times, times[2 * third], side="right")) - 1
            yield device, analysis, first, last


@pytest.mark.parametrize("name", FILES)
def test_the_curve_of_a_part_is_that_of_the_whole_and_ours(name, tmp_path):
    path = FIXTURES / f"{name}.pickle"
    session, whole = snapconv.load(path), read_by_mosaic(path)
    parts = list(parts_of(session))
    if not parts:
        pytest.skip("no device has times, which mosaic needs")
    for device, analysis, first, last in parts:
        part = session.of_device(device).cut(
            str(first), str(last), output=tmp_path / "part.pickle", force=True
        )
        times = analysis.device.events.time_us
        curve = curve_of_mosaic(read_by_mosaic(part), device)
        assert curve == curve_of_ours(analysis, first, last)
        if name != "reordered_ring":  # of which mosaic reads the end before the beginning
            assert curve == curve_of_mosaic(whole, device, int(times[first]), int(times[last]))
        assert len(set(curve.values())) > 1


@pytest.mark.parametrize("name", ["training_step", "growing", "late_start", "torch_2_13"])
def test_what_no_event_of_a_part_touches_is_in_its_segments(name, tmp_path):
    session = snapconv.load(FIXTURES / f"{name}.pickle")
    ((device, analysis, first, last),) = parts_of(session)
    snapshot = read_by_mosaic(
        session.of_device(device).cut(str(first), str(last), output=tmp_path / "part.pickle")
    )
    snapshot.analyze_memory_snapshot(opt="memory_peak")
    table = analysis.allocations
    is_live = table.live_at(first - 1) & table.live_at(last)
    touched = {event["addr"] for event in snapshot.snapshot_data["device_traces"][device]}
    is_static = is_live & ~np.isin(table.addr, list(touched))
    assert snapshot.static_memory == table.block_bytes[is_static].sum() > 0


def test_the_peak_of_a_part_is_counted_by_hand(tmp_path):
    """1 MiB is before the part; in it 2 and 4 MiB are allocated, and 2 MiB freed."""
    path = counted_job().write(tmp_path / "run.pickle")
    part = snapconv.load(path).cut("2", "6", output=tmp_path / "part.pickle")
    snapshot = read_by_mosaic(part)
    snapshot.analyze_memory_snapshot(opt="memory_peak")
    assert (snapshot.dynamic_memory_peak, snapshot.static_memory) == (6 * MIB, MIB)
    assert sorted(e["size"] for e in snapshot.memory_usage_call_stack.values()) == [
        2 * MIB,
        4 * MIB,
    ]
    names = [event.call_stack[0]["name"] for event in snapshot.call_stack_hash_set.values()]
    assert sorted(names) == ["make_2", "make_4"]
    assert pickle.loads(part.read_bytes())["device_traces"][0][0]["action"] == "alloc"
