"""Reserved memory that streams keep beside the allocated bytes: late frees and unused caches.

No block of one stream is cut from the cached memory of another. A free of a block that another
stream uses completes when that stream is done (record_stream). Where memory runs out PyTorch waits
for all streams, and returns every cache; until then it requests more from the GPU
(CUDACachingAllocator.cpp, 1.10 to 2.15).
"""

from collections.abc import Iterator

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.answers.advice.evidence import Detected, Evidence
from snapconv.answers.fragmentation import is_of_private_pool
from snapconv.columns import Int64Column, distinct, grouped, is_among, rows_of, run_starts
from snapconv.hypotheses.allocator_calls import CallChange
from snapconv.hypotheses.changes import called_otherwise

# NCCL's process group recorded streams up to 2.7, unless told otherwise (pytorch/pytorch pull
# requests 97053, which is in 2.1, 150352, which reverts the change in 2.7, and 150398, which is in
# 2.8).
_STREAMS_NOT_RECORDED_SINCE = 8
_NCCL = "For NCCL's collectives before PyTorch 2.8: set TORCH_NCCL_AVOID_RECORD_STREAMS=1."
# Blocks below this part of a stream's largest may go after its cache is emptied.
_LITTLE = 0.1
# The next step comes near the most bytes in use from this part of them on.
_AGAIN = 0.95
# Streams of one line: two may be there to overlap. PyTorch has 32, in turn
# (c10/cuda/CUDAStream.cpp).
_LEAST_STREAMS, _ALL_STREAMS = 3, 32


def late_frees(evidence: Evidence) -> Iterator[Detected]:
    """Find blocks that wait for another stream where most memory is in use.

    While a CUDA graph is captured, frees in its private pool are late too, and count for nothing
    here.
    """
    analysis = evidence.analysis
    table = evidence.table
    is_late = table.is_freed_late & ~is_of_private_pool(analysis.snapshot, table.pool_id)
    waiting = rows_of(is_late & table.waiting_at(analysis.replay.active.peak_event))
    if not len(waiting):
        return
    era = analysis.snapshot.era
    is_old = False
    if era.backend == "cuda":
        minor_release = int(era.first.partition(".")[2])
        is_old = minor_release < _STREAMS_NOT_RECORDED_SINCE
    change = called_otherwise(CallChange(completed=tuple(rows_of(is_late).tolist())))
    yield evidence.finding_there(change, waiting, nccl=_NCCL if is_old else "")


def idle_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find streams, and pools of a size, that request nothing any more.

    The moment is the one where most memory is reserved. A stream that is used again, at any later
    time, needs its cache. One that serves every step may only be between two uses: the bytes have
    to fall and rise again without it.
    """
    table = evidence.table
    event = evidence.analysis.replay.reserved.peak_event
    if not _rises_again(evidence, event):
        return
    scattered: list[int] = []
    for _, streams in _scattered(evidence):
        scattered += streams
    is_small = evidence.sizes <= SMALL_REQUEST_BYTES
    candidates = rows_of(~is_among(table.stream, scattered))
    for rows in grouped(candidates, 2 * table.stream + is_small):
        last = int(evidence.alloc[rows[-1]])
        if last < event and evidence.is_large(rows):
            n_bytes = table.block_bytes[rows]
            ends = table.end_event[rows]
            is_large = n_bytes >= _LITTLE * n_bytes.max()
            emptied = int(ends[is_large & (ends <= event)].max(initial=last))
            line = evidence.demand.line_at(emptied) or evidence.analysis.main_line(rows)
            pool = f"stream {table.stream[rows[0]]}"
            if is_small[rows[0]]:
                pool += " for small requests"
            change = called_otherwise(CallChange(emptied=(emptied,)))
            yield evidence.finding(change, rows, line, pool=pool)


def scattered_caches(evidence: Evidence) -> Iterator[Detected]:
    """Find lines that allocate on a new stream in every call."""
    for rows, streams in _scattered(evidence):
        change = called_otherwise(CallChange(merged=streams))
        yield evidence.finding_there(change, rows, number=len(streams))


def _rises_again(evidence: Evidence, event: int) -> bool:
    """Return whether the bytes in use fall after an event and come near their peak again.

    The peak is that from the event on.
    """
    n_bytes = evidence.analysis.replay.allocated.after[max(event, 0) :]
    n_bytes = n_bytes[int(n_bytes.argmax()) :]
    middle = (n_bytes.min() + n_bytes.max()) / 2
    low = int((n_bytes < middle).argmax())
    return low > 0 and bool(n_bytes[low:].max() >= _AGAIN * n_bytes[0])


def _scattered(evidence: Evidence) -> Iterator[tuple[Int64Column, tuple[int, ...]]]:
    """Yield the allocations of lines that use a new stream in every call, and these.

    Streams that the program made once come back in turn; new ones only after all of PyTorch's own.
    """
    stream = evidence.table.stream
    frame = evidence.analysis.project_frame
    if len(distinct(stream)) < _LEAST_STREAMS:
        return
    for rows in grouped(rows_of(frame >= 0), frame):
        streams = distinct(stream[rows])
        n_runs = len(run_starts(stream[rows]))
        come_back = n_runs > len(streams)
        if len(streams) >= (_ALL_STREAMS if come_back else _LEAST_STREAMS):
            yield rows, tuple(streams.tolist())
