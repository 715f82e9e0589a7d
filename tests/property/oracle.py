"""The four curves of a history, from dictionaries only: slow, obvious, and independent of the allocator.

Of each event it reads the action, the address, the size and, for an alloc, the block's true size;
never the totals that the allocator wrote beside them. It must be given every event since the
allocator's birth: what it returns can be cut afterwards, as a ring buffer cuts the events.
"""

from typing import NamedTuple


class Totals(NamedTuple):
    """Bytes after an event; ``requested`` counts active blocks, as torch's statistic does."""

    requested: int
    allocated: int
    active: int
    reserved: int


NOTHING = Totals(0, 0, 0, 0)


def curves(events) -> list[Totals]:
    """Compute the totals after each of ``events`` (histories.Event or anything with its fields)."""
    requests: dict[int, int] = {}
    active: dict[int, int] = {}
    allocated: dict[int, int] = {}
    reserved = 0
    totals = []
    for event in events:
        if event.action == "alloc":
            assert event.addr not in active
            requests[event.addr] = event.size
            allocated[event.addr] = active[event.addr] = event.block_bytes
        elif event.action == "free_requested":
            del allocated[event.addr]
        elif event.action == "free_completed":
            del requests[event.addr], active[event.addr]
        elif event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in ("segment_free", "segment_unmap"):
            reserved -= event.size
        totals.append(
            Totals(sum(requests.values()), sum(allocated.values()), sum(active.values()), reserved)
        )
    return totals
