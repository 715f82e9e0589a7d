"""The replay of random histories against what really happened, wherever the ring was cut.

A history knows the truth after every event; the file that is made of it shows requested sizes, the
final blocks and nothing else. What the file determines must come out to the byte; what it leaves
open must lie within the bound that the notes state.
"""

import pickle
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES
from snapconv.analysis import analyze_device
from snapconv.classification.categories import Category
from snapconv.replay.device_replay import Replay, replay
from snapconv.replay.history_verdict import Verdict, decide_history
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.snapshot.segment_table import BlockState
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
from tests.builders import write_anew
from tests.drawn_inputs import drawn
from tests.property.histories import (
    CONFS,
    Call,
    History,
    Program,
    calls,
    histories,
    run,
    seeded_program,
    without_keys,
)
from tests.property.oracle import NOTHING

ALL_SEEDS = range(80)
SEEDS = range(drawn(80))
MIB = 1 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
any_history = settings(deadline=None, derandomize=True, max_examples=drawn(150))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("histories") / "snapshot.pickle"


@dataclass(frozen=True)
class Replayed:
    """A history with what the library made of its file."""

    history: History
    snapshot: Snapshot
    device: DeviceSnapshot
    replay: Replay


def replayed(history: History, file) -> Replayed:
    write_anew(file, pickle.dumps(history.snapshot))
    snapshot = load_snapshot(file)
    return Replayed(history, snapshot, snapshot.devices[0], replay(snapshot, snapshot.devices[0]))


def cut(history: History, n_lost: int) -> History:
    """The same history after the ring has dropped this many more of its events."""
    snapshot = {**history.snapshot, "device_traces": [history.trace[n_lost:]]}
    return replace(history, snapshot=snapshot, events=history.events[n_lost:])


def with_trace(history: History, trace) -> History:
    return replace(history, snapshot={**history.snapshot, "device_traces": [list(trace)]})


def tells_padding(made: Replayed) -> bool:
    """Whether the blocks at the dump say that torch_npu wrote the file, if it did."""
    return (
        made.replay.rules.settings.padding_bytes == made.history.program.padding
        or not made.history.program.padding
    )


def pending_before(history: History) -> dict[int, int]:
    """The blocks whose free was requested, but not completed, before the first kept event: their sizes."""
    blocks = history.blocks_before
    requested: set[int] = set()
    for event in history.complete[: history.n_lost]:
        if event.action == "free_requested":
            requested.add(event.addr)
        elif event.action == "free_completed":
            requested.discard(event.addr)
    return {addr: blocks[addr].block_bytes or 0 for addr in requested}


def true_curves(history: History) -> dict[str, np.ndarray]:
    """The truth before the first event and after each, by curve.

    A block whose free was requested before the first event counts as allocated until that
    completes.
    """
    totals = np.array([history.totals_before, *history.totals], np.int64)
    true = dict(zip(("requested", "allocated", "active", "reserved"), totals.T.copy(), strict=True))
    waiting = pending_before(history)
    true["allocated"][0] += sum(waiting.values())
    for i, event in enumerate(history.events, 1):
        if event.action == "free_completed":
            waiting.pop(event.addr, None)
        true["allocated"][i] += sum(waiting.values())
    return true


def found_curves(found: Replay) -> dict[str, np.ndarray]:
    names = ("requested", "allocated", "active", "reserved")
    return {
        name: np.array([getattr(found, name).start, *getattr(found, name).after]) for name in names
    }


def stated_bound(found: Replay) -> float:
    """How much higher the notes say that allocated and active bytes may be."""
    for note in found.notes:
        if note.slug == "inexact-block-sizes":
            value, unit = re.search(r"up to (-?[\d.]+) (\w+) higher", note.message).groups()
            return (float(value) + 0.005) * UNITS[unit]
    return 0


