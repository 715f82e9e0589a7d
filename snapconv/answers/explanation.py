"""One allocation explained: the answer of ``snapconv explain``, from its question to its evidence.

An address is ``0x7f3c40001000``, also inside a block. An event is ``#1234``, or the bare number. The answer
has the keys of the JSON: docs/reference/json.md describes them.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.peak import job_sentence
from snapconv.classification.categories import EVIDENCE_WORTH, Category, Certainty, Evidence
from snapconv.classification.classify import HOST_ORDER, ORDER, reason_of
from snapconv.classification.classify import opinions as opinions_of
from snapconv.classification.inventory import GRADIENT_OR_STATE, SLUG
from snapconv.columns import BoolColumn, Int64Column
from snapconv.errors import InputError
from snapconv.naming.weight_table import tensor_names
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import both_ends
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import counted, device_name, format_bytes

# One allocation, or a part of what is known of it: the keys and values of the JSON.
Values = dict[str, Any]

# A block of every iteration may have the address: the newest are enough, and each has its own event.
_MOST_EXPLAINED = 100
_MOST_ANNOTATIONS = 20
# No stack of a real file has more than 131 frames; a recursion may have thousands.
_FRAMES_OF_AN_END = 128
_QUESTION = re.compile(r"#?(?P<event>[0-9]{1,18})|0[xX](?P<address>[0-9a-fA-F]{1,16})")


def parse_question(text: str) -> tuple[int | None, int]:
    """Read an event, or else an address as tables have it (negative from 2^63 on); ValueError for others."""
    found = _QUESTION.fullmatch(text.strip())
    if not found:
        raise ValueError(
            f"expected an address such as 0x7f3c40001000 or an event such as #1234, got {text!r}"
        )
    if found["event"]:
        return int(found["event"]), 0
    number = int(found["address"], 16)
    return None, number - (1 << 64) if number >= 1 << 63 else number


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer: the requested allocation, or all that had the address, the likeliest one first."""

    question: str
    n_allocations: int
    allocations: tuple[Values, ...]


def explain(analysis: Analysis, question: str) -> Explanation:
    """Explain the allocations that a question is about, on each of the devices.

    A device that ran out of memory goes first, then that with the highest peak; on each, those that begin at
    the address, then what is live at the peak, then the newest. Raises InputError where there is none.
    """
    event, address = parse_question(question)
    devices = sorted(analysis.devices, key=lambda one: one.urgency)
    found = [(device, _rows(device, event, address)) for device in devices]
    n_found = sum(len(rows) for _, rows in found)
    if not n_found:
        reasons = dict.fromkeys(_why_nothing(device, event, address) for device in analysis.devices)
        raise InputError(f"{analysis.snapshot.path}: {'; '.join(reasons)}")
    by_device = (_explain_allocations(device, rows[:_MOST_EXPLAINED]) for device, rows in found)
    return Explanation(question, n_found, tuple(row for rows in by_device for row in rows))


def _unsigned(addr: int) -> str:
    return hex(addr & (1 << 64) - 1)


def _contains_addr(addr: Int64Column, n_bytes: Int64Column, wanted: int) -> BoolColumn:
    return np.asarray((addr <= wanted) & (wanted <= addr + (n_bytes - 1)))


def _rows(analysis: DeviceAnalysis, event: int | None, address: int) -> Int64Column:
    """Return the allocations that are meant, in the order of the answer."""
    table = analysis.allocations
    if event is not None:
        columns = (table.alloc_event, table.free_requested_event, table.free_completed_event)
        return np.flatnonzero(np.any([column == event for column in columns], axis=0))
    rows = np.flatnonzero(_contains_addr(table.addr, table.block_bytes, address))
    is_live = table.live_at(analysis.peak_event)[rows]
    order = np.lexsort((-table.alloc_event[rows], ~is_live, table.addr[rows] != address))
    return np.asarray(rows[order])


