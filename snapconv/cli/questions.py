"""Questions about a file, each a function from its options to its answer."""

import os
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from snapconv.cli.answers import QUESTION_COMMANDS as QUESTION_COMMANDS  # filled here
from snapconv.cli.answers import (
    Answer,
    analysis_of,
    answer_by_device,
    question,
    session_of,
)
from snapconv.cli.arguments import (
    DeviceTotalOption,
    RangeOptions,
    ReadOptions,
    SnapshotArgument,
    TopOption,
    moment,
    parsed,
    refuse_pipe,
    size_of,
)
from snapconv.cli.terminal import LEAST_WIDTH, n_rows, progress_bar, terminal_size
from snapconv.errors import InputError
from snapconv.files import open_input
from snapconv.units import device_name, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from snapconv.answers.check import Budgets
    from snapconv.answers.what_if.setting_trials import Request
    from snapconv.notes import Note

# A log of a long training is larger; the message is looked for in its end.
_MOST_OF_LOG = 64 << 20
_MOST_SCALE = 10_000
# Lines of source that every screen gets, however low.
_LEAST_LINES = 3
_NOT_MODELLED = "pinned host memory has an allocator of its own, which is not modelled"
MomentOption = Annotated[
    str,
    typer.Option(
        metavar="MOMENT",
        help="The moment: peak, start, end, worst (most unused memory), oom, oom:2, iteration:3, "
        "annotation:NAME, 'largest activations', or an event such as 1234. Default: peak.",
        show_default=False,
    ),
]


@question
def verdict(
    snapshot: SnapshotArgument, *, read: ReadOptions, top: TopOption = None
) -> Answer:
    """Say what matters most; `snapconv FILE` does it too.

    A verdict, the three largest causes, the next command to type. Example: snapconv run.pickle
    """
    from snapconv.answers.causes import N_CAUSES
    from snapconv.answers.verdict import find_verdict
    from snapconv.writers.text.moment import verdict_lines

    analysis = analysis_of(snapshot, read)
    n_causes = N_CAUSES if top is None else top
    answers = []
    for device in analysis.devices:
        device_verdict = find_verdict(device, n_causes=n_causes)
        answers.append((device_verdict, verdict_lines(device_verdict, str(snapshot))))
    return answer_by_device(analysis, answers)


@question
def summary(
    snapshot: SnapshotArgument,
    *,
    at: MomentOption = "peak",
    device_total: DeviceTotalOption = None,
    events: RangeOptions,
    read: ReadOptions,
) -> Answer:
    """Show what is live at the peak, or at any other moment.

    By categories, lines, modules, operations and pools; of a range of events with --from and --to.
    It writes no file. Example: snapconv summary run.pickle --at iteration:3
    """
    name = moment(at)
    total = size_of(device_total, "--device-total")
    session = session_of(snapshot, read, events)
    states = session.at(name, device_total=total)
    return answer_by_device(session.analysis, states.rows(), every_note=True)


@question
def tree(
    snapshot: SnapshotArgument,
    *,
    at: MomentOption = "peak",
    by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="line, module, operation, category, compile-context, annotation, pool, stream, "
            "thread or size; several with commas, outermost first, such as module,category. "
            "Default: line.",
            show_default=False,
        ),
    ] = "line",
    all_frames: Annotated[
        bool,
        typer.Option(
            "--all-frames",
            help="Show libraries and C++ too, not only the project's frames.",
        ),
    ] = False,
    read: ReadOptions,
    top: TopOption = None,
) -> Answer:
    """Show live memory as a tree of lines, modules or operations.

    Each row has its total and its own bytes. --by groups the tree. Example: snapconv tree
    run.pickle --by module,category
    """
    from snapconv.answers.tree_levels import parse_levels
    from snapconv.writers.text.moment import MOST_NODES, tree_lines

    name = moment(at)
    parsed(by, parse_levels, "--by")
    session = session_of(snapshot, read)
    n_most = MOST_NODES if top is None else top
    answers = []
    for device_tree in session.tree(name, by=by, all_frames=all_frames):
        answers.append((device_tree.largest(top), tree_lines(device_tree, n_most=n_most)))
    return answer_by_device(session.analysis, answers)


