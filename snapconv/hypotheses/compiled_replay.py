"""Calls made to the allocator model of the compiled core; core.h says what each function does."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import Ledger
from snapconv.allocator.blocks import SegmentLayout
from snapconv.columns import Int32Column, Int64Column, distinct, has_code
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallKind
from snapconv.hypotheses.trial_outcome import FailedRequest, Outcome, Trial
from snapconv.hypotheses.trial_requests import FIRST_ADDR, TrialRequests
from snapconv.native.library import ODD, address, goes_on, random_seed

_NO_LIMIT = (1 << 63) - 1
# Sizes above are odd to the core; a larger limit of a size is the same as none.
_MOST_BYTES = 1 << 61
_SEGMENT = np.dtype(
    [("addr", "i8"), ("size", "i8"), ("lane", "i4"), ("is_expandable", "i4")]
)
_LIVE = np.dtype(
    [("addr", "i8"), ("size", "i8"), ("row", "i8"), ("segment", "i4"), ("is_pending", "i4")]
)
# In the order of core.h, up to the figures of the ledger.
_LEDGER = (
    "requested_bytes",
    "allocated_bytes",
    "active_bytes",
    "reserved_bytes",
    "max_allocated_bytes",
    "max_reserved_bytes",
    "n_segment_allocs",
    "n_segment_maps",
)
_N_FIGURES = 18
# The number of a pool as in TrialRequests, and the stream, of each row.
_PoolAndStream: TypeAlias = tuple[Int64Column, Int64Column]


class OddCalls(Exception):
    """The core met something that it leaves to its twin."""


class _Rows(ctypes.Structure):
    """The struct snapconv_rows of core.h."""

    _fields_ = [
        ("n_rows", ctypes.c_int64),
        ("n_failed", ctypes.c_int64),
        ("size", ctypes.c_void_p),
        ("requested", ctypes.c_void_p),
        ("lane", ctypes.c_void_p),
        ("n_lanes", ctypes.c_int64),
        ("lane_pool", ctypes.c_void_p),
        ("is_served", ctypes.c_void_p),
    ]


class CompiledReplay:
    """One replay in the compiled core, as ModelReplay is one in Python; a context manager.

    Whatever the core finds odd raises OddCalls.
    """

    def __init__(self, compiled: ctypes.CDLL, requests: TrialRequests) -> None:
        self._compiled = compiled
        self._requests = requests
        self._inputs = _Inputs(requests)
        self._replay: int | None = None

    def __enter__(self) -> "CompiledReplay":
        inputs = self._inputs
        settings = np.array(list(_settings(self._requests)), np.int64)
        rows = _Rows(
            len(self._requests.requested),
            len(inputs.failed_events),
            address(inputs.sizes),
            address(inputs.requested),
            address(inputs.lane),
            len(inputs.pools),
            address(inputs.pools),
            address(inputs.is_served),
        )
        self._replay = self._compiled.snapconv_replay_new(
            address(settings), ctypes.addressof(rows), random_seed()
        )
        if self._replay is None:
            raise MemoryError
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._compiled.snapconv_replay_free(self._replay)

    @property
    def sizes(self) -> Int64Column:
        """The rounded request of each row, and from its malloc on the bytes of its block."""
        return self._inputs.sizes[: len(self._requests.requested)]

    def start(self) -> bool:
        """Fill the model with the memory before the first call; False where it does not fit."""
        live = self._inputs.live
        columns = (len(live), address(live))
        if self._requests.is_placed_anew:
            lane = address(self._inputs.live_lane)
            return _goes_on(
                self._compiled.snapconv_replay_place(self._replay, *columns, lane)
            )
        segments = self._inputs.segments
        return _goes_on(
            self._compiled.snapconv_replay_adopt(
                self._replay, len(segments), address(segments), *columns
            )
        )

    def make(self, calls: AllocatorCalls) -> bool:
        """Make some calls; False where memory ran out."""
        columns = (calls.operation, calls.row, calls.event, calls.reserved_after)
        contiguous = [np.ascontiguousarray(column) for column in columns]
        n_events = len(calls.reserved_after)
        return _goes_on(
            self._compiled.snapconv_replay_make(
                self._replay, len(calls), *map(address, contiguous), n_events
            )
        )

    @property
    def outcome(self) -> Outcome:
        """The outcome so far."""
        figures = np.zeros(_N_FIGURES, np.int64)
        self._compiled.snapconv_replay_figures(self._replay, address(figures))
        trial = self._requests.trial
        counters = figures[: len(_LEDGER)].tolist()
        n_repeated, differs_at, has_run_out, *failed = figures[len(_LEDGER) :].tolist()
        ledger = Ledger(
            lambda: 0, capacity=trial.capacity, **dict(zip(_LEDGER, counters, strict=True))
        )
        is_served = self._inputs.is_served[:n_repeated] > 0
        repeated = self._inputs.failed_events[:n_repeated]
        return Outcome(
            trial,
            ledger,
            ran_out=self._failed_request(*failed) if has_run_out else None,
            failed_again=repeated[~is_served].tolist(),
            served=repeated[is_served].tolist(),
            is_placed_anew=self._requests.is_placed_anew,
            differs_at=differs_at if differs_at >= 0 else None,
        )

    def _failed_request(self, event: int, row: int, *n_bytes: int) -> FailedRequest:
        requested = self._requests.requested[row]
        if row < 0:
            requested = self._requests.calls.events.size[event]
        return FailedRequest(event, row, int(requested), *n_bytes)


def _goes_on(status: int) -> bool:
    """Return whether there was memory for a request."""
    if status == ODD:
        raise OddCalls
    return goes_on(status)


def _settings(requests: TrialRequests) -> Iterator[int]:
    """Yield the settings in the order of core.h."""
    trial = requests.trial
    settings = trial.settings
    yield _limit(settings.max_split_size_bytes)
    yield min(settings.max_non_split_rounding_bytes, _MOST_BYTES)
    yield min(settings.large_segment_bytes, _MOST_BYTES)
    yield int(settings.expandable_segments)
    yield _limit(trial.capacity)
    yield _limit(trial.limit)
    yield _limit(_garbage_bytes(trial))
    yield int(trial.is_check)
    yield requests.calls.default_pool
    yield FIRST_ADDR


def _limit(n_bytes: int | None) -> int:
    return _NO_LIMIT if n_bytes is None else min(n_bytes, _MOST_BYTES)


def _garbage_bytes(trial: Trial) -> int | None:
    """Return the reserved bytes above which garbage is collected; None: it never is."""
    threshold = trial.settings.garbage_collection_threshold
    if trial.limit is None or not threshold:
        return None
    return int(threshold * trial.limit)


class _Inputs:
    """The columns of a replay's requests, and of the memory before its first call.

    Requests that failed in the trace stand behind those of allocations. A lane is a pool with a
    stream: ``pools`` has the pool number of each, ``lane`` that of each request, ``live_lane`` that
    of live blocks which are placed anew.
    """

    def __init__(self, requests: TrialRequests) -> None:
        calls = requests.calls
        is_failed = has_code(calls.operation, CallKind.FAILED_MALLOC)
        self.failed_events = calls.event[is_failed]
        failed_bytes = calls.events.size[self.failed_events]
        self.sizes = np.append(requests.rounded, failed_bytes)
        self.requested = np.append(requests.requested, failed_bytes)
        self.is_served = np.zeros(len(failed_bytes), np.int8)
        segments: Sequence[SegmentLayout] = calls.start.segments
        if not requests.is_placed_anew:
            segments = sorted(segments, key=attrgetter("is_expandable"))
        self.segments = _segment_rows(segments)
        self.live = _live_rows(segments, calls.start.rows)
        self.pools, lanes = _lanes(
            _request_lanes(requests, self.failed_events),
            *_memory_lanes(requests, segments, self.live),
        )
        self.lane, self.live_lane, self.segments["lane"] = lanes


def _request_lanes(requests: TrialRequests, failed_events: Int64Column) -> _PoolAndStream:
    """Return the lanes of all requests, then of those that failed in the trace."""
    calls = requests.calls
    events = calls.events
    pools = [events.pool_at(event) for event in failed_events.tolist()]
    failed_pool = [pool if pool >= 0 else calls.default_pool for pool in pools]
    failed_number = _pool_numbers(failed_pool, events.size[failed_events])
    stream = np.append(requests.stream, events.stream[failed_events])
    return np.append(requests.pool_number, failed_number), stream


def _memory_lanes(
    requests: TrialRequests, segments: Sequence[SegmentLayout], live: NDArray[Any]
) -> Iterator[_PoolAndStream]:
    """Yield the lanes of live blocks that are placed anew, then those of segments."""
    pools = requests.calls.pools
    pool = np.array([pools.index(segment.pool_id) for segment in segments], np.int64)
    stream = np.array([segment.stream for segment in segments], np.int64)
    is_large = np.array([not segment.is_small for segment in segments], np.int64)
    segment_id = live["segment"]
    rounded = requests.rounded[live["row"]]
    yield _pool_numbers(pool[segment_id], rounded), stream[segment_id]
    yield pool * 2 + is_large, stream


def _pool_numbers(pool: ArrayLike, n_bytes: Int64Column) -> Int64Column:
    """Return the pools' numbers, as in TrialRequests, for rounded requests."""
    return np.asarray(pool, np.int64) * 2 + (n_bytes > SMALL_REQUEST_BYTES)


def _segment_rows(segments: Sequence[SegmentLayout]) -> NDArray[Any]:
    rows = np.zeros(len(segments), _SEGMENT)
    for name in ("addr", "size", "is_expandable"):
        rows[name] = [getattr(segment, name) for segment in segments]
    return rows


def _live_rows(
    segments: Sequence[SegmentLayout], row_of: Mapping[int, int]
) -> NDArray[Any]:
    rows = [
        (live.addr, live.size, row_of[live.addr], number, live.is_pending)
        for number, segment in enumerate(segments)
        for live in segment.live
    ]
    return np.array(rows, _LIVE)


def _lanes(*columns: _PoolAndStream) -> tuple[Int64Column, list[Int32Column]]:
    """Assign a number to each different pair of a pool and a stream, by pool, then stream.

    Return the pool number of each lane, and the lanes of each pair of columns.
    """
    streams = distinct(np.concatenate([stream for _, stream in columns]))
    keys = []
    for pool, stream in columns:
        keys.append(pool * len(streams) + np.searchsorted(streams, stream))
    lanes = distinct(np.concatenate(keys))
    numbers = [np.searchsorted(lanes, key).astype(np.int32) for key in keys]
    return lanes // len(streams), numbers