def _why_nothing(analysis: DeviceAnalysis, event: int | None, address: int) -> str:
    """Say what there is in place of the requested allocation."""
    device, where = analysis.device, device_name(analysis.device.device)
    n_events = len(device.events)
    if event is None:
        return f"no allocation of {where} has {_unsigned(address)}; {'; '.join(_nearest(analysis, address))}"
    if event >= n_events:
        last = f", the last is #{n_events - 1}" if n_events else ""
        return f"{where} has no event #{event}; it has {counted(n_events, 'event')}{last}"
    action, file = Action(int(device.events.action[event])), shlex.quote(str(analysis.snapshot.path))
    size = format_bytes(int(device.events.size[event]))
    said = f"event #{event} of {where} is {action.name.lower()} of {size}"
    if action is Action.OOM:
        return f"{said}, a request that failed: snapconv oom {file} explains it"
    allocs = np.flatnonzero(device.events.action == Action.ALLOC)
    if not len(allocs):
        return f"{said}, and no event of the trace is an allocation"
    nearest = int(allocs[np.abs(allocs - event).argmin()])
    return f"{said}, no allocation; the nearest one is event {nearest}: snapconv explain {file} '#{nearest}'"


def _nearest(analysis: DeviceAnalysis, wanted: int) -> Iterator[str]:
    """Say what is around an address that no allocation has."""
    starts, segments = analysis.allocations.addr, analysis.device.segments
    for segment in segments.addr[_contains_addr(segments.addr, segments.total_bytes, wanted)].tolist():
        yield f"it is in the segment at {_unsigned(segment)}"
    below, above = starts[starts < wanted], starts[starts > wanted]
    if len(below):
        yield f"the next one below is at {_unsigned(int(below.max()))}"
    if len(above):
        yield f"the next one above is at {_unsigned(int(above.min()))}"
    if not len(starts):
        yield "it has none at all"


def _explain_allocations(analysis: DeviceAnalysis, rows: Int64Column) -> Iterator[Values]:
    opinions: dict[int, list[Values]] = {row: [] for row in rows.tolist()}
    order = HOST_ORDER if analysis.device.is_host else ORDER
    for row, found in opinions_of(analysis.features, rows, order):
        opinions[row].append(_opinion(analysis, found.category, found.evidence, found.slug))
    table, names = analysis.allocations, tensor_names(analysis.weights, analysis.recorded, analysis.lines)
    is_live_at_peak, freed = table.live_at(analysis.peak_event), table.freed_event
    for row in rows.tolist():
        yield {
            "device": analysis.device.device,
            "id": row,
            "address": _unsigned(int(table.addr[row])),
            "name": names.get(row),
            "requested_bytes": int(table.requested_bytes[row]),
            "block_bytes": int(table.block_bytes[row]),
            "is_exact": bool(table.is_exact[row]),
            "place": _place(analysis, row),
            "lifetime": _lifetime(analysis, row, int(freed[row]), is_live_at_peak=bool(is_live_at_peak[row])),
            "annotations": list(_annotations(analysis, row)),
            "origin": _origin(analysis, row),
            "verdict": _verdict(analysis, row, opinions[row]),
        }


def _opinion(analysis: DeviceAnalysis, category: Category, evidence: Evidence, slug: str) -> Values:
    """Return the category that one rule gives, with the reason of that rule."""
    is_of_user = slug in {rule.slug for rule in analysis.features.user_rules.rules}
    reason, torch = ("a rule of yours", "") if is_of_user else reason_of(slug)
    named = {"category": category.label, "evidence": evidence.label, "rule": slug}
    return named | {"reason": reason, "torch": torch or None}


def _lifetime(analysis: DeviceAnalysis, row: int, freed: int, *, is_live_at_peak: bool) -> Values:
    table, events, phases = analysis.allocations, analysis.device.events, analysis.phases
    times, end = events.time_us if len(events) else None, int(table.end_event[row])

    def at(event: int) -> Values | None:
        if event < 0:
            return None
        return {
            "event": event,
            "time_us": None if times is None else int(times[event]),
            "after_us": None if times is None else int(times[event] - times[0]),
            "iteration": phases.iteration_at(event),
            "phase": Phase(int(phases.phase[event])).name.lower(),
        }

    first = max(int(table.alloc_event[row]), 0)
    last = freed if freed >= 0 else max(len(events) - 1, 0)
    return {
        "allocated": at(int(table.alloc_event[row])),
        "free_requested": at(int(table.free_requested_event[row])),
        "free_completed": at(int(table.free_completed_event[row])),
        "end_event": end if end >= 0 else None,
        "in_use_us": None if times is None else int(times[last] - times[first]),
        "in_use_events": last - first,
        "is_live_at_peak": is_live_at_peak,
        "is_live_at_dump": end < 0,
        "is_pending_at_dump": bool(table.is_pending_at_end[row]),
    }


