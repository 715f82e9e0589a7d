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


# Events as "aA rA cA fA": alloc, requested, completed and merged free at an address. Then the final
# blocks, the lifetimes, and the counts of orphan frees, implicit frees and allocations that the
# segments do not have.
CASES = {
    "an allocation ends where its free completes": ("aA rA cA", {}, [(A, 0, 1, 2, 2)]),
    "a deferred free is paired over other events": (
        "aA rA aB cA", {B: ACTIVE}, [(A, 0, 1, 3, 3), (B, 2, -1, -1, -1)],
    ),
    ("what is live at the dump is tied to its "
    "block"): ("aB", {A: INACTIVE, B: ACTIVE}, [(B, 0, -1, -1, -1)]),
    "an address that is used again is another allocation": (
        "aA rA cA aA rA cA aA", {A: ACTIVE}, [(A, 0, 1, 2, 2), (A, 3, 4, 5, 5), (A, 6, -1, -1, -1)],
    ),
    "a free without alloc is that of a pre-existing block": ("rA cA", {}, [(A, -1, 0, 1, 1)]),
    "a completion without request ends a pre-existing block": (
        "cA aA rA cA", {}, [(A, -1, -1, 0, 0), (A, 1, 2, 3, 3)],
    ),
    "a live block that was never allocated is pre-existing": (
        "aB", {A: ACTIVE, B: ACTIVE, C: INACTIVE}, [(A, -1, -1, -1, -1), (B, 0, -1, -1, -1)],
    ),
    "without events the live blocks are all": (
        "", {A: ACTIVE, B: INACTIVE, C: PENDING}, [(A, -1, -1, -1, -1), (C, -1, -1, -1, -1)],
    ),
    "nothing": ("", {}, []),
    "pre-existing ones come first by address, then traced ones by event": (
        "aC rB cB aB", {A: ACTIVE, B: ACTIVE, C: ACTIVE},
        [(A, -1, -1, -1, -1), (B, -1, 1, 2, 2), (C, 0, -1, -1, -1), (B, 3, -1, -1, -1)],
    ),
    "a block pending at the dump has a request and no end": (
        "aA aB rA rB cB", {A: PENDING}, [(A, 0, 2, -1, -1), (B, 1, 3, 4, 4)],
    ),
    "a pre-existing block may be pending at the dump": (
        "rA aB rB cB", {A: PENDING}, [(A, -1, 0, -1, -1), (B, 1, 2, 3, 3)],
    ),
    "without any completion a request ends the allocation": (
        "rA aB rB aB", {B: ACTIVE}, [(A, -1, 0, -1, 0), (B, 1, 2, -1, 2), (B, 3, -1, -1, -1)],
    ),
    ("a block that the dump shows as pending has not "
    "ended"): ("aA rA", {A: PENDING}, [(A, 0, 1, -1, -1)]),
    ("a pre-existing block that only waits is counted "
    "once"): ("rA", {A: PENDING}, [(A, -1, 0, -1, -1)]),
    "of several requests at one address only the last one waits": (
        "aA rA aA rA", {A: PENDING}, [(A, 0, 1, -1, 1), (A, 2, 3, -1, -1)],
    ),
    "at each address another request may wait": (
        "aA rA aB rB aA rA", {A: PENDING, B: PENDING},
        [(A, 0, 1, -1, 1), (B, 2, 3, -1, -1), (A, 4, 5, -1, -1)],
    ),
    "a merged free is both halves": (
        "aA fA fB aB fB", {}, [(B, -1, 2, 2, 2), (A, 0, 1, 1, 1), (B, 3, 4, 4, 4)],
    ),
    "a merged free after a request completes it": ("aA rA fA", {}, [(A, 0, 1, 2, 2)]),
    "a second free of an address is counted and left out": (
        "aA rA cA rA cA", {}, [(A, 0, 1, 2, 2)], (1, 0, 0),
    ),
    "an alloc at a live address frees what was there": (
        "aA aA rA cA", {}, [(A, 0, -1, -1, 1), (A, 1, 2, 3, 3)], (0, 1, 0),
    ),
    "a request whose completion is lost ends at the next alloc": (
        "aA rA aA aB cB", {A: ACTIVE}, [(A, 0, 1, -1, 2), (A, 2, -1, -1, -1), (B, 3, -1, 4, 4)], (0, 1, 0),
    ),
    "an open allocation that the segments do not have stays live and is counted": (
        "aA aB", {A: INACTIVE, B: ACTIVE}, [(A, 0, -1, -1, -1), (B, 1, -1, -1, -1)], (0, 0, 1),
    ),
    "it may be behind all that the segments have": (
        "aC", {A: ACTIVE}, [(A, -1, -1, -1, -1), (C, 0, -1, -1, -1)], (0, 0, 1),
    ),
    "addresses from 2 to the 63 on are paired like others": (
        "aFAR aA rFAR cFAR", {A: ACTIVE}, [(FAR, 0, 2, 3, 3), (A, 1, -1, -1, -1)],
    ),
}  # fmt: skip
ACTIONS = {"a": "alloc", "r": "free_requested", "c": "free_completed", "f": "free"}
PLACES = {"A": A, "B": B, "C": C, "FAR": FAR}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_events_are_paired_into_lifetimes(case):
    events, blocks, expected, *expected_counts = case
    found = pair(
        *((ACTIONS[e[0]], PLACES[e[1:]]) for e in events.split()), blocks=list(blocks.items())
    )
    assert rows(found) == expected
    assert counts(found) == (expected_counts[0] if expected_counts else (0, 0, 0))
    live = [addr for addr, state in blocks.items() if state is not INACTIVE]
    addrs = list(blocks)
    is_open = [addr for addr, *_, end in expected if end < 0]
    assert found.block_id[found.end_event < 0].tolist() == [
        addrs.index(addr) if addr in live else -1 for addr in is_open
    ]


def test_segments_snapshots_and_failures_are_no_lifetimes():
    others = [
        "segment_alloc",
        "segment_map",
        "segment_free",
        "segment_unmap",
        "oom",
        "snapshot",
        "annotate",
    ]
    found = pair(
        *((action, A) for action in others), ("alloc", A), *((action, A) for action in others)
    )
    assert rows(found) == [(A, 7, -1, -1, -1)]


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
    assert real(
        (MARK, A), (SEGMENT, A), (ALLOC, A), (MARK, B), (SEGMENT, B), (ALLOC, B), (ALLOC, A)
    ) == [6]


def test_other_events_after_the_marker_are_real():
    three = (MARK, SEGMENT, ALLOC)
    other = [
        tuple((action if place == at else three[place], A) for place in range(3))
        for at in range(3)
        for action in Action
        if action is not three[at]
    ]
    for rows in [
        *other,
        ((MARK, A), (SEGMENT, A), (ALLOC, B)),
        ((MARK, A), (SEGMENT, B), (ALLOC, A)),
    ]:
        assert real(*rows, (MARK, B)) == [0, 1, 2, 3]


def test_a_trace_without_workspaces_is_left_alone():
    for rows in [(), ((SEGMENT, A),), ((SEGMENT, A), (ALLOC, A)), ((MARK, A), (SEGMENT, A))]:
        assert real(*rows) == list(range(len(rows)))
