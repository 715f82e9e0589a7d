"""One allocation explained: the answer of ``snapconv explain``, from its question to its evidence.

An address is ``0x7f3c40001000``, also inside a block. An event is ``#1234``, or the bare number.
The answer has the keys of the JSON: docs/reference/json.md describes them.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.kept_for_backward import kept_for_backward
from snapconv.answers.peak import job_sentence
from snapconv.classification.categories import EVIDENCE_WORTH, Category, Certainty, Evidence
from snapconv.classification.classify import HOST_ORDER, ORDER, reason_of
from snapconv.classification.classify import opinions as opinions_of
from snapconv.classification.inventory import GRADIENT_OR_STATE, SLUG
from snapconv.columns import BoolColumn, Int64Column, has_code, is_among, rows_of, values_at
from snapconv.errors import InputError
from snapconv.naming.added_names import added_names
from snapconv.naming.weight_table import tensor_names
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import both_ends
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import counted, device_name, format_bytes

# One allocation, or a part of what is known of it: the keys and values of the JSON.
Values = dict[str, Any]

# A block of every iteration may have the address: the newest are enough, and each has its own
# event.
_MOST_EXPLAINED = 100
_MOST_ANNOTATIONS = 20
# No stack of a real file has more than 131 frames; a recursion may have thousands.
_FRAMES_OF_AN_END = 128
_QUESTION = re.compile(r"#?(?P<event>[0-9]{1,18})|0[xX](?P<address>[0-9a-fA-F]{1,16})")


def parse_question(text: str) -> tuple[int | None, int]:
    """Read an event, or else an address as tables have it; raises ValueError for others.

    An address from 2^63 on is negative in tables.
    """
    match = _QUESTION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"expected an address such as 0x7f3c40001000 or an event such as #1234, got {text!r}"
        )
    if match["event"]:
        return int(match["event"]), 0
    number = int(match["address"], 16)
    return None, number - (1 << 64) if number >= 1 << 63 else number


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer: the requested allocation, or all that had the address, the likeliest first."""

    question: str
    n_allocations: int
    allocations: tuple[Values, ...]


def explain(analysis: Analysis, question: str) -> Explanation:
    """Explain the allocations that a question is about, on each of the devices.

    A device that ran out of memory goes first, then that with the highest peak; on each, those that
    begin at the address, then what is live at the peak, then the newest. Raises InputError where
    there is none.
    """
    event, address = parse_question(question)
    n_allocations = 0
    allocations: list[Values] = []
    for device in sorted(analysis.devices, key=attrgetter("urgency")):
        rows = _rows(device, event, address)
        n_allocations += len(rows)
        allocations += _explain_allocations(device, rows[:_MOST_EXPLAINED])
    if not n_allocations:
        reasons = dict.fromkeys(
            _why_nothing(device, event, address) for device in analysis.devices
        )
        raise InputError(f"{analysis.snapshot.path}: {'; '.join(reasons)}")
    return Explanation(question, n_allocations, tuple(allocations))


def _unsigned(addr: int) -> str:
    return hex(addr & (1 << 64) - 1)


def _contains_addr(addr: Int64Column, n_bytes: Int64Column, target: int) -> BoolColumn:
    last = addr + (n_bytes - 1)
    return np.asarray((addr <= target) & (target <= last))


def _rows(analysis: DeviceAnalysis, event: int | None, address: int) -> Int64Column:
    """Return the requested allocations, in the order of the answer."""
    table = analysis.allocations
    if event is not None:
        columns = (
            table.alloc_event,
            table.free_requested_event,
            table.free_completed_event,
        )
        return rows_of(np.any([column == event for column in columns], axis=0))
    rows = rows_of(_contains_addr(table.addr, table.block_bytes, address))
    is_live = analysis.live_at_peak[rows]
    is_inside = table.addr[rows] != address
    order = np.lexsort((-table.alloc_event[rows], ~is_live, is_inside))
    return np.asarray(rows[order])


def _why_nothing(analysis: DeviceAnalysis, event: int | None, address: int) -> str:
    """Say what there is in place of the requested allocation."""
    device = analysis.device
    device_label = device_name(device.device)
    n_events = len(device.events)
    if event is None:
        neighbours = "; ".join(_nearest(analysis, address))
        return f"no allocation of {device_label} has {_unsigned(address)}; {neighbours}"
    if event >= n_events:
        last = f", the last is #{n_events - 1}" if n_events else ""
        return f"{device_label} has no event #{event}; it has {counted(n_events, 'event')}{last}"
    action = Action(int(device.events.action[event]))
    file = shlex.quote(str(analysis.snapshot.path))
    size = format_bytes(int(device.events.size[event]))
    event_text = f"event #{event} of {device_label} is {action.name.lower()} of {size}"
    if action is Action.OOM:
        return f"{event_text}, a request that failed: snapconv oom {file} explains it"
    allocs = rows_of(device.events.action == Action.ALLOC)
    if not len(allocs):
        return f"{event_text}, and no event of the trace is an allocation"
    nearest = int(allocs[np.abs(allocs - event).argmin()])
    return (
        f"{event_text}, no allocation; the nearest one is event {nearest}: snapconv "
        f"explain {file} '#{nearest}'"
    )


