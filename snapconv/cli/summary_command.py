"""``snapconv summary``: the memory at any moment, without a report."""

from snapconv.cli.answers import (
    At,
    DeviceTotal,
    OneDevice,
    ReadOptions,
    answer,
    device_total_of,
    moment_question,
    read_session,
)
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Rules, Snapshot


def summary(
    snapshot: Snapshot,
    at: At = "peak",
    device_total: DeviceTotal = None,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    as_json: AsJson = False,
) -> None:
    """Show what is live at a moment, the peak by default: categories, lines, modules, operations, pools.

    It is what `snapconv to-sqlite` prints, for any moment, and writes no file.
    """
    from snapconv.writers.text.moment import moment_lines

    question, total = moment_question(at), device_total_of(device_total)
    options = ReadOptions(project_root, include, path_map, rules)
    session = read_session(snapshot, options, device=device)
    states = session.at(question, device_total=total)
    answer(session, ((state.to_json(), moment_lines(state)) for state in states), as_json=as_json)
