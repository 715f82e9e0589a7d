"""The files of a job -> one answer: groups of equal ranks, what differs and in what, where memory ran out.

Ranks are compared within a group, by the median and the median absolute deviation, which a few
outliers do not move. A group is a pipeline stage: its data, tensor, context and expert parallel
ranks should be equal. Of several dumps of a rank the last one is compared; how they differ is its
growth. A rank without a file is a row with an error, where few are missing: chosen ranks of a job
are no fault.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import groupby, pairwise
from math import prod
from statistics import median
from typing import NamedTuple

from snapconv.answers.ranks.rank_file import RankDevice, RankFile, RankLine
from snapconv.errors import InputError
from snapconv.mesh import STAGES
from snapconv.units import HOST, counted, format_bytes

# Where two ranks differ, either may be the outlier.
LEAST_RANKS = 3
# A difference counts from this many robust standard deviations on, and from this share of the
# group's peak.
_DEVIATIONS, _LEAST_SHARE = 5.0, 0.02
# The factor that makes the median absolute deviation of a normal distribution its standard
# deviation.
_TO_SIGMA = 1.4826
_MOST_REASONS = 3
# Ranks in different places of a mesh are unequal from this difference on.
_UNEVEN = 0.1
# More outliers than this share of a group are no outliers: the group is several kinds of ranks.
_MIXED = 0.25
# More missing ranks than this share of a job are none: somebody chose some.
_MISSING = 0.5
_Stage = tuple[tuple[str, int], ...]


class Entry(NamedTuple):
    """A device of a rank in a comparison; ``number`` is its place among several of the file, else None."""

    file: RankFile
    device: RankDevice
    number: int | None

    @property
    def name(self) -> str:
        """The rank, and which of its devices it is if it has several."""
        return self.file.name if self.number is None else f"{self.file.name}, {self.device.name}"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that should need the same memory, and the spread of their peaks; ``name`` is empty for all."""

    name: str
    n_ranks: int
    median_bytes: int
    least_bytes: int
    most_bytes: int


