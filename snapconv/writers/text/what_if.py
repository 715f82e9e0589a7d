"""Lines of text for ``snapconv what-if``."""

from collections.abc import Iterator, Sequence

from snapconv.allocator.allocator_settings import split_conf
from snapconv.answers.what_if.setting_trials import OWN_PLACED_ANEW, SettingTrials, Tried
from snapconv.answers.what_if.trial import Outcome
from snapconv.units import counted, device_name, format_bytes, format_share
from snapconv.writers.text.size_rows import FEW_EVENTS, where

_COLUMNS = (12, 12, 8, 11)


def what_if_lines(trials: SettingTrials) -> Iterator[str]:
    """Show the trials of one device."""
    batch = "" if trials.batch_scale == 1 else f", batch × {trials.batch_scale:g}"
    capacity = "on a device that never runs out of memory"
    if trials.capacity_bytes is not None:
        source = f", {trials.capacity_from}" if trials.capacity_from else ""
        capacity = f"with {format_bytes(trials.capacity_bytes)}{source}"
    events = counted(trials.n_events, "event")
    yield f"{device_name(trials.device)}  {events} replayed{batch}, {capacity}"
    yield _columns("reserved", "allocated", "unused", "cudaMalloc")
    recorded = trials.recorded
    failed = f", {counted(recorded['n_ooms'], 'failed request')}" if recorded["n_ooms"] else ""
    n_calls = recorded["n_segment_allocs"] + recorded["n_segment_maps"]
    yield _row(recorded["peak_reserved"], recorded["peak_allocated"], n_calls, f"as recorded{failed}")
    n_own = 1 + (OWN_PLACED_ANEW in [one.name for one in trials.tried])
    own, others = trials.tried[n_own - 1].outcome, trials.tried[n_own:]
    reserved = {one.name: one.outcome.ledger.max_reserved_bytes for one in others if not one.outcome.ran_out}
    own_bytes = own.ledger.max_reserved_bytes
    same = [name for name, n_bytes in reserved.items() if n_bytes == own_bytes and not own.ran_out]
    groups: dict[int, list[Tried]] = {}  # those that run out of memory at one event have one reason
    for number, tried in enumerate(one for one in trials.tried if one.name not in same):
        ran_out = tried.outcome.ran_out
        groups.setdefault(len(trials.tried) + ran_out.event + 1 if ran_out else number, []).append(tried)
    for alike in groups.values():
        yield from _trial_lines(alike[0], [tried.name for tried in alike])
    if same:
        yield f"  no effect on reserved memory: {_grouped(same)}"
    yield "  reserved and allocated: peaks; unused: (reserved - allocated) / reserved"
    if trials.model_is_exact and trials.n_events:
        yield "  check passed: replaying the recorded settings reproduces the file exactly"
    if recorded["peak_allocated"] > recorded["peak_reserved"]:
        yield "  the trace contradicts the file's segments: reserved as recorded is too low"
    yield from (f"  estimated: {reason}" for reason in trials.estimated)
    yield from _recommendation(trials, own, others)


def _recommendation(trials: SettingTrials, own: Outcome, others: Sequence[Tried]) -> Iterator[str]:
    """Recommend the best setting, if the trials can tell, with its saving from the smaller baseline."""
    no_order = "the order of the allocations decides the layout, and is not recorded"
    if others and (unsure := no_order if trials.n_events < FEW_EVENTS else trials.unsure):
        yield f"  no recommendation: {unsure}"
        return
    baseline, source = own.ledger.max_reserved_bytes, "in a replay of the file's own settings"
    if trials.batch_scale == 1 and trials.recorded["peak_reserved"] <= baseline:
        baseline, source = trials.recorded["peak_reserved"], "recorded"
    reserved = {one.name: one.outcome.ledger.max_reserved_bytes for one in others if not one.outcome.ran_out}
    best = min(reserved, key=reserved.__getitem__, default="")
    if best and (own.ran_out or reserved[best] < baseline):
        conf = split_conf(own.trial.settings.conf) | split_conf(best)
        less = f"reserves {format_bytes(baseline - reserved[best])} less than {source}"
        gain = "it fits" if own.ran_out else less
        yield f"  best, {gain}: export PYTORCH_CUDA_ALLOC_CONF={','.join(map(':'.join, conf.items()))}"
    elif others:
        yield "  none of these settings helps"


def _grouped(names: Sequence[str]) -> str:
    """List settings, the values of one behind its name."""
    parts = [name.rpartition(":")[::2] for name in names]
    keys = dict.fromkeys(key for key, _ in parts)
    return "; ".join(f"{key}:{', '.join(v for k, v in parts if k == key)}".strip(":") for key in keys)


def _columns(*cells: str) -> str:
    return "  " + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _COLUMNS, strict=True))


def _row(reserved: int, allocated: int, n_calls: int, name: str) -> str:
    unused = "" if allocated > reserved else format_share(reserved - allocated, reserved)
    return f"{_columns(format_bytes(reserved), format_bytes(allocated), unused, str(n_calls))}  {name}"


def _trial_lines(tried: Tried, names: Sequence[str]) -> Iterator[str]:
    ledger, failed = tried.outcome.ledger, tried.outcome.ran_out
    if failed is None:
        n_calls = ledger.n_segment_allocs + ledger.n_segment_maps
        yield _row(ledger.max_reserved_bytes, ledger.max_allocated_bytes, n_calls, tried.name)
        return
    when = "before the first event" if failed.event < 0 else f"at event {failed.event}"
    yield f"  out of memory {when}: {_grouped(names)}"
    sizes = (failed.allocated_bytes, failed.reserved_bytes, failed.pool_free_bytes, failed.pool_largest_bytes)
    allocated, reserved, free, largest = map(format_bytes, sizes)
    who = where(tried.line) if tried.line else f"the program ({where(None)})"
    wanted = f"{who} requested {format_bytes(failed.requested_bytes)}"
    yield f"      {wanted}; {allocated} of {reserved} reserved were allocated"
    yield f"      cached for such requests: {free}, the largest block {largest}"
