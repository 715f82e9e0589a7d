"""Notes about a file as it was read: what is unknown in it, and what it lacks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from snapconv.notes import Note
from snapconv.snapshot.era import Traits
from snapconv.snapshot.stack_table import StackTable

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Oddities:
    """What reading has met beside the tables; the counts are by name."""

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
            "no-timestamps", "the events have no times (torch before 2.2): order is known, duration is not"
        )
    if not len(stacks.frames):
        yield Note(
            "no-stacks",
            "no allocation has a stack: record with context='all' and dump before recording is "
            "switched off to see which line allocated what",
        )
    if met.sizes_missing:
        yield Note(
            "no-requested-size", "blocks lack the requested size (torch 1.x): the block's own size stands in"
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
