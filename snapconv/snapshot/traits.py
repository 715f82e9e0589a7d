"""What a file has, as far as it shows who wrote it: looked up in the raw lists and in the tables."""

from snapconv.columns import has_code
from snapconv.snapshot.era import Traits
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.readers.compiled_pickle import CompiledTrace
from snapconv.snapshot.stack_table import StackTable

_ENOUGH_SEGMENTS = 50


def have_block_addresses(raw_segments: list[object]) -> bool:
    """Whether blocks have addresses (torch 2.1 on); the first of each of some segments shows it."""
    return any(_first_block_has(segment, "address") for segment in raw_segments[:_ENOUGH_SEGMENTS])


def are_of_a_plot(raw_traces: list[object]) -> bool:
    """Whether torch's profiler drew the traces."""
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
