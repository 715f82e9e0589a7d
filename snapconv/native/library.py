"""The compiled core, if it is there: ``src/`` has it in C, and all of it has a twin in Python.

SNAPCONV_NATIVE in the environment chooses: ``auto`` takes the core where it was built, ``no`` never
does, ``require`` makes it an error that it is missing. It means the same when the package is built.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.errors import SnapconvError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ABI = 6
VARIABLE = "SNAPCONV_NATIVE"
_MODES = ("auto", "no", "require")
FILE = Path(__file__).with_name("core.dll" if sys.platform == "win32" else "core.so")

# What every call that may end early returns; core.h has the same names.
MORE, DONE, ODD, NO_MEMORY = range(4)

_TYPES = {
    "p": ctypes.c_void_p,
    "b": ctypes.c_char_p,
    "u": ctypes.c_uint32,
    "i": ctypes.c_int32,
    "L": ctypes.c_int64,
    "U": ctypes.c_uint64,
    "-": None,
}
# The type of the result, and of the arguments; i is a status of those above.
_FUNCTIONS = {
    "snapconv_reader_new": "pU",
    "snapconv_reader_define": "ipbuiii",
    "snapconv_reader_feed": "ippLp",
    "snapconv_reader_events": "-pp",
    "snapconv_reader_drop_rest": "-p",
    "snapconv_reader_free": "-p",
    "snapconv_number": "LpLpLpL",
    "snapconv_pairing_new": "pUpppppp",
    "snapconv_pairing_add": "ipLLpp",
    "snapconv_pairing_finish": "-pp",
    "snapconv_pairing_free": "-p",
    "snapconv_walk_new": "pLpppLpp",
    "snapconv_walk_undo": "ipLpppppp",
    "snapconv_walk_conflicts": "Lp",
    "snapconv_walk_least_space": "Lppp",
    "snapconv_walk_free": "-p",
    "snapconv_replay_new": "pppU",
    "snapconv_replay_free": "-p",
    "snapconv_replay_adopt": "ipLpLp",
    "snapconv_replay_place": "ipLpp",
    "snapconv_replay_make": "ipLppppL",
    "snapconv_replay_figures": "-pp",
    "snapconv_table_pages": "LLLppLLpp",
}


def core() -> ctypes.CDLL | None:
    """Return the compiled core, whose calls let other threads run, or None: the twins have to do.

    Raises SnapconvError where SNAPCONV_NATIVE requires what is not there.
    """
    mode = os.environ.get(VARIABLE) or "auto"
    if mode not in _MODES:
        raise SnapconvError(f"{VARIABLE}={mode}: expected one of {', '.join(_MODES)}")
    if mode == "no":
        return None
    library, reason = _load()
    if library is None and mode == "require":
        raise SnapconvError(f"{VARIABLE}=require, but there is no compiled core: {reason}")
    return library


def kind() -> str:
    """Return the name of the reader of files, for ``snapconv --version``."""
    return "pure Python" if core() is None else "compiled core"


def random_seed() -> int:
    """Return a seed for hashes that no file can foresee."""
    return int.from_bytes(os.urandom(8), "little")


def address(column: "NDArray[np.generic]") -> int:
    """Return where a contiguous column is in memory."""
    return int(column.ctypes.data)


def goes_on(status: int) -> bool:
    """Return whether a call found nothing odd."""
    if status == NO_MEMORY:
        raise MemoryError
    return status == MORE


@contextmanager
def closing(pointer: int | None, free: Callable[[int], None]) -> Iterator[int]:
    """Free the object that a call returned when the block ends."""
    if pointer is None:
        raise MemoryError
    try:
        yield pointer
    finally:
        free(pointer)


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    if not FILE.exists():
        return None, "this installation was made without a C compiler"
    try:
        library = ctypes.CDLL(str(FILE))
        library.snapconv_abi.restype = ctypes.c_int32
        version = library.snapconv_abi()
    except (OSError, AttributeError) as error:
        return None, f"{FILE.name} cannot be loaded: {error}"
    if version != ABI:
        reason = f"is of another version ({version}, not {ABI}): install snapconv again"
        return None, f"{FILE.name} {reason}"
    for name, types in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, *function.argtypes = map(_TYPES.__getitem__, types)
    return library, ""