def _nearest(analysis: DeviceAnalysis, address: int) -> Iterator[str]:
    """Say what is around an address that no allocation has."""
    starts = analysis.allocations.addr
    segments = analysis.device.segments
    contains = _contains_addr(segments.addr, segments.total_bytes, address)
    for segment in segments.addr[contains].tolist():
        yield f"it is in the segment at {_unsigned(segment)}"
    below = starts[starts < address]
    above = starts[starts > address]
    if len(below):
        yield f"the next one below is at {_unsigned(int(below.max()))}"
    if len(above):
        yield f"the next one above is at {_unsigned(int(above.min()))}"
    if not len(starts):
        yield "it has none at all"


def _explain_allocations(analysis: DeviceAnalysis, rows: Int64Column) -> Iterator[Values]:
    opinions: dict[int, list[Values]] = {row: [] for row in rows.tolist()}
    order = HOST_ORDER if analysis.device.is_host else ORDER
    for row, rule in opinions_of(analysis.features, rows, order):
        opinion = _opinion(analysis, rule.category, rule.evidence, rule.slug)
        opinions[row].append(opinion)
    names = _names_of_tensors(analysis)
    live_at_peak = analysis.live_at_peak
    for row, row_opinions in opinions.items():
        allocation = values_at(analysis.allocations, row)
        is_live_at_peak = bool(live_at_peak[row])
        decision = values_at(analysis.classification, row)
        yield {
            "device": analysis.device.device,
            "id": row,
            "address": _unsigned(allocation.addr),
            "name": names.get(row),
            "requested_bytes": allocation.requested_bytes,
            "block_bytes": allocation.block_bytes,
            "is_exact": allocation.is_exact,
            "place": _location(analysis, allocation),
            "lifetime": _lifetime(analysis, allocation, is_live_at_peak=is_live_at_peak),
            "annotations": list(_annotations(analysis, allocation)),
            "tensors": list(_tensors(analysis, allocation)),
            "origin": _origin(analysis, allocation, int(analysis.operation_id[row])),
            "verdict": _verdict(analysis, decision, row_opinions),
            "kept_for_backward": kept_for_backward(analysis, row),
        }


def _names_of_tensors(analysis: DeviceAnalysis) -> Mapping[int, str]:
    """Return the names by row: those that another recorder added fill what ours leaves out."""
    return added_names(
        analysis.snapshot,
        analysis.device.device,
        analysis.allocations,
        tensor_names(analysis.weights, analysis.recorded, analysis.lines),
        is_recorded=analysis.recorded is not None,
    )


def _opinion(
    analysis: DeviceAnalysis, category: Category, evidence: Evidence, slug: str
) -> Values:
    """Return the category that one rule gives, with the reason of that rule."""
    is_of_user = slug in {rule.slug for rule in analysis.features.user_rules.rules}
    reason, torch = ("a rule of yours", "") if is_of_user else reason_of(slug)
    return {
        "category": category.label,
        "evidence": evidence.label,
        "rule": slug,
        "reason": reason,
        "torch": torch or None,
    }


def _lifetime(
    analysis: DeviceAnalysis, allocation: Any, *, is_live_at_peak: bool
) -> Values:
    n_events = analysis.n_events
    end = allocation.end_event
    first = max(allocation.alloc_event, 0)
    last = max(n_events - 1, 0)
    for freed in (end, allocation.free_requested_event):
        last = freed if freed >= 0 else last
    return {
        "allocated": _event(analysis, allocation.alloc_event),
        "free_requested": _event(analysis, allocation.free_requested_event),
        "free_completed": _event(analysis, allocation.free_completed_event),
        "end_event": end if end >= 0 else None,
        "in_use_us": _duration(analysis, first, last) if n_events else None,
        "in_use_events": last - first,
        "is_live_at_peak": is_live_at_peak,
        "is_live_at_dump": end < 0,
        "is_pending_at_dump": allocation.is_pending_at_end,
    }


def _event(analysis: DeviceAnalysis, event: int) -> Values | None:
    """Describe an event of a lifetime; None where it is not in the trace."""
    if event < 0:
        return None
    return {
        "event": event,
        "time_us": analysis.device.events.time_at(event),
        "after_us": _duration(analysis, 0, event),
        "iteration": analysis.phases.iteration_at(event),
        "phase": analysis.phases.name_at(event),
    }


def _duration(analysis: DeviceAnalysis, first: int, last: int) -> int | None:
    """Return the microseconds from event to event; None where the file has no times."""
    times = analysis.device.events.time_us
    return None if times is None else int(times[last] - times[first])


