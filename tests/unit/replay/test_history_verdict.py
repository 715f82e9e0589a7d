"""The verdict on a trace, with the sentence that supports it."""

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from snapconv.replay.device_replay import replay
from snapconv.replay.history_verdict import Verdict, decide_history
from snapconv.snapshot.load import load_snapshot
from tests.builders import START_US, TraceBuilder
from tests.metadata_builder import metadata


@pytest.fixture
def decided(tmp_path):
    def decided(builder, keep=None, **fields):
        """Decide on a builder's snapshot, of which the ring kept the newest ``keep`` events."""
        raw = builder.snapshot(**fields)
        if keep is not None:
            raw["device_traces"] = [raw["device_traces"][0][-keep:]]
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(raw))
        snapshot = load_snapshot(path)
        device = snapshot.devices[0]
        found = decide_history(snapshot, device, replay(snapshot, device))
        return found.verdict, found.reason

    return decided


def started_late(n_events):
    """A segment and a block from before the trace, and then this many events."""
    builder = TraceBuilder().segment(traced=False).alloc(1000, traced=False)
    for _ in range(n_events // 3):
        builder.alloc(512).free()
    while len(builder.events) < n_events:
        builder.event("snapshot")
    return builder


def test_a_file_without_events_has_no_trace(decided):
    verdict, reason = decided(TraceBuilder().segment(traced=False).alloc(512, traced=False))
    assert verdict is Verdict.NO_TRACE
    assert "only the memory at the dump" in reason
    assert decided(TraceBuilder())[0] is Verdict.NO_TRACE


def test_a_trace_before_which_there_was_nothing_is_complete(decided):
    verdict, reason = decided(TraceBuilder().segment().alloc(512).free().alloc(1000))
    assert verdict is Verdict.COMPLETE
    assert reason == "nothing was allocated before the first event"


@pytest.mark.parametrize("n_events", [1024, 10_000])
def test_a_complete_trace_may_have_any_length(decided, n_events):
    builder = TraceBuilder().segment()
    while len(builder.events) < n_events:
        builder.event("snapshot")
    assert decided(builder)[0] is Verdict.COMPLETE


def test_memory_that_was_reserved_before_shows_a_late_start(decided):
    verdict, reason = decided(TraceBuilder().segment(traced=False).alloc(512))
    assert verdict is Verdict.STARTED_LATE
    assert "2.00 MiB were reserved already" in reason


def test_blocks_from_before_show_a_late_start_and_are_counted(decided):
    builder = (
        TraceBuilder()
        .segment(traced=False)
        .alloc(1000, traced=False)
        .alloc(500, traced=False)
        .free()
    )
    verdict, reason = decided(builder)
    assert verdict is Verdict.STARTED_LATE
    assert reason.startswith("2 blocks (1.46 KiB requested) were allocated before the first event")
    assert "1 of them (500 B) freed in the trace" in reason
    assert "probably did not overflow" in reason


def test_a_preexisting_block_that_was_freed_is_enough_for_a_late_start(decided):
    builder = TraceBuilder().segment().alloc(1000).free()
    assert decided(builder, keep=2)[0] is Verdict.STARTED_LATE


@pytest.mark.parametrize("n_events", [1024, 10_000])
def test_a_late_trace_of_a_usual_length_is_truncated(decided, n_events):
    verdict, reason = decided(started_late(n_events))
    assert verdict is Verdict.TRUNCATED
    assert f"exactly {n_events} events" in reason


# What torch's docs, torchtitan and Megatron-LM name, and round numbers of the same size.
LIMITS = [10**n * digit for n in (5, 6) for digit in (1, 2, 5)] + [10_000_000]


@pytest.mark.parametrize("beside", [-1, 0, 1])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_late_trace_is_truncated_where_it_has_just_as_many_events_as_people_let_it_have(
    tmp_path, limit, beside
):
    snapshot = load_snapshot(started_late(3).write(tmp_path / "snapshot.pickle"))
    (device,) = snapshot.devices
    first = device.events
    long = {  # columns that repeat one value without memory for it
        field.name: np.broadcast_to(column[:1], limit + beside)
        for field in fields(first)
        if (column := getattr(first, field.name)) is not None
    }
    late = replace(device, events=replace(first, **long))
    found = decide_history(snapshot, late, replay(snapshot, device))
    assert found.verdict is (Verdict.STARTED_LATE if beside else Verdict.TRUNCATED)


@pytest.mark.parametrize("n_events", [2, 512, 1000, 1023, 1025, 9_999])
def test_a_late_trace_of_another_length_is_not_called_truncated(decided, n_events):
    assert decided(started_late(n_events))[0] is Verdict.STARTED_LATE


def test_a_trace_that_begins_with_the_second_half_of_a_free_is_truncated(decided):
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).free()
    verdict, reason = decided(builder, keep=4)
    assert verdict is Verdict.TRUNCATED
    assert "second half of a free" in reason