class Kind(str, Enum):
    """The kinds of findings; the values stand in every output."""

    OUT_OF_MEMORY = "out of memory"
    OUTLIER = "outlier"
    IMBALANCE = "imbalance"
    GROWTH = "growth"
    FAULT = "fault"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something worth knowing about a job, in a sentence; about one file, or about none in particular.

    ``n_bytes`` is how much it is: what a failed request needed, the difference from the median of
    the group, or the growth of a peak.
    """

    kind: Kind
    sentence: str
    n_bytes: int = 0
    file: str | None = None
    rank: int | None = None


def _about(kind: Kind, about: "Entry | RankFile", n_bytes: int, words: str) -> Finding:
    file = about.file if isinstance(about, Entry) else about
    return Finding(kind, f"{about.name}{words}", n_bytes, file.file, file.rank)


@dataclass(frozen=True, slots=True)
class JobReport:
    """All that was found in a job: ``files`` by rank, ``findings`` with the worst of each kind first."""

    files: tuple[RankFile, ...]
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]

    @property
    def n_files(self) -> int:
        """The number of files, without the rows of ranks that have none."""
        return sum(bool(one.file) for one in self.files)

    def of_kind(self, kind: Kind) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(one for one in self.findings if one.kind is kind)

    @property
    def errors(self) -> tuple[RankFile, ...]:
        """The files that could not be read."""
        return tuple(file for file in self.files if file.error is not None)

    @property
    def lacking(self) -> str:
        """What of the job is not here, in words: files that could not be read, ranks without one."""
        n_missing = len(self.files) - self.n_files
        n_unread = len(self.errors) - n_missing
        unread = f"{counted(n_unread, 'file')} not read" if n_unread else ""
        missing = f"{counted(n_missing, 'rank')} without a file" if n_missing else ""
        return ", ".join(filter(None, (unread, missing)))

    @property
    def last_dumps(self) -> tuple[RankFile, ...]:
        """The last file of every rank that could be read."""
        return tuple(dumps[-1] for dumps in _by_rank(self.files))

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {"n_files": self.n_files, "n_errors": len(self.errors), **asdict(self)}


def report_job(
    files: Sequence[RankFile], *, n_ranks: int | None = None, is_whole: bool = True
) -> JobReport:
    """Compare the ranks of a job: of ``n_ranks``, where that is known beside the files.

    ``is_whole``: all files are there, so that a rank without one is missing.
    """
    ordered = sorted(
        [*files, *(_missing(files, n_ranks) if is_whole else ())],
        key=lambda one: (one.rank is None, one.rank or 0, one.dump_number, one.dump, one.file),
    )
    by_rank = _by_rank(ordered)
    entries = [entry for dumps in by_rank for entry in _entries(dumps[-1])]
    by_stage = groupby(sorted(entries, key=_stage), _stage)
    groups = [(stage, list(group)) for stage, group in by_stage]
    outliers = [found for _, group in groups for found in _outliers(group)]
    found = (
        *(found for _, group in groups for found in _exhausted(group)),
        *outliers,
        *_uneven_axes([group for _, group in groups]),
        *_uneven_inputs(entries),
        *_growths(by_rank),
        *_faults(entries),
        *_hints(groups, len(outliers)),
        *_same_dumps(by_rank),
    )
    kinds = list(Kind)
    return JobReport(
        files=tuple(ordered),
        groups=tuple(_group(_name(stage), group) for stage, group in groups),
        findings=tuple(sorted(found, key=lambda one: (kinds.index(one.kind), -abs(one.n_bytes)))),
    )


def _missing(files: Sequence[RankFile], n_ranks: int | None) -> list[RankFile]:
    """Return a row with an error for each rank that has no file, from 0 or the least on, if they are few."""
    known = {file.rank for file in files if file.rank is not None}
    n_ranks = n_ranks or max((file.n_ranks or 0 for file in files), default=0)
    first = 0 if n_ranks else min(known, default=0)
    end = max([n_ranks, *(rank + 1 for rank in known)])
    if end - first - len(known) > _MISSING * (end - first):
        return []
    error = InputError("no file of this rank was found")
    ranks = (rank for rank in range(first, end) if rank not in known)
    return [RankFile("", rank).with_error(error) for rank in ranks]


def _by_rank(files: Iterable[RankFile]) -> list[list[RankFile]]:
    """Arrange the readable files, which are in order, by rank; one without a rank is alone."""
    read = [file for file in files if file.error is None]
    with_rank = [file for file in read if file.rank is not None]
    alone = [[file] for file in read if file.rank is None]
    return [list(dumps) for _, dumps in groupby(with_rank, lambda file: file.rank)] + alone


def _entries(file: RankFile) -> list[Entry]:
    """Return the devices of a file, which are compared with those in the same place of other files."""
    found = [device for device in file.devices if device.device != HOST]
    return [
        Entry(file, device, number if len(found) > 1 else None)
        for number, device in enumerate(found)
    ]


def _stage(entry: Entry) -> _Stage:
    places = entry.file.coordinates.items()
    stages = tuple((axis, place) for axis, place in places if axis.startswith(STAGES))
    return stages if entry.number is None else (*stages, ("device", entry.number))


def _name(stage: _Stage) -> str:
    return ",".join(f"{axis}={place}" for axis, place in stage)


def _group(name: str, entries: Sequence[Entry]) -> Group:
    peaks = [entry.device.peak_bytes for entry in entries]
    return Group(name, len(entries), int(median(peaks)), min(peaks), max(peaks))


def _hints(groups: Sequence[tuple[_Stage, list[Entry]]], n_outliers: int) -> Iterator[Finding]:
    """Say what would make the comparison better."""
    n_ranks = sum(len(group) for _, group in groups)
    has_stages = any(axis != "device" for stage, _ in groups for axis, _ in stage)
    spread = [_group("", group) for _, group in groups]
    is_wide = any(one.most_bytes - one.least_bytes > _UNEVEN * one.most_bytes for one in spread)
    is_mixed = n_outliers > _MIXED * n_ranks or (is_wide and not n_outliers)
    if n_ranks >= 2 * LEAST_RANKS and is_mixed and not has_stages:
        yield Finding(
            Kind.HINT,
            f"the peaks of the {n_ranks} ranks differ widely: if the job has pipeline stages, "
            f"pass its mesh, "
            "such as --mesh pp=4,dp=8,tp=2",
        )
    # Of a few files with several devices beside those of one, none is missing.
    small = [
        _name(stage) or "the ranks"
        for stage, group in groups
        if len(group) < LEAST_RANKS
        and (group[0].number is None or groups[0][1][0].number is not None)
    ]
    if small:
        yield Finding(
            Kind.HINT,
            f"a group needs {LEAST_RANKS} ranks to be compared: not so {', '.join(small)}",
        )


def _same_dumps(by_rank: Sequence[Sequence[RankFile]]) -> Iterator[Finding]:
    """Name two files of one rank and one dump: one of them may be of another rank, and is not compared."""
    pairs = [pair for dumps in by_rank for pair in pairwise(dumps) if pair[0].dump == pair[1].dump]
    if pairs:
        first, last = pairs[0]
        yield Finding(
            Kind.HINT,
            f"{counted(len(pairs), 'file')} not compared, as another has the same rank and dump: "
            f"such as "
            f"{first.file}, for {last.file}",
        )


# --- outliers


def _outliers(entries: Sequence[Entry]) -> Iterator[Finding]:
    if len(entries) < LEAST_RANKS:
        return
    comparison = _Comparison(entries)
    for entry in entries:
        if reasons := tuple(comparison.reasons(entry.device)):
            more = entry.device.peak_bytes - comparison.figures["peak"][0]
            yield _about(Kind.OUTLIER, entry, more, f": {'; '.join(reasons)}")


class _Comparison:
    """The figures of a group: the median of each, and the least difference from it that counts."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._n = len(entries)
        self._least = _LEAST_SHARE * median(entry.device.peak_bytes for entry in entries)
        lines: dict[RankLine, list[int]] = defaultdict(list)
        figures: dict[str, list[int]] = defaultdict(list)
        for entry in entries:
            for name, value in _figures(entry.device).items():
                figures[name].append(value)
            for line in entry.device.lines:
                lines[line.key].append(line.block_bytes)
        self.figures = {name: self._spread(figures[name]) for name in sorted(figures)}
        # A line that fewer than half of them have is usually not there: its median and deviation
        # are 0.
        common = {key: known for key, known in lines.items() if 2 * len(known) >= self._n}
        self._lines = {key: self._spread(known) for key, known in common.items()}

    def _spread(self, known: Sequence[int]) -> tuple[int, float]:
        """Return the median and the least difference that counts; what a device does not have is 0."""
        values = [*known, *[0] * (self._n - len(known))]
        middle = median(values)
        deviation = _TO_SIGMA * median(abs(value - middle) for value in values)
        return int(middle), max(_DEVIATIONS * deviation, self._least)

    def reasons(self, device: RankDevice) -> Iterator[str]:
        """Say how a device differs: by lines, or else by category, or else by its peak alone."""
        figures = _figures(device)
        more = {name: figures.get(name, 0) - middle for name, (middle, _) in self.figures.items()}
        odd = [name for name, (_, least) in self.figures.items() if abs(more[name]) > least]
        categories = [name for name in odd if name not in _BESIDE_CATEGORIES]
        lines = sorted(self._odd_lines(device), key=lambda found: -abs(found[0]))[:_MOST_REASONS]
        explained = {category for _, category, _ in lines}
        rest = sorted(set(categories) - explained, key=lambda name: (-abs(more[name]), name))
        found = [*(reason for *_, reason in lines), *(self._reason(name, more) for name in rest)]
        if not found and "peak" in odd:
            found = [self._reason("peak", more)]
        yield from found[:_MOST_REASONS]
        if "cached" in odd and more["cached"] > 0:
            yield self._reason("cached", more, "reserved and not in use")
        if "growth" in odd and device.growth_bytes:
            where = f" at {device.growth_place}" if device.growth_place else ""
            yield f"grows by {format_bytes(device.growth_bytes)} per iteration{where}"

    def _reason(self, name: str, more: Mapping[str, int], words: str = "") -> str:
        return (
            f"{_signed(more[name])} {words or name} (group median "
            f"{format_bytes(self.figures[name][0])})"
        )

    def _odd_lines(self, device: RankDevice) -> Iterator[tuple[int, str, str]]:
        """Yield by how much a line differs, its category, and the same in words."""
        mine = {line.key: line.block_bytes for line in device.lines}
        for key in {**self._lines, **mine}:
            middle, least = self._lines.get(key, (0, self._least))
            # A line that a row does not list has at most as much as the row leaves unlisted.
            if key not in mine and device.unlisted_bytes > self._least:
                continue
            more = mine.get(key, 0) - middle
            if abs(more) > least:
                others = f"group median {format_bytes(middle)}" if middle else "none in its group"
                yield (
                    more,
                    key.category,
                    f"{_signed(more)} {key.category} at {key.place} ({others})",
                )


