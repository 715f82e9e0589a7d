"""The trace of a program, tried under other settings, against the program run under these settings."""

import pickle
from pathlib import Path

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.hypotheses.allocator_calls import CallKind, find_calls
from snapconv.hypotheses.trial import capacity_at_oom, try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from tests.builders import TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture
def calls_of(tmp_path):
    """The calls that the file of a model's snapshot shows."""

    def find(model, **options):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(model.snapshot()))
        snapshot = load_snapshot(path)
        device = snapshot.devices[0]
        return find_calls(snapshot, device, replay(snapshot, device), **options)

    return find


def model(conf="", **options):
    return RecordedAllocator(settings=AllocatorSettings.from_conf(conf), **options)


def fragment(found):
    """Free the first four of eight segments of 16 MiB, then request more than any of them has."""
    blocks = [found.malloc(15 * MIB) for _ in range(8)]
    for block in blocks[:4]:
        found.free(block)
    found.malloc(45 * MIB)
    return found


def test_another_setting_gives_what_the_program_needs_under_it(calls_of):
    calls = calls_of(fragment(model()))
    outcome = try_out(calls, Trial(calls.file_settings.changed("expandable_segments:True")))
    truth = fragment(model("expandable_segments:True"))
    assert outcome.ledger.max_reserved_bytes == truth.ledger.max_reserved_bytes
    assert outcome.ledger.max_reserved_bytes < calls.reserved_after.max()
    assert outcome.ledger.n_segment_maps == truth.ledger.n_segment_maps
    assert outcome.ledger.n_segment_allocs == 0
    assert outcome.assumptions == ()


def test_a_smaller_capacity_runs_out_where_the_program_would(calls_of):
    # 46 MiB more than 128 do not fit into 150; they do after the four free segments are given back.
    calls = calls_of(fragment(model()))
    assert try_out(calls, Trial(calls.file_settings, capacity=150 * MIB)).ran_out is None
    outcome = try_out(calls, Trial(calls.file_settings, capacity=100 * MIB))
    with pytest.raises(ModelOutOfMemory):
        fragment(model(capacity=100 * MIB))
    assert outcome.ran_out is not None
    assert calls.events.size[outcome.ran_out.event] == 15 * MIB
    assert outcome.ran_out.allocated_bytes == 6 * 16 * MIB  # a rest of 1 MiB is kept


def test_a_replay_has_only_the_rows_of_its_calls_and_a_failed_request_keeps_its_own(calls_of):
    allocator = model()
    for _ in range(3):
        allocator.free(allocator.malloc(MIB))
    allocator.malloc(30 * MIB)
    allocator.malloc(40 * MIB)
    every_call = calls_of(allocator)
    calls = calls_of(allocator, first_event=int(every_call.event[every_call.row == 3][0]))
    compact, rows = calls.compact()
    assert len(calls.requested_bytes) == 5
    assert (rows.tolist(), compact.requested_bytes.tolist()) == ([3, 4], [30 * MIB, 40 * MIB])
    failed = try_out(calls, Trial(calls.file_settings, capacity=60 * MIB)).ran_out
    assert failed is not None
    assert (failed.row, failed.requested_bytes) == (4, 40 * MIB)


def test_a_failed_request_shows_what_its_pool_had(calls_of):
    found = model()
    blocks = [found.malloc(5 * MIB) for _ in range(4)]  # one segment of 20 MiB
    found.free(blocks[0])
    found.free(blocks[2])
    found.malloc(8 * MIB)
    calls = calls_of(found)
    failed = try_out(calls, Trial(calls.file_settings, capacity=30 * MIB)).ran_out
    assert failed is not None
    assert failed.requested_bytes == 8 * MIB
    assert (failed.pool_free_bytes, failed.pool_largest_bytes) == (10 * MIB, 5 * MIB)


def test_a_request_that_failed_is_tried_again(calls_of):
    found = model(capacity=150 * MIB)
    blocks = [found.malloc(15 * MIB) for _ in range(8)]  # 8 segments of 16 MiB
    with pytest.raises(ModelOutOfMemory):
        found.malloc(60 * MIB)
    for block in blocks:
        found.free(block)
    calls = calls_of(found)
    oom = next(i for i, size in enumerate(calls.events.size.tolist()) if size == 60 * MIB)
    assert capacity_at_oom(calls, oom) == 150 * MIB
    again = try_out(calls, Trial(calls.file_settings, capacity=150 * MIB))
    assert (again.failed_again, again.served) == ([oom], [])
    assert [failed.event for failed in (again.ran_out,) if failed] == [oom]
    assert again.ledger.allocated_bytes == 0  # the trace goes on: the program did
    larger = try_out(calls, Trial(calls.file_settings, capacity=200 * MIB))
    assert (larger.failed_again, larger.served, larger.ran_out) == ([], [oom], None)


def test_a_fraction_was_the_limit_where_the_device_had_the_segment_free(tmp_path):
    builder = TraceBuilder().segment(20 * MIB, segment_type="large").alloc(20 * MIB)
    path = builder.oom(30 * MIB, device_free=900 * MIB).write(tmp_path / "snapshot.pickle")
    snapshot = load_snapshot(path)
    calls = find_calls(snapshot, snapshot.devices[0], replay(snapshot, snapshot.devices[0]))
    assert capacity_at_oom(calls, 2) == 20 * MIB