def _annotations(analysis: DeviceAnalysis, allocation: Any) -> Iterator[Values]:
    """Yield the annotations of an allocation's first event, and later ones.

    Those of the first are from ``_set_memory_metadata``, or from the allocator.
    """
    events = analysis.device.events
    texts = analysis.snapshot.texts
    alloc = allocation.alloc_event
    end = allocation.end_event
    is_later = has_code(events.action, Action.ANNOTATE) & (events.addr == allocation.addr)
    is_later[: alloc + 1] = False
    if end >= 0:
        is_later[end:] = False
    annotated = rows_of(is_later)[:_MOST_ANNOTATIONS].tolist()
    if alloc >= 0:
        annotated.insert(0, alloc)
    metadata = ((events.user_metadata_id, False), (events.internal_metadata_id, True))
    for event in annotated:
        for ids, is_internal in metadata:
            if ids is not None and ids[event] >= 0 and texts[ids[event]]:
                yield {
                    "event": event,
                    "text": texts[ids[event]],
                    "is_internal": is_internal,
                }


def _tensors(analysis: DeviceAnalysis, allocation: Any) -> Iterator[Values]:
    """Yield the tensors that another recorder found in an allocation."""
    tensors = analysis.snapshot.additions.tensors_of(
        analysis.device.device,
        allocation.addr,
        allocation.requested_bytes,
        is_dumped=allocation.end_event < 0,
    )
    for tensor in tensors:
        yield {
            "operation": tensor.operation or None,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
        }


def _location(analysis: DeviceAnalysis, allocation: Any) -> Values:
    """Find the segment of an allocation, its pool and its stream.

    The segment is the first that was returned to the driver after the alloc, or else that at the
    dump.
    """
    events = analysis.device.events
    segments = analysis.device.segments
    pool = allocation.pool_id
    addr = allocation.addr
    is_return = is_among(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    is_return[: allocation.alloc_event + 1] = False
    returned = rows_of(is_return & _contains_addr(events.addr, events.size, addr))
    final = rows_of(_contains_addr(segments.addr, segments.total_bytes, addr))
    segment: Values | None = None
    if len(returned):
        event = int(returned[0])
        segment = _segment(event, int(events.addr[event]), int(events.size[event]))
    elif len(final):
        row = final[0]
        segment = _segment(None, int(segments.addr[row]), int(segments.total_bytes[row]))
        pool = pool if pool >= 0 else int(segments.pool_id[row])
    return {
        "segment": segment,
        "pool": analysis.snapshot.pools[pool] if pool >= 0 else None,
        "stream": allocation.stream,
    }


def _segment(freed: int | None, addr: int, n_bytes: int) -> Values:
    return {"freed_event": freed, "address": _unsigned(addr), "total_bytes": n_bytes}


def _origin(analysis: DeviceAnalysis, allocation: Any, operation_id: int) -> Values:
    operation = analysis.operations[operation_id]
    free_stack = allocation.free_stack_id if analysis.phases.free_sites_known else -1
    return {
        "operation": None if operation == UNNAMED else operation,
        "stack": _stack(analysis, allocation.stack_id),
        "free_stack": _stack(analysis, free_stack),
    }


def _stack(analysis: DeviceAnalysis, stack: int) -> list[Values]:
    stacks = analysis.snapshot.stacks
    frames = stacks.frames
    project = analysis.project
    source_line = analysis.snapshot.additions.source_line
    return [
        {
            "function": frames.names[frame],
            "file": project.relative_paths[frame],
            "line": int(frames.lines[frame]) or None,
            "source": source_line(frames.filenames[frame], int(frames.lines[frame])),
            "is_project": bool(project.is_project[frame]),
        }
        for frame in both_ends(stacks.frames_of(stack).tolist(), _FRAMES_OF_AN_END)
    ]


def _verdict(analysis: DeviceAnalysis, decision: Any, opinions: list[Values]) -> Values:
    category = Category(decision.category)
    evidence = Evidence(decision.evidence)
    rule = analysis.classification.reasons[decision.reason_id]
    follows_from, is_wrong_when = EVIDENCE_WORTH[evidence]
    # Without its records a rule gives the same category with weaker evidence: that is no other
    # opinion.
    decided = (category.label, rule)
    other_opinions = [
        opinion for opinion in opinions if (opinion["category"], opinion["rule"]) != decided
    ]
    return {
        "decision": _opinion(analysis, category, evidence, rule),
        "certainty": Certainty(decision.certainty).label,
        "probability": round(decision.probability, 3) or None,
        "job": job_sentence(analysis) if rule in (SLUG, GRADIENT_OR_STATE) else None,
        "follows_from": follows_from,
        "is_wrong_when": is_wrong_when,
        "others": other_opinions,
    }
