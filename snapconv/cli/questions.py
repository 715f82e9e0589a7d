"""Commands that read a file and answer one question: each prints text, or JSON for machines."""

import sys
from typing import Annotated, Literal

import typer

from snapconv.cli.answers import answer, read_session
from snapconv.cli.arguments import (
    AsJson,
    At,
    Certain,
    DeviceTotal,
    Includes,
    OneDevice,
    PathMaps,
    ProjectRoot,
    Quiet,
    ReadOptions,
    Rules,
    Snapshot,
    device_number,
    moment_question,
    parsed,
    size_of,
)
from snapconv.cli.terminal import print_json, print_lines, progress_bar

_By = Annotated[
    Literal["line", "module", "operation", "category"],
    typer.Option("--by", metavar="WHAT", help="line, module, operation or category. Default: line."),
]
_AllFrames = Annotated[
    bool, typer.Option("--all-frames", help="Show libraries and C++ too, not only the project's frames.")
]
_Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Show the N largest. Default: 30.")]
_FragmentationAt = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="MOMENT",
        help="A moment as in `snapconv summary`. Default: the dump, the peak and the worst moment, with the "
        "details of the dump.",
    ),
]
_Allocation = Annotated[
    str,
    typer.Argument(
        metavar="ADDR-OR-EVENT",
        help="An address such as 0x7f3c40001000, also inside a block, or an event such as '#1234'.",
    ),
]
_ExplainedDevice = Annotated[
    str | None,
    typer.Option("--device", metavar="N", help="Look at this device only, or `host`. Default: at all."),
]
_Stack = Annotated[bool, typer.Option("--stack", help="Show whole stacks, also that of the free.")]


def verdict(
    snapshot: Snapshot,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    certain: Certain = False,
    as_json: AsJson = False,
) -> None:
    """Say what matters most about a file: a verdict, the three largest causes, the next command to type.

    `snapconv FILE` does the same.
    """
    from snapconv.answers.verdict import find_verdict
    from snapconv.writers.text.verdict import verdict_lines

    session = read_session(
        snapshot, ReadOptions(project_root, include, path_map, rules, certain=certain), device=device
    )
    found = [find_verdict(analysis) for analysis in session.devices]
    file = str(snapshot)
    answer(session, ((one.to_json(), verdict_lines(one, file)) for one in found), as_json=as_json)


def summary(
    snapshot: Snapshot,
    at: At = "peak",
    device_total: DeviceTotal = None,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    certain: Certain = False,
    as_json: AsJson = False,
) -> None:
    """Show what is live at a moment, the peak by default: categories, lines, modules, operations, pools.

    It is what `snapconv to-sqlite` prints, for any moment, and writes no file.
    """
    from snapconv.writers.text.moment import moment_lines

    question, total = moment_question(at), size_of(device_total, "--device-total")
    options = ReadOptions(project_root, include, path_map, rules, certain=certain)
    session = read_session(snapshot, options, device=device)
    states = session.at(question, device_total=total)
    answer(session, ((state.to_json(), moment_lines(state)) for state in states), as_json=as_json)


def tree(
    snapshot: Snapshot,
    at: At = "peak",
    by: _By = "line",
    all_frames: _AllFrames = False,
    rows: _Rows = 30,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    certain: Certain = False,
    as_json: AsJson = False,
) -> None:
    """Show the live memory as a tree: every line with all that it called, and what is its own.

    By operation or category, each has such a tree; by module, a module has those that it calls below it.
    """
    from snapconv.writers.text.moment import tree_lines

    question = moment_question(at)
    options = ReadOptions(project_root, include, path_map, rules, certain=certain)
    session = read_session(snapshot, options, device=device)
    found = session.tree(question, by=by, all_frames=all_frames)
    answer(session, ((one.to_json(), tree_lines(one, n_most=rows)) for one in found), as_json=as_json)


def growth(
    snapshot: Snapshot,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    as_json: AsJson = False,
) -> None:
    """Show the lines whose memory grows from iteration to iteration, by how much and since when.

    An iteration is a step of the optimizer; three are the fewest that can show growth.
    """
    from snapconv.answers.growth import report_growth
    from snapconv.writers.text.growth import growth_lines

    session = read_session(snapshot, ReadOptions(project_root, include, path_map), device=device)
    found = [report_growth(analysis) for analysis in session.devices]
    answer(session, ((one.to_json(), growth_lines(one)) for one in found), as_json=as_json)


def fragmentation(
    snapshot: Snapshot,
    at: _FragmentationAt = None,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    as_json: AsJson = False,
) -> None:
    """Show what is reserved and not in use: what empty_cache() returns, and which lines keep the rest.

    Free memory helps only a request of its own pool and stream, and only in one piece.
    """
    from snapconv.writers.text.fragmentation import fragmentation_lines

    question = None if at is None else moment_question(at)
    options = ReadOptions(project_root, include, path_map)
    session = read_session(snapshot, options, device=device)
    found = session.fragmentation(question)
    answer(session, ((one.to_json(), fragmentation_lines(one)) for one in found), as_json=as_json)


def explain(
    snapshot: Snapshot,
    question: _Allocation,
    device: _ExplainedDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    certain: Certain = False,
    stack: _Stack = False,
    as_json: AsJson = False,
) -> None:
    """Explain an allocation: its size, its life, its category, and the evidence for and against it."""
    from snapconv.answers.explanation import parse_question
    from snapconv.writers.text.explanation import explanation_lines
    from snapconv.writers.text.notes import note_lines

    parsed(question, parse_question, "ADDR-OR-EVENT")
    chosen = device_number(device)
    session = read_session(snapshot, ReadOptions(project_root, include, path_map, rules, certain=certain))
    found = session.explain(question, device=chosen)
    print_lines(note_lines(session.notes), sys.stderr)
    if as_json:
        print_json(found.to_json(), n_bytes=session.snapshot.container.n_unpacked_bytes)
    else:
        print_lines(explanation_lines(found, whole_stack=stack), sys.stdout)


def info(snapshot: Snapshot, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Show what a snapshot file is: torch version, devices, events, settings, history."""
    from snapconv.answers.info import describe
    from snapconv.writers.text.info import info_lines
    from snapconv.writers.text.notes import note_lines

    with progress_bar(shown=not quiet) as progress:
        facts = describe(snapshot, progress=progress)
    if quiet:
        return
    print_lines(note_lines(facts.notes), sys.stderr)
    if as_json:
        print_json(facts.to_json(), n_bytes=facts.n_bytes)
    else:
        print_lines(info_lines(facts), sys.stdout)
