"""Derived block sizes, compared with those that the file has itself.

Blocks that are live at the dump have their sizes in the segments. The walk does not read these, so those
of them that were allocated in the trace are a sample in which every file checks the rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES, AllocatorSettings
from snapconv.columns import has_code
from snapconv.notes import Note
from snapconv.replay.block_sizes import BlockSizes, derive_block_sizes
from snapconv.replay.lifetimes import Lifetimes
from snapconv.replay.rounding import HOST_RULES, RoundingRules, expandable_ranges, infer_rules
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.stop_signals import stage


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The numbers of blocks allocated in the trace and live at the dump, and of sizes that differ.

    ``n_different_by_settings`` counts those that differ by what the file says of its settings: more than
    ``n_different`` where other rules fit better and were taken. ``is_other_split_rule``: among them, whether
    blocks are split as in expandable segments.
    """

    n_checked: int
    n_different: int
    n_different_by_settings: int
    is_other_split_rule: bool = False


@dataclass(frozen=True, slots=True)
class CheckedSizes:
    """Block sizes with the rules that they follow from."""

    sizes: BlockSizes
    rules: RoundingRules
    check: SizeCheck


@stage
def derive_checked_sizes(
    device: DeviceSnapshot, lifetimes: Lifetimes, settings: AllocatorSettings, *, backend: str
) -> CheckedSizes:
    """Derive the sizes by the file's settings, or by other rules where these fit more of the live blocks.

    The settings are those at the dump, which the program may have changed (``_set_allocator_settings``),
    and torch_npu's padding is in no setting.
    """
    if device.is_host:
        sizes = BlockSizes(HOST_RULES.rounded(device.events.size), {}, 0)
        return CheckedSizes(sizes, HOST_RULES, _check(sizes, lifetimes, device))
    first = infer_rules(settings, device.blocks, backend=backend)
    best = by_settings = _derive(device, lifetimes, first)
    others = _other_rules(first, device)
    while best.check.n_different and (rules := next(others, None)):
        # Of equals the first.
        best = min(best, _derive(device, lifetimes, rules), key=lambda derived: derived.check.n_different)
    check = replace(
        best.check,
        n_different_by_settings=by_settings.check.n_different,
        is_other_split_rule=best.rules.expandable is not None
        or best.rules.settings.expandable_segments != settings.expandable_segments,
    )
    return replace(best, check=check)


def size_notes(checked: CheckedSizes) -> Iterator[Note]:
    """Yield the notes on a check that found differences."""
    check = checked.check
    if check.n_different:
        yield Note(
            "block-size-mismatch",
            f"{check.n_different} of {check.n_checked} traced blocks that are live at the dump have another "
            "size there than their requests give: they count as in the dump, but those that were freed "
            "before may have wrong sizes, so allocated and active bytes before the dump are approximate",
        )
    if check.is_other_split_rule:
        kind = "expandable segments" if checked.rules.settings.expandable_segments else "ordinary segments"
        if checked.rules.expandable is not None:
            kind = "the kind of segment that each is in"
        yield Note(
            "other-split-rule",
            f"the live blocks were split as in {kind}, against what the file says of them: by that, "
            f"{check.n_different_by_settings} of {check.n_checked} would have another size than in the dump. "
            "If the setting was changed during the run, allocated and active bytes are approximate while it "
            "was the other one",
        )


def _other_rules(first: RoundingRules, device: DeviceSnapshot) -> Iterator[RoundingRules]:
    """Yield the other combinations of padding and split rule.

    Where a device has both kinds of segments, the setting was changed: then first the rule of each segment.
    """
    ranges = expandable_ranges(device.segments, device.events)
    has_ordinary = (
        not device.segments.is_expandable.all() or has_code(device.events.action, Action.SEGMENT_ALLOC).any()
    )
    if len(ranges.starts) and has_ordinary:
        yield replace(first, expandable=ranges)
    is_expandable = first.settings.expandable_segments
    for expandable, padding_bytes in product((is_expandable, not is_expandable), (0, NPU_PADDING_BYTES)):
        settings = replace(first.settings, expandable_segments=expandable, padding_bytes=padding_bytes)
        if settings != first.settings:
            yield replace(first, settings=settings)


def _derive(device: DeviceSnapshot, lifetimes: Lifetimes, rules: RoundingRules) -> CheckedSizes:
    sizes = derive_block_sizes(device.events, device.segments, device.blocks, rules)
    return CheckedSizes(sizes, rules, _check(sizes, lifetimes, device))


def _check(sizes: BlockSizes, lifetimes: Lifetimes, device: DeviceSnapshot) -> SizeCheck:
    rows = np.flatnonzero((lifetimes.alloc_event >= 0) & (lifetimes.block_id >= 0))
    derived = sizes.of_event[lifetimes.alloc_event[rows]]
    in_segments = device.blocks.block_bytes[lifetimes.block_id[rows]]
    n_different = int(np.count_nonzero(derived != in_segments))
    return SizeCheck(len(rows), n_different, n_different)
