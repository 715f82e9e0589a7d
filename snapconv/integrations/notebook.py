"""``%%snapconv``: record the memory of a notebook's cell; the answer and the page stand below it.

IPython imports this at ``%load_ext snapconv``; nothing else does.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import display

from snapconv.errors import NoCudaError, SnapconvError
from snapconv.guest.own_frames import call_user, clean_traceback
from snapconv.guest.replacement import replaced
from snapconv.recorder.environment import require_gpu, require_torch
from snapconv.recorder.options import MAX_ENTRIES
from snapconv.recorder.recording import MeasuredBlock
from snapconv.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from snapconv.session import Session
    from snapconv.simulation import SimulationOptions

_NAME = "snapconv"
_HELP = """Record the GPU memory of the cell, and show the answer and the page below it.

    %%snapconv [NAME] [--simulate] [--no-compute] [--capacity SIZE] [--output FOLDER]

NAME: a variable for the session of the recording, with a method for every question
(NAME.advise()). --simulate: on a simulated GPU; what the cell leaves on it cannot be used after the
cell. --no-compute: with --simulate, compute shapes alone, no values. --capacity: the memory of the
simulated GPU, such as 8GiB. --output: the folder of the capture; by default it is a temporary one,
which is deleted when the kernel ends.
"""
# Jupyter's server drops messages above 3 MB (one megabyte a second over three seconds).
_MOST_INLINE_BYTES = 2_500_000
_FRAME = (
    '<iframe title="memory of the cell" sandbox="allow-scripts" allow="clipboard-write" '
    'style="width:100%;height:720px;border:0" srcdoc="{}"></iframe>'
)
# Deleted when the process ends: a session's commands name the capture.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def register(shell: Any) -> None:
    """Give a shell of IPython the magic."""

    def record_cell(line: str, cell: str) -> None:
        _record_cell(shell, line, cell)

    record_cell.__doc__ = _HELP
    shell.register_magic_function(record_cell, "cell", _NAME)


def _record_cell(shell: Any, line: str, cell: str) -> None:
    options = _read_line(line)
    block = _block(options)
    # The lines of the cell keep their numbers; a magic has to stay first.
    source = cell if cell.lstrip().startswith("%%") else f"# %%{_NAME} {line}\n{cell}"
    errors: list[BaseException] = []
    result = None
    try:
        with block, _errors_kept(shell, errors):
            result = call_user(partial(shell.run_cell, source, store_history=False))
            result.raise_error()
    except SnapconvError as error:
        if result is None:  # nothing of the cell ran
            raise UsageError(str(error)) from error
    except BaseException:  # of the cell: it is shown below
        if result is None:
            raise
    if block.captures:
        show_capture(shell, block.captures[-1], options.name)
    elif result is not None and result.success:
        reason = block.failure or "it allocated nothing on a GPU"
        print(f"%%{_NAME}: there is no capture of this cell: {reason}", file=sys.stderr)
    if errors:
        raise errors[0]
    if result is not None and not result.success:  # its error is shown already
        raise UsageError("the cell did not run to its end")


def _read_line(line: str) -> Namespace:
    parser = MagicArgumentParser(f"%%{_NAME}")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--no-compute", action="store_true")
    parser.add_argument("--capacity")
    parser.add_argument("--output")
    options: Namespace = parser.parse_argstring(line)
    if options.name is not None and not options.name.isidentifier():
        raise UsageError(f"{options.name} is no name of a variable")
    for option in ("no_compute", "capacity"):
        if getattr(options, option) and not options.simulate:
            raise UsageError(f"--{option.replace('_', '-')} needs --simulate")
    return options


def _block(options: Namespace) -> MeasuredBlock:
    if not options.simulate:
        _require_gpu()
    folder = options.output
    if folder is None:
        _FOLDERS.append(tempfile.TemporaryDirectory(prefix="snapconv-"))
        folder = _FOLDERS[-1].name
    return MeasuredBlock(
        Path(folder),
        simulate=options.simulate,
        simulation=_simulation(options) if options.simulate else None,
        max_entries=MAX_ENTRIES,
    )


def _require_gpu() -> None:
    """Refuse the cell where torch has no GPU to record it on."""
    try:
        require_torch()
        require_gpu()
    except NoCudaError as error:
        reason = "torch finds no GPU here: record on a simulated one"
        raise UsageError(f"{reason}, with %%{_NAME} --simulate") from error
    except SnapconvError as error:
        raise UsageError(str(error)) from error


def _simulation(options: Namespace) -> "SimulationOptions":
    from snapconv.simulation import SimulationOptions

    try:
        capacity_bytes = parse_bytes(options.capacity) if options.capacity else None
    except ValueError as error:
        raise UsageError(f"--capacity: {error}") from error
    return SimulationOptions(compute=not options.no_compute, capacity_bytes=capacity_bytes)


@contextmanager
def _errors_kept(shell: Any, errors: list[BaseException]) -> Iterator[None]:
    """Keep the error of a cell to be raised when its recording is shown.

    It is shown then as without the magic: from the cell's own line on. A SyntaxError is shown at
    once, since IPython shows it in its own way.
    """
    show = shell.showtraceback

    def keep(*arguments: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if error is None or isinstance(error, SyntaxError | SystemExit | UsageError):
            show(*arguments, **options)
            return
        clean_traceback(error)
        lines = shell.InteractiveTB.structured_traceback(
            type(error), error, error.__traceback__, tb_offset=1
        )
        # IPython calls this, where it exists, in place of showing the stack.
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        errors.append(error)

    with replaced(shell, "showtraceback", keep):
        yield


def show_capture(shell: Any, capture: Path, name: str | None) -> None:
    """Show the verdict of a capture and its page, and keep the session under a name."""
    from snapconv.answers.notes import main_notes
    from snapconv.session import load, verdict_text

    session = load(capture)
    if name is not None:
        shell.user_ns[name] = session
    text = verdict_text(session)
    for note in main_notes(session.analysis):
        text += f"\nnote: {note.message}"
    bundle = {
        "text/plain": text,
        "text/html": f"<pre>{escape(text)}</pre>{_page(session, name)}",
    }
    display(bundle, raw=True)


def _page(session: "Session", name: str | None) -> str:
    with tempfile.TemporaryDirectory(prefix="snapconv-") as folder:
        page = session.view(Path(folder, "cell.view.html"))
        frame = _FRAME.format(escape(page.path.read_text(encoding="utf-8")))
    if len(frame) <= _MOST_INLINE_BYTES:
        return frame
    command = (
        f"{name}.view().open()" if name else f"%%{_NAME} NAME, then NAME.view().open()"
    )
    size = format_bytes(len(frame))
    return f"<p>The page has {size}, too much for a notebook: open it with {command}.</p>"
