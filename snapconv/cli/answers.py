"""What the commands that answer a question share: their options, and how a file is read for them."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.arguments import device_number, path_maps_of
from snapconv.cli.terminal import print_json, print_lines, progress_bar

if TYPE_CHECKING:
    from snapconv.analysis import AnalysisOptions
    from snapconv.answers.moments import MomentQuestion
    from snapconv.session import Session

At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="MOMENT",
        help="The moment: peak, start, end, worst (most reserved and not in use), oom, oom:2, iteration:3, "
        "annotation:NAME, 'largest activations', or an event such as 1234.",
    ),
]
OneDevice = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="N", help="This device only, or `host` for pinned memory. Default: each."
    ),
]


DeviceTotal = Annotated[
    str | None,
    typer.Option(
        "--device-total",
        metavar="SIZE",
        help="The device's memory, such as 80GiB, where the file does not have it (nvidia-smi shows it).",
    ),
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a file is read: what counts as the project, and what names things in it."""

    project_root: str | None = None
    include: "list[str] | None" = None
    path_map: "list[str] | None" = None
    rules: Path | None = None
    params: Path | None = None

    def analysis(self) -> "AnalysisOptions":
        """The same as the library takes them; raises BadParameter for a text that is wrong."""
        from snapconv.analysis import AnalysisOptions

        return AnalysisOptions(
            project_root=self.project_root,
            includes=tuple(self.include or ()),
            path_maps=path_maps_of(self.path_map or []),
            rules=self.rules or (),
            params=self.params,
        )


def moment_question(text: str) -> "MomentQuestion":
    """Read ``--at``."""
    from snapconv.answers.moments import parse_moment

    try:
        return parse_moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from error


def device_total_of(text: str | None) -> int | None:
    """Read ``--device-total``."""
    from snapconv.units import parse_bytes

    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device-total") from error


def read_session(snapshot: Path, options: ReadOptions, *, device: str | None) -> "Session":
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