_BESIDE_CATEGORIES = ("peak", "cached", "growth")


def _figures(device: RankDevice) -> dict[str, int]:
    """Return the figures of a device that are compared, by name."""
    cached_bytes = max(device.reserved_bytes - device.peak_bytes, 0)
    beside = (device.peak_bytes, cached_bytes, device.growth_bytes)
    return dict(zip(_BESIDE_CATEGORIES, beside, strict=True)) | device.categories


def _signed(n_bytes: int) -> str:
    return f"{'+' if n_bytes >= 0 else '−'}{format_bytes(abs(n_bytes))}"


# --- memory that ran out


def _exhausted(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report the ranks whose memory ran out, and what the others of the group had left, if it is known."""
    for entry in entries:
        device = entry.device
        failed = entry.device.failed
        if failed is None:
            continue
        where = f" at {failed.place}" if failed.place else ""
        free = "" if failed.free_bytes is None else f", {format_bytes(failed.free_bytes)} free"
        words = f"{where}: {format_bytes(failed.needed_bytes)} needed{free}"
        # Where nothing says how large another card is, it is taken for an equal one.
        left = [
            max((other.usable_bytes or device.usable_bytes) - other.reserved_bytes, 0)
            for _, other, _ in entries
            if other.failed is None and device.usable_bytes is not None
        ]
        if left:
            least = format_bytes(min(left))
            most = format_bytes(max(left))
            range_ = least if least == most else f"{least} to {most}"
            words += (
                f"; {counted(len(left), 'other rank')} of its group had {range_} left at "
                f"their peaks"
            )
        yield _about(Kind.OUT_OF_MEMORY, entry, failed.needed_bytes, words)


# --- imbalance


def _uneven_axes(groups: Sequence[list[Entry]]) -> Iterator[Finding]:
    """Compare the stages by the medians of their peaks, and within each stage the places on other axes."""
    everyone = [entry for group in groups for entry in group]
    for axis in dict.fromkeys(name for entry in everyone for name in entry.file.coordinates):
        if axis.startswith(STAGES):
            found = [_uneven(axis, everyone, n_least=1)]
        else:  # one rank at a place would only be an outlier once more
            found = [_uneven(axis, group, n_least=LEAST_RANKS) for group in groups]
        yield from sorted(filter(None, found), key=lambda one: -one.n_bytes)[:1]


def _uneven(axis: str, entries: Sequence[Entry], *, n_least: int) -> Finding | None:
    peaks: dict[int, list[int]] = defaultdict(list)
    for file, device, _ in entries:
        if (place := file.coordinates.get(axis)) is not None:
            peaks[place].append(device.peak_bytes)
    medians = {
        place: int(median(some)) for place, some in sorted(peaks.items()) if len(some) >= n_least
    }
    if not medians:
        return None
    most = max(medians, key=medians.__getitem__)
    least = min(medians, key=medians.__getitem__)
    more = medians[most] - medians[least]
    if not more or more < _UNEVEN * medians[most]:
        return None
    high = format_bytes(medians[most])
    low = format_bytes(medians[least])
    return Finding(
        Kind.IMBALANCE, f"{axis}={most} peaks at {high}, {axis}={least} at {low} (medians)", more
    )


def _uneven_inputs(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare the recorded inputs: ranks with longer sequences or larger batches need more activations."""
    sized = [entry for entry in entries if entry.device.input_shape]
    if len(sized) < LEAST_RANKS:
        return
    sizes = [prod(entry.device.input_shape) for entry in sized]
    if max(sizes) - min(sizes) >= _UNEVEN * max(sizes) > 0:
        most = sized[sizes.index(max(sizes))]
        least = sized[sizes.index(min(sizes))]
        yield Finding(
            Kind.IMBALANCE,
            f"the inputs of {most.file.name} are {_shape(most)}, those of {least.file.name} "
            f"{_shape(least)}",
        )


def _shape(entry: Entry) -> str:
    return " × ".join(map(str, entry.device.input_shape))


# --- what ranks keep for nothing


def _faults(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report each fault once, with the rank where it holds most."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for entry in entries:
        for what, n_bytes in entry.device.faults.items():
            if n_bytes:  # else it saves only beside another change
                found[what].append((n_bytes, entry.name))
    for what, held in found.items():
        most, name = max(held, key=lambda one: one[0])
        others = f" and {counted(len(held) - 1, 'other')}" if len(held) > 1 else ""
        yield Finding(
            Kind.FAULT, f"{what}: {format_bytes(most)} at the peak of {name}{others}", most
        )


# --- growth from dump to dump


def _growths(by_rank: Sequence[Sequence[RankFile]]) -> Iterator[Finding]:
    for dumps in by_rank:
        found = [(file, device) for file in dumps if (device := file.main_device) is not None]
        if len(found) < 2:
            continue
        (first_file, first), (last_file, last) = found[0], found[-1]
        more = last.peak_bytes - first.peak_bytes
        if more <= _LEAST_SHARE * first.peak_bytes:
            continue
        place = _grown_place(first, last)
        words = (
            f": peak {format_bytes(first.peak_bytes)} at {first_file.dump or 'the first dump'}, "
            f"{format_bytes(last.peak_bytes)} at {last_file.dump or 'the last'} ({len(found)} "
            f"dumps)"
        )
        yield _about(
            Kind.GROWTH, last_file, more, words + (f", most of it at {place}" if place else "")
        )


def _grown_place(first: RankDevice, last: RankDevice) -> str:
    before = {line.key: line.block_bytes for line in first.lines}
    grown = {line: line.block_bytes - before.get(line.key, 0) for line in last.lines}
    most = max(grown, key=grown.__getitem__, default=None)
    return most.place if most is not None and grown[most] > 0 else ""
