"""Separate events that happened from those that only describe memory."""

from dataclasses import replace

import numpy as np

from snapconv.columns import has_code, read_only
from snapconv.snapshot.event_table import Action, EventTable


def real_events(events: EventTable) -> EventTable:
    """The same rows, in which those that describe torch_npu's workspaces have no action and no stack.

    At every dump torch_npu puts three entries per workspace before the trace: a workspace_snapshot, and
    a segment_alloc and an alloc of one address (NPUWorkspaceAllocator.cpp, get_trace). They describe
    memory outside the caching allocator, which was there at some time or other, and the first real
    event follows at once: so no more than these three are left out.
    """
    action, addr = events.action, events.addr
    marker = np.flatnonzero(has_code(action[:-2], Action.WORKSPACE_SNAPSHOT))
    if not len(marker):
        return events
    is_pair = (action[marker + 1] == Action.SEGMENT_ALLOC) & (action[marker + 2] == Action.ALLOC)
    marker = marker[is_pair & (addr[marker + 1] == addr[marker + 2])]
    described = np.concatenate((marker, marker + 1, marker + 2))
    action, stack_id = action.copy(), events.stack_id.copy()
    action[described] = Action.UNKNOWN
    stack_id[described] = -1
    return read_only(replace(events, action=action, stack_id=stack_id))
