"""Reserved memory that streams keep beside the allocated bytes: late frees, and caches that nothing uses.

No block of one stream is cut from the cached memory of another. A free of a block that another stream uses
completes when that stream is done (record_stream). Where memory runs out PyTorch waits for all streams, and
returns every cache; until then it requests more from the GPU (CUDACachingAllocator.cpp, 1.10 to 2.15).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.answers.advice.changes import called_otherwise
from snapconv.answers.advice.evidence import LEAST_SHARE_OF_TRADE, Detected, Evidence
from snapconv.answers.fragmentation import is_of_private_pool, whole_pages
from snapconv.answers.what_if.calls import CallChange
from snapconv.columns import Int64Column, distinct, grouped, rows_of, run_starts
from snapconv.replay.memory_layout import layout_at

# NCCL's process group recorded streams up to 2.7, unless told otherwise (pytorch/pytorch pull requests 97053,
# which is in 2.1, 150352, which reverts the change in 2.7, and 150398, which is in 2.8).
_STREAMS_NOT_RECORDED_SINCE = 8
_NCCL = "For NCCL's collectives before PyTorch 2.8: set TORCH_NCCL_AVOID_RECORD_STREAMS=1."
# Of the bytes that a stream frees after its last request: little may go later.
_NEARLY = 0.99
# Streams of one line: two may be there to overlap. PyTorch has 32, in turn (c10/cuda/CUDAStream.cpp).
_LEAST_STREAMS, _ALL_STREAMS = 3, 32


def late_frees(evidence: Evidence) -> Iterator[Detected]:
    """Find blocks that wait for another stream where most memory is in use.

    While a CUDA graph is captured, frees in its private pool are late too, and count for nothing here.
    """
    analysis, table = evidence.analysis, evidence.analysis.allocations
    is_late = table.is_freed_late & ~is_of_private_pool(analysis.snapshot, table.pool_id)
    waiting = rows_of(is_late & table.waiting_at(analysis.replay.active.peak_event))
    if not len(waiting):
        return
    is_old = int(analysis.snapshot.era.first.partition(".")[2]) < _STREAMS_NOT_RECORDED_SINCE
    change = CallChange(completed=tuple(rows_of(is_late).tolist()))
    yield _found(evidence, change, waiting, evidence.bytes_of(waiting), nccl=_NCCL * is_old)


def idle_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find streams, and pools of a size, that request nothing any more where most memory is reserved.

    A stream that is used again, at any later time, needs its cache.
    """
    table, event = evidence.analysis.allocations, evidence.analysis.replay.reserved.peak_event
    scattered = _scattered(evidence)[1]
    for (stream, is_small), n_bytes in _empty_bytes(evidence).items():
        is_mine = (table.stream == stream) & ((table.requested_bytes <= SMALL_REQUEST_BYTES) == is_small)
        last = int(table.alloc_event[is_mine].max(initial=-1))
        if last >= event or stream in scattered:
            continue
        ended = rows_of(is_mine & (table.end_event > last) & (table.end_event <= event))
        ended = ended[np.argsort(table.end_event[ended], kind="stable")]
        sums = np.cumsum(table.block_bytes[ended])
        at = int(np.append(table.end_event[ended], last)[np.searchsorted(sums, _NEARLY * sums[-1:].sum())])
        line = evidence.demand.line_at(at) or evidence.main_line(rows_of(is_mine))
        texts = {
            "pool": f"stream {stream}{' for small requests' * is_small}",
            "place": f" at {line.place}" if line else "",
            "after": f" after {line.place}" if line else " before the first step",
        }
        found = _found(evidence, CallChange(emptied=(at,)), rows_of(is_mine), n_bytes, **texts)
        yield replace(found, where=line)


def scattered_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find a line that allocates on several streams, as where every call makes one."""
    rows, streams = _scattered(evidence)
    if not streams:
        return
    free = _empty_bytes(evidence)
    sizes = sorted(free[stream, False] + free[stream, True] for stream in streams)
    yield _found(evidence, CallChange(merged=streams), rows, sum(sizes[:-1]), number=len(streams))


def _found(
    evidence: Evidence, change: CallChange, rows: Int64Column, n_bytes: int, **values: object
) -> Detected:
    texts = {name: str(value) for name, value in values.items()}
    line = evidence.main_line(rows)
    return Detected(called_otherwise(change), line, line, False, texts, reserved_bytes=n_bytes)


def _scattered(evidence: Evidence) -> tuple[Int64Column, tuple[int, ...]]:
    """Return the allocations of the line that uses most streams, and these; none for a few.

    Streams that the program made once come back in turn; new ones only after all of PyTorch's own.
    """
    table = evidence.analysis.allocations
    if len(distinct(table.stream)) >= _LEAST_STREAMS:
        frame = np.take(evidence.analysis.facts.project_frame, table.stack_id)
        of_lines = [(rows, distinct(table.stream[rows])) for rows in grouped(rows_of(frame >= 0), frame)]
        rows, streams = max(of_lines, key=lambda one: len(one[1]), default=(rows_of(frame >= 0), frame[:0]))
        is_new = len(run_starts(table.stream[rows])) == len(streams) or len(streams) >= _ALL_STREAMS
        if len(streams) >= _LEAST_STREAMS and is_new:
            return rows, tuple(streams.tolist())
    return np.zeros(0, np.int64), ()


def _empty_bytes(evidence: Evidence) -> dict[tuple[int, bool], int]:
    """Sum what empty_cache() would return where most is reserved, by stream and size; empty for little."""
    analysis, sums = evidence.analysis, defaultdict[tuple[int, bool], int](int)
    event, reserved = analysis.replay.reserved.peak_event, analysis.replay.reserved.peak
    if reserved - analysis.replay.active.at(event) >= LEAST_SHARE_OF_TRADE * reserved:
        layout = layout_at(analysis.device, analysis.allocations, event)
        segments, segment = layout.segments, layout.free.segment
        is_default = ~is_of_private_pool(analysis.snapshot, segments.pool_id)[segment]
        columns = segments.stream[segment], segments.is_small[segment], whole_pages(layout) * is_default
        for stream, is_small, size in zip(*(column.tolist() for column in columns), strict=True):
            sums[stream, is_small] += size
    return sums
