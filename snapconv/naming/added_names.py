"""Names of tensors from other recorders: of what is live at the dump, by its address."""

from snapconv.columns import rows_of
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.load import Snapshot
from snapconv.units import Device


def added_names(
    snapshot: Snapshot,
    device: Device,
    allocations: AllocationTable,
    names: dict[int, str],
    *,
    is_recorded: bool,
) -> dict[int, str]:
    """Add the names that another recorder found to those of the rows of the table.

    They replace names by lines of the program; names of our own recorder stay.
    """
    additions = snapshot.additions
    if not additions.names or device != additions.dumped_device:
        return names
    rows = rows_of(allocations.end_event < 0)
    pairs = zip(rows.tolist(), allocations.addr[rows].tolist(), strict=True)
    added = {row: additions.names[addr] for row, addr in pairs if addr in additions.names}
    return added | names if is_recorded else names | added