@question
def annotate(
    snapshot: SnapshotArgument,
    *,
    source: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="The project's folder on this machine; files outside it are not read. Default: "
            "the current folder.",
            readable=False,
            show_default=False,
        ),
    ] = Path(),
    at: MomentOption = "peak",
    read: ReadOptions,
    top: TopOption = None,
) -> Answer:
    """Show the project's source with the bytes of every line in the margin.

    Live at the moment, kept for backward, allocated in all; the hottest files first, only around
    the lines that count; on a terminal, as many lines as fit its screen. What `snapconv advise`
    finds stands at its line. Example: snapconv annotate run.pickle --source ~/project
    """
    from snapconv.writers.text.annotation import annotation_lines

    name = moment(at)
    session = session_of(snapshot, read)
    annotations = session.annotate(name, source=source)
    screen = terminal_size()
    width = None if screen is None else max(screen.columns, LEAST_WIDTH)

    def answer(n_most: int | None, n_around: int) -> Answer:
        answers = []
        for annotation in annotations:
            lines = annotation_lines(
                annotation, n_most=n_most, n_around=n_around, width=width
            )
            answers.append((annotation, lines))
        return answer_by_device(session.analysis, answers)

    if screen is None or top is not None:
        return answer(top, 1)
    return _fitting(answer, screen)


def _fitting(
    answer: "Callable[[int | None, int], Answer]", screen: os.terminal_size
) -> Answer:
    """Return the longest answer of a screen's rows, or else the shortest.

    ``answer`` takes the number of lines, None for those that count, and of the lines around each.
    """
    from snapconv.answers.annotation import N_LINES
    from snapconv.writers.text.info import note_lines

    line_counts = [(n_most, 0) for n_most in range(N_LINES, _LEAST_LINES - 1, -1)]
    for n_most, n_around in [(None, 1), *line_counts]:
        screenful = answer(n_most, n_around)
        lines = [*screenful.lines, *note_lines(screenful.notes)]
        # The prompt has a row too.
        if n_rows(lines, screen.columns) < screen.lines:
            break
    return screenful


@question
def oom(
    snapshot: Annotated[
        Path | None,
        typer.Argument(
            metavar="SNAPSHOT",
            help="A snapshot or a capture; without one, --message explains torch's own text.",
            readable=False,
            callback=refuse_pipe,
        ),
    ] = None,
    *,
    message: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="A file with torch's message, or the message itself; - is the standard input.",
            readable=False,
        ),
    ] = None,
    device_total: DeviceTotalOption = None,
    no_replay: Annotated[
        bool,
        typer.Option(
            "--no-replay", help="Do not replay the trace to try what would have helped."
        ),
    ] = False,
    read: ReadOptions,
) -> Answer:
    """Explain why memory ran out, and try what would have helped.

    The request, the verdict, who held the memory. Each remedy is tried by a replay. Of several
    devices, it is about those with a failed allocation. Without one in the file, it is about the
    peak.
    """
    from snapconv.writers.text.oom import oom_lines

    if (snapshot is None) == (message is None):
        correction = ", not both" if message else ""
        raise typer.BadParameter(
            f"give a SNAPSHOT or --message LOG{correction}", param_hint="SNAPSHOT"
        )
    if message is not None:
        return _explained_text(message)
    assert snapshot is not None
    total = size_of(device_total, "--device-total")
    session = session_of(snapshot, read)
    failed = tuple(device for device in session.devices if device.ran_out)
    answers = []
    analysis = replace(session.analysis, devices=failed or session.devices)
    with progress_bar(shown=True) as progress:
        for device in analysis.devices:
            failure, remedies = session.explain_oom(
                device.device.device,
                device_total=total,
                replay=not no_replay,
                progress=progress,
            )
            values = asdict(failure) | {"remedies": asdict(remedies) if remedies else None}
            answers.append((values, oom_lines(failure, remedies, file=str(snapshot))))
    other_devices = [device for device in session.devices if failed and not device.ran_out]
    return answer_by_device(analysis, answers, other_devices=other_devices)


def _explained_text(log: Path) -> Answer:
    from snapconv.answers.oom.message import decode_log, explain_message, is_message
    from snapconv.cli.time_limit import time_limit
    from snapconv.writers.text.oom_message import message_lines

    check = time_limit("tail -c 1000000 LOG | snapconv oom --message -")
    # What ends like a file is one, also where it is not there. Path.exists raises where a name is
    # too long.
    is_file = os.path.exists(log) or log.suffix[1:].isalpha()  # noqa: PTH110
    is_text = not is_file and is_message(str(log), check=check)
    answer = explain_message(str(log) if is_text else decode_log(_end_of(log)), check=check)
    return Answer(asdict(answer), message_lines(answer))


