"""Runs of a program with several sizes and arguments -> which fit on a card, and the fewest cards.

Each run was recorded with the card's usable memory as the limit of the allocator. A combination
fits when none of its runs ran out of memory. Nothing is inferred about a combination that did not
run.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.moments import find_moment
from snapconv.answers.oom.failed_allocation import failed_allocations
from snapconv.answers.peak import summary_totals
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.torch_knowledge.cards import USUAL_NCCL_BYTES, USUAL_OUTSIDE_BYTES
from snapconv.units import HOST, counted, format_bytes

_NO_DEVICE = "the program used no memory of a CUDA device"
_NO_STEP = "no training step was seen"


class Verdict(Enum):
    """Whether a combination fits; a failed one shows neither."""

    FITS = "fits"
    FAILED = "failed"
    TOO_LARGE = "does not fit"


# The run that decides a combination has the last of these.
_SEVERITY = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class CardMemory:
    """The memory of a card: in all, and outside PyTorch; or exactly what PyTorch may have.

    ``total_bytes`` is None where ``usable_bytes`` was given.
    """

    usable_bytes: int
    total_bytes: int | None = None
    name: str = ""

    @classmethod
    def from_total(cls, total_bytes: int, name: str = "") -> "CardMemory":
        """Return the memory of a card, less the usual bytes outside PyTorch."""
        return cls(total_bytes - USUAL_OUTSIDE_BYTES, total_bytes, name)

    def usable(self, world_size: int) -> int:
        """Return what PyTorch may have in a job of so many ranks: NCCL serves more than one."""
        is_estimated = self.total_bytes is not None and world_size > 1
        return self.usable_bytes - USUAL_NCCL_BYTES * is_estimated


@dataclass(frozen=True, slots=True)
class Combination:
    """One size of the job with one value of every argument, in the order of the command line."""

    world_size: int
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The combination for a sentence: ``8 cards with micro-batch 2``."""
        values = " and ".join(f"{name} {value}" for name, value in self.arguments)
        return f"{self.cards} with {values}" if values else self.cards

    @property
    def cards(self) -> str:
        """The number of cards: ``8 cards``."""
        return counted(self.world_size, "card")

    @property
    def size(self) -> tuple[float, ...]:
        """The order of the arguments: numbers by value, the first argument first."""
        return tuple(_number(value) or 0.0 for _, value in self.arguments)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class FitRow:
    """The result of a combination, of the run that decides: ``rank`` names it.

    ``peak_bytes`` and ``reserved_bytes`` are those of the device with the least memory left, and
    ``largest_category`` has most of its peak, or of the moment at which memory ran out.
    ``short_bytes`` is the least that must not be in use then. ``reason`` is a sentence where the
    program failed, or a remark. ``capture`` is the folder if it was kept.
    """

    combination: Combination
    verdict: Verdict
    usable_bytes: int
    rank: int | None = None
    device: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    short_bytes: int | None = None
    largest_category: str = ""
    largest_bytes: int = 0
    line: SourceLine | None = None
    reason: str = ""
    capture: str | None = None
    n_seconds: float = 0.0

    @property
    def left_bytes(self) -> int | None:
        """The usable memory that was never reserved; None where the program did not fit."""
        if self.verdict is not Verdict.FITS or self.reserved_bytes is None:
            return None
        return max(self.usable_bytes - self.reserved_bytes, 0)

    @property
    def order(self) -> tuple[int, int, int]:
        """The order of the runs of one combination: the last decides."""
        severity = _SEVERITY.index(self.verdict)
        return severity, self.short_bytes or 0, self.reserved_bytes or 0

    def values(self) -> dict[str, object]:
        """Return the flat values, which the CSV and the JSON share, without the arguments."""
        return {
            "verdict": self.verdict.value,
            "rank": self.rank,
            "device": self.device,
            "usable_bytes": self.usable_bytes,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "left_bytes": self.left_bytes,
            "short_bytes": self.short_bytes,
            "largest_category": self.largest_category or None,
            "largest_bytes": self.largest_bytes,
            **line_values(self.line),
            "reason": self.reason,
            "capture": self.capture,
            "seconds": round(self.n_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class FitReport:
    """The rows of all combinations that ran, and those that did not."""

    program: str
    card: CardMemory
    rows: tuple[FitRow, ...]
    not_run: tuple[Combination, ...] = ()
    answer: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer", conclude(self.rows, self.not_run))

    @property
    def fitting(self) -> tuple[FitRow, ...]:
        """The rows that fit."""
        return _select(self.rows, Verdict.FITS)

    @property
    def failed(self) -> tuple[FitRow, ...]:
        """The rows that show neither that they fit nor that they do not."""
        return _select(self.rows, Verdict.FAILED)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "answer": self.answer,
            "program": self.program,
            "card": self.card.name or None,
            "card_bytes": self.card.total_bytes,
            "combinations": [_keys(row.combination) | row.values() for row in self.rows],
            "not_run": [_keys(combination) for combination in self.not_run],
        }


def _keys(combination: Combination) -> dict[str, object]:
    return {
        "world_size": combination.world_size,
        "arguments": dict(combination.arguments),
    }


def _select(rows: Iterable[FitRow], verdict: Verdict) -> tuple[FitRow, ...]:
    return tuple(row for row in rows if row.verdict is verdict)


# --- one run


def fill_row(row: FitRow, analysis: Analysis) -> FitRow:
    """Return a row with the figures of a capture: those of its fullest device.

    The verdict stays unless memory ran out, or the program used no device. A program that fits and
    made no step has a remark.
    """
    metadata = analysis.snapshot.metadata
    has_step = metadata is not None and bool((metadata.iterations.ended_us >= 0).any())
    if row.verdict is Verdict.FITS and not has_step:
        row = replace(row, reason=_NO_STEP)
    rows = [
        _device_row(row, device)
        for device in analysis.devices
        if device.device.device != HOST
    ]
    if not rows:
        return replace(row, verdict=Verdict.FAILED, reason=row.reason or _NO_DEVICE)
    return max(rows, key=lambda device_row: device_row.order)


def _device_row(row: FitRow, device: DeviceAnalysis) -> FitRow:
    moment = find_moment(device, "oom" if device.ran_out else "peak")
    live = device.allocations.live_at(moment.event)
    largest = max(summary_totals(device, live), key=lambda total: total.block_bytes)
    figures = replace(
        row,
        device=int(device.device.device),
        peak_bytes=device.replay.allocated.peak,
        reserved_bytes=device.replay.reserved.peak,
        largest_category=largest.category if largest.block_bytes else "",
        largest_bytes=largest.block_bytes,
    )
    if not device.ran_out:
        return figures
    failed = failed_allocations(device)[0]
    needed_bytes = failed.allocated_bytes + failed.block_bytes
    return replace(
        figures,
        verdict=Verdict.TOO_LARGE,
        short_bytes=max(needed_bytes - row.usable_bytes, 0),
        line=failed.lines[0] if failed.lines else None,
        reason="",
    )


# --- the conclusion


def conclude(rows: Sequence[FitRow], not_run: Sequence[Combination] = ()) -> str:
    """Say the fewest cards that suffice, and the largest arguments, of what ran."""
    fitting = _select(rows, Verdict.FITS)
    is_whole = not not_run and not _select(rows, Verdict.FAILED)
    sentences = (
        list(_best(fitting)) if fitting else [_nothing_fits(rows, is_whole=is_whole)]
    )
    sentences += _unknown(rows, not_run)
    return "; ".join(sentences)


def _best(fitting: Sequence[FitRow]) -> Iterator[str]:
    fewest = min(row.combination.world_size for row in fitting)
    smallest_jobs = [row for row in fitting if row.combination.world_size == fewest]
    best = max(smallest_jobs, key=lambda row: row.combination.size)
    remaining = format_bytes(best.left_bytes or 0)
    yield f"fits on {best.combination.name}: {_reserved(best)}, {remaining} left"
    if best.reason:
        yield best.reason
    largest = max(
        fitting, key=lambda row: (row.combination.size, -row.combination.world_size)
    )
    if largest.combination.size > best.combination.size:
        arguments = largest.combination.arguments
        numbers = [pair for pair in arguments if _number(pair[1]) is not None]
        # They are compared in their order: of the others nothing is the largest for itself.
        (name, value), *next_numbers = numbers
        suffix = "".join(f" with {name} {value}" for name, value in next_numbers)
        yield f"largest {name} that fits: {value}{suffix}, on {largest.combination.cards}"


def _reserved(row: FitRow) -> str:
    of = format_bytes(row.usable_bytes)
    return f"{format_bytes(row.reserved_bytes or 0)} reserved of {of}"


def _nothing_fits(rows: Sequence[FitRow], *, is_whole: bool) -> str:
    too_large = _select(rows, Verdict.TOO_LARGE)
    if not too_large:
        return "unknown whether it fits"
    nearest = min(too_large, key=lambda row: row.short_bytes or 0)
    subject = "no combination" if is_whole else "none that could be judged"
    return f"{subject} fits: the nearest is {nearest.combination.name}, {shortage(nearest)}"


def shortage(row: FitRow) -> str:
    """Say how many bytes a combination lacks at least, and where: no packing needs less."""
    location = f" at {row.line.place}" if row.line else ""
    if not row.short_bytes:
        # In pieces, or in blocks that wait for another stream: `oom` says which, where it is known.
        return f"out of memory{location}, with enough free in sum"
    return f"at least {format_bytes(row.short_bytes)} short{location}"


def _unknown(rows: Sequence[FitRow], not_run: Sequence[Combination]) -> Iterator[str]:
    """Name what failed or did not run, of which nothing is inferred."""
    failed = _select(rows, Verdict.FAILED)
    if failed and len(failed) == len(rows) and len({row.reason for row in rows}) == 1:
        yield f"every combination that ran failed: {rows[0].reason}"
    elif failed:
        yield f"{counted(len(failed), 'combination')} failed and could not be judged"
    if not_run:
        yield f"{counted(len(not_run), 'combination')} did not run"
