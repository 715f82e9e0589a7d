"""One file of a job of many ranks -> one small row for each of its devices, to JSON and back.

A row has the figures that ranks are compared by, and the lines with most bytes: some KB for any file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import prod
from typing import Any, TypeVar

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.growth import find_growth
from snapconv.answers.oom.failed_allocation import find_out_of_memory
from snapconv.answers.peak import device_memory
from snapconv.answers.totals import summary_totals
from snapconv.answers.verdict import find_verdict, largest_causes
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine, line_values
from snapconv.units import HOST, device_name

# A line beyond these has less than each of them; the least of them bounds it.
N_LINES = 16
# Names come from the file, and a row stays small whatever they are.
_MOST_OF_TEXT = 300
_MOST_DIMENSIONS = 16
_MOST_DIGITS = 9

_Value = TypeVar("_Value")
Coordinates = tuple[tuple[str, int], ...]
LineKey = tuple[str, SourceLine | None, bool]


@dataclass(frozen=True, slots=True)
class RankLine:
    """The bytes that a line of the project has at the peak, of one category; ``line`` None: no such line."""

    category: str
    line: SourceLine | None
    block_bytes: int
    has_stack: bool = True

    @property
    def key(self) -> LineKey:
        """The same line of another rank has the same key."""
        return self.category, self.line, self.has_stack

    @property
    def place(self) -> str:
        """The line as an editor takes it, or what stands for none."""
        return self.line.place if self.line else LIBRARY_ONLY if self.has_stack else NO_STACK

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        figures = {"block_bytes": self.block_bytes, "has_stack": self.has_stack}
        return {"category": self.category, **line_values(self.line), **figures}


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that failed: what it needed of the device, what was free and reserved then, and why."""

    needed_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    place: str
    cause: str
    sentence: str


