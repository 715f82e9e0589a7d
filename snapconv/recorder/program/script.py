"""A script or module -> run as ``python FILE`` or ``python -m NAME`` would run it, inside this process."""

import builtins
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from snapconv.errors import EntryPointError
from snapconv.recorder.program.own_frames import call_user


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
