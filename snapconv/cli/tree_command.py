"""``snapconv tree``: the memory of a moment as a tree of calls."""

from typing import Annotated, Literal

import typer

from snapconv.cli.answers import At, OneDevice, ReadOptions, answer, moment_question, read_session
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Rules, Snapshot

_By = Annotated[
    Literal["line", "module", "operation", "category"],
    typer.Option("--by", metavar="WHAT", help="line, module, operation or category. Default: line."),
]
_AllFrames = Annotated[
    bool, typer.Option("--all-frames", help="Show libraries and C++ too, not only the project's frames.")
]
_Rows = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Show the N largest. Default: 30.")]


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
    as_json: AsJson = False,
) -> None:
    """Show the live memory as a tree: every line with all that it called, and what is its own.

    By operation or category, each has such a tree; by module, a module has those that it calls below it.
    """
    from snapconv.writers.text.moment import tree_lines

    question = moment_question(at)
    options = ReadOptions(project_root, include, path_map, rules)
    session = read_session(snapshot, options, device=device)
    found = session.tree(question, by=by, all_frames=all_frames)
    answer(session, ((one.to_json(), tree_lines(one, n_most=rows)) for one in found), as_json=as_json)
