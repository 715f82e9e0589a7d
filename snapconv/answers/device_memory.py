"""The device's whole memory against torch's part of it: what nvidia-smi shows, and no snapshot does.

Contexts, libraries, NCCL and other processes are in no file. With the device's total, and what the driver had
free, they are what is left; without, they are not known, and never taken for nothing.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.oom.message import read_message
from snapconv.snapshot.event_table import Action
from snapconv.units import HOST


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device at a moment; None: not known.

    ``total_from`` says who gave the total. ``free_bytes`` is the driver's, which torch writes at a failed
    allocation alone: ``measured_event`` is the one that it is of. ``outside_bytes`` was in use then and not
    torch's. At other moments ``at_most_bytes`` is the most that can have been. ``is_simulated``: there was no
    device, and nothing outside torch.
    """

    total_bytes: int | None
    total_from: str | None
    reserved_bytes: int
    free_bytes: int | None
    measured_event: int | None
    outside_bytes: int | None
    at_most_bytes: int | None
    is_simulated: bool = False


def device_memory(analysis: DeviceAnalysis, event: int, *, given_total: int | None = None) -> DeviceMemory:
    """Find what of the device is not torch's, just after an event, or at the failed allocation before it."""
    total, total_from = _total(analysis, given_total)
    events, reserved = analysis.device.events, analysis.replay.reserved
    failed = np.flatnonzero(events.action == Action.OOM)
    before = failed[failed <= event]
    measured = int(before[-1]) if len(before) else int(failed[0]) if len(failed) else None
    free = int(events.addr[measured]) if measured is not None else None
    outside = None
    if total is not None and free is not None and measured is not None:
        outside = max(total - free - reserved.at(measured), 0)
    return DeviceMemory(
        total_bytes=total,
        total_from=total_from,
        reserved_bytes=reserved.at(event),
        free_bytes=free if measured == event else None,
        measured_event=measured,
        outside_bytes=outside,
        at_most_bytes=None if total is None else max(total - reserved.peak, 0),
        is_simulated=analysis.snapshot.metadata is not None and analysis.snapshot.metadata.is_simulated,
    )


def _total(analysis: DeviceAnalysis, given: int | None) -> tuple[int | None, str | None]:
    """The device's total: as given, as the recorder wrote it, or as torch's message in a capture has it."""
    device = analysis.device.device
    if given is not None:
        return given, "given"
    if analysis.snapshot.metadata is None or device == HOST:
        return None, None
    if total := analysis.snapshot.metadata.device_bytes.get(device):
        return total, "recorded"
    message = read_message(analysis.snapshot.metadata.ended_detail)
    if message.total_bytes is not None and message.device == device:
        return message.total_bytes, "torch's message"
    return None, None