def test_garbage_collection_needs_a_fraction_of_something(calls_of):
    found = model()
    for n_bytes in (30 * MIB, 40 * MIB, 50 * MIB):
        found.free(found.malloc(n_bytes))
    calls = calls_of(found)
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    # Half of a half of 200 MiB: when 50 are requested, 70 are held, and the older 30 are given
    # back.
    collected = try_out(calls, Trial(calls.file_settings.changed(conf), capacity=200 * MIB))
    assert collected.ledger.max_reserved_bytes == 90 * MIB
    without = try_out(calls, Trial(calls.file_settings.changed(conf)))
    assert without.ledger.reserved_bytes == 120 * MIB
    assert without.assumptions[0].startswith("garbage_collection_threshold did nothing")


def test_emptying_the_cache_is_tried_too(calls_of):
    found = model()
    first = found.malloc(30 * MIB)  # event 1
    found.malloc(40 * MIB)  # event 3
    found.free(first)
    found.malloc(50 * MIB)  # event 7
    calls = calls_of(found)
    for tried, most in ((calls, 120), (calls.insert([CallKind.EMPTY_CACHE], [-1], [6]), 90)):
        assert try_out(tried, Trial(calls.file_settings)).ledger.max_reserved_bytes == most * MIB


def test_empty_cache_of_the_program_is_repeated(calls_of):
    found = model()
    found.free(found.malloc(30 * MIB))
    found.empty_cache(
        frames=[{"name": "empty_cache", "filename": "torch/cuda/memory.py", "line": 1}]
    )
    found.malloc(1000)
    calls = calls_of(found)
    outcome = try_out(calls, Trial(calls.file_settings))
    assert outcome.ledger.reserved_bytes == 2 * MIB


def test_segments_given_back_because_the_device_was_full_stay_where_it_is_not(calls_of):
    found = model(capacity=50 * MIB)
    found.free(found.malloc(30 * MIB))
    found.malloc(40 * MIB)
    calls = calls_of(found)
    without = try_out(calls, Trial(calls.file_settings))
    assert without.ledger.max_reserved_bytes == 70 * MIB
    assert (
        try_out(calls, Trial(calls.file_settings, capacity=50 * MIB)).ledger.max_reserved_bytes
        == 40 * MIB
    )
    # No stack shows that it was the malloc: it may have been empty_cache().
    assert [reason for reason in without.assumptions if "not as empty_cache()" in reason]


def test_the_stack_of_the_malloc_shows_who_gave_segments_back(calls_of):
    frames = [{"name": "forward", "filename": "model.py", "line": 7}]
    found = model(capacity=50 * MIB)
    found.free(found.malloc(30 * MIB), frames=frames)
    found.malloc(40 * MIB, frames=frames)
    assert try_out(calls_of(found), Trial(AllocatorSettings())).assumptions == ()


def test_a_device_that_had_more_at_another_time_was_not_full(calls_of):
    found = model()
    found.free(found.malloc(60 * MIB))
    found.empty_cache()
    found.free(found.malloc(20 * MIB))
    found.empty_cache()
    found.malloc(30 * MIB)
    # 30 MiB would have fitted beside 20, as 60 had; beside the first 60 nothing shows that 20 would
    # have.
    outcome = try_out(calls_of(found), Trial(AllocatorSettings()))
    assert (outcome.ledger.max_reserved_bytes, outcome.ledger.reserved_bytes) == (
        60 * MIB,
        30 * MIB,
    )
    assert [text[:7] for text in outcome.assumptions] == ["1 times"]


def test_a_range_begins_with_the_memory_of_then(calls_of):
    found = model()
    first = found.malloc(30 * MIB)  # events 0, 1
    found.malloc(1000)  # events 2, 3
    found.free(first)  # events 4, 5
    found.malloc(50 * MIB)
    calls = calls_of(found, first_event=4)
    assert [segment.size for segment in calls.start.segments] == [30 * MIB, 2 * MIB]
    assert try_out(calls, Trial(calls.file_settings)).ledger.max_reserved_bytes == 82 * MIB
    other = try_out(calls, Trial(calls.file_settings.changed("expandable_segments:True")))
    assert (
        other.ledger.max_reserved_bytes == 62 * MIB
    )  # pages of 20 MiB: 40 for 30, then 60 for 50, and 2
    assert other.assumptions == (
        "2 blocks from before the trace placed anew, in the order of their addresses",
    )


def test_memory_at_addresses_below_zero_is_there_before_a_range():
    """As torch.xpu has it."""
    snapshot = load_snapshot(FIXTURES / "torch_xpu.pickle")
    (device,) = snapshot.devices
    replayed = replay(snapshot, device)
    calls = find_calls(snapshot, device, replayed, first_event=len(device.events) // 2)
    assert (len(calls.start.segments), calls.start.n_outside) == (4, 0)
    assert all(segment.addr < 0 for segment in calls.start.segments)
    outcome = try_out(calls, Trial(calls.file_settings))
    assert (outcome.ledger.max_reserved_bytes, outcome.assumptions) == (replayed.reserved.peak, ())


def test_what_is_live_before_the_trace_may_not_fit(calls_of):
    found = model()
    found.malloc(30 * MIB)
    calls = calls_of(found, first_event=2)
    outcome = try_out(calls, Trial(calls.file_settings, capacity=20 * MIB))
    assert outcome.ran_out is not None
    assert outcome.ran_out.event == -1