def test_where_other_frees_waited_the_first_one_may_have_waited_too(decided):
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).free()
    builder.events[-1:-1] = [dict(builder.events[-1], action="snapshot", addr=0, size=0)]
    verdict, reason = decided(builder, keep=5)
    assert verdict is Verdict.STARTED_LATE
    assert "1 of them (1000 B) freed in the trace" in reason


def test_a_request_for_another_block_is_no_first_half_of_the_free_that_follows_it(decided):
    """Every completion here follows the request for a later block: frees wait, so the first one may have."""
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).alloc(512).alloc(512)
    first, second, third = (event["addr"] for event in builder.events if event["size"] == 512)
    for action, addr in [
        ("free_requested", first),
        *[("free_requested", second), ("free_completed", first)],
        *[("free_requested", third), ("free_completed", second)],
    ]:
        builder.event(action, addr=addr, size=512)
    builder._live.clear()
    assert decided(builder, keep=9)[0] is Verdict.STARTED_LATE


def test_events_of_unknown_kinds_do_not_part_the_halves_of_a_free(decided):
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).free()
    unknown = dict(builder.events[0], action="of_a_later_torch", addr=0, size=0)
    for place in (
        -1,
        -4,
    ):  # between the halves of the last free, and before what is left of the first one
        builder.events.insert(place, unknown)
    verdict, reason = decided(builder, keep=6)
    assert verdict is Verdict.TRUNCATED
    assert "second half of a free" in reason


def test_a_trace_that_has_no_first_halves_lost_none(decided):
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).free()
    raw = builder.snapshot()
    kept = [event for event in raw["device_traces"][0] if event["action"] != "free_requested"]
    builder.events = kept
    assert decided(builder, keep=3)[0] is Verdict.STARTED_LATE


def test_one_event_is_what_history_kept_as_state_leaves(decided):
    verdict, reason = decided(TraceBuilder().segment().alloc(1000).free(), keep=1)
    assert verdict is Verdict.STARTED_LATE
    assert "one event" in reason


@pytest.mark.parametrize("where", ["top", "settings"])
@pytest.mark.parametrize("flag", [True, [True]], ids=["one", "per device"])
def test_the_file_may_show_itself_that_events_are_lost(decided, where, flag):
    said = {"trace_alloc_overflowed": flag}
    fields = said if where == "top" else {"allocator_settings": said}
    verdict, reason = decided(TraceBuilder().segment().alloc(512), **fields)
    assert verdict is Verdict.TRUNCATED
    assert reason.startswith("according to the file, its ring buffer overflowed")


def test_the_file_may_show_itself_that_no_event_is_lost(decided):
    builder = TraceBuilder().segment().alloc(1000).free().alloc(512).free()
    assert decided(builder, keep=4)[0] is Verdict.TRUNCATED
    assert decided(builder, keep=4, trace_alloc_overflowed=False)[0] is Verdict.STARTED_LATE


def test_beside_the_proof_of_a_loss_stands_what_was_live_before(decided):
    builder = TraceBuilder().segment().alloc(512)
    assert decided(builder, trace_alloc_overflowed=True)[1].endswith(
        "; nothing was live before the first event"
    )
    late = builder.alloc(512, traced=False)
    _, reason = decided(late, trace_alloc_overflowed=True)
    assert "; 1 block (512 B requested) was allocated before the first event" in reason


def test_what_the_file_shows_goes_before_the_length_of_the_trace(decided):
    assert decided(started_late(1024), trace_alloc_overflowed=False)[0] is Verdict.STARTED_LATE


def test_a_trace_in_which_events_are_missing_is_not_complete(decided):
    builder = TraceBuilder().segment().alloc(512).free()
    freed = builder.events[-2:]
    for event in freed:
        builder.event(event["action"], addr=event["addr"], size=512)
    verdict, reason = decided(builder)
    assert verdict is Verdict.TRUNCATED
    assert "1 allocs or frees are missing" in reason


def test_an_alloc_at_a_live_address_shows_a_missing_free(decided):
    builder = TraceBuilder().segment().alloc(512)
    builder.events.append(dict(builder.events[-1]))
    verdict, reason = decided(builder)
    assert verdict is Verdict.TRUNCATED
    assert "1 allocs or frees are missing" in reason


@pytest.mark.parametrize(
    ("ended", "goes_on"), [("complete", True), ("exception", False), ("aborted", False)]
)
def test_of_a_capture_the_verdict_shows_how_far_the_recording_went(decided, ended, goes_on):
    """A program that goes on may need more later; one that ended early has a note of its own."""
    marks = [
        {"iteration": number, "kind": "memory", "began_us": START_US, "ended_us": START_US + 9}
        for number in (0, 1)
    ]
    recorded = metadata(iterations=marks, ended={"how": ended, "detail": ""})
    verdict, reason = decided(TraceBuilder().segment().alloc(512).free(), snapconv=recorded)
    assert verdict is Verdict.COMPLETE
    assert ("up to the end of its iteration 1, and may have gone on" in reason) is goes_on