def _annotations(analysis: DeviceAnalysis, row: int) -> Iterator[Values]:
    """Yield the annotations of its alloc (_set_memory_metadata, or the allocator), and later ones."""
    events, table, texts = analysis.device.events, analysis.allocations, analysis.snapshot.texts
    alloc, end = int(table.alloc_event[row]), int(table.end_event[row])
    found = np.flatnonzero((events.action == Action.ANNOTATE) & (events.addr == int(table.addr[row])))
    found = found[(found > alloc) & ((end < 0) | (found < end))]
    columns = ((events.user_metadata_id, False), (events.internal_metadata_id, True))
    for event in [*([alloc] if alloc >= 0 else []), *found[:_MOST_ANNOTATIONS].tolist()]:
        for ids, is_internal in columns:
            if ids is not None and ids[event] >= 0 and texts[ids[event]]:
                yield {"event": event, "text": texts[ids[event]], "is_internal": is_internal}


def _place(analysis: DeviceAnalysis, row: int) -> Values:
    """Find its segment: that returned to the driver after the alloc, or else that at the dump."""
    events, segments = analysis.device.events, analysis.device.segments
    table, pools = analysis.allocations, analysis.snapshot.pools
    addr, alloc, pool = (int(column[row]) for column in (table.addr, table.alloc_event, table.pool_id))
    is_return = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    given_back = np.flatnonzero(is_return & _contains_addr(events.addr, events.size, addr))
    there = np.flatnonzero(_contains_addr(segments.addr, segments.total_bytes, addr))
    segment: Values | None = None
    if len(later := given_back[given_back > alloc]):
        at, starts, sizes = int(later[0]), events.addr, events.size
        segment = {"freed_event": at}
    elif len(there):
        at, starts, sizes = int(there[0]), segments.addr, segments.total_bytes
        segment = {"freed_event": None}
        pool = pool if pool >= 0 else int(segments.pool_id[at])
    if segment:
        segment |= {"address": _unsigned(int(starts[at])), "total_bytes": int(sizes[at])}
    stream = int(table.stream[row])
    return {"segment": segment, "pool": pools[pool] if pool >= 0 else None, "stream": stream}


def _origin(analysis: DeviceAnalysis, row: int) -> Values:
    table, named = analysis.allocations, analysis.named
    operation = named.names[int(named.name_id[row])]
    free_stack = int(table.free_stack_id[row]) if analysis.phases.free_sites_known else -1
    return {
        "operation": None if operation == UNNAMED else operation,
        "stack": _stack(analysis, int(table.stack_id[row])),
        "free_stack": _stack(analysis, free_stack),
    }


def _stack(analysis: DeviceAnalysis, stack: int) -> list[Values]:
    stacks, project = analysis.snapshot.stacks, analysis.project
    return [
        {
            "function": stacks.frames.names[frame],
            "file": project.relative_paths[frame],
            "line": int(stacks.frames.lines[frame]) or None,
            "is_project": bool(project.is_project[frame]),
        }
        for frame in both_ends(stacks.frames_of(stack).tolist(), _FRAMES_OF_AN_END)
    ]


def _verdict(analysis: DeviceAnalysis, row: int, opinions: list[Values]) -> Values:
    found = analysis.classification
    category, evidence = Category(int(found.category[row])), Evidence(int(found.evidence[row]))
    rule = found.reasons[int(found.reason_id[row])]
    # Without its records a rule gives the same category with weaker evidence: that is no other opinion.
    decided = (category.label, rule)
    follows_from, is_wrong_when = EVIDENCE_WORTH[evidence]
    return {
        "decision": _opinion(analysis, category, evidence, rule),
        "certainty": Certainty(int(found.certainty[row])).label,
        "probability": round(float(found.probability[row]), 3) or None,
        "job": job_sentence(analysis) if rule in (SLUG, GRADIENT_OR_STATE) else None,
        "follows_from": follows_from,
        "is_wrong_when": is_wrong_when,
        "others": [one for one in opinions if (one["category"], one["rule"]) != decided],
    }
