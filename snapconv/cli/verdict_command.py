"""``snapconv verdict``, and ``snapconv FILE`` without a command: what matters most, and what to type next."""

from snapconv.cli.answers import OneDevice, ReadOptions, answer, read_session
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Rules, Snapshot


def verdict(
    snapshot: Snapshot,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    as_json: AsJson = False,
) -> None:
    """Say what matters most about a file: a verdict, the three largest causes, the next command to type.

    `snapconv FILE` does the same.
    """
    from snapconv.answers.verdict import find_verdict
    from snapconv.writers.text.verdict import verdict_lines

    session = read_session(snapshot, ReadOptions(project_root, include, path_map, rules), device=device)
    found = [find_verdict(analysis) for analysis in session.devices]
    file = str(snapshot)
    answer(session, ((one.to_json(), verdict_lines(one, file)) for one in found), as_json=as_json)