@dataclass(frozen=True, slots=True)
class RankDevice:
    """One device of one file.

    ``categories`` and ``lines`` are those of the peak, the largest lines first; ``unlisted_bytes`` is the
    largest of the other lines. ``usable_bytes`` is what PyTorch could have of the device: its
    total less what others held, or at a failed request what was reserved and free; None: not recorded.
    ``growth_bytes``: added by every iteration to the end of the trace. ``input_shape`` is that of the largest
    recorded input. ``verdict`` is the first sentence about the file, ``command`` the next one to type.
    """

    device: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int
    usable_bytes: int | None
    categories: tuple[tuple[str, int], ...]
    lines: tuple[RankLine, ...]
    unlisted_bytes: int
    history: str
    about: str
    verdict: str
    command: str
    growth_bytes: int
    growth_place: str
    failed: FailedRequest | None
    input_shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The device as torch names it."""
        return device_name(self.device)

    @property
    def cached_bytes(self) -> int:
        """The bytes reserved beyond the peak of allocated ones."""
        return max(self.reserved_bytes - self.peak_bytes, 0)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return asdict(self) | {
            "categories": dict(self.categories),
            "lines": [line.to_json() for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file of a job: who wrote it and when, and its devices, or the error in their place.

    ``rank`` is None where neither the file nor its name has it. ``dump`` distinguishes the files that a rank
    wrote over time, in the order of ``dump_number``. ``exit_code`` is that of the error, 0 without one.
    """

    file: str
    rank: int | None = None
    dump: str = ""
    dump_number: int = 0
    coordinates: Coordinates = ()
    n_bytes: int | None = None
    devices: tuple[RankDevice, ...] = ()
    error: str | None = None
    exit_code: int = 0

    @property
    def name(self) -> str:
        """The rank, or the file where it has none."""
        return self.file if self.rank is None else f"rank {self.rank}"

    @property
    def main_device(self) -> RankDevice | None:
        """The device with the highest peak, by which ranks are compared; never pinned host memory."""
        found = [device for device in self.devices if device.device != HOST]
        return max(found, key=lambda device: device.peak_bytes, default=None)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "file": self.file,
            "rank": self.rank,
            "dump": self.dump,
            "dump_number": self.dump_number,
            "coordinates": dict(self.coordinates),
            "n_bytes": self.n_bytes,
            "error": self.error,
            "exit_code": self.exit_code,
            "devices": [device.to_json() for device in self.devices],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RankFile":
        """Make it from what ``to_json`` returned; raises ValueError for anything else."""
        try:
            return cls(
                file=str(values["file"]),
                rank=_number(values["rank"]),
                dump=str(values["dump"]),
                dump_number=int(values["dump_number"]),
                coordinates=_pairs(values["coordinates"]),
                n_bytes=_number(values["n_bytes"]),
                devices=tuple(_device(one) for one in values["devices"]),
                error=None if values["error"] is None else str(values["error"]),
                exit_code=int(values["exit_code"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a row of a rank: {error!r}") from error


# --- a file -> its rows


def rank_file(analysis: Analysis, place: RankFile) -> RankFile:
    """Reduce a file to its rows; ``place`` has its name, and what the name says of its rank."""
    facts = dict(analysis.snapshot.metadata.facts) if analysis.snapshot.metadata else {}
    rank = place.rank
    if _is_number(facts.get("rank", "")):
        rank = int(facts["rank"])
    coordinates = place.coordinates or recorded_coordinates(facts.get("coordinates", ""))
    devices = tuple(rank_device(found) for found in analysis.devices)
    return replace(place, rank=rank, coordinates=coordinates, devices=devices)


def recorded_coordinates(text: str) -> Coordinates:
    """Read coordinates such as ``pp=1,dp=3``; those that are not so are left out."""
    pairs = (part.partition("=") for part in text.split(","))
    return tuple((name, int(value)) for name, _, value in pairs if name and _is_number(value))


def _is_number(text: str) -> bool:
    """Return whether a text is a number that a job can have; a database takes none beyond 2^63."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def rank_device(analysis: DeviceAnalysis) -> RankDevice:
    """Reduce one device to its row."""
    verdict, replay = find_verdict(analysis), analysis.replay
    live = analysis.allocations.live_at(analysis.peak_event)
    found = largest_causes(analysis, live, n_most=N_LINES + 1)
    totals = summary_totals(analysis, live)
    growing = [one for one in find_growth(analysis) if one.fate.goes_on]
    grown = max(growing, key=lambda one: one.bytes_per_iteration, default=None)
    failed = _failed(analysis) if verdict.about == "oom" else None
    return RankDevice(
        device=analysis.device.device,
        peak_bytes=replay.allocated.peak,
        end_bytes=replay.allocated.at(len(analysis.device.events) - 1),
        reserved_bytes=replay.reserved.peak,
        usable_bytes=_usable(analysis, failed),
        categories=tuple((row.category, row.block_bytes) for row in totals if row.block_bytes),
        lines=tuple(
            RankLine(one.category, _short(one.line), one.block_bytes, one.has_stack)
            for one in found[:N_LINES]
        ),
        unlisted_bytes=found[N_LINES].block_bytes if len(found) > N_LINES else 0,
        history=verdict.history_verdict,
        about=verdict.about,
        verdict=_cut(verdict.sentence),
        command=verdict.command,
        growth_bytes=sum(one.bytes_per_iteration for one in growing),
        growth_place=_cut(grown.line.place) if grown and grown.line else "",
        failed=failed,
        input_shape=_input_shape(analysis),
    )


def _failed(analysis: DeviceAnalysis) -> FailedRequest | None:
    found = find_out_of_memory(analysis)
    request, verdict = found.request, found.verdict
    if request is None or verdict is None:
        return None
    return FailedRequest(
        needed_bytes=request.segment_bytes,
        free_bytes=request.device_free_bytes,
        reserved_bytes=request.reserved_bytes,
        place=_cut(request.lines[0].place) if request.lines else "",
        cause=verdict.cause,
        sentence=_cut(verdict.sentence),
    )


def _usable(analysis: DeviceAnalysis, failed: FailedRequest | None) -> int | None:
    if failed is not None and failed.free_bytes is not None:
        return failed.reserved_bytes + failed.free_bytes
    memory = device_memory(analysis, len(analysis.device.events) - 1)
    return None if memory.total_bytes is None else memory.total_bytes - (memory.outside_bytes or 0)


def _input_shape(analysis: DeviceAnalysis) -> tuple[int, ...]:
    """Return the shape with most elements among the recorded inputs of models on this device."""
    if analysis.recorded is None:
        return ()
    inputs = analysis.recorded.metadata.inputs
    here = np.flatnonzero(inputs.device == analysis.device.device).tolist()
    shapes = [inputs.shapes[row] for row in here if len(inputs.shapes[row]) <= _MOST_DIMENSIONS]
    return max(shapes, key=prod, default=())


def _short(line: SourceLine | None) -> SourceLine | None:
    return line and replace(line, file_path=_cut(line.file_path), function=_cut(line.function))


def _cut(text: str) -> str:
    """Keep the end of a long text: of a path it counts most."""
    return text if len(text) <= _MOST_OF_TEXT else f"…{text[1 - _MOST_OF_TEXT :]}"


# --- JSON -> rows


@cache
def _same_line(file: str, line: int, function: str) -> SourceLine:
    """Return one object for a line that thousands of ranks have."""
    return SourceLine(file, line, function)


@cache
def _same_text(text: str) -> str:
    return text


def _device(values: Mapping[str, Any]) -> RankDevice:
    failed = values["failed"]
    figures: dict[str, Any] = {key: int(values[key]) for key in _INTEGERS}
    figures |= {key: _same_text(str(values[key])) for key in _TEXTS}
    return RankDevice(
        **figures,
        usable_bytes=_number(values["usable_bytes"]),
        categories=_pairs(values["categories"]),
        lines=tuple(_line(one) for one in values["lines"]),
        failed=None if failed is None else _failed_of(failed),
        input_shape=tuple(int(size) for size in values["input_shape"]),
    )


_INTEGERS = ("device", "peak_bytes", "end_bytes", "reserved_bytes", "unlisted_bytes", "growth_bytes")
_TEXTS = ("history", "about", "verdict", "command", "growth_place")


def _failed_of(values: Mapping[str, Any]) -> FailedRequest:
    return FailedRequest(
        needed_bytes=int(values["needed_bytes"]),
        free_bytes=_number(values["free_bytes"]),
        reserved_bytes=int(values["reserved_bytes"]),
        **{key: str(values[key]) for key in ("place", "cause", "sentence")},
    )


def _line(values: Mapping[str, Any]) -> RankLine:
    file = values["file"]
    line = None if file is None else _same_line(str(file), int(values["line"]), str(values["function"]))
    category, n_bytes = _same_text(str(values["category"])), int(values["block_bytes"])
    return RankLine(category, line, n_bytes, bool(values["has_stack"]))


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((_same_text(str(name)), int(value)) for name, value in values.items())


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def grouped(items: Sequence[_Value], key: Callable[[_Value], Any]) -> Iterator[tuple[Any, list[_Value]]]:
    """Yield the items by their key, in the order of the keys."""
    groups: dict[Any, list[_Value]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    yield from sorted(groups.items())
