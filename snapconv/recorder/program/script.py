"""A script or module run as ``python FILE`` or ``python -m NAME`` would run it, inside this process.

With it what it ended with: what it raised, and the exit code that Python would have; and work of ours that
waits until it imports a module.
"""

import builtins
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TextIO

from snapconv.errors import EntryPointError, RecorderError
from snapconv.recorder.program import own_frames, script_signals
from snapconv.recorder.program.own_frames import call_user, is_ours, stands_in


@dataclass(frozen=True, slots=True)
class _Program:
    """Compiled code, and the attributes of its ``__main__``."""

    code: CodeType
    file: str
    argv0: str
    spec: ModuleSpec | None = None


def run_file(path: str, code: CodeType, argv: Sequence[str]) -> ModuleType:
    """Run a script as ``__main__``; ``path`` is as the user wrote it. Whatever it raises goes through.

    Returns the ``__main__`` that it was: what its names hold lives as long as that.
    """
    program = _Program(code, str(Path(path).absolute()), path)
    with _as_main(program, [path, *argv], first_on_path=_folder_of(path)) as main:
        call_user(exec, code, main.__dict__)
        return main


def run_module(name: str, argv: Sequence[str]) -> ModuleType:
    """Run a module as ``__main__``, or a package's ``__main__`` module; returns what ``run_file`` does."""
    with _restored([name, *argv], first_on_path=str(Path.cwd())):
        program = _find_module(name)
        with _as_main(program, [program.argv0, *argv], first_on_path=str(Path.cwd())) as main:
            call_user(exec, program.code, main.__dict__)
            return main


@contextmanager
def surroundings(path: str, argv: Sequence[str]) -> Iterator[None]:
    """Give a file that is not run as a script a script's arguments and search path."""
    with _restored([path, *argv], first_on_path=_folder_of(path)):
        yield


def _folder_of(path: str) -> str:
    """Return what Python puts first on the search path; it resolves links, so that neighbours are found."""
    return str(Path(path).resolve().parent)


@contextmanager
def _as_main(program: _Program, argv: list[str], *, first_on_path: str) -> Iterator[ModuleType]:
    """Put a fresh ``__main__`` in place, with the names that Python gives it."""
    main = ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __file__=program.file,
        __spec__=program.spec,
        __package__=program.spec.parent if program.spec else None,
        __loader__=program.spec.loader if program.spec else None,
        __annotations__={},
    )
    before = sys.modules["__main__"]
    with _restored(argv, first_on_path=first_on_path):
        # Unpickling in a worker process, and pdb, look for the script's own names here.
        sys.modules["__main__"] = main
        try:
            yield main
        finally:
            sys.modules["__main__"] = before


@contextmanager
def _restored(argv: list[str], *, first_on_path: str) -> Iterator[None]:
    """Set the arguments and the first folder of the search path, for as long as the program runs."""
    argv_before, path_before = sys.argv, sys.path[:]
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):  # ``python -P``, since 3.11
        sys.path[:1] = [first_on_path]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv_before, path_before


def _find_module(name: str) -> _Program:
    """Find a module's code; its parent packages are imported, as Python does."""
    spec = _spec_of(name)
    if spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code else None
    if code is None or spec.origin is None:
        raise EntryPointError(f"module {name} has no Python code to run")
    return _Program(code, spec.origin, spec.origin, spec)


def _spec_of(name: str) -> ModuleSpec:
    try:
        spec = call_user(find_spec, name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent package is there, and imports what is not
        spec = None
    if spec is None:
        raise EntryPointError(f"there is no module {name}: python -m {name} would not find it here either")
    return spec


# As shells count: 128 plus the number of SIGINT.
_INTERRUPTED = 130


class Stop(BaseException):
    """Ends the program once the capture is complete; no ``except Exception`` of the user's holds it up."""


def outcome(run: Callable[..., Any], *arguments: Any) -> tuple[BaseException | None, Any]:
    """Run the user's program; return what it raised, our frames taken out, and what ``run`` returned."""
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
        code = exit_argument(raised)
        if isinstance(code, int):
            return int(code) & 0xFF
        return 0 if code is None else 1
    if type(raised) is KeyboardInterrupt:  # one of a subclass is an error as any other
        return _INTERRUPTED
    return raised.exit_code if isinstance(raised, RecorderError) else 1


def exit_argument(raised: SystemExit) -> object:
    """Return what ``sys.exit`` was given; the exception itself where a class of the program's fails."""
    try:
        return raised.code
    except Exception:  # noqa: BLE001  # the program's
        return raised


def text_of(value: object) -> str:
    """Return a value's text, as Python shows exceptions: one without a text does not hold up anything."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # the program's
        return "<exception str() failed>"


# A message of an exception may hold a whole tensor.
_MAX_DETAIL = 2000

# What the command line ends a program with when one of these comes, as shells count: 128 and the number.
_STOPPED_BY = {128 + number: number.name for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")}


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
    if torch and any(isinstance(error, torch.cuda.OutOfMemoryError) for error in own_frames.chain(raised)):
        return Ended("oom", text)
    if isinstance(raised, KeyboardInterrupt):
        return Ended("interrupted")
    if isinstance(raised, SystemExit):
        code = exit_argument(raised)
        if isinstance(code, int) and code in _STOPPED_BY:
            return Ended("interrupted", _STOPPED_BY[code])
        return Ended("exit", "" if code is None else text_of(code)[:_MAX_DETAIL])
    return Ended("exception", text)


@contextmanager
def warnings_name_the_user() -> Iterator[None]:
    """Show warnings that would name a line of ours with the user's; others as they are."""
    before = warnings.showwarning

    @stands_in
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if is_ours(filename):
            filename, lineno = _users_line() or (filename, lineno)
        before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:  # else the program has taken it since
            warnings.showwarning = before


def _users_line() -> tuple[str, int] | None:
    """Find the innermost frame that is neither torch's, nor ours, nor of the warnings themselves."""
    torch_folder = (
        str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep if "torch" in sys.modules else None
    )
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        filename = frame.f_code.co_filename
        is_torch = torch_folder is not None and filename.startswith(torch_folder)
        if not is_ours(filename) and not is_torch and filename != warnings.__file__:
            return filename, frame.f_lineno
        frame = frame.f_back
    return None


# --- The recorder needs torch, which reads settings when it is imported (``OMP_NUM_THREADS``, the allocator's
# backend) that a program makes before: so nothing of ours imports it.


@contextmanager
def when_imported(name: str, work: Callable[[], object]) -> Iterator[None]:
    """Do a piece of work as soon as a module has been imported, or now where it has been already.

    Once, and not after the context. Whoever imports the module waits for the work, which must not raise.
    """
    if name in sys.modules:
        work()
        yield
        return
    finder = _Finder(name, work)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.leave()


class _Finder(MetaPathFinder):
    """Finds one module as the others do, and has its import seen. To look for it is no import."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._name, self._work = name, work

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have."""
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)  # Python 3.11 still has finders without
            spec = find_spec(fullname, path, target) if find_spec and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec  # type: ignore[no-any-return]
        return None

    def leave(self) -> None:
        """Find nothing any more."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def _imported(self) -> None:
        if self in sys.meta_path:
            self.leave()
            self._work()


class _Loader(Loader):
    """Loads the module as its own loader does, in whose place it is only until then."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the loader."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    @stands_in
    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which has its own loader and not this one."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        """Answer as the loader does, to whoever has looked for the module without importing it."""
        if name.startswith("__"):  # of a copy that has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)
