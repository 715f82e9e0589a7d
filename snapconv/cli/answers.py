"""A question about a file -> its answer, printed as text or as JSON: what all such commands share.

A question is one function from options to an ``Answer``; ``@question`` makes a command of it, which
prints.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapconv.cli.arguments import (
    ColorOption,
    JsonOption,
    RangeOptions,
    ReadOptions,
    TopOption,
    device_number,
    give_signature,
)
from snapconv.cli.terminal import (
    first_entries,
    print_document,
    print_json,
    print_lines,
    progress_bar,
    show_notes,
)
from snapconv.errors import BudgetExceeded, SnapconvError
from snapconv.units import curve_bytes, device_argument, device_kind, device_name

if TYPE_CHECKING:
    from snapconv.analysis import Analysis, DeviceAnalysis
    from snapconv.notes import Note
    from snapconv.session import Session

# Every answer has its own line about the history.
_SHOWN_BY_ANSWERS = {"truncated-history"}
# Every question by the name of its command, in the order of the help, and the commands.
QUESTIONS: "dict[str, Callable[..., Answer]]" = {}
QUESTION_COMMANDS: dict[str, Callable[..., None]] = {}
# What every question has besides its own options.
TOP = inspect.Parameter(
    "top", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TopOption
)
_COLOR = TOP.replace(name="color", default="auto", annotation=ColorOption)
_AS_JSON = TOP.replace(name="as_json", default=False, annotation=JsonOption)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer for machines and for people, with the notes of the file.

    ``n_bytes`` is the size of the file, which limits the JSON. ``exceeded`` names a limit that does
    not hold. ``document`` is JSON of another format, printed as it is in place of the lines.
    """

    values: Mapping[str, object]
    lines: Iterable[str]
    notes: "Sequence[Note]" = ()
    n_bytes: int | None = None
    exceeded: str = ""
    document: "Mapping[str, object] | None" = None


def analysis_of(
    snapshot: Path,
    options: ReadOptions,
    *,
    events: RangeOptions | None = None,
    shows_progress: bool = True,
) -> "Analysis":
    """Read and analyse a file, or the requested device and range of events."""
    from snapconv.analysis import analyze_file

    device = device_number(options.device)
    if events is not None:
        events.check()
    with progress_bar(shown=shows_progress) as progress:
        analysis = analyze_file(
            snapshot, options.analysis(), device=device, progress=progress
        )
    if events is None:
        return analysis
    from snapconv.answers.analysis_part import analysis_between

    return analysis_between(analysis, events.begin, events.end)


def session_of(
    snapshot: Path, options: ReadOptions, events: RangeOptions | None = None
) -> "Session":
    """Read a file for the questions that the library has as methods."""
    from snapconv.session import Session

    return Session(analysis_of(snapshot, options, events=events))


def answer_by_device(
    analysis: "Analysis",
    answers: Iterable[tuple[Any, Iterable[str]]],
    *,
    every_note: bool = False,
    other_devices: "Sequence[DeviceAnalysis]" = (),
    weights: Sequence[int] = (),
) -> Answer:
    """Make one answer of the values and lines of every device.

    The text has the lines of the devices that ran out of memory, or else of the one with the
    highest peak. It has a line about every further device and about ``other_devices``. With
    ``weights``, it has the lines of the device with the largest weight, and the first line of every
    further device. Notes are about the devices whose lines are shown; only notes that change what
    to believe, without ``every_note``.
    """
    from snapconv.answers.notes import file_notes, main_notes

    devices = analysis.devices
    values = []
    rows = []
    device_weights = weights or [0] * len(devices)
    for device, weight, (answer, lines) in zip(
        devices, device_weights, answers, strict=True
    ):
        values.append(_device_values(device, answer))
        rows.append(((-weight, *device.urgency), device, lines))
    rows.sort(key=itemgetter(0))
    n_failed = sum(device.ran_out for device in devices)
    n_shown = 1 if weights else n_failed or 1
    shown_rows = rows[:n_shown]
    further = list(_device_lines(rows[n_shown:], has_heads=bool(weights)))
    further += map(_device_line, other_devices)
    all_notes = file_notes(analysis) if every_note else main_notes(analysis)
    notes = _notes_about([device for _, device, _ in shown_rows], all_notes)
    lines = _text_lines([lines for _, _, lines in shown_rows], further)
    n_bytes = analysis.snapshot.container.n_unpacked_bytes
    return Answer({"devices": values}, lines, notes, n_bytes)


