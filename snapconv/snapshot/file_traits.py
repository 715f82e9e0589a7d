"""The torch that wrote a file, and notes about what the file lacks.

The torch is inferred from the keys that each release added. A present key proves a release; a
missing one rules later releases out if the file has a place where it would stand. The keys were
bisected over the wheels of torch 2.0.1 to 2.15.0.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress

from snapconv.allocator.allocator_settings import (
    MIN_BLOCK_BYTES,
    NPU_PADDING_BYTES,
    SMALL_REQUEST_BYTES,
)
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.columns import has_code
from snapconv.notes import Note
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.readers.form import Form
from snapconv.snapshot.segment_table import BlockTable, SegmentTable
from snapconv.snapshot.stack_table import Collected, StackTable
from snapconv.torch_knowledge.backends import BACKENDS, release_key

# The other backends follow later and write fewer keys (torch/csrc/xpu/Module.cpp; torch_npu has no
# times), so with them a missing key proves nothing. torch_npu takes keys over into later releases
# of older branches.
_SNAPSHOTS_SINCE = {"xpu": "2.11", "npu": "2.1"}
_NPU_SINCE = {"pool_id": "2.13"}


@dataclass(frozen=True, slots=True)
class Era:
    """The range of torch releases that can have written the file, and for which device.

    ``first`` and ``last`` are such as ``2.5``; ``last`` is None for "or any newer". ``backend`` is
    the kind of a row of torch_knowledge/backends.py (rocm is built from the same source and looks
    like cuda).
    """

    first: str
    last: str | None
    backend: str = "cuda"

    def __str__(self) -> str:
        if self.last is None:
            text = f"torch {self.first} or newer"
        elif self.first == self.last:
            text = f"torch {self.first}"
        else:
            text = f"torch {self.first} to {self.last}"
        return text if self.backend == "cuda" else f"{text} ({self.backend})"


# So many blocks that all have room for 32 bytes more show that a backend adds these to each.
_LEAST_PADDED, _LEAST_WHOLE = 8, 3  # whole granules that have one more are a plainer sign
BLOCK_ADDRESSES = "blocks[].address"
PLOT = "category"
Memory = tuple[SegmentTable, BlockTable]
# Newest first: the first release with a trait, the last without it, the trait, and the place where
# it would show. Of events it is the column, else the key.
_RELEASES = (
    # Only what the allocator does for itself has it, so that a file of 2.15 may well lack it.
    ("2.15", "2.14", "internal_metadata_id", "nowhere"),
    ("2.14", "2.13", "host_segments", "file"),
    ("2.13", "2.12", "max_round_threshold", "settings"),
    ("2.12", "2.11", "pool_id", "events"),
    ("2.10", "2.9", "user_metadata_id", "events"),
    ("2.9", "2.8", "graph_capture_record_stream_reuse", "settings"),
    ("2.8", "2.7", "compile_context_id", "events"),
    ("2.5", "2.4", "external_annotations", "file"),
    ("2.3", "2.2", "allocator_settings", "file"),
    ("2.2", "2.1", "time_us", "events"),
    ("2.1", "2.0", BLOCK_ADDRESSES, "blocks"),
)


def infer_era(traits: AbstractSet[str], places: AbstractSet[str], backend: str = "cuda") -> Era:
    """Narrow the range of releases down by the traits that are there, and the places where others are not."""
    first = _SNAPSHOTS_SINCE.get(backend, "2.0")
    last = None
    later = _NPU_SINCE if backend == "npu" else {}
    for since, until, trait, place in _RELEASES:
        since = later.get(trait, since)
        if trait in traits:
            return Era(max(since, first, key=release_key), last, backend)
        if place in places and backend == "cuda" and PLOT not in traits:
            last = until
    return Era(first, last, backend)


def traits_of_raw(raw: dict[str, object]) -> set[str]:
    """Return the traits that the keys at the top of a file show."""
    found = {key for key in raw if key != "allocator_settings" or raw[key] is not None}
    return found | ({"host_segments"} if "host_traces" in found else set())


def places_of(
    raw: dict[str, object], traces: Sequence[EventTable], *, blocks: Sized, host_blocks: Sized
) -> set[str]:
    """Return the places that a file has for traits."""
    is_there = {
        "file": "device_traces" in raw,
        "settings": raw.get("allocator_settings") is not None,
        "events": any(map(len, traces)),
        "blocks": len(blocks) > 0,
        "host blocks": len(host_blocks) > 0,
    }
    return {place for place, found in is_there.items() if found}


def backend_of(
    traces: list[EventTable], stacks: StackTable, traits: AbstractSet[str], memory: Memory
) -> str:
    """Infer the backend that wrote a file: from its own actions, by frames, a setting, or sizes of blocks."""
    npu_actions = (Action.WORKSPACE_SNAPSHOT, Action.EMPTY_CACHE)
    if any(has_code(trace.action, action).any() for trace in traces for action in npu_actions):
        return "npu"
    for backend in BACKENDS.values():
        if backend.frames and any(
            backend.frames in file.replace("\\", "/") for file in stacks.frames.files
        ):
            return backend.kind
    if "PYTORCH_ALLOC_CONF" in traits:
        return "xpu"
    return "npu" if _is_padded(*memory) else "cuda"


def _is_padded(segments: SegmentTable, blocks: BlockTable) -> bool:
    """Return whether the live blocks have the 32 bytes that torch_npu adds to requests, and torch does not.

    Only blocks that keep no remainder tell: small ones, and those of expandable segments.
    """
    is_exact = (blocks.block_bytes <= SMALL_REQUEST_BYTES) | segments.is_expandable[
        blocks.segment_id
    ]
    tells = is_exact & blocks.is_live & (blocks.requested_bytes > 0)
    requested = blocks.requested_bytes[tells]
    granules = blocks.block_bytes[tells] / MIN_BLOCK_BYTES
    plain, padded = (-(-(requested + more) // MIN_BLOCK_BYTES) for more in (0, NPU_PADDING_BYTES))
    # A rounding to powers of two may do the same to a few blocks.
    is_whole = requested % MIN_BLOCK_BYTES == 0
    is_enough = len(granules) >= _LEAST_PADDED or is_whole.sum() >= _LEAST_WHOLE
    return bool(is_enough and (granules == padded).all() and (granules != plain).any())


def notes_of_form(
    form: Form | None, segments: SegmentTable, pools: Sequence[tuple[int, int]]
) -> Iterator[Note]:
    """Say what a file is that is less than a device's snapshot: a profile, or a pool."""
    if form:
        yield Note("profile", f"the file is {form.title}: {form.lacks}")
    there = {pools[pool] if pool >= 0 else DEFAULT_POOL for pool in segments.pool_id.tolist()}
    if len(there) == 1 and DEFAULT_POOL not in there:
        yield Note(
            "one-pool",
            f"all segments are of the private pool {there.pop()}, as "
            f"torch.cuda.MemPool.snapshot() returns "
            "them: what the device has in other pools is not in the file",
        )


