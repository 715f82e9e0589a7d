"""Load a pickle of plain containers; every global and persistent id is refused.

Turns a binary file into Python values. First the opcodes are checked (pickle_scan), then Python's own
C unpickler builds the values, with both of its doors to code shut as well. A pickle with tuples that no
snapshot has goes through Python's slower unpickler, which builds lists for them.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

from snapconv.errors import MalformedSnapshotError, SnapconvError, UnsafePickleError
from snapconv.notes import Progress


class _NoCode:
    """Refuses what the scan has refused already: the second lock."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise UnsafePickleError(f"the pickle refers to {module_name}.{global_name}")

    def persistent_load(self, pid: object) -> object:
        raise UnsafePickleError("the pickle refers to a persistent id")


def load_plain_pickle(file: BinaryIO, n_bytes: int, *, progress: Progress | None = None) -> object:
    """Build the values of a pickle; bytes after its end are ignored.

    ``file`` is seekable and has ``n_bytes``. Raises what check_pickle raises, and
    MalformedSnapshotError for a stream whose opcodes make no sense together.
    """
    from snapconv.snapshot.readers.pickle_scan import check_pickle  # what the core has read needs no scan

    checked = check_pickle(file, n_bytes, progress=_stage(progress, "checking"))
    file.seek(0)
    source = _Source(_CountingReader(file, checked.end, _stage(progress, "loading")), 1 << 20)
    source.n_bytes = checked.end
    try:
        return (_ListUnpickler if checked.n_odd_tuples else _PlainUnpickler)(source).load()
    except SnapconvError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # damaged streams raise nearly everything: one boundary for all
        raise MalformedSnapshotError(
            f"the pickle is damaged ({type(error).__name__}: {str(error)[:200]}); dump it again"
        ) from error


def load_own_pickle(data: bytes) -> tuple[object, dict[int, Any]]:
    """Build the values of a pickle that the compiled core wrote, and give what its memo has by index."""
    # From a file that it cannot peek into, the unpickler reads every number by a call: four times as long.
    unpickler = _PlainUnpickler(io.BufferedReader(io.BytesIO(data)))
    value = unpickler.load()
    memo: Any = unpickler.memo.copy()  # typeshed has the type of the Python twin of the unpickler
    return value, memo


class _PlainUnpickler(_NoCode, pickle.Unpickler):
    """Python's C unpickler without globals."""


def _list_of_last(n: int) -> Callable[[Any], None]:
    def load(unpickler: Any) -> None:
        unpickler.stack[-n:] = [unpickler.stack[-n:]]

    return load


class _ListUnpickler(_NoCode, pickle._Unpickler):
    """Python's own unpickler, five times slower, with lists in the place of tuples.

    A tuple can be a dictionary's key, and its hash is worked out anew each time: a file of 300 bytes,
    tuples that contain the same tuple twice, 60 levels deep, would take years. A list cannot be a key.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
        pickle.TUPLE1[0]: _list_of_last(1),
        pickle.TUPLE2[0]: _list_of_last(2),
        pickle.TUPLE3[0]: _list_of_last(3),
    }


class _Source(io.BufferedReader):
    """The file; a frame's length is read in one piece, whatever its value, so it is bounded here."""

    n_bytes: int

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self.n_bytes if size is None or size < 0 else min(size, self.n_bytes))


class _CountingReader(io.RawIOBase):
    """Passes a file's first bytes through and reports how many went by."""

    def __init__(self, file: BinaryIO, n_bytes: int, report: Callable[[int, int], None] | None) -> None:
        self._file = file
        self._left = n_bytes
        self._n_bytes = n_bytes
        self._report = report

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed: Buffer
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        if self._report:
            self._report(self._n_bytes - self._left, self._n_bytes)
        return len(data)


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(name, done, total)
