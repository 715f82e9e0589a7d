"""One file of a job of many ranks -> one small row for each of its devices, to JSON and back.

A row has the figures that ranks are compared by, and the lines with most bytes: some KB for any
file. The fields here are the keys of the JSON.
"""

from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.causes import Cause, largest_causes
from snapconv.answers.growth import bytes_per_iteration, find_growth
from snapconv.answers.oom.failed_allocation import find_out_of_memory
from snapconv.answers.peak import device_memory, summary_totals
from snapconv.answers.verdict import find_verdict
from snapconv.columns import rows_of
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import HOST, Device, device_name

# A line beyond these has less than each of them; the least of them bounds it.
N_LINES = 16
# Names come from the file, and a row stays small whatever they are.
_MOST_OF_TEXT = 300
_MOST_DIMENSIONS = 16
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class RankLine:
    """The bytes of one category that a line of the project has at the peak.

    ``file`` is None where no line of the project allocated them.
    """

    category: str
    file: str | None
    line: int | None
    function: str | None
    block_bytes: int
    has_stack: bool = True

    @property
    def key(self) -> "RankLine":
        """The line without its bytes, which is the same in every rank."""
        return replace(self, block_bytes=0)

    @property
    def place(self) -> str:
        """The line as an editor takes it, or what stands for none."""
        if self.file:
            return f"{self.file}:{self.line}"
        return LIBRARY_ONLY if self.has_stack else NO_STACK


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that failed: the bytes needed, free and reserved then, and its cause."""

    needed_bytes: int
    free_bytes: int | None
    reserved_bytes: int
    place: str
    cause: str
    sentence: str


@dataclass(frozen=True, slots=True)
class RankDevice:
    """One device of one file.

    ``categories`` and ``lines`` are those of the peak, the largest lines first; ``unlisted_bytes``
    is the largest of the other lines. ``usable_bytes`` is what PyTorch could have of the device:
    its total less what others held, or at a failed request what was reserved and free; None: not
    recorded. ``growth_bytes``: added by every iteration to the end of the trace. ``input_shape`` is
    that of the largest recorded input. ``verdict`` is the first sentence about the file,
    ``command`` the next one to type; ``faults`` are what it keeps for nothing, and the bytes of
    each at the peak. ``kind`` is the device's, such as ``cuda``.
    """

    device: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int
    usable_bytes: int | None
    categories: dict[str, int]
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
    faults: dict[str, int] = field(default_factory=dict)
    kind: str = "cuda"

    @property
    def name(self) -> str:
        """The device as torch names it."""
        return device_name(Device(self.device, self.kind))

    @property
    def largest(self) -> str:
        """The line with most bytes, and their category; empty for none."""
        if not self.lines:
            return ""
        line = self.lines[0]
        return f"{line.category} at {line.place}"


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file of a job: who wrote it and when, and its devices, or the error in their place.

    ``rank`` is None where neither the file nor its name has it, ``n_ranks`` where it does not have
    the number of the job's ranks. ``dump`` distinguishes the files that a rank wrote over time,
    ``dump_number`` is the number in it. ``coordinates`` are the rank's place on every axis of the
    mesh. ``exit_code`` is that of the error, 0 without one. A rank without a file has an empty
    ``file``.
    """

    file: str
    rank: int | None = None
    n_ranks: int | None = None
    dump: str = ""
    dump_number: int = 0
    coordinates: dict[str, int] = field(default_factory=dict)
    n_bytes: int | None = None
    error: str | None = None
    exit_code: int = 0
    devices: tuple[RankDevice, ...] = ()

    @property
    def name(self) -> str:
        """The rank, or the file where it has none."""
        return self.file if self.rank is None else f"rank {self.rank}"

    @property
    def main_device(self) -> RankDevice | None:
        """The device with the highest peak, by which ranks are compared; never host memory."""
        gpus = [device for device in self.devices if device.device != HOST]
        return max(gpus, key=attrgetter("peak_bytes"), default=None)

    def add_error(self, error: BaseException, message: str = "") -> "RankFile":
        """Return the row of this file, which could not be read."""
        text = message or str(error) or type(error).__name__
        return replace(self, error=text, exit_code=getattr(error, "exit_code", 1))


