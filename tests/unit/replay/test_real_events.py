"""Events that happened, and those that only describe memory."""

import numpy as np

from snapconv.replay.real_events import real_events
from snapconv.snapshot.event_table import Action, EventTable

A, B = 0x7F00_0000_0000, 0x7F00_1000_0000
MARK, SEGMENT, ALLOC = Action.WORKSPACE_SNAPSHOT, Action.SEGMENT_ALLOC, Action.ALLOC


def table(*rows):
    """Events of (action, address), each with a stack."""
    action, addr = zip(*rows, strict=True) if rows else ((), ())
    zeros = np.zeros(len(rows), np.int64)
    stack_id = np.arange(len(rows), dtype=np.int32)
    column = np.array(addr, np.int64)
    return EventTable(np.array(action, np.int8), column, zeros, zeros, stack_id, None, None, None, None)


def real(*rows):
    """The numbers of the events that are left with their action and their stack."""
    given = table(*rows)
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


def test_what_follows_the_three_is_real():
    assert real((MARK, A), (SEGMENT, A), (ALLOC, A), (SEGMENT, B), (ALLOC, B)) == [3, 4]


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
