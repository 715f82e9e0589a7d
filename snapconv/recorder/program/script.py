"""A script or module run as ``python FILE`` or ``python -m NAME`` would run it, in this process.

Also its end: the exception that it raised, and the exit code that Python would have.
"""

import builtins
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from snapconv.errors import EntryPointError, RecorderError
from snapconv.guest import own_frames, script_signals
from snapconv.guest.own_frames import call_user, is_ours, stands_in
from snapconv.guest.replacement import replaced
from snapconv.recorder.program.entry import Entry
from snapconv.stop_signals import BY_SIGNAL, STOPPING


def run_script(entry: Entry, argv: Sequence[str], *_: object) -> ModuleType:
    """Run a script or module as ``__main__``, and return it.

    The objects of its names live as long as it.
    """
    if entry.code is not None:
        with surroundings(entry.path, argv):
            return _run_as_main(entry.code, str(Path(entry.path).absolute()))
    with _restored([entry.path, *argv], first_on_path=str(Path.cwd())):
        spec, code, file = _find_module(entry.path)
        sys.argv[0] = file
        return _run_as_main(code, file, spec)


def surroundings(path: str, argv: Sequence[str]) -> AbstractContextManager[None]:
    """Give a file a script's arguments and search path, where its folder is the first.

    Links are resolved, as Python does.
    """
    folder = Path(path).resolve().parent
    return _restored([path, *argv], first_on_path=str(folder))


def _run_as_main(code: CodeType, file: str, spec: ModuleSpec | None = None) -> ModuleType:
    """Run code in a fresh ``__main__``, with the names that Python gives it."""
    main = ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __file__=file,
        __spec__=spec,
        __package__=spec.parent if spec else None,
        __loader__=spec.loader if spec else None,
        __annotations__={},
    )
    # Unpickling in a worker process, and pdb, look for the script's own names here.
    former_main = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        call_user(exec, code, main.__dict__)
        return main
    finally:
        sys.modules["__main__"] = former_main


@contextmanager
def _restored(argv: list[str], *, first_on_path: str) -> Iterator[None]:
    """Set the arguments and the first folder of the search path while the program runs."""
    argv_before = sys.argv
    path_before = sys.path[:]
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):  # ``python -P``, since 3.11
        sys.path[:1] = [first_on_path]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv_before, path_before


def _find_module(name: str) -> tuple[ModuleSpec, CodeType, str]:
    """Find a module's code and file; its parent packages are imported, as Python does."""
    spec = _spec_of(name)
    if spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code else None
    if code is None or spec.origin is None:
        raise EntryPointError(f"module {name} has no Python code to run")
    return spec, code, spec.origin


def _spec_of(name: str) -> ModuleSpec:
    try:
        spec = call_user(find_spec, name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent package is there, and imports what is not
        spec = None
    if spec is None:
        raise EntryPointError(
            f"there is no module {name}: python -m {name} would not find it here either"
        )
    return spec


class Stop(BaseException):
    """Ends the program once the capture is complete; ``except Exception`` does not catch it."""


def outcome(run: Callable[..., Any], *arguments: Any) -> tuple[BaseException | None, Any]:
    """Run the user's program; return what it raised, without our frames, and its result."""
    try:
        try:
            result = run(*arguments)
        finally:
            script_signals.program_ends()
        return None, result
    except Stop:
        return None, None
    except BaseException as error:  # noqa: BLE001  # handed on by the caller, as it is
        own_frames.clean_traceback(error)
        return error, None


def exit_code_of(raised: BaseException | None) -> int:
    """Return the code that Python itself would end with."""
    if raised is None:
        return 0
    if isinstance(raised, SystemExit):
        if isinstance(raised.code, int):
            return int(raised.code) & 0xFF
        return 0 if raised.code is None else 1
    if type(raised) is KeyboardInterrupt:  # one of a subclass is an error as any other
        return BY_SIGNAL + signal.SIGINT
    return raised.exit_code if isinstance(raised, RecorderError) else 1


def text_of(value: object) -> str:
    """Return a value's text as Python shows it in exceptions; never raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # the program's
        return "<exception str() failed>"


# A message of an exception may hold a whole tensor.
_MAX_DETAIL = 2000

# The exit codes with which the command line ends a program at these signals.
_STOPPED_BY = {BY_SIGNAL + number: number.name for number in STOPPING}


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the recorded program, as far as is known."""

    how: str
    detail: str = ""

    def values(self) -> dict[str, Any]:
        """Return the metadata's ``ended``."""
        return {"how": self.how, "detail": self.detail[:_MAX_DETAIL]}


def ended_by(raised: BaseException | None) -> Ended:
    """Infer from what a program raised how it ended."""
    if raised is None:
        return Ended("finished")
    text = f"{type(raised).__name__}: {text_of(raised)}"
    # Also where the program reported it and called sys.exit.
    torch = sys.modules.get("torch")  # which the program may not have come to
    if torch is not None:
        out_of_memory = torch.cuda.OutOfMemoryError
        if any(isinstance(error, out_of_memory) for error in own_frames.chain(raised)):
            return Ended("oom", text)
    if isinstance(raised, KeyboardInterrupt):
        return Ended("interrupted")
    if isinstance(raised, SystemExit):
        code = raised.code
        if isinstance(code, int) and code in _STOPPED_BY:
            return Ended("interrupted", _STOPPED_BY[code])
        return Ended("exit", "" if code is None else text_of(code))
    return Ended("exception", text)


_TORCH_FOLDER = f"-packages{os.sep}torch{os.sep}"


def warnings_name_the_user() -> AbstractContextManager[None]:
    """Show warnings that would name a line of ours with the program's innermost line."""
    show_warning = warnings.showwarning

    @stands_in
    def show(
        message: Any, category: Any, filename: str, lineno: int, *args: Any, **keywords: Any
    ) -> None:
        if is_ours(filename):
            for frame in own_frames.program_frames():
                file = frame.f_code.co_filename
                if _TORCH_FOLDER not in file and file != warnings.__file__:
                    filename, lineno = file, frame.f_lineno
                    break
        show_warning(message, category, filename, lineno, *args, **keywords)

    return replaced(warnings, "showwarning", show)