def _text_lines(answers: Iterable[Iterable[str]], further: list[str]) -> list[str]:
    """Return the lines of the answers, an empty one between them, and the further lines."""
    shown: list[str] = []
    for lines in answers:
        shown += [*lines, ""]
    return shown + further if further else shown[:-1]


def _notes_about(
    devices: "Sequence[DeviceAnalysis]", notes: "Sequence[Note]"
) -> "list[Note]":
    """Return the notes on these devices and on the file that no answer has a line about."""
    numbers = {None, *(device.device.device for device in devices)}
    notes_of_devices = [note for note in notes if note.device in numbers]
    return [note for note in notes_of_devices if note.slug not in _SHOWN_BY_ANSWERS]


def _device_values(device: "DeviceAnalysis", answer: Any) -> dict[str, object]:
    """Return what the JSON has about a device: an answer, with the device's number and kind."""
    number = device.device.device
    values: dict[str, object] = {"device": number, "kind": device_kind(number)}
    if not isinstance(answer, dict):
        answer = answer.to_json() if hasattr(answer, "to_json") else asdict(answer)
    values |= answer
    return values | {"failed": device.ran_out}


def _device_lines(
    rows: "Iterable[tuple[object, DeviceAnalysis, Iterable[str]]]", *, has_heads: bool
) -> Iterator[str]:
    for _, device, lines in rows:
        yield _device_line(device, next(iter(lines)) if has_heads else "")


def _device_line(device: "DeviceAnalysis", head: str = "") -> str:
    """Write a line about a device whose answer is not shown; ``head``: the answer's first line."""
    number = device.device.device
    if not head:
        replay = device.replay
        peak = curve_bytes("allocated", replay.allocated.peak, replay.lower_bounds)
        reserved = curve_bytes("reserved", replay.reserved.peak, replay.lower_bounds)
        head = f"{device_name(number)}  peak {peak}, {reserved} reserved"
    return f"{head} (--device {device_argument(number)} shows more)"


def question(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command of a question: it prints the answer, and has --top, --color and --json."""
    parameters = inspect.signature(function).parameters

    def run(*, as_json: bool, color: str, top: int | None, **options: Any) -> None:
        from snapconv.writers.text.size_rows import table_rows

        shown = {"top": top} if "top" in parameters else {}
        with table_rows(top):
            answer = function(**options, **shown)
            if as_json:
                print_json(first_entries(answer.values, top), n_bytes=answer.n_bytes)
            elif answer.document is not None:
                print_document(answer.document)
            else:
                print_lines(answer.lines, sys.stdout, color=color)
        show_notes(answer.notes)
        if answer.exceeded:
            raise BudgetExceeded(answer.exceeded)

    own_options = [parameter for name, parameter in parameters.items() if name != "top"]
    command = give_signature(run, [*own_options, TOP, _COLOR, _AS_JSON], of=function)
    name = function.__name__.replace("_", "-")
    QUESTIONS[name], QUESTION_COMMANDS[name] = function, command
    return command


def error_values(error: BaseException | None) -> dict[str, object]:
    """Return an error for machines: the exit code, the kind, and the sentence on stderr."""
    if isinstance(error, SnapconvError):
        return {
            "exit_code": error.exit_code,
            "kind": type(error).__name__,
            "message": str(error),
        }
    # The error may be typer's, for a wrong command line.
    message = getattr(error, "format_message", error.__str__)()
    return {"exit_code": 2, "kind": "UsageError", "message": message}
