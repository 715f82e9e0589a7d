"""``snapconv fragmentation``: what is reserved and not used, and what keeps it."""

from typing import Annotated

import typer

from snapconv.cli.answers import OneDevice, ReadOptions, answer, moment_question, read_session
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Snapshot

_At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="MOMENT",
        help="A moment as in `snapconv summary`. Default: the dump, the peak and the worst moment, with the "
        "details of the dump.",
    ),
]


def fragmentation(
    snapshot: Snapshot,
    at: _At = None,
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