# --- a file -> its rows


def rank_file(analysis: Analysis, row: RankFile) -> RankFile:
    """Reduce a file to its rows; ``row`` has its name, and what the name says of its rank."""
    facts = analysis.snapshot.facts
    coordinates = {}
    for part in facts.get("coordinates", "").split(","):
        axis, _, text = part.partition("=")
        index = _number(text)
        if axis and index is not None:
            coordinates[axis] = index
    rank = _number(facts.get("rank", ""))
    return replace(
        row,
        rank=row.rank if rank is None else rank,
        n_ranks=_number(facts.get("world_size", "")),
        coordinates=coordinates or row.coordinates,
        devices=tuple(map(rank_device, analysis.devices)),
    )


def _number(text: str) -> int | None:
    """Read a number that a job can have; a database takes none beyond 2^63."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def rank_device(analysis: DeviceAnalysis) -> RankDevice:
    """Reduce one device to its row."""
    growing = find_growth(analysis)
    replay = analysis.replay
    verdict = find_verdict(analysis, growing)
    live = analysis.live_at_peak
    causes = largest_causes(analysis, live, n_most=N_LINES + 1)
    totals = summary_totals(analysis, live)
    largest_growth = max(growing, key=attrgetter("bytes_per_iteration"), default=None)
    growth_line = largest_growth.line if largest_growth else None
    failed = _failed(analysis) if verdict.about == "oom" else None
    return RankDevice(
        device=analysis.device.device,
        peak_bytes=replay.allocated.peak,
        end_bytes=replay.allocated.at(analysis.n_events - 1),
        reserved_bytes=replay.reserved.peak,
        usable_bytes=_usable(analysis, failed),
        categories={row.category: row.block_bytes for row in totals if row.block_bytes},
        lines=tuple(map(_line, causes[:N_LINES])),
        unlisted_bytes=causes[N_LINES].block_bytes if len(causes) > N_LINES else 0,
        history=verdict.history_verdict,
        about=verdict.about,
        verdict=_cut(verdict.sentence),
        command=verdict.command,
        growth_bytes=bytes_per_iteration(growing),
        growth_place=_cut(growth_line.place) if growth_line else "",
        failed=failed,
        input_shape=_input_shape(analysis),
        kind=analysis.device.device.kind,
        faults={_cut(what): n_bytes for what, n_bytes in verdict.faults.items()},
    )


def _failed(analysis: DeviceAnalysis) -> FailedRequest | None:
    failure = find_out_of_memory(analysis)
    request = failure.request
    verdict = failure.verdict
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
    memory = device_memory(analysis, analysis.n_events - 1)
    if memory.total_bytes is None:
        return None
    return memory.total_bytes - (memory.outside_bytes or 0)


def _input_shape(analysis: DeviceAnalysis) -> tuple[int, ...]:
    """Return the shape with most elements among the recorded inputs of models on this device."""
    if analysis.recorded is None:
        return ()
    inputs = analysis.recorded.metadata.inputs
    rows = rows_of(inputs.device == analysis.device.device).tolist()
    shapes = [inputs.shapes[row] for row in rows]
    short = [shape for shape in shapes if len(shape) <= _MOST_DIMENSIONS]
    return max(short, key=prod, default=())


def _line(cause: Cause) -> RankLine:
    line = cause.line
    values: tuple[str | None, int | None, str | None] = (None, None, None)
    if line is not None:
        values = (_cut(line.file_path), line.line_number, _cut(line.function))
    return RankLine(cause.category, *values, cause.block_bytes, cause.has_stack)


def _cut(text: str) -> str:
    """Keep the end of a long text: of a path it counts most."""
    return text if len(text) <= _MOST_OF_TEXT else f"…{text[1 - _MOST_OF_TEXT :]}"