def check_sizes(made: Replayed):
    """Every traced alloc, and every older block that is called exact, has its true size."""
    history, rows = made.history, made.replay.allocations
    traced = rows.alloc_event >= 0
    sizes = dict(
        zip(rows.alloc_event[traced].tolist(), rows.block_bytes[traced].tolist(), strict=True)
    )
    assert sizes == history.block_bytes
    assert rows.is_exact[traced].all()
    before = history.blocks_before
    columns = (rows.addr, rows.requested_bytes, rows.block_bytes, rows.is_exact)
    older = list(zip(*(column[~traced].tolist() for column in columns), strict=True))
    assert [addr for addr, *_ in older] == sorted(before)
    for addr, requested, block_bytes, is_exact in older:
        assert requested == before[addr].size
        assert block_bytes == before[addr].block_bytes or (
            not is_exact and block_bytes < before[addr].block_bytes
        )


def check_size_check(made: Replayed):
    """Every traced block that is live at the dump is checked, and none differs."""
    rows, found = made.replay.allocations, made.replay.size_check
    is_checked = (rows.alloc_event >= 0) & (rows.end_event < 0)
    assert (found.n_checked, found.n_different) == (np.count_nonzero(is_checked), 0)


def check_curves(made: Replayed):
    true, found = true_curves(made.history), found_curves(made.replay)
    bound = stated_bound(made.replay)
    assert bool(bound) == (not made.replay.allocations.is_exact.all())
    for name in ("requested", "reserved"):
        assert found[name].tolist() == true[name].tolist()
    for name in ("allocated", "active"):
        too_low = true[name] - found[name]
        assert too_low.min() >= 0
        assert too_low.max() <= bound


def check_ends(made: Replayed):
    """The curves end with what the segments hold."""
    blocks, found = made.device.blocks, made.replay
    is_live = blocks.state != BlockState.INACTIVE
    assert found.requested.end == blocks.requested_bytes[is_live].sum()
    assert found.active.end == blocks.block_bytes[is_live].sum()
    assert found.reserved.end == made.device.segments.total_bytes.sum()
    live_before = pending_before(made.history)
    waiting = [
        a for a in blocks.addr[blocks.state == BlockState.PENDING_FREE].tolist() if a in live_before
    ]
    in_use = blocks.block_bytes[blocks.state == BlockState.ACTIVE].sum()
    completed = {event.addr for event in made.history.events if event.action == "free_completed"}
    assert found.allocated.end == in_use + sum(
        live_before[a] for a in waiting if a not in completed
    )


def check_order(made: Replayed):
    """Reserved bytes hold active ones, and these the allocated and the requested ones."""
    found = found_curves(made.replay)
    assert (found["reserved"] >= found["active"]).all()
    assert (found["active"] >= found["allocated"]).all()
    assert (found["active"] >= found["requested"]).all()
    assert (found["requested"] >= 0).all()
    rows = made.replay.allocations
    assert (rows.block_bytes >= made.replay.rules.rounded(rows.requested_bytes)).all()


def check_verdict(made: Replayed):
    history = made.history
    verdict = decide_history(made.snapshot, made.device, made.replay).verdict
    if not history.events:
        assert verdict is Verdict.NO_TRACE
    elif history.totals_before == NOTHING:
        assert verdict is Verdict.COMPLETE
    else:
        assert verdict in (Verdict.STARTED_LATE, Verdict.TRUNCATED)
        assert history.n_lost > 0


def check_categories(made: Replayed):
    """At every event the categories, the unknown included, hold what is allocated: no more, no less."""
    project = find_project(made.snapshot.stacks)
    analysis = analyze_device(made.snapshot, made.device, StackFacts(made.snapshot.stacks, project))
    rows, category = analysis.allocations, analysis.classification.category
    total = analysis.replay.allocated
    for event in range(-1, len(made.history.events)):
        live = rows.live_at(event)
        held = np.bincount(category[live], rows.block_bytes[live], minlength=len(Category))
        assert int(held.sum()) == total.at(event)


def check(made: Replayed):
    check_sizes(made)
    check_size_check(made)
    check_curves(made)
    check_ends(made)
    check_order(made)
    check_verdict(made)


