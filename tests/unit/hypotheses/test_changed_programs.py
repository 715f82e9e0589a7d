"""The peak of a changed trace against that of the changed program: both with the allocator's own blocks."""

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.answers.advice.evidence import FAULT, TRADE
from snapconv.answers.advice.findings import advise, goal_of, kept_cached
from snapconv.answers.verdict import find_verdict
from snapconv.answers.what_if.setting_trials import SavingSetting
from snapconv.classification.categories import Category
from snapconv.hypotheses import changes
from snapconv.hypotheses.allocator_calls import find_calls
from snapconv.hypotheses.changes import (
    Change,
    Demand,
    changed_calls,
    removed,
    scaled_batch,
    smaller,
)
from snapconv.hypotheses.trial import try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.writers.text.advice import advice_lines
from tests.builders import MIB, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
LOOP = [frame("main", "/home/me/project/train.py", 9)]
PRINT = [frame("main", "/home/me/project/train.py", 10)]
CALL = frame("_call_impl", "/site-packages/torch/nn/modules/module.py", 1)

# Of small pools, of shared segments, and of segments of their own, with rests that are not split
# off.
SIZES = st.sampled_from(
    [700, MIB // 2, MIB, 2 * MIB, 3 * MIB + 512, 7 * MIB, 9 * MIB, 11 * MIB, 25 * MIB]
)
# Of a change: the shares of an allocation's life at which it begins and ends, and of its bytes that
# are left.
CHANGES = st.tuples(st.floats(-0.5, 1), st.floats(0, 1.5), st.sampled_from([0, 0.3, 0.8]))


@st.composite
def programs(draw):
    """Numbers of allocations with their sizes, or without one for a free."""
    calls, live = [], []
    for number, size in enumerate(draw(st.lists(SIZES, min_size=3, max_size=25))):
        calls.append((number, size))
        live.append(number)
        for _ in range(draw(st.integers(0, 2))):
            if live:
                calls.append((live.pop(draw(st.integers(0, len(live) - 1))), None))
    return calls


def ran(calls, conf="", points=()):
    """Run calls on the allocator; ``points`` are (place, is after it, number, size) of other changes."""
    allocator, addrs = RecordedAllocator(settings=AllocatorSettings.from_conf(conf)), {}

    def resize(number, size):
        allocator.free(addrs.pop(number, 0))
        if size:
            addrs[number] = allocator.malloc(size)

    for place, (number, size) in enumerate(calls):
        for _, _, other, its_size in sorted(point for point in points if point[:2] == (place, 0)):
            resize(other, its_size)
        if size is None:
            allocator.free(addrs.pop(number, 0))
        elif (place, 0) not in {point[:2] for point in points if point[2] == number}:
            addrs[number] = allocator.malloc(size)
        for _, _, other, its_size in sorted(point for point in points if point[:2] == (place, 1)):
            resize(other, its_size)
    return allocator


def loaded(raw):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.pickle"
        path.write_bytes(pickle.dumps(raw))
        return snapconv.load(path).devices[0]


def change_of(analysis, calls, wanted, first_place, end_place):
    """Return a change of some allocations between two places, and where it changes the program's calls."""
    table, columns, points = analysis.allocations, [], []
    births = {number: place for place, (number, size) in enumerate(calls) if size is not None}
    deaths = {number: place for place, (number, size) in enumerate(calls) if size is None}
    events = {place: int(table.alloc_event[number]) for number, place in births.items()}
    events |= {place: int(table.freed_event[number]) for number, place in deaths.items()}
    for number, (begin, end, left) in wanted.items():
        born, dead = births[number], deaths.get(number, len(calls))
        first = max(born + round(begin * (dead - born)), born, first_place)
        last = min(born + round(end * (dead - born)), dead)
        if not first < last or first >= end_place or last >= end_place < len(calls):
            continue
        requested = int(table.requested_bytes[number])
        n_bytes = requested - round(requested * left) if left else 1 << 40
        columns.append(
            (number, events[first], events.get(last, len(analysis.device.events)), n_bytes)
        )
        points.append((first, 0, number, max(requested - n_bytes, 0)))
        if last < dead:
            points.append((last, 1, number, requested))
    return Change(*np.array(columns, np.int64).reshape(-1, 4).T), points


@settings(deadline=None)
@given(
    programs(), st.data(), st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20"])
)
def test_the_replay_has_the_peak_of_the_changed_program(calls, data, conf):
    n = 1 + max(number for number, _ in calls)
    wanted = data.draw(st.dictionaries(st.integers(0, n - 1), CHANGES, max_size=8))
    analysis = loaded(ran(calls, conf).snapshot())
    change, points = change_of(analysis, calls, wanted, 0, len(calls))
    demand = Demand(analysis)
    assert demand.replayed([change]).n_bytes == ran(calls, conf, points).max_allocated_bytes
    assert demand.replayed(()) == demand.peak
    # The whole replay too, with the reserved bytes.
    changed = changed_calls(demand._calls, analysis, [change])
    outcome = try_out(changed, Trial(changed.file_settings)).ledger
    assert outcome.max_reserved_bytes == ran(calls, conf, points).ledger.max_reserved_bytes


@settings(deadline=None, max_examples=60)
@given(programs(), st.data())
def test_calls_from_an_event_on_have_the_changes_from_there_on(calls, data):
    n, start = 1 + max(number for number, _ in calls), data.draw(st.integers(0, len(calls) - 1))
    wanted = data.draw(st.dictionaries(st.integers(0, n - 1), CHANGES, max_size=8))
    analysis = loaded(ran(calls).snapshot())
    number, size = calls[start]
    table = analysis.allocations
    first = int((table.freed_event if size is None else table.alloc_event)[number])
    parts = (
        (0, start),
        (start + 1, len(calls)),
    )  # what changes at once is there from the beginning
    early, late = (change_of(analysis, calls, wanted, *part) for part in parts)
    window = find_calls(analysis.snapshot, analysis.device, analysis.replay, first_event=first)
    changed = changed_calls(window, analysis, [early[0], late[0]])
    truth = ran(calls, points=late[1])
    before = len(ran(calls[:start]).history)
    most = max(event.allocated_bytes for event in truth.history[max(before - 1, 0) :])
    assert try_out(changed, Trial(changed.file_settings)).ledger.max_allocated_bytes == most


def test_what_is_over_before_the_first_call_changes_nothing():
    calls = [(0, 8 * MIB), (1, 4 * MIB), (2, 4 * MIB), (3, 2 * MIB), (3, None), (1, None)]
    analysis = loaded(ran(calls).snapshot())
    first = int(analysis.allocations.freed_event[1])
    window = find_calls(analysis.snapshot, analysis.device, analysis.replay, first_event=first)
    for row, n_bytes in ((1, MIB), (1, 1 << 40), (3, MIB)):
        born, last = analysis.allocations.alloc_event[[row, 3]].reshape(2, 1)
        change = Change(np.array([row]), born, last + 1, np.array([n_bytes]))
        changed = changed_calls(window, analysis, [change])
        assert (changed.operation.tolist(), changed.start) == (
            window.operation.tolist(),
            window.start,
        )
        assert changed.requested_bytes[:4].tolist() == window.requested_bytes.tolist()


@pytest.mark.parametrize("fails", [False, True])
def test_a_rest_that_the_changed_program_splits_off_is_saved_too(fails):
    """Of 20 MiB that are free, 15 and 4 MiB are cut: the second keeps the rest of 1 MiB, but not alone."""
    calls = [(0, 20 * MIB), (0, None), (1, 15 * MIB), (2, 4 * MIB), (3, 30 * MIB)]
    raw = ran(calls[:4] if fails else calls).snapshot()
    if fails:
        last = raw["device_traces"][0][-1]
        raw["device_traces"][0].append(last | {"action": "oom", "size": 30 * MIB, "device_free": 0})
    analysis = loaded(raw)
    demand, change = Demand(analysis), removed(analysis, np.array([1]))
    assert demand.peak.n_bytes == 50 * MIB
    assert (demand.without([change]).n_bytes, demand.replayed([change]).n_bytes) == (
        35 * MIB,
        34 * MIB,
    )


def outputs(*, deletes=False):
    """Record four outputs of 4 MiB, each freed before the next is made or after it."""
    call = [frame("forward", "/home/me/project/model.py"), CALL, *LOOP]
    allocator, previous = RecordedAllocator(), 0
    for _ in range(4):
        if deletes:
            allocator.free(previous, frames=LOOP)
        output = allocator.malloc(4 * MIB, frames=call)
        kept = allocator.malloc(11 * MIB, frames=call)
        if not deletes:
            allocator.free(previous, frames=LOOP)
        allocator.free(kept, frames=call)
        allocator.free(allocator.malloc(2 * MIB, frames=PRINT), frames=PRINT)
        previous = output
    return loaded(allocator.snapshot())


def test_a_finding_has_the_peak_of_the_program_without_the_fault():
    kept, deleted = outputs(), outputs(deletes=True)
    advice, by_sum = advise(kept), advise(kept, replays=False)
    truth = deleted.replay.allocated.peak
    assert [one.kind for one in advice.faults] == ["previous-kept"]
    assert advice.faults[0].peak.n_bytes == advice.together.n_bytes == truth
    assert advice.faults[0].saved_bytes == advice.peak.n_bytes - truth
    assert by_sum.together.n_bytes == truth + MIB


def test_the_verdict_names_a_fault_with_what_it_holds_and_its_remedy():
    """What it saves to the byte takes a longer look: the other outputs are as high."""
    found = find_verdict(outputs())
    (line,) = found.also
    assert line == (
        "likely fault: The old output is still alive while train.py:9 makes the next one "
        "(saves about 4 MiB). `del` the name that has it before train.py:9 runs."
    )
    assert found.command == "advise"
    assert list(found.faults.values()) == [4 * MIB]


def test_where_faults_reach_the_goal_nothing_is_shown_that_costs_something():
    """What grows is 7.5 MiB at the peak of this file; further down a smaller batch is needed too."""
    analysis = snapconv.load(FIXTURES / "growing.pickle").devices[0]
    near, far = (
        advise(analysis, goal_bytes=Demand(analysis).peak.n_bytes - n * MIB) for n in (5, 30)
    )
    assert {one.sort for one in near.findings} == {FAULT}
    assert {one.sort for one in far.findings} == {FAULT, TRADE}
    assert near.enough == ((1,),)


def test_a_capacity_is_enough_for_the_program_as_it_is_or_with_a_setting():
    """A segment of 30 MiB, of which 12 stay in use, serves no request of 40 MiB, unless it can grow."""
    calls = [(0, 30 * MIB), (0, None), (1, 12 * MIB), (2, 40 * MIB)]
    analysis = loaded(ran(calls).snapshot())
    assert advise(analysis).setting is None
    for capacity, has_room, is_enough in ((70, True, True), (65, False, True), (50, False, False)):
        goal = goal_of(analysis, capacity=capacity * MIB, save=None)
        advice = advise(analysis, goal_bytes=goal, capacity=capacity * MIB)
        setting = SavingSetting("expandable_segments:True", 60 * MIB, is_enough)
        assert (advice.reserved_bytes, advice.fits_already, advice.setting) == (
            70 * MIB,
            has_room,
            setting,
        )
        said = "\n".join(advice_lines(advice, "x.pickle", kept_cached(analysis), ""))
        assert ("enough        the setting alone" in said) == (is_enough and not has_room)


def test_a_share_is_one_of_the_request_and_not_of_the_block():
    calls = [(0, 20 * MIB), (0, None), (1, 16 * MIB), (2, 3 * MIB)]
    analysis = loaded(ran(calls).snapshot())
    half = smaller(analysis, np.array([2]), 0.5)
    assert (analysis.allocations.block_bytes[2], half.n_bytes[0]) == (4 * MIB, 3 * MIB // 2)


def test_what_is_there_before_the_trace_is_smaller_from_the_beginning():
    trace = (
        TraceBuilder().segment(20 * MIB, traced=False).alloc(8 * MIB, traced=False).alloc(4 * MIB)
    )
    analysis = loaded(trace.snapshot())
    assert Demand(analysis).replayed([smaller(analysis, np.array([0]), 0.5)]).n_bytes == 8 * MIB
    assert Demand(analysis).replayed([removed(analysis, np.array([0]))]).n_bytes == 4 * MIB


def test_blocks_are_those_of_the_trace_where_a_replay_misses_its_peak():
    """In a segment of 3.5 MiB, which the allocator never makes, the block has all of it."""
    trace = TraceBuilder().segment(3 * MIB + MIB // 2).alloc(3 * MIB)
    for segment in (raw := trace.snapshot())["segments"]:
        segment["blocks"][0]["size"] = segment["total_size"]
        del segment["blocks"][1:]
    analysis = loaded(raw)
    demand, change = Demand(analysis), smaller(analysis, np.array([0]), 0.5)
    assert demand.peak.n_bytes == 3 * MIB + MIB // 2
    assert demand.replayed([change]) == demand.without([change])


def test_more_changes_than_calls_are_not_replayed():
    calls = [(0, 20 * MIB), (0, None), (1, 15 * MIB), (2, 4 * MIB), (3, 30 * MIB)]
    analysis = loaded(ran(calls).snapshot())
    demand = Demand(analysis)
    for n_rows, n_bytes in ((5, 34), (6, 35)):
        change = removed(analysis, np.ones(n_rows, np.int64))
        change = replace(change, last=np.array([99, *[-1] * (n_rows - 1)]))
        assert demand.replayed([change]).n_bytes == n_bytes * MIB


def test_replays_end_with_their_number_of_calls(monkeypatch):
    """Five calls, made as they are and once more for a change: then blocks are those of the trace."""
    calls = [(0, 20 * MIB), (0, None), (1, 15 * MIB), (2, 4 * MIB), (3, 30 * MIB)]
    monkeypatch.setattr(changes, "_MOST_REPLAYED", 10)
    analysis = loaded(ran(calls).snapshot())
    demand, change = Demand(analysis), removed(analysis, np.array([1]))
    assert [demand.replayed([change]).n_bytes for _ in range(2)] == [34 * MIB, 35 * MIB]


@pytest.mark.parametrize("scale", [0.5, 0.25])
def test_a_failed_request_counts_at_its_scale(scale):
    """In forward what was never made before grows; in backward it may be a weight's gradient."""
    call = [frame("_call_impl", "/site-packages/torch/nn/modules/module.py", 1)]
    trace = TraceBuilder().segment(20 * MIB).alloc(10 * MIB).oom(30 * MIB)
    assert scaled_batch(loaded(trace.snapshot()), scale).failed_scale == 1
    trace.events[-1]["frames"] = call
    analysis = loaded(trace.snapshot())
    demand = Demand(analysis)
    assert demand.replayed(()).n_bytes == 40 * MIB
    assert demand.replayed([scaled_batch(analysis, scale)]).n_bytes == int((10 + 30 * scale) * MIB)


MOVED = [frame("_apply", "/site-packages/torch/nn/modules/module.py", 9), *LOOP]
LAYER = [frame("__init__", "/site-packages/torch/nn/modules/linear.py", 9), *LOOP]
BACKWARD = [frame("_engine_run_backward", "/site-packages/torch/autograd/graph.py", 1), *LOOP]


@pytest.mark.parametrize(
    ("earlier", "frames", "scale"),
    [
        ([], MOVED, 1),
        ([LAYER], LAYER, 1),
        ([LAYER], [CALL, *LOOP], 0.5),
        ([BACKWARD], BACKWARD, 0.5),
        ([BACKWARD], [frame("backward", "/site-packages/torch/autograd/__init__.py", 1), *LOOP], 1),
    ],
    ids=["moved", "of a weight's line", "of forward", "temporary of backward", "new in backward"],
)
def test_a_failed_request_grows_by_what_its_line_made(earlier, frames, scale):
    trace = TraceBuilder().segment(80 * MIB).alloc(10 * MIB, frames=[CALL, *LOOP])
    for stack in earlier:
        trace.alloc(4 * MIB, frames=stack).free()
    trace.oom(30 * MIB)
    trace.events[-1]["frames"] = frames
    assert scaled_batch(loaded(trace.snapshot()), 0.5).failed_scale == scale


@pytest.mark.parametrize(
    ("category", "scale"),
    [
        (Category.WEIGHT, 1),
        (Category.GRADIENT, 1),
        (Category.OPTIMIZER_STATE, 1),
        (Category.ACTIVATION, 0.5),
    ],
)
def test_a_request_that_fails_in_a_training_grows_as_what_its_line_made(category, scale):
    raw = pickle.loads((FIXTURES / "training_step.pickle").read_bytes())
    analysis = loaded(raw)
    rows = np.flatnonzero(analysis.classification.category == category)
    event = int(analysis.allocations.alloc_event[rows[len(rows) // 2]])
    (trace, *_) = raw["device_traces"]
    trace.insert(event + 1, {**trace[event], "action": "oom", "device_free": 0})
    assert scaled_batch(loaded(raw), 0.5).failed_scale == scale


@pytest.mark.parametrize(("second", "event"), [(8, 2), (6, -1)])
def test_a_peak_as_large_before_the_trace_as_within_it_is_within_it(second, event):
    """No line and no phase is known of what is before the first event."""
    trace = TraceBuilder().segment(20 * MIB, traced=False).alloc(8 * MIB, traced=False)
    analysis = loaded(trace.free().alloc(second * MIB).snapshot())
    demand = Demand(analysis)
    assert demand.peak.event == demand.replayed(()).event == event
