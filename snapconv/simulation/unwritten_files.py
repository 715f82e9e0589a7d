"""Files where nothing is computed: what was not computed is never written, and read back all the same.

``torch.save``, pickle and safetensors write a marker of some bytes in its place. A new file that has one goes
when the run ends, with the new folder that it is in, and so does a binary one that is younger than an array
of uncomputed values. Files that were there stay as they are.
"""

import io
import json
import mmap
import os
import pickle
import re
import sys
import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import for_program
from snapconv.recorder.program.script import when_imported
from snapconv.simulation.branches import shortened, shown
from snapconv.simulation.files import FileVersions, Real, To, erase, with_parents
from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import Tracker
from snapconv.units import format_bytes

_HEAD = b"snapconv: the values of this file were not computed, "
_MARKER = re.compile(_HEAD + rb"([0-9a-f]{32})\n")
_MARKER_BYTES = len(_HEAD) + 33
# A file with a marker is small, unless much else is in it.
_MOST_SEARCHED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved object: its pickle, and of each storage the size, the device and, if computed, a copy."""

    pickled: bytes
    storages: list[tuple[int, str, Any]]
    n_bytes: int


class UnwrittenFiles:
    """The files of one run: new ones, and versions of those that were there."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._saved: dict[str, _Saved] = {}
        self._open, self._pid, self._began = io.open, os.getpid(), time.time()
        self.files = FileVersions(lambda: tracker.has_given_arrays)

    def _take(self, saved: Any) -> bytes | None:
        """Remember an object; return its marker, or None where all of it is computed."""
        tracker = self._tracker
        storages: list[tuple[int, str, Any]] = []
        numbers: dict[int, int] = {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                if not isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
                    return None
                storage = _untyped(value)
                if storage._cdata not in numbers:
                    numbers[storage._cdata] = len(storages)
                    is_known = tracker.has_values(storage)
                    values = torch.UntypedStorage(storage.nbytes()).copy_(storage) if is_known else None
                    storages.append((storage.nbytes(), torch.serialization.location_tag(storage), values))
                return numbers[storage._cdata], None if storage is value else value.dtype

        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(saved)
        if all(values is not None for _, _, values in storages):
            return None
        key, n_bytes = uuid.uuid4().hex, len(stream.getvalue()) + sum(row[0] for row in storages)
        self._saved[key] = _Saved(stream.getvalue(), storages, n_bytes)
        if os.getpid() != self._pid:
            typed = [values if values is None else _typed(values, torch.uint8) for _, _, values in storages]
            rows = [(*row[:2], values) for row, values in zip(storages, typed, strict=True)]
            with self._open(Path(self.files.folder, key), "wb") as file:
                pickle.dump(_Saved(stream.getvalue(), rows, n_bytes), file)
        return _HEAD + key.encode() + b"\n"

    def _saved_as(self, key: str) -> _Saved | None:
        """Return what a marker stands for; None if it is one of another run."""
        if key not in self._saved:
            with suppress(OSError), self._open(Path(self.files.folder, key), "rb") as file:
                self._saved[key] = pickle.load(file)
        return self._saved.get(key)

    def save(self, real: Real, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what torch.save does, as far as it was computed."""
        if isinstance(f, str | os.PathLike):
            with self._opened(f) as file:
                return self.save(real, obj, file, *args, **kwargs)
        try:
            taken = self._take(obj)
        except Exception:  # noqa: BLE001  # it cannot be pickled: torch has its own error for that
            taken = None
        return real(obj, f, *args, **kwargs) if taken is None else f.write(taken)

    def save_file(self, _real: object, tensors: Any, filename: Any, metadata: Any = None, **_: Any) -> None:
        """Do what safetensors.torch.save_file does, as far as it was computed."""
        taken = self._take((dict(tensors), metadata))
        with self._opened(filename) as file:
            file.write(taken or sys.modules["safetensors.torch"].save(tensors, metadata))

    def _opened(self, path: Any) -> Any:
        try:
            return self._open(self.files.at(path, To.OVERWRITE), "wb")
        except OSError as error:
            raise for_program(RuntimeError(f"cannot save to {path}: {error}")) from None

    def load(self, real: Real, f: Any, map_location: Any = None, *args: Any, **named: Any) -> Any:
        """Do what torch.load does."""
        saved = self._found(f)
        if saved is None:
            return real(self.files.at(f), map_location, *args, **named)
        return self._restored(saved, map_location)

    def safe_open(self, real: Real, filename: Any, *args: Any, **kwargs: Any) -> Any:
        """Open a file of safetensors; one that was not written has its shapes, and holes for its values."""
        saved = self._found(filename)
        if saved is None:
            return real(self.files.at(filename), *args, **kwargs)
        tensors, metadata = self._restored(saved, "cpu")
        empty = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()}
        header, end = json.loads(sys.modules["safetensors.torch"].save(empty, metadata)[8:]), 0
        for name, tensor in tensors.items():
            begin, end = end, end + tensor.nbytes
            header[name] |= {"shape": [*tensor.shape], "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        place = self.files.new_place("safetensors")
        with self._open(place, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        return real(place, *args, **kwargs)

    def _found(self, source: Any) -> _Saved | None:
        """Return what the marker at a path or in an open file stands for, None for other contents."""
        head: Any = b""
        if not hasattr(source, "read"):
            with suppress(OSError), self._open(self.files.at(source), "rb") as file:
                head = file.read(_MARKER_BYTES)
        elif hasattr(source, "seek") and hasattr(source, "tell"):
            before = source.tell()
            head = source.read(_MARKER_BYTES)
            source.seek(before)
        found = _MARKER.match(head) if isinstance(head, bytes) else None
        return self._saved_as(found[1].decode()) if found else None

    def _restored(self, saved: _Saved, map_location: Any) -> Any:
        """Build again what was saved; what has no values gets memory on its device alone."""
        place = torch.serialization._get_restore_location(map_location)
        made: dict[int, Any] = {}

        def storage(number: int) -> Any:
            n_bytes, location, values = saved.storages[number]
            is_hole = values is None
            fresh = self._tracker.storage_without_values(n_bytes) if is_hole else _untyped(values).clone()
            return place(fresh, location)

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, given: Any) -> Any:
                number, dtype = given
                if number not in made:
                    made[number] = storage(number)
                untyped = _untyped(made[number])
                return untyped if dtype is None else _typed(untyped, dtype)

        try:
            return Unpickler(io.BytesIO(saved.pickled)).load()
        finally:
            made.clear()  # a class is part of a cycle, which would keep the storages until it is collected

    def unwritten(self) -> dict[str, int]:
        """Return the files whose values were not computed, with their sizes."""
        sizes = {self.files.shown_name(place): self._n_bytes(place) for place in self.files.add_others()}
        return {name: n_bytes for name, n_bytes in sizes.items() if name and n_bytes}

    def _n_bytes(self, place: str) -> int:
        """Return the size of what was not computed in a file, 0 for any other file."""
        path, has_arrays = Path(place), self.files.made[place]
        with suppress(OSError, ValueError):  # an empty file cannot be mapped
            n_bytes = path.stat().st_size if path.is_file() else 0
            has_markers = self._saved or os.path.exists(self.files.by_others)
            if has_arrays:
                return 0 if self._is_text(path) else n_bytes
            if not has_markers or n_bytes > _MOST_SEARCHED_BYTES:
                return 0
            with (
                self._open(path, "rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as contents,
            ):
                saved = (self._saved_as(key.decode()) for key in _MARKER.findall(contents))
                return sum(one.n_bytes for one in saved if one is not None)
        return 0

    def _is_text(self, path: Path) -> bool:
        with self._open(path, "rb") as file, suppress(UnicodeDecodeError):
            head = file.read(1 << 16)
            return b"\0" not in head and bool(getincrementaldecoder("utf-8")().decode(head))
        return False

    def _partial_folders(self) -> set[str]:
        """Return the new folders that a file is missing from."""
        saved = (
            place for place, has_arrays in self.files.made.items() if not has_arrays and self._n_bytes(place)
        )
        folders = {os.path.dirname(place) for place in saved} & self.files.made.keys()
        return {folder for folder in folders if not folder.startswith(self.files.folder)}

    def close(self) -> None:
        """Remove what was not computed, and the versions."""
        if os.getpid() != self._pid:
            return
        files, _ = self.files, self.files.add_others()
        partial_folders = self._partial_folders()
        new = sorted((place for place in files.made if not place.startswith(files.folder)), reverse=True)
        for place in new:
            if self._n_bytes(place) or not partial_folders.isdisjoint(with_parents(place)):
                erase(place)
        files.close()
        for parent, _, names in (entry for each in partial_folders for entry in os.walk(each, topdown=False)):
            for place in (os.path.join(parent, name) for name in names):
                if os.lstat(place).st_mtime >= self._began:  # no older file that another process moved there
                    erase(place)
            erase(parent)
        for folder in {os.path.dirname(place) for place in new} if self._saved else ():
            with suppress(OSError):
                for path in [path for path in Path(folder).iterdir() if path.is_file() and self._found(path)]:
                    path.unlink()  # another process has renamed or copied it

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written, and those that are as they were before."""
        sizes = self.unwritten()
        said = {
            "these files were not written, as their values were not computed": [
                f"{path} ({format_bytes(n_bytes)})" for path, n_bytes in sizes.items()
            ],
            "what else is new in these folders goes with them": [*map(shortened, self._partial_folders())],
            "what the program did to these files is undone when it ends": [
                name for name in map(shortened, self.files.places) if name not in sizes
            ],
            "what these do to files is not undone": [*self.files.beyond],
        }
        if any(said.values()):
            message = "; ".join(f"{what}: {shown(files, 'file')}" for what, files in said.items() if files)
            yield Note("files-not-written", message)


def _typed(storage: Any, dtype: torch.dtype) -> Any:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def patch_files(unwritten: UnwrittenFiles, patches: Patches) -> None:
    """Let the program have versions of files, and save and load by what was computed."""
    files = unwritten.files
    files.patch_all(patches)
    files.patch(patches, {torch.save: unwritten.save, torch.load: unwritten.load, torch.jit.load: To.READ})
    files.patch(patches, {torch.from_file: files.map_file})
    for name, to in {"PyTorchFileWriter": To.OVERWRITE, "PyTorchFileReader": To.READ}.items():
        patches.set(torch._C, name, _archive_class(files, to, getattr(torch._C, name)))
    module = torch.jit.RecursiveScriptModule
    patches.set(module, "save", files.wrapped(module.save, partial(files.write, has_arrays=True)))
    patches.callback(unwritten.close)
    libraries: dict[str, dict[str, Real]] = {
        "sqlite3": {"connect": files.connect},
        "safetensors": {"safe_open": unwritten.safe_open, "serialize_file": files.write},
        "safetensors.torch": {"save_file": unwritten.save_file},
    }
    for name, functions in libraries.items():

        def patch_it(name: str = name, functions: dict[str, Real] = functions) -> None:
            module = sys.modules[name]
            files.patch(patches, {getattr(module, function): ours for function, ours in functions.items()})

        patches.enter_context(when_imported(name, patch_it))

    def patch_tokenizers() -> None:
        kind = sys.modules["tokenizers"].Tokenizer
        patches.set(kind, "save", files.wrapped(kind.save, files.write))
        patches.set(kind, "from_file", staticmethod(files.wrapped(kind.from_file, To.READ)))

    patches.enter_context(when_imported("tokenizers", patch_tokenizers))


def _archive_class(files: FileVersions, to: To, real: type) -> type:
    """Make what reads or writes an archive in C++, as torch.export and torch.package do."""

    class Archive(real):  # type: ignore[misc]
        def __init__(self, archive: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(files.at(archive, to, has_arrays=True), *args, **kwargs)

    return Archive


def patch_checkpoints(tracker: Tracker, patches: Patches) -> None:
    """Let torch.load leave large tensors in their files; the headers there have their shapes and types."""

    def unread(real: Real, reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        if kind is not torch.UntypedStorage or not tracker.is_large(n_bytes):
            return real(reader, name, n_bytes, kind)
        return torch.empty(n_bytes, dtype=torch.uint8, device="cpu")

    # torch.load reads from its file one storage after the other, and requests it by its bytes.
    patches.wrap(torch._C.PyTorchFileReader, "get_storage_from_record", unread)
