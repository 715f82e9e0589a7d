"""``snapconv growth``: the lines that hold more memory from iteration to iteration."""

from snapconv.cli.answers import OneDevice, ReadOptions, answer, read_session
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Snapshot


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
