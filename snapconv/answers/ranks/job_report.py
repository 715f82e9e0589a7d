"""The files of a job -> one answer: groups of equal ranks, outliers, and where memory ran out.

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
from itertools import chain, pairwise
from math import prod
from operator import attrgetter, itemgetter
from statistics import median
from typing import NamedTuple

from snapconv.answers.ranks.rank_file import RankDevice, RankFile, RankLine
from snapconv.errors import InputError
from snapconv.mesh import STAGES
from snapconv.units import HOST, counted, format_bytes, optional

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
    """A device of a rank in a comparison; ``number`` counts several of a file, else it is None."""

    file: RankFile
    device: RankDevice
    number: int | None

    @property
    def name(self) -> str:
        """The rank, and which of its devices it is if it has several."""
        return (
            self.file.name
            if self.number is None
            else f"{self.file.name}, {self.device.name}"
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that should need the same memory, and the spread of their peaks.

    ``name`` is empty for the group of all ranks.
    """

    name: str
    n_ranks: int
    median_bytes: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the mesh, along which ranks are compared that are equal on all others.

    ``n_compared`` are the sets of such ranks, ``n_unequal`` those whose peaks differ by enough to
    count. ``difference_bytes`` is the largest difference of peaks in a set, between the coordinates
    ``highest`` and ``lowest``.
    """

    name: str
    n_coordinates: int
    n_compared: int
    n_unequal: int
    difference_bytes: int
    highest: int
    lowest: int

    @property
    def sentence(self) -> str:
        """Say whether peaks differ along the axis, and how."""
        if not self.n_unequal:
            return "peaks are equal"
        high, low = f"{self.name}={self.highest}", f"{self.name}={self.lowest}"
        sets = f"{self.n_unequal} of {counted(self.n_compared, 'set')}"
        difference = format_bytes(self.difference_bytes)
        return f"{high} has up to {difference} more than {low}; unequal in {sets}"


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
    """A sentence worth knowing about a job, or about one file of it.

    ``n_bytes`` is how much it is: what a failed request needed, the difference from the median of
    the group, or the growth of a peak.
    """

    kind: Kind
    sentence: str
    n_bytes: int = 0
    file: str | None = None
    rank: int | None = None


def _rank_finding(kind: Kind, file: RankFile, n_bytes: int, sentence: str) -> Finding:
    return Finding(kind, sentence, n_bytes, file.file, file.rank)


@dataclass(frozen=True, slots=True)
class JobReport:
    """The answer about a job: ``files`` by rank, ``findings`` with the worst of each kind first."""

    files: tuple[RankFile, ...]
    groups: tuple[Group, ...]
    findings: tuple[Finding, ...]
    axes: tuple[Axis, ...] = ()

    @property
    def n_files(self) -> int:
        """The number of files, without the rows of ranks that have none."""
        return sum(bool(row.file) for row in self.files)

    def select(self, kind: Kind) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind is kind)

    @property
    def errors(self) -> tuple[RankFile, ...]:
        """The files that could not be read."""
        return tuple(file for file in self.files if file.error is not None)

    @property
    def lacking(self) -> str:
        """The missing part of the job, in words: files not read, ranks without a file."""
        n_missing = len(self.files) - self.n_files
        n_unread = len(self.errors) - n_missing
        unread = f"{counted(n_unread, 'file')} not read" if n_unread else ""
        missing = f"{counted(n_missing, 'rank')} without a file" if n_missing else ""
        return ", ".join(filter(None, (unread, missing)))

    @property
    def last_dumps(self) -> tuple[RankFile, ...]:
        """The last file of every rank that could be read."""
        return tuple(dumps[-1] for dumps in _dumps_by_rank(self.files))

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {"n_files": self.n_files, "n_errors": len(self.errors), **asdict(self)}


def report_job(
    files: Sequence[RankFile], *, n_ranks: int | None = None, is_whole: bool = True
) -> JobReport:
    """Compare the ranks of a job: of ``n_ranks``, where that is known beside the files.

    ``is_whole``: all files are there, so that a rank without one is missing.
    """
    rows = list(files)
    if is_whole:
        rows += _missing(files, n_ranks)
    rows.sort(key=_file_order)
    dumps_by_rank = _dumps_by_rank(rows)
    entries: list[Entry] = []
    for dumps in dumps_by_rank:
        entries += _entries(dumps[-1])
    groups: dict[_Stage, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=_stage):
        groups[_stage(entry)].append(entry)
    failures: list[Finding] = []
    outliers: list[Finding] = []
    for group in groups.values():
        failures += _exhausted(group)
        outliers += _outliers(group)
    findings = [
        *failures,
        *outliers,
        *_uneven_axes(list(groups.values())),
        *_uneven_inputs(entries),
        *_growths(dumps_by_rank),
        *_faults(entries),
        *_hints(groups, len(outliers)),
        *_same_dumps(dumps_by_rank),
    ]
    findings.sort(key=_finding_order)
    return JobReport(
        files=tuple(rows),
        groups=tuple(_group(_name(stage), group) for stage, group in groups.items()),
        findings=tuple(findings),
        axes=tuple(_axes(entries)),
    )


def _file_order(file: RankFile) -> tuple[bool, int, int, str, str]:
    return file.rank is None, file.rank or 0, file.dump_number, file.dump, file.file


def _finding_order(finding: Finding) -> tuple[int, int]:
    return list(Kind).index(finding.kind), -abs(finding.n_bytes)


def _missing(files: Sequence[RankFile], n_ranks: int | None) -> list[RankFile]:
    """Return a row with an error for each rank that has no file, if they are few.

    Ranks count from 0, or from the least where nothing says how many there are.
    """
    present = {file.rank for file in files if file.rank is not None}
    n_ranks = n_ranks or max((file.n_ranks or 0 for file in files), default=0)
    first = 0 if n_ranks else min(present, default=0)
    end = max([n_ranks, *(rank + 1 for rank in present)])
    if end - first - len(present) > _MISSING * (end - first):
        return []
    error = InputError("no file of this rank was found")
    missing = [rank for rank in range(first, end) if rank not in present]
    return [RankFile("", rank).add_error(error) for rank in missing]


def _dumps_by_rank(files: Iterable[RankFile]) -> list[list[RankFile]]:
    """Arrange the readable files, which are in order, by rank; one without a rank is alone."""
    dumps: dict[int, list[RankFile]] = defaultdict(list)
    alone = []
    for file in files:
        if file.error is None and file.rank is None:
            alone.append([file])
        elif file.error is None and file.rank is not None:
            dumps[file.rank].append(file)
    return [*dumps.values(), *alone]


def _entries(file: RankFile) -> list[Entry]:
    """Return the devices of a file, each compared with those of its number in other files."""
    devices = [device for device in file.devices if device.device != HOST]
    if len(devices) == 1:
        return [Entry(file, devices[0], None)]
    return [Entry(file, device, number) for number, device in enumerate(devices)]


def _stage(entry: Entry) -> _Stage:
    coordinates = entry.file.coordinates.items()
    stages = tuple((axis, index) for axis, index in coordinates if axis.startswith(STAGES))
    return stages if entry.number is None else (*stages, ("device", entry.number))


def _name(stage: _Stage) -> str:
    return ",".join(f"{axis}={index}" for axis, index in stage)


def _group(name: str, entries: Sequence[Entry]) -> Group:
    peaks = [entry.device.peak_bytes for entry in entries]
    return Group(name, len(entries), int(median(peaks)), min(peaks), max(peaks))


def _hints(groups: Mapping[_Stage, list[Entry]], n_outliers: int) -> Iterator[Finding]:
    """Say what would make the comparison better."""
    n_ranks = sum(map(len, groups.values()))
    is_wide = any(map(_is_wide, groups.values()))
    is_mixed = n_outliers > _MIXED * n_ranks or (is_wide and not n_outliers)
    has_mesh = any(axis != "device" for axis, _ in chain.from_iterable(groups))
    if n_ranks >= 2 * LEAST_RANKS and is_mixed and not has_mesh:
        yield Finding(
            Kind.HINT,
            f"the peaks of the {n_ranks} ranks differ widely: if the job has pipeline stages, "
            "pass its mesh, such as --mesh pp=4,dp=8,tp=2",
        )
    numbers = [group[0].number for group in groups.values()]
    small = []
    for stage, group in groups.items():
        # Beside files with one device, which come first, a few with several lack no rank.
        counts = group[0].number is None or numbers[0] is not None
        if counts and len(group) < LEAST_RANKS:
            small.append(_name(stage) or "the ranks")
    if small:
        yield Finding(
            Kind.HINT,
            f"a group needs {LEAST_RANKS} ranks to be compared: not so {', '.join(small)}",
        )


def _is_wide(entries: Sequence[Entry]) -> bool:
    peaks = [entry.device.peak_bytes for entry in entries]
    return max(peaks) - min(peaks) > _UNEVEN * max(peaks)


def _same_dumps(dumps_by_rank: Sequence[Sequence[RankFile]]) -> Iterator[Finding]:
    """Name two files of one rank and one dump: one may be of another rank, and is not compared."""
    pairs = []
    for dumps in dumps_by_rank:
        pairs += [pair for pair in pairwise(dumps) if pair[0].dump == pair[1].dump]
    if pairs:
        first, last = pairs[0]
        yield Finding(
            Kind.HINT,
            f"{counted(len(pairs), 'file')} not compared, as another has the same rank "
            f"and dump: such as {first.file}, for {last.file}",
        )


# --- outliers


def _outliers(entries: Sequence[Entry]) -> Iterator[Finding]:
    if len(entries) < LEAST_RANKS:
        return
    comparison = _Comparison(entries)
    for entry in entries:
        reasons = tuple(comparison.reasons(entry.device))
        if reasons:
            excess = entry.device.peak_bytes - comparison.median_of("peak")
            sentence = f"{entry.name}: {'; '.join(reasons)}"
            yield _rank_finding(Kind.OUTLIER, entry.file, excess, sentence)


class _Spread(NamedTuple):
    """The median of a figure in a group, and the least difference from it that counts."""

    median: int
    least_difference: float


# A figure of a device that is compared: a category or one of these, or a line without its bytes.
_Figure = str | RankLine
_CACHED = "reserved and not in use"
_BESIDE_CATEGORIES = ("peak", _CACHED, "growth")


class _Comparison:
    """The figures of a group: the median of each, and the least difference from it that counts."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._n = len(entries)
        peak = median(entry.device.peak_bytes for entry in entries)
        self._absent = _Spread(0, _LEAST_SHARE * peak)
        figures: dict[_Figure, list[int]] = defaultdict(list)
        for entry in entries:
            for figure, n_bytes in _figures(entry.device).items():
                figures[figure].append(n_bytes)
        # What fewer than half of them have is usually not there: its median and deviation are 0.
        self._spreads = {}
        for figure, sizes in figures.items():
            if 2 * len(sizes) >= self._n:
                self._spreads[figure] = self._spread(sizes)

    def _spread(self, figures: Sequence[int]) -> _Spread:
        """Return the spread of the figures that devices have, and of 0 for the other devices."""
        values = [*figures, *[0] * (self._n - len(figures))]
        middle = median(values)
        deviation = _TO_SIGMA * median(abs(value - middle) for value in values)
        difference = max(_DEVIATIONS * deviation, self._absent.least_difference)
        return _Spread(int(middle), difference)

    def median_of(self, figure: _Figure) -> int:
        """Return the median of a figure in the group."""
        return self._spreads.get(figure, self._absent).median

    def reasons(self, device: RankDevice) -> Iterator[str]:
        """Say how a device differs: by lines, or else by category, or else by its peak alone."""
        differences = self._differences(device)
        lines = [figure for figure in differences if isinstance(figure, RankLine)]
        lines.sort(key=lambda line: -abs(differences[line]))
        del lines[_MOST_REASONS:]
        explained = {*_BESIDE_CATEGORIES, *(line.category for line in lines)}
        categories = [
            figure
            for figure in differences
            if isinstance(figure, str) and figure not in explained
        ]
        categories.sort(key=lambda name: (-abs(differences[name]), name))
        shown: list[_Figure] = [*lines, *categories]
        if not shown and "peak" in differences:
            shown = ["peak"]
        del shown[_MOST_REASONS:]
        if differences.get(_CACHED, 0) > 0:
            shown.append(_CACHED)
        for figure in shown:
            yield self._reason(figure, differences[figure])
        if "growth" in differences and device.growth_bytes:
            line = optional(" at {}", device.growth_place)
            yield f"grows by {format_bytes(device.growth_bytes)} per iteration{line}"

    def _differences(self, device: RankDevice) -> dict[_Figure, int]:
        """Return the figures of a device that differ from the median by enough, with how much."""
        figures = _figures(device)
        differences = {}
        for figure in {**self._spreads, **figures}:
            # A line that a row does not list has at most as much as the row leaves unlisted.
            is_unlisted = isinstance(figure, RankLine) and figure not in figures
            if is_unlisted and device.unlisted_bytes > self._absent.least_difference:
                continue
            spread = self._spreads.get(figure, self._absent)
            difference = figures.get(figure, 0) - spread.median
            if abs(difference) > spread.least_difference:
                differences[figure] = difference
        return differences

    def _reason(self, figure: _Figure, difference: int) -> str:
        middle = self.median_of(figure)
        group = f"group median {format_bytes(middle)}"
        if isinstance(figure, RankLine):
            group = group if middle else "none in its group"
            figure = f"{figure.category} at {figure.place}"
        return f"{_signed(difference)} {figure} ({group})"