def _end_of(log: Path) -> bytes:
    """Read the end of a log, or all of the standard input."""
    if str(log) == "-":
        return sys.stdin.buffer.read(_MOST_OF_LOG) if sys.stdin else b""
    try:
        with open_input(log) as opened:
            begin = max(log.stat().st_size - _MOST_OF_LOG, 0)
            opened.seek(begin - begin % 2)  # UTF-16 has two bytes a character
            return opened.read(_MOST_OF_LOG)
    except InputError as error:
        raise InputError(f"{log}: {error}; - is the standard input") from error
    except OSError as error:
        raise InputError(
            f"{shown(str(log))}: cannot be read: {error.strerror}; --message takes a log, the "
            f"text of "
            "an error, or - for the standard input"
        ) from error


@question
def fragmentation(
    snapshot: SnapshotArgument,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="A moment as in `snapconv summary`. Default: the failed request, the "
            "dump, the peak and the worst moment, with the details of the first.",
        ),
    ] = None,
    read: ReadOptions,
) -> Answer:
    """Show what is reserved and not used, and which lines keep it.

    What empty_cache() returns, too. Free memory helps only a request of its own pool and stream,
    and only in one piece. Example: snapconv fragmentation run.pickle --at oom
    """
    name = at and moment(at)
    session = session_of(snapshot, read)
    return answer_by_device(session.analysis, session.fragmentation(name).rows())


@question
def growth(
    snapshot: SnapshotArgument, *, events: RangeOptions, read: ReadOptions
) -> Answer:
    """Show the lines whose memory grows from iteration to iteration.

    By how much and since when. An iteration is a step of the optimizer; the trace needs at least
    three, and so does a range of it. Example: snapconv growth run.pickle --from iteration:10
    """
    from snapconv.answers.growth import report_growth
    from snapconv.writers.text.growth import growth_lines

    analysis = analysis_of(snapshot, read, events=events)
    reports = list(map(report_growth, analysis.devices))
    answers = [(report, growth_lines(report, str(snapshot))) for report in reports]
    return answer_by_device(
        analysis, answers, weights=[report.weight for report in reports]
    )


@question
def advise(
    snapshot: SnapshotArgument,
    *,
    capacity: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The memory that torch may have, such as 78GiB."),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The bytes to save at the peak, such as 10GiB."),
    ] = None,
    read: ReadOptions,
    format: Annotated[
        Literal["text", "sarif"],
        typer.Option(
            metavar="FORMAT",
            help="text or sarif (the faults, for editors and code scanning). Default: text.",
            show_default=False,
        ),
    ] = "text",
) -> Answer:
    """Say what to change in the program, and how much memory each change saves.

    Faults keep memory for nothing. Trades save memory and cost time or precision: they are shown
    with --save or --capacity, and where memory ran out. Every saving is measured by replaying the
    trace with the change.
    """
    if capacity is not None and save is not None:
        raise typer.BadParameter("give --capacity or --save, not both", param_hint="--save")
    capacity_bytes = size_of(capacity, "--capacity")
    saved_bytes = size_of(save, "--save")
    session = session_of(snapshot, read)
    advice = session.advise(capacity=capacity_bytes, save=saved_bytes)
    answer = answer_by_device(session.analysis, advice.rows())
    if format == "text":
        return answer
    from snapconv.writers.sarif import fault_results, sarif_document

    remarks = [f"{device_name(row.device)}: {row.unknown}" for row in advice if row.unknown]
    document = sarif_document(fault_results(advice), snapshot, remarks)
    return replace(answer, document=document)


