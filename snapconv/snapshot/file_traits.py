"""The traits of a file, and what follows from them: the torch that wrote it, and notes about what it lacks.

The torch is inferred from the keys that each release added. A present key proves a release; a missing one
rules later releases out if the file has a place where it would stand. The keys were bisected over the wheels
of torch 2.0.1 to 2.15.0.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from snapconv.columns import has_code
from snapconv.notes import Note
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.readers.compiled_pickle import CompiledTrace
from snapconv.snapshot.stack_table import StackTable

# The other backends follow later and write fewer keys (torch/csrc/xpu/Module.cpp; torch_npu has no times),
# so with them a missing key proves nothing.
_SNAPSHOTS_SINCE = {"xpu": "2.11"}


@dataclass(frozen=True, slots=True)
class Era:
    """The range of torch releases that can have written the file, and for which device.

    ``first`` and ``last`` are such as ``2.5``; ``last`` is None for "or any newer". ``backend`` is
    cuda, npu or xpu (rocm is built from the same source and looks like cuda).
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


@dataclass(frozen=True, slots=True)
class Traits:
    """The contents of a file that distinguish releases of torch.

    ``is_whole``: it is the dictionary of ``_snapshot()``, with places for settings and annotations, and
    not the list of segments that ``memory_snapshot()`` returns in every release. ``is_plot``: torch's
    profiler drew it (``torch.cuda._memory_viz.profile_plot``), with its own few keys in every release.
    """

    block_addresses: bool
    has_blocks: bool
    timed_events: int
    settings_keys: frozenset[str]
    has_settings: bool
    has_annotations: bool
    is_whole: bool
    has_compile_context: bool
    has_user_metadata: bool
    has_event_pools: bool
    has_host_memory: bool
    has_internal_metadata: bool
    n_events: int
    is_plot: bool
    backend: str


def infer_era(traits: Traits) -> Era:
    """Narrow the range of releases down by what is there and what is not."""
    # Newest first: first release that has the trait, last that lacks it, whether it is there, and
    # whether the file has a place where it would show.
    steps = (
        # Only what the allocator does for itself has it, so that a file of 2.15 may well lack it.
        ("2.15", "2.14", traits.has_internal_metadata, False),
        ("2.14", "2.13", traits.has_host_memory, traits.is_whole),
        ("2.13", "2.12", "max_round_threshold" in traits.settings_keys, traits.has_settings),
        ("2.12", "2.11", traits.has_event_pools, traits.n_events > 0),
        ("2.10", "2.9", traits.has_user_metadata, traits.n_events > 0),
        ("2.9", "2.8", "graph_capture_record_stream_reuse" in traits.settings_keys, traits.has_settings),
        ("2.8", "2.7", traits.has_compile_context, traits.n_events > 0),
        ("2.5", "2.4", traits.has_annotations, traits.is_whole),
        ("2.3", "2.2", traits.has_settings, traits.is_whole),
        ("2.2", "2.1", traits.timed_events > 0, traits.n_events > 0),
        ("2.1", "2.0", traits.block_addresses, traits.has_blocks),
    )
    first, last = _SNAPSHOTS_SINCE.get(traits.backend, "2.0"), None
    lacks_prove = traits.backend == "cuda" and not traits.is_plot
    for since, until, present, could_show in steps:
        if present:
            return Era(_later(since, first), last, traits.backend)
        if could_show and lacks_prove:
            last = until
    return Era(first, last, traits.backend)


def _later(one: str, other: str) -> str:
    return max(one, other, key=lambda release: int(release.partition(".")[2]))


_ENOUGH_SEGMENTS = 50


def have_block_addresses(raw_segments: list[object]) -> bool:
    """Return whether blocks have addresses (torch 2.1 on); the first of each of some segments shows it."""
    return any(_first_block_has(segment, "address") for segment in raw_segments[:_ENOUGH_SEGMENTS])


