"""``snapconv verdict``, and ``snapconv FILE`` without a command: what matters most, and what to type next."""

from collections.abc import Collection, Sequence
from pathlib import Path

from snapconv.cli.answers import OneDevice, ReadOptions, answer, read_session
from snapconv.cli.arguments import AsJson, Includes, PathMaps, ProjectRoot, Rules, Snapshot

_NAME = "verdict"


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
    from snapconv.findings.file_verdict import find_verdict
    from snapconv.reports.text.verdict_text import verdict_lines, verdict_values

    session = read_session(snapshot, ReadOptions(project_root, include, path_map, rules), device=device)
    found = {
        analysis.device.device: find_verdict(session.snapshot, session.project, analysis)
        for analysis in session.devices
    }
    answer(
        session,
        lambda analysis: (
            verdict_values(found[analysis.device.device]),
            verdict_lines(found[analysis.device.device], str(snapshot)),
        ),
        as_json=as_json,
    )


def with_command(argv: Sequence[str], commands: Collection[str]) -> list[str]:
    """The command line with its command, where it begins with a file."""
    if argv and argv[0] not in commands and _is_file(argv[0]):
        return [_NAME, *argv]
    return list(argv)


def _is_file(word: str) -> bool:
    """Whether a word is meant as a file: there is one, or no command could have such a name."""
    if not word or word.startswith("-"):
        return False
    return "." in word or "/" in word or "\\" in word or Path(word).exists()
