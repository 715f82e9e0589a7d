"""Reading of a file for commands that answer a question, and printing of the answers."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.cli.arguments import ReadOptions, device_number
from snapconv.cli.terminal import print_json, print_lines, progress_bar

if TYPE_CHECKING:
    from snapconv.session import Session


def read_session(snapshot: Path, options: ReadOptions, *, device: str | None = None) -> "Session":
    """Read and analyse a file, and keep the requested device alone."""
    from snapconv.analysis import analyze_file
    from snapconv.session import Session

    chosen, analysis = device_number(device), options.analysis()
    with progress_bar(shown=True) as progress:
        session = Session(analyze_file(snapshot, analysis, progress=progress))
    return session.of_device(chosen)


def answer(
    session: "Session", found: Iterable[tuple[dict[str, object], Iterable[str]]], *, as_json: bool
) -> None:
    """Print the notes, and the answer for every device: its values and its lines."""
    from snapconv.writers.text.notes import note_lines

    answers = list(found)
    print_lines(note_lines(session.notes), sys.stderr)
    if as_json:
        n_bytes = session.snapshot.container.n_unpacked_bytes
        print_json({"devices": [values for values, _ in answers]}, n_bytes=n_bytes)
        return
    for number, (_, lines) in enumerate(answers):
        print_lines([*[""] * bool(number), *lines], sys.stdout)
