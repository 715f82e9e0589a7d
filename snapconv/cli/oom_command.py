"""``snapconv oom``: why a request failed, who held the memory, and what would have served it."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from snapconv.cli.answers import answer, read_session
from snapconv.cli.arguments import (
    AsJson,
    Certain,
    DeviceTotal,
    Includes,
    OneDevice,
    PathMaps,
    ProjectRoot,
    ReadOptions,
    Rules,
    no_pipe,
    size_of,
)
from snapconv.cli.terminal import print_json, print_lines, progress_bar
from snapconv.errors import InputError
from snapconv.files import open_input

_Snapshot = Annotated[
    Path | None,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot or a capture; without one, --message explains torch's own text.",
        callback=no_pipe,
        readable=False,
    ),
]
_Number = Annotated[
    int, typer.Option("--number", metavar="N", min=1, help="The N-th failed allocation. Default: the first.")
]
_Message = Annotated[
    str | None,
    typer.Option("--message", metavar="LOG", help="A file with torch's message; - is the standard input."),
]
_NoReplay = Annotated[bool, typer.Option("--no-replay", help="Do not try what would have served it.")]
_Thorough = Annotated[
    bool, typer.Option("--thorough", help="Replay the whole trace, and not the last 100000 events.")
]
# A log of a long training is larger; the message is looked for in its end.
_MOST_OF_LOG = 64 << 20


def oom(
    snapshot: _Snapshot = None,
    message: _Message = None,
    number: _Number = 1,
    device_total: DeviceTotal = None,
    no_replay: _NoReplay = False,
    thorough: _Thorough = False,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    certain: Certain = False,
    as_json: AsJson = False,
) -> None:
    """Explain why memory ran out: the request, the verdict, who held the memory, what would have served it.

    Each remedy is tried by a replay. Of several devices, it is about those with a failed allocation. Without
    one in the file, it is about the dump.
    """
    from snapconv.writers.text.oom import oom_lines

    if (snapshot is None) == (message is None):
        raise typer.BadParameter("give a SNAPSHOT, or --message LOG", param_hint="SNAPSHOT")
    if message is not None:
        _explain_text(message, as_json=as_json)
        return
    assert snapshot is not None
    total = size_of(device_total, "--device-total")
    session = read_session(
        snapshot, ReadOptions(project_root, include, path_map, rules, certain=certain), device=device
    )
    session = session.where_memory_ran_out()

    found = []
    with progress_bar(shown=True) as progress:
        for analysis in session.devices:
            explained, remedies = session.explain_oom(
                analysis.device.device,
                number=number,
                device_total=total,
                replay=not no_replay,
                thorough=thorough,
                progress=progress,
            )
            values = explained.to_json() | {"remedies": asdict(remedies) if remedies else None}
            found.append((values, oom_lines(explained, remedies)))
    answer(session, found, as_json=as_json)


def _explain_text(name: str, *, as_json: bool) -> None:
    from snapconv.answers.oom.message import explain_message
    from snapconv.writers.text.oom import message_lines

    found = explain_message(_text_of(name))
    if as_json:
        print_json(found.to_json())
    else:
        print_lines(message_lines(found), sys.stdout)


def _text_of(name: str) -> str:
    """Read the end of a log, or all of the standard input."""
    if name == "-":
        return sys.stdin.buffer.read(_MOST_OF_LOG).decode("utf-8", "replace") if sys.stdin else ""
    try:
        with open_input(Path(name)) as log:
            log.seek(max(Path(name).stat().st_size - _MOST_OF_LOG, 0))
            return log.read(_MOST_OF_LOG).decode("utf-8", "replace")
    except InputError as error:
        raise InputError(f"{name}: {error}; - is the standard input") from error
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