def determined(history: History, file) -> Replayed | None:
    """The history replayed, or None where its file leaves more open than the notes can say."""
    made = replayed(history, file)
    return made if tells_padding(made) else None


@any_history
@given(history=histories())
def test_any_history_is_replayed_to_the_byte(history, file):
    made = determined(history, file)
    assume(made)
    check(made)
    check_categories(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seeded_history_is_replayed_to_the_byte(seed, file):
    if made := determined(run(seeded_program(seed)), file):
        check(made)


def test_most_seeded_histories_are_determined(file):
    found = [determined(run(seeded_program(seed)), file) for seed in ALL_SEEDS]
    assert sum(made is not None for made in found) > 70
    assert sum(not made.replay.allocations.is_exact.all() for made in found if made) > 5
    assert sum(bool(made.history.n_lost) for made in found if made) > 20


def without_settings(history: History) -> History:
    """The file of torch_npu, or of a torch that wrote no settings yet."""
    raw = {key: value for key, value in history.snapshot.items() if key != "allocator_settings"}
    return replace(history, snapshot=raw)


# What the settings change about sizes, besides expandable segments, no file shows without them.
EXPANDABLE_CONFS = ("expandable_segments:True", "expandable_segments:True,max_split_size_mb:32")


# Large requests that leave up to 1 MiB of their pages: an ordinary segment would not split that
# off.
ALMOST_PAGES = st.builds(
    lambda n_pages, rest: Call("malloc", 20 * MIB * n_pages - rest),
    st.integers(1, 3),
    st.integers(0, MIB),
)


@any_history
@given(
    history=histories(
        calls=st.lists(calls() | ALMOST_PAGES, max_size=60).map(tuple),
        conf=st.sampled_from(EXPANDABLE_CONFS),
    )
)
def test_without_settings_the_segments_and_events_show_that_they_are_expandable(history, file):
    made = determined(without_settings(history), file)
    assume(made)
    check(made)


@pytest.mark.parametrize("padding", [0, NPU_PADDING_BYTES])
@pytest.mark.parametrize("seed", SEEDS[::4])
def test_a_seeded_history_of_expandable_segments_is_replayed_without_settings(seed, padding, file):
    program = replace(seeded_program(seed), conf=EXPANDABLE_CONFS[0], padding=padding)
    if made := determined(without_settings(run(program)), file):
        check(made)


def with_the_opposite_setting(history: History) -> History:
    """The file of a program that changed the setting just before the dump."""
    raw = dict(history.snapshot["allocator_settings"])
    raw["expandable_segments"] = not raw["expandable_segments"]
    return replace(history, snapshot={**history.snapshot, "allocator_settings": raw})


@any_history
@given(
    history=histories(
        calls=st.lists(calls() | ALMOST_PAGES, max_size=60).map(tuple), padding=st.just(0)
    )
)
def test_live_blocks_count_before_a_setting_that_they_contradict(history, file):
    made = replayed(with_the_opposite_setting(history), file)
    check_size_check(made)
    if made.replay.size_check.is_other_split_rule:
        check(made)


@pytest.mark.parametrize("conf", CONFS)
def test_the_ring_may_be_cut_at_any_point(conf, file):
    seed = CONFS.index(conf)
    whole = run(
        replace(
            seeded_program(seed, 90), conf=conf, padding=0, record_from=0, keep=None, n_streams=3
        )
    )
    n_checked, step = 0, 3 // drawn(3)
    for n_lost in range(seed % step, len(whole.events) + 1, step):
        if made := determined(cut(whole, n_lost), file):
            check(made)
            n_checked += 1
    assert n_checked > 50 // step


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_categories_sum_to_the_allocated_bytes_at_every_event(seed, file):
    check_categories(replayed(run(seeded_program(seed)), file))


@pytest.mark.parametrize("seed", SEEDS[::8])
def test_older_files_without_times_and_pools_give_the_same_replay(seed, file):
    history = run(seeded_program(seed))
    older = replayed(without_keys(history, "time_us", "pool_id", "frames"), file).replay
    newer = replayed(history, file).replay
    for name, curve in found_curves(newer).items():
        assert found_curves(older)[name].tolist() == curve.tolist()
    assert older.allocations.block_bytes.tolist() == newer.allocations.block_bytes.tolist()


@pytest.mark.parametrize("seed", SEEDS[::8])
def test_devices_of_one_file_are_replayed_each_for_itself(seed, file):
    first, second = run(seeded_program(seed)), run(seeded_program(seed))
    alone = found_curves(replayed(first, file).replay)
    both = {
        **first.snapshot,
        "segments": first.snapshot["segments"]
        + [{**raw, "device": 2} for raw in second.snapshot["segments"]],
        "device_traces": [first.trace, [], second.trace],
    }
    write_anew(file, pickle.dumps(both))
    snapshot = load_snapshot(file)
    assert [device.device for device in snapshot.devices] == [0, 2]
    for device in snapshot.devices:
        assert {k: v.tolist() for k, v in found_curves(replay(snapshot, device)).items()} == {
            k: v.tolist() for k, v in alone.items()
        }


def simple_program(seed: int) -> Program:
    """A program of which no free has to wait, and which is recorded from the start."""
    program = seeded_program(seed, 150)
    calls = tuple(call for call in program.calls if call.kind != "share")
    return replace(program, calls=calls, padding=0, record_from=0, keep=None)


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_free_requested_stands_in_for_completions_that_were_not_recorded(seed, file):
    history = run(simple_program(seed))
    kept = [i for i, event in enumerate(history.events) if event.action != "free_completed"]
    made = replayed(with_trace(history, [history.trace[i] for i in kept]), file)
    true = true_curves(history)
    # What a request frees is complete one event later; the truth of that event belongs here.
    then = [i + (history.events[i].action == "free_requested") for i in kept]
    for name, curve in found_curves(made.replay).items():
        assert curve[1:].tolist() == [true[name][i + 1] for i in then]
    assert any(note.slug == "skipped-actions" for note in made.replay.notes) == (
        len(kept) < len(history.events)
    )


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_completions_alone_determine_all_but_the_allocated_bytes(seed, file):
    history = run(replace(seeded_program(seed, 150), padding=0, n_streams=3))
    kept = [i for i, event in enumerate(history.events) if event.action != "free_requested"]
    made = replayed(with_trace(history, [history.trace[i] for i in kept]), file)
    true, found = true_curves(history), found_curves(made.replay)
    for name in ("requested", "reserved"):
        assert found[name][1:].tolist() == [true[name][i + 1] for i in kept]
    if made.replay.allocations.is_exact.all():
        assert found["active"][1:].tolist() == [true["active"][i + 1] for i in kept]


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_a_merged_free_counts_as_both_halves(seed, file):
    history = run(simple_program(seed))
    kept = [i for i, event in enumerate(history.events) if event.action != "free_requested"]
    merged = [
        {**history.trace[i], "action": "free"}
        if history.events[i].action == "free_completed"
        else history.trace[i]
        for i in kept
    ]
    made = replayed(with_trace(history, merged), file)
    true = true_curves(history)
    for name, curve in found_curves(made.replay).items():
        assert curve.tolist() == [true[name][0], *(true[name][i + 1] for i in kept)]


@any_history
@given(
    amounts=st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_the_peak_is_that_of_the_allocator_itself(amounts, order, file):
    calls = [Call("malloc", n) for n in amounts] + [
        Call("free", order.randrange(99)) for _ in amounts
    ]
    history = run(Program(calls=(*calls, Call("malloc", 512))))
    made = determined(history, file)
    assume(made)
    assert made.replay.allocated.peak == max(total.allocated for total in history.totals)
    first = next(
        i for i, t in enumerate(history.totals) if t.allocated == made.replay.allocated.peak
    )
    assert made.replay.allocated.peak_event == first
