"""A question about a file -> its answer, printed as text or as JSON: what all such commands share.

A question is one function from options to an ``Answer``; ``@question`` makes a command of it, which
prints.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapconv.cli.arguments import ReadOptions, device_number, with_parameters
from snapconv.cli.terminal import first_entries, print_json, print_lines, progress_bar, show_notes
from snapconv.errors import BudgetExceeded, SnapconvError
from snapconv.units import curve_bytes, device_argument, device_kind, device_name

if TYPE_CHECKING:
    from snapconv.analysis import Analysis, DeviceAnalysis
    from snapconv.notes import Note

# Every answer has a line about the history of its own.
_SHOWN_BY_ANSWERS = {"truncated-history"}
# Every question by the name of its command, in the order of the help.
QUESTIONS: "dict[str, Callable[..., Answer]]" = {}
# The dataclasses whose fields are a question's JSON, as MODULE.CLASS below ``snapconv.answers``.
DOCUMENTS: dict[str, tuple[str, ...]] = {}
# What every question has besides its own options.
TOP = inspect.Parameter("top", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None)
_AS_JSON = TOP.replace(name="as_json", default=False, annotation=bool)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer for machines and for people, with the notes of the file.

    ``n_bytes`` is the size of the file, which limits the JSON. ``exceeded`` names a limit that does
    not hold.
    """

    values: Mapping[str, object]
    lines: Iterable[str]
    notes: "Sequence[Note]" = ()
    n_bytes: int | None = None
    exceeded: str = ""


def analysis_of(snapshot: Path, options: ReadOptions, *, shows_progress: bool = True) -> "Analysis":
    """Read and analyse a file, or the requested one of its devices."""
    from snapconv.analysis import analyze_file

    device = device_number(options.device)
    with progress_bar(shown=shows_progress) as progress:
        return analyze_file(snapshot, options.analysis(), device=device, progress=progress)


def answer_by_device(
    analysis: "Analysis",
    found: Iterable[tuple[Any, Iterable[str]]],
    *,
    every_note: bool = False,
    others: "Sequence[DeviceAnalysis]" = (),
    weights: Sequence[int] = (),
) -> Answer:
    """Make one answer of the values and the lines of every device; those of a dataclass are its fields.

    As text, the devices that ran out of memory, or else the one with the highest peak, and a line
    about each of the rest and of the ``others``; so too the notes, of which those alone that change
    what to believe. With ``weights``, the device that has most for the question, and the first line
    of each of the rest.
    """
    from snapconv.answers.notes import file_notes, main_notes

    devices = analysis.devices
    answers = list(found)
    most = weights or [0] * len(devices)
    order = sorted(range(len(devices)), key=lambda at: (-most[at], *devices[at].urgency))
    n_shown = 1 if weights else sum(one.ran_out for one in devices) or 1
    lines = [line for position in order[:n_shown] for line in (*answers[position][1], "")]
    heads = [next(iter(answers[position][1])) for position in order[n_shown:]] if weights else []
    rest = [*(devices[position] for position in order[n_shown:]), *others]
    shown = {None, *(devices[position].device.device for position in order[:n_shown])}
    notes = file_notes(analysis) if every_note else main_notes(analysis)
    values = [
        {"device": one.device.device, "kind": device_kind(one.device.device)}
        | (answer if isinstance(answer, dict) else asdict(answer))
        | {"failed": one.ran_out}
        for one, (answer, _) in zip(devices, answers, strict=True)
    ]
    return Answer(
        {"devices": values},
        [*lines, *_lines_of_others(rest, heads)] if rest else lines[:-1],
        [one for one in notes if one.device in shown and one.slug not in _SHOWN_BY_ANSWERS],
        analysis.snapshot.container.n_unpacked_bytes,
    )


def _lines_of_others(devices: "Sequence[DeviceAnalysis]", heads: Sequence[str]) -> Iterator[str]:
    for found, head in zip_longest(devices, heads):
        replay = found.replay
        peak, reserved = (
            curve_bytes(name, getattr(replay, name).peak, replay.at_least)
            for name in ("allocated", "reserved")
        )
        number = found.device.device
        shown = head or f"{device_name(number)}  peak {peak}, {reserved} reserved"
        yield f"{shown} (--device {device_argument(number)} shows more)"


def question(*documents: str) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Make a command of a question: it prints the answer, with ``--top`` and ``--json`` as more options."""

    def command_of(function: Callable[..., Answer]) -> Callable[..., None]:
        name = function.__name__.replace("_", "-")
        parameters = inspect.signature(function).parameters

        def run(*, as_json: bool, top: int | None, **given: Any) -> None:
            from snapconv.writers.text.size_rows import table_rows

            shown = {"top": top} if "top" in parameters else {}
            with table_rows(top):
                answer = function(**given, **shown)
                if as_json:
                    print_json(first_entries(answer.values, top), n_bytes=answer.n_bytes)
                else:
                    print_lines(answer.lines, sys.stdout)
            show_notes(answer.notes)
            if answer.exceeded:
                raise BudgetExceeded(answer.exceeded)

        QUESTIONS[name], DOCUMENTS[name] = function, documents
        own = [parameter for name, parameter in parameters.items() if name != "top"]
        return with_parameters(run, [*own, TOP, _AS_JSON], of=function)

    return command_of


def error_values(error: BaseException | None) -> dict[str, object]:
    """Return an error for machines: the exit code, the kind, and the sentence that stands on stderr."""
    if isinstance(error, SnapconvError):
        return {"exit_code": error.exit_code, "kind": type(error).__name__, "message": str(error)}
    shown = getattr(error, "format_message", error.__str__)()  # typer's, of a wrong command line
    return {"exit_code": 2, "kind": "UsageError", "message": shown}