_MOST_NAMED = 5
_NOTES = (
    Note(
        "no-timestamps",
        "the events have no times (torch before 2.2, torch_npu, and pages of torch.profiler): "
        "order is "
        "known, duration is not",
        is_minor=True,
    ),
    Note(
        "no-stacks",
        "no allocation has a stack: record with context='all' and dump before recording is "
        "switched off to "
        "see which line allocated what",
    ),
    Note(
        "no-requested-size",
        "blocks lack the requested size (torch 1.x): the block's own size stands in",
        is_minor=True,
    ),
    Note(
        "empty-snapshot",
        "the file has neither memory nor events: the process had not used the device, or had no "
        "driver "
        "(torch writes such a file without complaint)",
    ),
)


def notes_of_file(
    collected: Collected,
    stacks: StackTable,
    traits: AbstractSet[str],
    places: AbstractSet[str],
    *,
    n_embedded: int,
) -> Iterator[Note]:
    """Say what a user should know of the file."""
    if counts := collected.unknown_actions:
        yield Note(
            "unknown-action", f"actions that are not known were left out: {_counted(counts)}"
        )
    if n_embedded > 1:
        yield Note("several-embedded", f"the page embeds {n_embedded} snapshots: this is the first")
    is_so = (
        "events" in places and "time_us" not in traits,
        not len(stacks.frames) and not collected.form,
        collected.sizes_missing,
        not places & {"events", "blocks", "host blocks"},
    )
    yield from compress(_NOTES, is_so)


def _counted(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} ({n})" for name, n in counts.most_common(_MOST_NAMED))
    return shown if len(counts) <= _MOST_NAMED else f"{shown} and {len(counts) - _MOST_NAMED} more"
