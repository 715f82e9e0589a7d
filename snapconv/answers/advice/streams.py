"""Reserved memory that streams keep beside the allocated bytes: late frees, and caches that nothing uses.

No block of one stream is cut from the cached memory of another. A free of a block that another stream uses
completes when that stream is done (record_stream). Where memory runs out PyTorch waits for all streams, and
returns every cache; until then it requests more from the GPU (CUDACachingAllocator.cpp, 1.10 to 2.15).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.answers.advice.changes import called_otherwise
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.answers.fragmentation import is_of_private_pool, pool_memory
from snapconv.answers.what_if.calls import CallChange
from snapconv.columns import Int64Column, distinct, grouped, rows_of, run_starts
from snapconv.replay.device_replay import AllocationTable, Curve
from snapconv.replay.memory_layout import layout_at
from snapconv.units import device_kind

# NCCL's process group recorded streams up to 2.7, unless told otherwise (pytorch/pytorch pull requests 97053,
# which is in 2.1, 150352, which reverts the change in 2.7, and 150398, which is in 2.8).
_STREAMS_NOT_RECORDED_SINCE = 8
_NCCL = "For NCCL's collectives before PyTorch 2.8: set TORCH_NCCL_AVOID_RECORD_STREAMS=1."
# Of the bytes that a stream frees after its last request: little may go later.
_NEARLY = 0.99
# Of the most bytes in use: what the next step comes near.
_AGAIN = 0.95
# Streams of one line: two may be there to overlap. PyTorch has 32, in turn (c10/cuda/CUDAStream.cpp).
_LEAST_STREAMS, _ALL_STREAMS = 3, 32


def late_frees(evidence: Evidence) -> Iterator[Detected]:
    """Find blocks that wait for another stream where most memory is in use.

    While a CUDA graph is captured, frees in its private pool are late too, and count for nothing here.
    """
    analysis, table = evidence.analysis, evidence.analysis.allocations
    is_late = table.is_freed_late & ~is_of_private_pool(analysis.snapshot, table.pool_id)
    waiting = rows_of(is_late & table.waiting_at(_moment(evidence, analysis.replay.active)))
    if not len(waiting):
        return
    era = analysis.snapshot.era
    is_old = era.backend == "cuda" and int(era.first.partition(".")[2]) < _STREAMS_NOT_RECORDED_SINCE
    change = CallChange(completed=tuple(rows_of(is_late).tolist()))
    yield _found(evidence, change, waiting, evidence.bytes_of(waiting), nccl=_NCCL * is_old)


def idle_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find streams, and pools of a size, that request nothing any more where most memory is reserved.

    A stream that is used again, at any later time, needs its cache. One that serves every step may only be
    between two uses: the bytes have to fall and rise again without it.
    """
    table, reserved = evidence.analysis.allocations, evidence.analysis.replay.reserved
    event = _moment(evidence, reserved)
    scattered = {stream for _, streams in _scattered(evidence) for stream in streams}
    empty = _empty_bytes(evidence)
    if not empty or not _rises_again(evidence, event):
        return
    for (stream, is_small), n_bytes in empty.items():
        rows = rows_of(
            (table.stream == stream) & ((table.requested_bytes <= SMALL_REQUEST_BYTES) == is_small)
        )
        last = int(table.alloc_event[rows].max(initial=-1))
        if last >= event or stream in scattered:
            continue
        at = _emptied(table, rows, last, event)
        # The cache cannot save more than what was reserved after it lay empty.
        rise = reserved.peak - int(reserved.after[: at + 1].max(initial=reserved.start))
        pool = f"stream {stream}{' for small requests' * is_small}"
        found = _found(evidence, CallChange(emptied=(at,)), rows, min(n_bytes, rise), pool=pool)
        yield replace(found, where=evidence.demand.line_at(at) or found.line)


def _emptied(table: AllocationTable, rows: Int64Column, last: int, event: int) -> int:
    """Return the event by which nearly all was freed of what allocations free from ``last`` to ``event``."""
    ends = table.end_event[rows]
    ended = (ends > last) & (ends <= event)
    order = np.argsort(ends[ended], kind="stable")
    sums = np.cumsum(table.block_bytes[rows][ended][order])
    return int(np.append(ends[ended][order], last)[np.searchsorted(sums, _NEARLY * sums[-1:].sum())])


def scattered_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find lines that allocate on a new stream in every call."""
    for rows, streams in _scattered(evidence):
        free = [n_bytes for (stream, _), n_bytes in _empty_bytes(evidence).items() if stream in streams]
        change = CallChange(merged=streams)
        yield _found(evidence, change, rows, sum(free) - max(free, default=0), number=len(streams))


def _rises_again(evidence: Evidence, event: int) -> bool:
    """Return whether the bytes in use fall after their peak from an event on, and come near it again."""
    after = evidence.analysis.replay.allocated.after[max(event, 0) :]
    after = after[int(after.argmax()) :]
    low = np.flatnonzero(after < (after.min() + after.max()) / 2)
    return len(low) > 0 and bool(after[low[0] :].max() >= _AGAIN * after[0])


def _moment(evidence: Evidence, curve: Curve) -> int:
    """Return the moment of most bytes, or that of a failed request: PyTorch had returned all it could."""
    failed = evidence.analysis.phases.oom_events
    return int(failed[0]) if len(failed) else curve.peak_event


def _found(
    evidence: Evidence, change: CallChange, rows: Int64Column, n_bytes: int, **values: object
) -> Detected:
    texts = {"kind": device_kind(evidence.analysis.device.device)}
    texts |= {name: str(value) for name, value in values.items()}
    line = evidence.main_line(rows)
    return Detected(called_otherwise(change), line, line, texts, reserved_bytes=n_bytes)


def _scattered(evidence: Evidence) -> Iterator[tuple[Int64Column, tuple[int, ...]]]:
    """Yield the allocations of lines that use a new stream in every call, and these.

    Streams that the program made once come back in turn; new ones only after all of PyTorch's own.
    """
    stream, facts = evidence.analysis.allocations.stream, evidence.analysis.facts
    if len(distinct(stream)) < _LEAST_STREAMS:
        return
    frame = np.take(facts.project_frame, evidence.analysis.allocations.stack_id)
    for rows in grouped(rows_of(frame >= 0), frame):
        streams, n_runs = distinct(stream[rows]), len(run_starts(stream[rows]))
        if len(streams) >= (_LEAST_STREAMS if n_runs == len(streams) else _ALL_STREAMS):
            yield rows, tuple(streams.tolist())


def _empty_bytes(evidence: Evidence) -> dict[tuple[int, bool], int]:
    """Return what empty_cache() would return where most is reserved, by stream and size; none of little."""
    analysis, reserved = evidence.analysis, evidence.analysis.replay.reserved
    event = _moment(evidence, reserved)
    if reserved.peak - analysis.replay.active.at(event) < LEAST_SHARE_OF_TRADE * reserved.peak:
        return {}
    rows = pool_memory(analysis.snapshot, layout_at(analysis.device, analysis.allocations, event))
    default = (row for row in rows if row.pool in (None, DEFAULT_POOL))
    return {(row.stream, row.is_small): row.returnable_bytes for row in default}
