"""The value that a file holds -> torch's dictionary, whatever shape it has; or what it is instead."""

from snapconv.errors import NotASnapshotError
from snapconv.snapshot.fields import shown

_SOME_KEY = {"segments", "device_traces", "host_segments", "host_traces"}


def as_snapshot_dict(raw: object) -> dict[str, object]:
    """Bring the known top-level shapes into one, or say what the value is instead."""
    if isinstance(raw, list):
        if all(isinstance(item, dict) and "blocks" in item for item in raw):
            return {"segments": raw}
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_list(raw)}")
    if not isinstance(raw, dict):
        raise NotASnapshotError(f"this is not a memory snapshot: it holds a single {type(raw).__name__}")
    if not (_SOME_KEY & raw.keys()):
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_dict(raw)}")
    return raw


def _describe_list(raw: list[object]) -> str:
    if len(raw) == 2 and all(isinstance(part, list) for part in raw):
        return "two lists, as the profiler's export_memory_timeline writes; that format has no allocations"
    if isinstance(raw[0], list) and len(raw[0]) == 4:
        return "a raw memory timeline of the profiler's export_memory_timeline"
    return f"a list of {len(raw)} {type(raw[0]).__name__}"


def _describe_dict(raw: dict[object, object]) -> str:
    if "traceEvents" in raw:
        return "a Chrome trace of the profiler; dump torch.cuda.memory._snapshot() instead"
    keys = ", ".join(shown(str(key)) for key in list(raw)[:6])
    return f"a dictionary with the keys {keys or '(none)'}, and no segments or device_traces"
