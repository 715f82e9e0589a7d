"""The torch that wrote a file, and notes about what the file lacks.

The torch is inferred from the keys that each release added. A present key proves a release; a
missing one rules later releases out if the file has a place where it would stand. The keys were
bisected over the wheels of torch 2.0.1 to 2.15.0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress

from snapconv.allocator.allocator_settings import (
    MIN_BLOCK_BYTES,
    NPU_PADDING_BYTES,
    SMALL_REQUEST_BYTES,
)
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.columns import is_among
from snapconv.notes import Note
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.segment_table import BlockTable, Memory, SegmentTable
from snapconv.snapshot.stack_table import Collected, StackTable
from snapconv.torch_knowledge.allocator_options import release_key
from snapconv.torch_knowledge.backends import BACKENDS

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
# Requests of whole granules that got one granule more are a plainer sign, so that fewer are enough.
_LEAST_PADDED, _LEAST_WHOLE = 8, 3
BLOCK_ADDRESSES = "blocks[].address"
PLOT = "category"

# Newest first: the first release with a trait, the last without it, the trait, and the part of the
# file that would have it. A trait of events is a column, any other is a key.
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


def infer_era(
    traits: AbstractSet[str], parts: AbstractSet[str], backend: str = "cuda"
) -> Era:
    """Narrow the range of releases down by the traits of a file, and by those that it lacks.

    Only a file that has the part where a trait would be lacks it.
    """
    first = _SNAPSHOTS_SINCE.get(backend, "2.0")
    last = None
    later = _NPU_SINCE if backend == "npu" else {}
    absence_counts = backend == "cuda" and PLOT not in traits
    for since, until, trait, part in _RELEASES:
        since = later.get(trait, since)
        if trait in traits:
            return Era(max(since, first, key=release_key), last, backend)
        if part in parts and absence_counts:
            last = until
    return Era(first, last, backend)


def traits_of_raw(raw: dict[str, object]) -> set[str]:
    """Return the traits that the keys at the top of a file show."""
    traits = set(raw)
    if raw.get("allocator_settings") is None:
        traits.discard("allocator_settings")
    if "host_traces" in traits:
        traits.add("host_segments")
    return traits


def parts_of(
    raw: dict[str, object],
    traces: Iterable[EventTable],
    *,
    memory: Memory,
    host_memory: Memory,
) -> set[str]:
    """Return the parts of a file in which a trait would show."""
    has_part = {
        "file": "device_traces" in raw,
        "settings": raw.get("allocator_settings") is not None,
        "events": any(map(len, traces)),
        "blocks": len(memory.blocks) > 0,
        "host blocks": len(host_memory.blocks) > 0,
    }
    return {part for part, is_present in has_part.items() if is_present}


def backend_of(
    traces: Iterable[EventTable],
    stacks: StackTable,
    traits: AbstractSet[str],
    memory: Memory,
) -> str:
    """Infer the backend that wrote a file by its actions, frames, a setting, or block sizes."""
    for trace in traces:
        if is_among(trace.action, (Action.WORKSPACE_SNAPSHOT, Action.EMPTY_CACHE)).any():
            return "npu"
    files = [file.replace("\\", "/") for file in stacks.frames.files]
    for backend in BACKENDS.values():
        if backend.frames and any(backend.frames in file for file in files):
            return backend.kind
    if "PYTORCH_ALLOC_CONF" in traits:
        return "xpu"
    return "npu" if _is_padded(*memory) else "cuda"


def _is_padded(segments: SegmentTable, blocks: BlockTable) -> bool:
    """Return whether the live blocks have the 32 bytes that torch_npu adds to requests.

    Only blocks that keep no remainder tell: small ones, and those of expandable segments.
    """
    is_small = blocks.block_bytes <= SMALL_REQUEST_BYTES
    is_exact = is_small | segments.is_expandable[blocks.segment_id]
    tells = is_exact & blocks.is_live & (blocks.requested_bytes > 0)
    requested = blocks.requested_bytes[tells]
    granules = blocks.block_bytes[tells] / MIN_BLOCK_BYTES
    plain = -(-requested // MIN_BLOCK_BYTES)
    padded = -(-(requested + NPU_PADDING_BYTES) // MIN_BLOCK_BYTES)
    # A rounding to powers of two may do the same to a few blocks.
    is_whole = requested % MIN_BLOCK_BYTES == 0
    is_enough = len(granules) >= _LEAST_PADDED or is_whole.sum() >= _LEAST_WHOLE
    return bool(is_enough and (granules == padded).all() and (granules != plain).any())


_MAX_NAMES = 5
_NOTES = (
    Note(
        "no-timestamps",
        "the events have no times (torch before 2.2, torch_npu, and pages of "
        "torch.profiler): order is known, duration is not",
        is_minor=True,
    ),
    Note(
        "no-stacks",
        "no allocation has a stack: to see which line allocated what, record with context='all' "
        "from before the model is made, and dump before recording is switched off",
    ),
    Note(
        "no-requested-size",
        "blocks lack the requested size (torch 1.x): the block's own size stands in",
        is_minor=True,
    ),
    Note(
        "empty-snapshot",
        "the file has neither memory nor events: the process had not used the device, "
        "or had no driver (torch writes such a file without complaint)",
    ),
)


def notes_of_file(
    collected: Collected,
    segments: SegmentTable,
    stacks: StackTable,
    traits: AbstractSet[str],
    parts: AbstractSet[str],
    *,
    n_embedded: int,
) -> Iterator[Note]:
    """Say what a user should know of the file: also if it is less than a device's snapshot."""
    if collected.form:
        title = collected.form.title
        yield Note("profile", f"the file is {title}: {collected.form.lacks}")
    pools = collected.pools.values()
    pool_ids = set(segments.pool_id.tolist())
    segment_pools = {
        pools[pool_id] if pool_id >= 0 else DEFAULT_POOL for pool_id in pool_ids
    }
    if len(segment_pools) == 1 and DEFAULT_POOL not in segment_pools:
        yield Note(
            "one-pool",
            f"all segments are of the private pool {segment_pools.pop()}, as "
            "torch.cuda.MemPool.snapshot() returns them: what the device has in other pools is "
            "not in the file",
        )
    if collected.unknown_actions:
        actions = _counted(collected.unknown_actions)
        yield Note("unknown-action", f"actions that are not known were left out: {actions}")
    if n_embedded > 1:
        yield Note(
            "several-embedded", f"the page embeds {n_embedded} snapshots: this is the first"
        )
    applies = (
        "events" in parts and "time_us" not in traits,
        not len(stacks.frames) and not collected.form,
        collected.sizes_missing,
        not parts & {"events", "blocks", "host blocks"},
    )
    yield from compress(_NOTES, applies)


def _counted(counts: Counter[str]) -> str:
    names = ", ".join(f"{name} ({n})" for name, n in counts.most_common(_MAX_NAMES))
    n_more = len(counts) - _MAX_NAMES
    return f"{names} and {n_more} more" if n_more > 0 else names
