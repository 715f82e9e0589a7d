"""Traces of files without segments: memory follows from the trace, exactly or as a lower bound."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapconv
from snapconv.replay.device_replay import replay
from snapconv.replay.rebuilt_segments import rebuild_segments
from snapconv.snapshot.load import SegmentSource, load_snapshot
from tests.builders import ADDR, MIB, TraceBuilder, write_anew
from tests.drawn_inputs import drawn
from tests.property.histories import histories

CURVES = ("requested", "allocated", "active", "reserved")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "snapshot.pickle"


def replayed(raw, file):
    write_anew(file, pickle.dumps({**raw, "segments": []}))
    snapshot = load_snapshot(file)
    device = rebuild_segments(snapshot, snapshot.devices[0])
    return device, replay(snapshot, device)


def device_of(builder, file, *, keep=None):
    """The analysis of a builder's file without its segments, of whose trace the newest events are kept."""
    raw = builder.snapshot(segments=[])
    raw["device_traces"] = [raw["device_traces"][0][-keep if keep else 0 :]]
    write_anew(file, pickle.dumps(raw))
    return snapconv.load(file).devices[0]


@given(
    history=histories(padding=st.just(0))
)  # only blocks at the dump show the padding of torch_npu
@settings(deadline=None, derandomize=True, max_examples=drawn(150))
def test_a_whole_trace_gives_the_true_curves_and_a_part_of_one_no_more(history, file):
    if not history.events:
        return
    device, found = replayed(history.snapshot, file)
    actions = {event.action for event in history.events}
    # Without completed frees and without segments nothing shows that a block still waits for a
    # stream.
    is_whole = not history.n_lost and (
        "free_completed" in actions or "free_requested" not in actions
    )
    curves = {name: getattr(found, name) for name in CURVES}
    for event, true in enumerate(history.totals):
        for name, curve in curves.items():
            right = getattr(true, name)
            assert curve.at(event) == right if is_whole else curve.at(event) <= right
    if is_whole:
        assert device.source is not SegmentSource.PART_OF_TRACE
        assert not found.lower_bounds


def test_a_trace_in_which_every_free_has_its_alloc_begins_with_nothing(file):
    """As MLX writes it: the trace ends with memory in use, and the file has no segments."""
    builder = (
        TraceBuilder().segment(16 * MIB).alloc(16 * MIB).segment(8 * MIB).alloc(8 * MIB).free()
    )
    found = device_of(builder, file)
    assert (found.replay.allocated.peak, found.replay.reserved.peak) == (24 * MIB, 24 * MIB)
    assert (found.replay.allocated.end, found.replay.reserved.end) == (16 * MIB, 24 * MIB)
    assert found.history.reason == "nothing was allocated before the first event"
    assert [note.slug for note in found.replay.notes] == ["no-segments"]


def test_a_trace_without_segments_of_its_own_gives_a_lower_bound_of_what_is_reserved(file):
    builder = TraceBuilder().segment(32 * MIB, traced=False).alloc(16 * MIB).free().alloc(MIB)
    found = device_of(builder, file)
    assert found.replay.allocated.peak == found.replay.reserved.peak == 16 * MIB
    assert found.replay.lower_bounds == {"reserved"}


@pytest.mark.parametrize(
    ("builder", "keep"),
    [
        (TraceBuilder().segment(32 * MIB).alloc(16 * MIB).alloc(MIB).free(ADDR), 3),
        (TraceBuilder().segment(32 * MIB).alloc(16 * MIB).alloc(MIB), 1),
        (
            TraceBuilder()
            .segment(32 * MIB)
            .alloc(MIB)
            .event("segment_free", addr=1 << 40, size=MIB),
            None,
        ),
    ],
    ids=["a free without its alloc", "no segment", "a segment that was there before"],
)
def test_a_trace_that_shows_memory_of_before_it_gives_lower_bounds(builder, keep, file):
    found = device_of(builder, file, keep=keep)
    if keep == 1:  # nothing shows that there was a segment: only what was reserved is a lower bound
        assert found.replay.lower_bounds == {"reserved"}
        return
    assert found.replay.lower_bounds == set(CURVES)
    assert found.history.reason.endswith(
        "; the file has no segments, so every figure is a lower bound"
    ) or ("; the file has no segments, so every figure is a lower bound; " in found.history.reason)


def test_a_trace_that_returned_all_its_segments_agrees_with_a_file_without_any(file):
    builder = TraceBuilder().segment(2 * MIB).alloc(MIB).free()
    builder.event("segment_free", addr=ADDR, size=2 * MIB)
    found = device_of(builder, file, keep=4)
    assert found.device.source is SegmentSource.FILE
    assert not found.replay.lower_bounds
    assert found.replay.reserved.start == 2 * MIB
