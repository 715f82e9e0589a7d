"""Events paired into allocations, also where events are missing. Events count from 0."""

from dataclasses import replace

import numpy as np
import pytest

from snapconv.replay.lifetimes import pair_events, real_events
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.segment_table import BlockState, BlockTable
from tests.tables import table, trace

A, B, C = 0x7F0000000000, 0x7F0000000200, 0x7F0000000400
FAR = -(1 << 47)  # 0xffff800000000000
ACTIVE, PENDING, INACTIVE = BlockState.ACTIVE, BlockState.PENDING_FREE, BlockState.INACTIVE


def final_blocks(*rows) -> BlockTable:
    """Blocks of (address, state)."""
    addrs, states = zip(*rows, strict=True) if rows else ((), ())
    return table(BlockTable, len(rows), addr=addrs, state=states)


def pair(*events, blocks=()):
    return pair_events(trace(*events), final_blocks(*blocks))


def rows(found):
    """The lifetimes as (address, alloc, free requested, free completed, end)."""
    columns = (
        found.addr,
        found.alloc_event,
        found.free_requested_event,
        found.free_completed_event,
        found.end_event,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def counts(found):
    return found.n_orphan_frees, found.n_implicit_frees, found.n_missing_from_segments


def test_an_allocation_ends_where_its_free_completes():
    found = pair(("alloc", A), ("free_requested", A), ("free_completed", A))
    assert rows(found) == [(A, 0, 1, 2, 2)]
    assert counts(found) == (0, 0, 0)


def test_a_deferred_free_is_paired_over_other_events():
    found = pair(
        ("alloc", A), ("free_requested", A), ("alloc", B), ("free_completed", A), blocks=[(B, ACTIVE)]
    )
    assert rows(found) == [(A, 0, 1, 3, 3), (B, 2, -1, -1, -1)]


def test_what_is_live_at_the_dump_is_tied_to_its_block():
    found = pair(("alloc", B), blocks=[(A, INACTIVE), (B, ACTIVE)])
    assert rows(found) == [(B, 0, -1, -1, -1)]
    assert found.block_id.tolist() == [1]


def test_an_address_that_is_used_again_is_another_allocation():
    found = pair(
        *[("alloc", A), ("free_requested", A), ("free_completed", A)] * 2, ("alloc", A), blocks=[(A, ACTIVE)]
    )
    assert rows(found) == [(A, 0, 1, 2, 2), (A, 3, 4, 5, 5), (A, 6, -1, -1, -1)]
    assert found.block_id.tolist() == [-1, -1, 0]
    assert counts(found) == (0, 0, 0)


def test_a_free_without_alloc_is_that_of_a_pre_existing_block():
    found = pair(("free_requested", A), ("free_completed", A))
    assert rows(found) == [(A, -1, 0, 1, 1)]
    assert counts(found) == (0, 0, 0)


def test_a_completion_without_request_ends_a_pre_existing_block():
    found = pair(("free_completed", A), ("alloc", A), ("free_requested", A), ("free_completed", A))
    assert rows(found) == [(A, -1, -1, 0, 0), (A, 1, 2, 3, 3)]


def test_a_live_block_that_was_never_allocated_is_pre_existing():
    found = pair(("alloc", B), blocks=[(A, ACTIVE), (B, ACTIVE), (C, INACTIVE)])
    assert rows(found) == [(A, -1, -1, -1, -1), (B, 0, -1, -1, -1)]
    assert found.block_id.tolist() == [0, 1]


def test_without_events_the_live_blocks_are_all():
    found = pair(blocks=[(A, ACTIVE), (B, INACTIVE), (C, PENDING)])
    assert rows(found) == [(A, -1, -1, -1, -1), (C, -1, -1, -1, -1)]
    assert len(pair()) == 0
    assert counts(pair()) == (0, 0, 0)


def test_pre_existing_ones_come_first_by_address_then_traced_ones_by_event():
    found = pair(
        *[("alloc", C), ("free_requested", B), ("free_completed", B), ("alloc", B)],
        blocks=[(A, ACTIVE), (B, ACTIVE), (C, ACTIVE)],
    )
    assert [(addr, alloc) for addr, alloc, *_ in rows(found)] == [(A, -1), (B, -1), (C, 0), (B, 3)]


def test_a_block_pending_at_the_dump_has_a_request_and_no_end():
    events = [("alloc", A), ("alloc", B), ("free_requested", A), ("free_requested", B), ("free_completed", B)]
    found = pair(*events, blocks=[(A, PENDING)])
    assert rows(found) == [(A, 0, 2, -1, -1), (B, 1, 3, 4, 4)]
    assert found.block_id.tolist() == [0, -1]


def test_a_pre_existing_block_may_be_pending_at_the_dump():
    events = [("free_requested", A), ("alloc", B), ("free_requested", B), ("free_completed", B)]
    found = pair(*events, blocks=[(A, PENDING)])
    assert rows(found) == [(A, -1, 0, -1, -1), (B, 1, 2, 3, 3)]


def test_without_any_completion_a_request_ends_the_allocation():
    found = pair(
        ("free_requested", A), ("alloc", B), ("free_requested", B), ("alloc", B), blocks=[(B, ACTIVE)]
    )
    assert rows(found) == [(A, -1, 0, -1, 0), (B, 1, 2, -1, 2), (B, 3, -1, -1, -1)]
    assert counts(found) == (0, 0, 0)


def test_a_block_that_the_dump_shows_as_pending_has_not_ended():
    found = pair(("alloc", A), ("free_requested", A), blocks=[(A, PENDING)])
    assert rows(found) == [(A, 0, 1, -1, -1)]


def test_a_pre_existing_block_that_only_waits_is_counted_once():
    found = pair(("free_requested", A), blocks=[(A, PENDING)])
    assert rows(found) == [(A, -1, 0, -1, -1)]


def test_of_several_requests_at_one_address_only_the_last_one_waits():
    found = pair(*[("alloc", A), ("free_requested", A)] * 2, blocks=[(A, PENDING)])
    assert rows(found) == [(A, 0, 1, -1, 1), (A, 2, 3, -1, -1)]
    assert counts(found) == (0, 0, 0)


def test_at_each_address_another_request_may_wait():
    found = pair(
        *[("alloc", A), ("free_requested", A), ("alloc", B), ("free_requested", B)],
        *[("alloc", A), ("free_requested", A)],
        blocks=[(A, PENDING), (B, PENDING)],
    )
    assert rows(found) == [(A, 0, 1, -1, 1), (B, 2, 3, -1, -1), (A, 4, 5, -1, -1)]
    assert counts(found) == (0, 0, 0)


def test_a_merged_free_is_both_halves():
    found = pair(("alloc", A), ("free", A), ("free", B), ("alloc", B), ("free", B))
    assert rows(found) == [(B, -1, 2, 2, 2), (A, 0, 1, 1, 1), (B, 3, 4, 4, 4)]
    assert counts(found) == (0, 0, 0)


def test_a_merged_free_after_a_request_completes_it():
    assert rows(pair(("alloc", A), ("free_requested", A), ("free", A))) == [(A, 0, 1, 2, 2)]


def test_a_second_free_of_an_address_is_counted_and_left_out():
    freed = [("free_requested", A), ("free_completed", A)]
    found = pair(("alloc", A), *freed, *freed)
    assert rows(found) == [(A, 0, 1, 2, 2)]
    assert counts(found) == (1, 0, 0)


def test_a_request_that_is_repeated_is_counted_and_left_out():
    found = pair(("alloc", A), ("free_requested", A), ("free_requested", A), ("free_completed", A))
    assert [row[:3] for row in rows(found)] == [(A, 0, 1)]
    assert counts(found)[0] == 1


def test_an_alloc_at_a_live_address_frees_what_was_there():
    found = pair(("alloc", A), ("alloc", A), ("free_requested", A), ("free_completed", A))
    assert rows(found) == [(A, 0, -1, -1, 1), (A, 1, 2, 3, 3)]
    assert counts(found) == (0, 1, 0)


def test_a_request_whose_completion_is_lost_ends_at_the_next_alloc():
    events = [("alloc", A), ("free_requested", A), ("alloc", A), ("alloc", B), ("free_completed", B)]
    found = pair(*events, blocks=[(A, ACTIVE)])
    assert rows(found) == [(A, 0, 1, -1, 2), (A, 2, -1, -1, -1), (B, 3, -1, 4, 4)]
    assert counts(found) == (0, 1, 0)


def test_an_open_allocation_that_the_segments_do_not_have_stays_live_and_is_counted():
    found = pair(("alloc", A), ("alloc", B), blocks=[(A, INACTIVE), (B, ACTIVE)])
    assert rows(found) == [(A, 0, -1, -1, -1), (B, 1, -1, -1, -1)]
    assert found.block_id.tolist() == [-1, 1]
    assert counts(found) == (0, 0, 1)


@pytest.mark.parametrize("live", [(B,), (B, C)])
@pytest.mark.parametrize("missing", [A, C + 512])
def test_what_the_segments_do_not_have_may_be_before_and_behind_all_that_they_have(live, missing):
    found = pair(("alloc", missing), blocks=[(addr, ACTIVE) for addr in live])
    assert rows(found) == [*((addr, -1, -1, -1, -1) for addr in live), (missing, 0, -1, -1, -1)]
    assert found.block_id.tolist() == [*range(len(live)), -1]
    assert counts(found) == (0, 0, 1)


def test_segments_snapshots_and_failures_are_no_lifetimes():
    others = ["segment_alloc", "segment_map", "segment_free", "segment_unmap", "oom", "snapshot", "annotate"]
    found = pair(*((action, A) for action in others), ("alloc", A), *((action, A) for action in others))
    assert rows(found) == [(A, 7, -1, -1, -1)]


def test_addresses_from_2_to_the_63_on_are_paired_like_others():
    found = pair(
        ("alloc", FAR), ("alloc", A), ("free_requested", FAR), ("free_completed", FAR), blocks=[(A, ACTIVE)]
    )
    assert rows(found) == [(FAR, 0, 2, 3, 3), (A, 1, -1, -1, -1)]


A, B = 0x7F00_0000_0000, 0x7F00_1000_0000
MARK, SEGMENT, ALLOC = Action.WORKSPACE_SNAPSHOT, Action.SEGMENT_ALLOC, Action.ALLOC


def real(*rows):
    """The numbers of the events that are left with their action and their stack."""
    given = replace(trace(*rows), stack_id=np.arange(len(rows), dtype=np.int32))
    found = real_events(given)
    assert (found.action[found.stack_id == -1] == Action.UNKNOWN).all()
    assert (found.stack_id >= -1).all()
    assert len(found) == len(given)
    assert np.array_equal(found.addr, given.addr)
    left = np.flatnonzero(found.stack_id >= 0)
    assert found.action[left].tolist() == given.action[left].tolist()
    return left.tolist()


def test_a_workspace_is_described_by_three_entries():
    assert real((MARK, A), (SEGMENT, A), (ALLOC, A)) == []


def test_every_workspace_has_its_three():
    assert real((MARK, A), (SEGMENT, A), (ALLOC, A), (MARK, B), (SEGMENT, B), (ALLOC, B), (ALLOC, A)) == [6]


def test_other_events_after_the_marker_are_real():
    three = (MARK, SEGMENT, ALLOC)
    other = [
        tuple((action if place == at else three[place], A) for place in range(3))
        for at in range(3)
        for action in Action
        if action is not three[at]
    ]
    for rows in [*other, ((MARK, A), (SEGMENT, A), (ALLOC, B)), ((MARK, A), (SEGMENT, B), (ALLOC, A))]:
        assert real(*rows, (MARK, B)) == [0, 1, 2, 3]


def test_a_trace_without_workspaces_is_left_alone():
    for rows in [(), ((SEGMENT, A),), ((SEGMENT, A), (ALLOC, A)), ((MARK, A), (SEGMENT, A))]:
        assert real(*rows) == list(range(len(rows)))
