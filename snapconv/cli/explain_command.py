"""``snapconv explain``: what an allocation was for, and how that is known."""

import sys
from typing import Annotated

import typer

from snapconv.cli.arguments import (
    AsJson,
    Includes,
    PathMaps,
    ProjectRoot,
    Rules,
    Snapshot,
    device_number,
    path_maps_of,
)
from snapconv.cli.terminal import print_json, print_lines, progress_bar


def explain(
    snapshot: Snapshot,
    question: Annotated[
        str,
        typer.Argument(
            metavar="ADDR-OR-EVENT",
            help="An address such as 0x7f3c40001000, also inside a block, or an event such as '#1234'.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="N", help="Look at this device only, or `host`. Default: at all."),
    ] = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    stack: Annotated[bool, typer.Option("--stack", help="Show whole stacks, also that of the free.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain an allocation: its size, its life, its category, and the evidence for and against it."""
    from snapconv.answers.explanation import parse_question
    from snapconv.session import load
    from snapconv.writers.text.explanation import explanation_lines
    from snapconv.writers.text.notes import note_lines

    try:
        parse_question(question)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="ADDR-OR-EVENT") from error
    chosen = device_number(device)
    with progress_bar(shown=True) as progress:
        session = load(
            snapshot,
            project_root=project_root,
            includes=include or (),
            path_maps=path_maps_of(path_map or []),
            rules=rules or (),
            progress=progress,
        )
        found = session.explain(question, device=chosen)
    print_lines(note_lines(session.notes), sys.stderr)
    if as_json:
        print_json(found.to_json(), n_bytes=session.snapshot.container.n_unpacked_bytes)
    else:
        print_lines(explanation_lines(found, whole_stack=stack), sys.stdout)