@question
def what_if(
    snapshot: SnapshotArgument,
    *,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY:VALUE,…",
            help="Try these in place of the file's own, written as in "
            "PYTORCH_CUDA_ALLOC_CONF. May be repeated: each is an alternative.",
        ),
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search", help="Try the usual settings, and rank them by what they reserve."
        ),
    ] = False,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The memory that torch may have, such as 38GiB. Default: no limit, "
            "or, if a request failed, what it had then.",
        ),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            metavar="CARD",
            help="A card's name, such as H100 or A100-40GB, or its whole memory, such as 40GiB; "
            "minus memory outside PyTorch (recorded if a request failed, else 1 GiB).",
        ),
    ] = None,
    batch_scale: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Estimate X times the batch size: categories that grow with it, times X.",
        ),
    ] = None,
    one_stream: Annotated[
        bool,
        typer.Option(
            "--one-stream",
            help="Try all work on one stream: no free waits for another, and all share one cache.",
        ),
    ] = False,
    read: ReadOptions,
) -> Answer:
    """Try other allocator settings, or another card, by a replay.

    The trace is replayed through a model of torch's allocator. For each: the peaks of reserved and
    allocated memory, and where it runs out. Example: snapconv what-if run.pickle --search
    """
    from snapconv.answers.what_if.conclusion import conclude
    from snapconv.answers.what_if.setting_trials import try_settings
    from snapconv.writers.text.what_if import what_if_lines

    if not (setting or search or capacity or card or one_stream or batch_scale is not None):
        options = "--setting, --search, --capacity, --card, --one-stream or --batch-scale"
        raise typer.BadParameter(f"say what to try: {options}", param_hint="what-if")
    if capacity is not None and card is not None:
        raise typer.BadParameter("give --capacity or --card, not both", param_hint="--card")
    scale = _read_scale(batch_scale)
    request = _read_request(setting or [], card)
    request = replace(
        request,
        is_search=search,
        capacity=size_of(capacity, "--capacity"),
        one_stream=one_stream,
    )
    analysis = analysis_of(snapshot, read)
    answers: list[tuple[dict[str, object], Iterable[str]]] = []
    with progress_bar(shown=True) as progress:
        for device in analysis.devices:
            trials = try_settings(device, request, scale=scale, progress=progress)
            if trials:
                values = trials.to_json() | {"conclusion": conclude(trials)}
                answers.append((values, what_if_lines(trials)))
            else:
                line = f"{device_name(device.device.device)}  {_NOT_MODELLED}"
                answers.append(({"unknown": _NOT_MODELLED}, [line]))
    return answer_by_device(analysis, answers)


def _read_scale(batch_scale: float | None) -> float:
    if batch_scale is None:
        return 1.0
    if not 0 < batch_scale < _MOST_SCALE:
        raise typer.BadParameter(
            f"expected more than 0 and less than {_MOST_SCALE}", param_hint="--batch-scale"
        )
    return batch_scale


def _read_request(settings: list[str], card: str | None) -> "Request":
    from snapconv.answers.what_if.setting_trials import Request, read_card, read_setting

    card_bytes, card_name = None, ""
    if card is not None:
        card_bytes, card_name = parsed(card, read_card, "--card")
    confs = tuple(parsed(text, read_setting, "--setting") for text in settings)
    return Request(confs, card_bytes=card_bytes, card_name=card_name)


@question
def explain(
    snapshot: SnapshotArgument,
    question: Annotated[
        str,
        typer.Argument(
            metavar="ADDR-OR-EVENT",
            help="An event such as '#1234' (the page of `snapconv view` shows it for every "
            "allocation), or an address such as 0x7f3c40001000, also inside a block.",
        ),
    ],
    *,
    read: ReadOptions,
    stack: Annotated[
        bool, typer.Option("--stack", help="Show whole stacks, also that of the free.")
    ] = False,
) -> Answer:
    """Show what an allocation was for, and how that is known.

    Its size, life and category, and the evidence. Example: snapconv explain run.pickle
    0x7f3c40001000
    """
    from snapconv.answers.explanation import explain as explain_allocations
    from snapconv.answers.explanation import parse_question
    from snapconv.answers.notes import main_notes
    from snapconv.writers.text.explanation import explanation_lines

    parsed(question, parse_question, "ADDR-OR-EVENT")
    analysis = analysis_of(snapshot, read)
    explanation = explain_allocations(analysis, question)
    return Answer(
        asdict(explanation),
        explanation_lines(explanation, whole_stack=stack),
        main_notes(analysis),
        analysis.snapshot.container.n_unpacked_bytes,
    )


@question
def info(snapshot: SnapshotArgument) -> Answer:
    """Show what a snapshot contains, and how much of the job it covers.

    Its torch version, devices, events, settings and history. Example: snapconv info run.pickle
    """
    from snapconv.answers.info import describe
    from snapconv.writers.text.info import info_lines

    with progress_bar(shown=True) as progress:
        facts, notes = describe(snapshot, progress=progress)
    return Answer(facts, info_lines(facts), notes, facts["n_bytes"])


