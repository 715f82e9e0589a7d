"""Files where nothing is computed: such values are never written, and are read back all the same.

In place of an object whose values were not computed, ``torch.save``, pickle and safetensors write
one line that says so, and a pickle without these values. A new file with such a line is removed
when the run ends, with the new folder that it is in, and so is a binary one that was opened after
the program was given an array of values that were not computed. Files that were there stay as they
are.
"""

import ctypes
import io
import json
import os
import pickle
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from snapconv.guest.own_frames import for_program
from snapconv.notes import Note
from snapconv.simulation.files import FUNCTIONS, Entry, FileVersions, Functions, Real, To
from snapconv.simulation.patches import Patches
from snapconv.simulation.places import shortened, shown
from snapconv.simulation.tracker import Tracker
from snapconv.units import format_bytes

_SIZE_DIGITS = 20
# A file with such a line is small, unless much else is in it.
_MOST_SEARCHED_BYTES = 1 << 26


class UnwrittenFiles:
    """The files of one run: new ones, and versions of those that were there."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._pid = os.getpid()
        self._began = time.time()
        # No file of another run has its number: a pickle that somebody else has made is never
        # loaded.
        run = uuid.uuid4().hex
        # No pickle begins like this: whoever loads the file later is told so.
        self._head = (
            f"# snapconv: the values of this file were not computed, {run} ".encode()
        )
        self.files = FileVersions(lambda: tracker.has_given_arrays)

    def _stand_in(self, saved: Any) -> bytes | None:
        """Return what is written in place of an object, None where all of it is computed."""
        rows: dict[int, tuple[Any, tuple[int, int, str, bytes | None]]] = {}

        def row_of(value: Any) -> Any:
            if not isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
                return None
            storage = _untyped(value)
            key = storage._cdata
            if key not in rows:
                location = torch.serialization.location_tag(storage)
                row = len(rows), storage.nbytes(), location, self._values(storage)
                # The storage is kept: its key is not another's meanwhile.
                rows[key] = storage, row
            _, row = rows[key]
            return *row, None if storage is value else value.dtype

        stream = io.BytesIO()
        pickler = pickle.Pickler(stream)
        pickler.persistent_id = row_of  # type: ignore[method-assign]
        pickler.dump(saved)
        sizes = [n_bytes for _, (_, n_bytes, _, values) in rows.values() if values is None]
        if not sizes:
            return None
        n_bytes = stream.tell() + sum(sizes)
        return self._head + f"{n_bytes:0{_SIZE_DIGITS}}\n".encode() + stream.getvalue()

    def _values(self, storage: Any) -> bytes | None:
        if not self.tracker.has_values(storage):
            return None
        copy = torch.UntypedStorage(storage.nbytes()).copy_(storage)
        return ctypes.string_at(copy.data_ptr(), copy.nbytes())

    def _restored(self, source: Any, map_location: Any) -> Any:
        """Build the object that a path or an open file stands in for; None for other contents.

        What has no values gets memory on its device alone.
        """
        if not hasattr(source, "read"):
            with suppress(OSError), open(self.files.at(source), "rb") as file:
                return self._restored(file, map_location)
            return None
        begin = source.tell()
        if source.read(len(self._head)) != self._head:
            source.seek(begin)
            return None
        source.read(_SIZE_DIGITS + 1)
        restore = torch.serialization._get_restore_location(map_location)
        storages: dict[int, Any] = {}

        def storage_of(row: Any) -> Any:
            number, n_bytes, location, values, dtype = row
            if number not in storages:
                storages[number] = restore(self._storage(n_bytes, values), location)
            storage = _untyped(storages[number])
            if dtype is None:
                return storage
            return torch.storage.TypedStorage(
                wrap_storage=storage, dtype=dtype, _internal=True
            )

        unpickler = pickle.Unpickler(source)
        unpickler.persistent_load = storage_of  # type: ignore[method-assign]
        return unpickler.load()

    def _storage(self, n_bytes: int, values: bytes | None) -> Any:
        if values is None:
            return self.tracker.storage_without_values(n_bytes)
        storage = torch.UntypedStorage(n_bytes)
        ctypes.memmove(storage.data_ptr(), values, n_bytes)
        return storage

    def save(self, real: Real, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what torch.save does, as far as it was computed."""
        if isinstance(f, str | os.PathLike):
            with self._opened(f) as file:
                return self.save(real, obj, file, *args, **kwargs)
        try:
            stand_in = self._stand_in(obj)
        except Exception:  # noqa: BLE001  # it cannot be pickled: torch has its own error for that
            stand_in = None
        return real(obj, f, *args, **kwargs) if stand_in is None else f.write(stand_in)

    def save_file(
        self, _real: object, tensors: Any, filename: Any, metadata: Any = None, **_: Any
    ) -> None:
        """Do what safetensors.torch.save_file does, as far as it was computed."""

        def write(_saved: object, file: Any) -> None:
            file.write(sys.modules["safetensors.torch"].save(tensors, metadata))

        self.save(write, (dict(tensors), metadata), filename)

    def _opened(self, path: Any) -> Any:
        try:
            return open(self.files.at(path, To.SAVE), "wb")
        except OSError as error:
            raise for_program(RuntimeError(f"cannot save to {path}: {error}")) from None

    def load(
        self, real: Real, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Do what torch.load does."""
        restored = self._restored(f, map_location)
        if restored is None:
            return real(self.files.at(f), map_location, *args, **kwargs)
        return restored

    def safe_open(self, real: Real, filename: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a file of safetensors; one that was not written has shapes, and holes for values."""
        restored = self._restored(filename, "cpu")
        if restored is None:
            return real(self.files.at(filename), *args, **kwargs)
        tensors, metadata = restored
        empty = {
            name: torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()
        }
        header = json.loads(sys.modules["safetensors.torch"].save(empty, metadata)[8:])
        end = 0
        for name, tensor in tensors.items():
            begin = end
            end = end + tensor.nbytes
            header[name] |= {"shape": [*tensor.shape], "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        path = self.files.new_path("safetensors")
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return real(path, *args, **kwargs)

    def unwritten(self) -> dict[str, int]:
        """Return the files whose values were not computed, with their sizes."""
        return {shortened(entry.name): n_bytes for entry, n_bytes in self._sizes().items()}

    def _sizes(self) -> dict[Entry, int]:
        sizes = {}
        for entry in self.files.entries.values():
            n_bytes = 0 if entry.is_users else self._n_bytes(entry)
            if n_bytes:
                sizes[entry] = n_bytes
        return sizes

    def _n_bytes(self, entry: Entry) -> int:
        """Return the size of what was not computed in a file, 0 for any other file."""
        path = Path(entry.path)
        size = path.stat().st_size if path.is_file() else 0
        if not size or size > _MOST_SEARCHED_BYTES:
            return size if entry.has_arrays else 0
        contents = path.read_bytes()
        if entry.has_arrays and b"\0" in contents:  # text has none
            return size
        return sum(map(int, re.findall(self._head + rb"(\d+)", contents)))

    def _partial_folders(self, sizes: dict[Entry, int]) -> list[str]:
        """Return the new folders that a file is missing from."""
        folders = {os.path.dirname(entry.path) for entry in sizes if not entry.has_arrays}
        return sorted(folders & self._new_paths())

    def _new_paths(self) -> set[str]:
        return {
            entry.path for entry in self.files.entries.values() if self.files.is_new(entry)
        }

    def close(self) -> None:
        """Remove what was not computed, and the versions."""
        if os.getpid() != self._pid:
            return
        sizes = self._sizes()
        new_paths = self._new_paths()
        for folder in self._partial_folders(sizes):
            for path in sorted(Path(folder).rglob("*"), reverse=True):
                # No older file that another process moved there.
                if str(path) in new_paths or path.lstat().st_mtime >= self._began:
                    _erase(path)
            _erase(Path(folder))
        for entry in sizes:
            _erase(Path(entry.path))
        self.files.close()

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written, and those that are as they were before."""
        sizes = self._sizes()
        unwritten = []
        undone = []
        for entry, n_bytes in sizes.items():
            unwritten.append(f"{shortened(entry.name)} ({format_bytes(n_bytes)})")
        for entry in self.files.entries.values():
            if entry.path != entry.name and entry not in sizes:
                undone.append(shortened(entry.name))
        folders = list(map(shortened, self._partial_folders(sizes)))
        sentences = []
        for statement, files in (
            ("these files were not written, as their values were not computed", unwritten),
            ("what else is new in these folders goes with them", folders),
            ("what the program did to these files is undone when it ends", undone),
        ):
            if files:
                sentences.append(f"{statement}: {shown(files, 'file')}")
        if sentences:
            yield Note("files-not-written", "; ".join(sentences))


def _erase(path: Path) -> None:
    """Remove a file or an empty folder, if that is possible."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


_FUNCTIONS: Functions = {
    "torch": (("save", UnwrittenFiles.save), ("load", UnwrittenFiles.load)),
    "safetensors": (("safe_open", UnwrittenFiles.safe_open),),
    "safetensors.torch": (("save_file", UnwrittenFiles.save_file),),
}


def patch_files(unwritten: UnwrittenFiles, patches: Patches) -> None:
    """Let the program have versions of files, and save and load by what was computed."""
    patches.callback(unwritten.close)
    unwritten.files.patch(patches, (FUNCTIONS, unwritten.files), (_FUNCTIONS, unwritten))


def patch_checkpoints(tracker: Tracker, patches: Patches) -> None:
    """Let torch.load leave large tensors in their files, whose headers have shapes and types."""

    def unread(real: Real, reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        if kind is not torch.UntypedStorage or not tracker.is_large(n_bytes):
            return real(reader, name, n_bytes, kind)
        return torch.empty(n_bytes, dtype=torch.uint8, device="cpu")

    # torch.load reads from its file one storage after the other, and requests it by its bytes.
    patches.wrap(torch._C.PyTorchFileReader, "get_storage_from_record", unread)