def _figures(device: RankDevice) -> dict[_Figure, int]:
    """Return the figures of a device that are compared: by name, and by line."""
    cached_bytes = max(device.reserved_bytes - device.peak_bytes, 0)
    beside = (device.peak_bytes, cached_bytes, device.growth_bytes)
    figures: dict[_Figure, int] = dict(zip(_BESIDE_CATEGORIES, beside, strict=True))
    return (
        figures | device.categories | {line.key: line.block_bytes for line in device.lines}
    )


def _signed(n_bytes: int) -> str:
    return f"{'+' if n_bytes >= 0 else '−'}{format_bytes(abs(n_bytes))}"


# --- memory that ran out


def _exhausted(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report the ranks whose memory ran out, and the memory that their group had left, if known."""
    for entry in entries:
        failed = entry.device.failed
        if failed is None:
            continue
        line = optional(" at {}", failed.place)
        sentence = f"{entry.name}{line}: {format_bytes(failed.needed_bytes)} needed"
        if failed.free_bytes is not None:
            sentence += f", {format_bytes(failed.free_bytes)} free"
        sentence += _remaining_words(entries, entry.device.usable_bytes)
        yield _rank_finding(Kind.OUT_OF_MEMORY, entry.file, failed.needed_bytes, sentence)


def _remaining_words(entries: Sequence[Entry], usable_bytes: int | None) -> str:
    """Say how much memory the other ranks of a group had left; empty where it is not known.

    Where nothing says how large another card is, it is taken to be as large as ``usable_bytes``.
    """
    if usable_bytes is None:
        return ""
    sizes = []
    for _, device, _ in entries:
        if device.failed is None:
            remaining = (device.usable_bytes or usable_bytes) - device.reserved_bytes
            sizes.append(max(remaining, 0))
    if not sizes:
        return ""
    low = format_bytes(min(sizes))
    high = format_bytes(max(sizes))
    size = low if low == high else f"{low} to {high}"
    return (
        f"; {counted(len(sizes), 'other rank')} of its group had {size} left at their peaks"
    )


# --- imbalance


def _axes(entries: Sequence[Entry]) -> Iterator[Axis]:
    """Compare the ranks along each axis of a mesh that has several."""
    sizes: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        for axis, index in entry.file.coordinates.items():
            sizes[axis].add(index)
    several = [axis for axis, coordinates in sizes.items() if len(coordinates) > 1]
    if len(several) < 2:  # the ranks of one axis are compared as a group
        return
    for axis in several:
        sets: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for file, device, number in entries:
            other_axes = {**file.coordinates}
            if axis in other_axes:
                index = other_axes.pop(axis)
                key = (number, *sorted(other_axes.items()))
                sets[key].append((device.peak_bytes, index))
        yield _axis(
            axis, len(sizes[axis]), [ranks for ranks in sets.values() if len(ranks) > 1]
        )


def _axis(name: str, n_coordinates: int, sets: Sequence[list[tuple[int, int]]]) -> Axis:
    """Sum up an axis by the peaks and coordinates of the ranks in each set."""
    extremes = [(max(ranks), min(ranks)) for ranks in sets]
    is_unequal = [high - low > _LEAST_SHARE * high for (high, _), (low, _) in extremes]
    (high, highest), (low, lowest) = max(
        extremes, key=lambda pair: pair[0][0] - pair[1][0], default=((0, 0), (0, 0))
    )
    return Axis(
        name, n_coordinates, len(sets), sum(is_unequal), high - low, highest, lowest
    )


def _uneven_axes(groups: Sequence[list[Entry]]) -> Iterator[Finding]:
    """Compare the stages by the medians of their peaks, and within each stage the other axes."""
    all_entries = list(chain.from_iterable(groups))
    axes = dict.fromkeys(
        chain.from_iterable(entry.file.coordinates for entry in all_entries)
    )
    for axis in axes:
        if axis.startswith(STAGES):
            findings = [_uneven(axis, all_entries, n_least=1)]
        else:  # one rank at a coordinate would only be an outlier once more
            findings = [_uneven(axis, group, n_least=LEAST_RANKS) for group in groups]
        largest = max(filter(None, findings), key=attrgetter("n_bytes"), default=None)
        if largest:
            yield largest


def _uneven(axis: str, entries: Sequence[Entry], *, n_least: int) -> Finding | None:
    peaks: dict[int, list[int]] = defaultdict(list)
    for file, device, _ in entries:
        index = file.coordinates.get(axis)
        if index is not None:
            peaks[index].append(device.peak_bytes)
    medians = {}
    for index in sorted(peaks):
        if len(peaks[index]) >= n_least:
            medians[index] = int(median(peaks[index]))
    if not medians:
        return None
    high_index = max(medians, key=medians.__getitem__)
    low_index = min(medians, key=medians.__getitem__)
    difference = medians[high_index] - medians[low_index]
    if not difference or difference < _UNEVEN * medians[high_index]:
        return None
    high = format_bytes(medians[high_index])
    low = format_bytes(medians[low_index])
    sentence = f"{axis}={high_index} peaks at {high}, {axis}={low_index} at {low} (medians)"
    return Finding(Kind.IMBALANCE, sentence, difference)


def _uneven_inputs(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare the recorded inputs.

    Ranks with longer sequences or larger batches need more activations.
    """
    sized = [entry for entry in entries if entry.device.input_shape]
    if len(sized) < LEAST_RANKS:
        return
    largest = max(sized, key=_input_size)
    smallest = min(sized, key=_input_size)
    size = _input_size(largest)
    if size - _input_size(smallest) >= _UNEVEN * size > 0:
        yield Finding(
            Kind.IMBALANCE,
            f"the inputs of {largest.file.name} are {_shape(largest)}, those of "
            f"{smallest.file.name} {_shape(smallest)}",
        )


def _input_size(entry: Entry) -> int:
    return prod(entry.device.input_shape)


def _shape(entry: Entry) -> str:
    return " × ".join(map(str, entry.device.input_shape))


# --- what ranks keep for nothing


def _faults(entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report each fault once, with the rank where it holds most."""
    holders: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for entry in entries:
        for fault, n_bytes in entry.device.faults.items():
            if n_bytes:  # else it saves only beside another change
                holders[fault].append((n_bytes, entry.name))
    for fault, sizes in holders.items():
        n_bytes, name = max(sizes, key=itemgetter(0))
        ranks = name
        if len(sizes) > 1:
            ranks += f" and {counted(len(sizes) - 1, 'other')}"
        sentence = f"{fault}: {format_bytes(n_bytes)} at the peak of {ranks}"
        yield Finding(Kind.FAULT, sentence, n_bytes)


# --- growth from dump to dump


def _growths(dumps_by_rank: Sequence[Sequence[RankFile]]) -> Iterator[Finding]:
    for dumps in dumps_by_rank:
        measured = []
        for file in dumps:
            device = file.main_device
            if device:
                measured.append((file, device))
        if len(measured) < 2:
            continue
        first_file, first = measured[0]
        last_file, last = measured[-1]
        growth = last.peak_bytes - first.peak_bytes
        if growth <= _LEAST_SHARE * first.peak_bytes:
            continue
        line = _grown_line(first, last)
        sentence = (
            f"{last_file.name}: peak {format_bytes(first.peak_bytes)} at "
            f"{first_file.dump or 'the first dump'}, {format_bytes(last.peak_bytes)} "
            f"at {last_file.dump or 'the last'} ({len(measured)} dumps)"
        )
        sentence += optional(", most of it at {}", line)
        yield _rank_finding(Kind.GROWTH, last_file, growth, sentence)


def _grown_line(first: RankDevice, last: RankDevice) -> str:
    """Return the line that grew most from one dump to another; empty where none grew."""
    old_sizes = {line.key: line.block_bytes for line in first.lines}
    growths = {line: line.block_bytes - old_sizes.get(line.key, 0) for line in last.lines}
    line = max(growths, key=growths.__getitem__, default=None)
    return line.place if line and growths[line] > 0 else ""