@question
def diff(
    old: Annotated[
        Path,
        typer.Argument(
            metavar="OLD",
            help="The older file: a snapshot or a capture.",
            readable=False,
            callback=refuse_pipe,
        ),
    ],
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW", help="The newer file.", readable=False, callback=refuse_pipe
        ),
    ],
    *,
    events: RangeOptions,
    read: ReadOptions,
) -> Answer:
    """Compare two files: what is new, gone or larger at the peak.

    By category, line, module and operation. Lines are matched by file, function and order, also
    where they moved; never by address. --from and --to compare the same range of both. Example:
    snapconv diff old.pickle new.pickle
    """
    from snapconv.writers.text.comparisons import diff_lines

    before = session_of(old, read, events)
    after = session_of(new, read, events)
    report = after.compared_with(before)
    n_bytes = sum(file.snapshot.container.n_unpacked_bytes for file in (before, after))
    notes = list(_notes_of_both(before.notes, after.notes))
    return Answer(report.to_json(), diff_lines(report), notes, n_bytes)


def _notes_of_both(old: "Sequence[Note]", new: "Sequence[Note]") -> "Iterator[Note]":
    """Yield the main notes of both files, and all those of one alone with its name."""
    yield from (note for note in old if note in new and not note.is_minor)
    for age, notes, other_notes in (("old", old, new), ("new", new, old)):
        for note in notes:
            if note not in other_notes:
                yield replace(note, slug=f"{age}: {note.slug}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of ``check`` as texts; None: not given."""

    max_peak: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The most that may be allocated at once, such as 38GiB."
        ),
    ] = None
    max_reserved: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The most that may be reserved at once."),
    ] = None
    max_category: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CATEGORY=SIZE",
            help="The most that a category may have at the peak, such as "
            "activation=20GiB. May be repeated.",
        ),
    ] = None
    max_growth: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that an iteration may add and never free, such as 0.",
        ),
    ] = None
    no_faults_above: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that a fault of `snapconv advise` may hold at the peak; "
            "with --baseline, only faults that it lacks count.",
        ),
    ] = None
    fail_over: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Exit code 7 if a device's peak of allocated bytes is higher by more "
            "than this, such as 2%.",
        ),
    ] = None


@question
def check(
    snapshot: SnapshotArgument,
    *,
    limits: Limits,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file to compare with, for --fail-over and --no-faults-above.",
            readable=False,
            callback=refuse_pipe,
        ),
    ] = None,
    in_trace: Annotated[
        bool,
        typer.Option(
            "--in-trace",
            help="Check what the trace shows, although more may have been in use before it.",
        ),
    ] = False,
    read: ReadOptions,
    format: Annotated[
        Literal["text", "github", "sarif"],
        typer.Option(
            metavar="FORMAT",
            help="text, github (a table in Markdown for a job's summary) or sarif (the limits that "
            "do not hold, for editors and code scanning). Default: text.",
            show_default=False,
        ),
    ] = "text",
) -> Answer:
    """Check limits for the memory; exit code 7 if a limit is exceeded."""
    from snapconv.answers.check import outcome
    from snapconv.answers.notes import main_notes
    from snapconv.writers.text.comparisons import check_lines, github_lines

    budgets = replace(_read_limits(limits, baseline), in_trace=in_trace)
    session = session_of(snapshot, read)
    before = session_of(baseline, read) if baseline else None
    file = str(snapshot)
    checks = session.check(budgets, baseline=before)
    holds = all(result.holds for result in checks)
    document = None
    if format == "sarif":
        from snapconv.writers.sarif import limit_results, sarif_document

        document = sarif_document(limit_results(checks), snapshot)
    return Answer(
        {"file": file, "holds": holds, "checks": [result.to_json() for result in checks]},
        (github_lines if format == "github" else check_lines)(file, checks),
        main_notes(session.analysis),
        exceeded="" if holds else outcome(file, checks),
        document=document,
    )


def _read_limits(limits: Limits, baseline: Path | None) -> "Budgets":
    """Read every limit; raises BadParameter for one that is wrong, and where there is none."""
    from snapconv.answers.check import Budgets, read_limit

    if limits.fail_over and baseline is None:
        raise typer.BadParameter("it needs --baseline FILE", param_hint="--fail-over")
    if baseline is not None and limits.fail_over is None and limits.no_faults_above is None:
        raise typer.BadParameter(
            "it needs --fail-over or --no-faults-above", param_hint="--baseline"
        )
    values = {}
    for name, text in asdict(limits).items():
        if text is not None:
            option = f"--{name.replace('_', '-')}"
            values[name] = parsed(text, partial(read_limit, name), option)
    if not values:
        raise typer.BadParameter("no limit is given: give one, such as --max-peak 38GiB")
    return Budgets(**values)