def are_of_a_plot(raw_traces: list[object]) -> bool:
    """Return whether torch's profiler drew the traces."""
    return any(
        trace.first_has_category() if isinstance(trace, CompiledTrace) else _first_has(trace, "category")
        for trace in raw_traces
    )


def _first_block_has(segment: object, key: str) -> bool:
    return isinstance(segment, dict) and _first_has(segment.get("blocks"), key)


def _first_has(rows: object, key: str) -> bool:
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and key in rows[0]


def traits_of(
    raw: dict[str, object],
    traces: list[EventTable],
    *,
    block_addresses: bool,
    has_blocks: bool,
    settings_keys: frozenset[str],
    is_plot: bool,
    backend: str,
) -> Traits:
    """Gather what distinguishes releases; ``traces`` are those of all devices and of pinned host memory."""

    def has(column: str) -> bool:
        return any(getattr(trace, column) is not None for trace in traces)

    return Traits(
        block_addresses=block_addresses,
        has_blocks=has_blocks,
        timed_events=sum(len(trace) for trace in traces if trace.time_us is not None),
        settings_keys=settings_keys,
        has_settings=raw.get("allocator_settings") is not None,
        has_annotations="external_annotations" in raw,
        is_whole="device_traces" in raw,
        has_compile_context=has("compile_context_id"),
        has_user_metadata=has("user_metadata_id"),
        has_event_pools=has("pool_id"),
        has_host_memory="host_segments" in raw or "host_traces" in raw,
        has_internal_metadata=has("internal_metadata_id"),
        n_events=sum(map(len, traces)),
        is_plot=is_plot,
        backend=backend,
    )


def backend_of(traces: list[EventTable], stacks: StackTable, settings_keys: frozenset[str]) -> str:
    """Infer the backend that wrote a file: from its own actions, by frames, or by a setting."""
    npu_actions = (Action.WORKSPACE_SNAPSHOT, Action.EMPTY_CACHE)
    if any(has_code(trace.action, action).any() for trace in traces for action in npu_actions):
        return "npu"
    filenames = set(stacks.frames.filenames)
    if any("torch_npu" in filename for filename in filenames):
        return "npu"
    if "PYTORCH_ALLOC_CONF" in settings_keys or any("torch/xpu/" in filename for filename in filenames):
        return "xpu"
    return "cuda"


_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Oddities:
    """Findings of the reading beside the tables; the counts are by name."""

    unknown_actions: Counter[str]
    unknown_keys: Counter[str]
    sizes_missing: bool
    n_embedded: int
    has_host_blocks: bool


def notes_of_file(met: Oddities, traits: Traits, stacks: StackTable) -> Iterator[Note]:
    """Say what a user should know of the file."""
    if met.unknown_actions:
        shown = _counted(met.unknown_actions)
        yield Note("unknown-action", f"actions that are not known were left out: {shown}")
    if met.unknown_keys:
        yield Note("unknown-keys", f"keys that are not known were left out: {_counted(met.unknown_keys)}")
    if traits.n_events and not traits.timed_events:
        yield Note(
            "no-timestamps",
            "the events have no times (torch before 2.2): order is known, duration is not",
            is_minor=True,
        )
    if not len(stacks.frames):
        yield Note(
            "no-stacks",
            "no allocation has a stack: record with context='all' and dump before recording is "
            "switched off to see which line allocated what",
        )
    if met.sizes_missing:
        yield Note(
            "no-requested-size",
            "blocks lack the requested size (torch 1.x): the block's own size stands in",
            is_minor=True,
        )
    if met.n_embedded > 1:
        yield Note("several-embedded", f"the page embeds {met.n_embedded} snapshots: this is the first")
    if not traits.n_events and not traits.has_blocks and not met.has_host_blocks:
        yield Note(
            "empty-snapshot",
            "the file has neither memory nor events: the process had not used the device, or had "
            "no driver (torch writes such a file without complaint)",
        )


def _counted(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} ({n})" for name, n in counts.most_common(_MOST_NAMED))
    return shown if len(counts) <= _MOST_NAMED else f"{shown} and {len(counts) - _MOST_NAMED} more"
