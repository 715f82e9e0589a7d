"""Files where nothing is computed: what is saved is remembered and not written, what is large is not read.

``torch.save`` and safetensors write a marker of some bytes in place of what was never computed. A new file
has it until the run ends, so that a program finds, renames and loads it. A file that was there before is
not touched, whether it is saved to by name, through ``open``, or by renaming another over it.
"""

import builtins
import io
import mmap
import os
import pickle
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.notes import Note
from snapconv.recorder.program.own_frames import for_program
from snapconv.recorder.program.script import when_imported
from snapconv.simulation.branches import shown
from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import Tracker
from snapconv.units import format_bytes

_HEAD = b"snapconv: the values of this file were not computed, "
_MARKER = re.compile(_HEAD + rb"([0-9a-f]{32})\n")
_MARKER_BYTES = len(_HEAD) + 33


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved object: its pickle, and of each storage the size, the device and, if computed, a copy."""

    pickled: bytes
    storages: list[tuple[int, str, Any]]

    @property
    def n_bytes(self) -> int:
        return len(self.pickled) + sum(n_bytes for n_bytes, _, _ in self.storages)


class _Shadow(io.BufferedWriter):
    """A file beside one that is there, which it replaces when it is closed, unless a marker is in it."""

    def __init__(self, path: str, files: "UnwrittenFiles") -> None:
        self._path, self._files = path, files
        self._shadow = f"{path}.{uuid.uuid4().hex}"
        super().__init__(io.FileIO(self._shadow, "wb"))

    @property
    def name(self) -> str:
        """The name that the program gave."""
        return self._path

    def close(self) -> None:
        """Close it, and put it where it belongs."""
        if not self.closed:
            super().close()
            self._files.settle(self._shadow, self._path)


class UnwrittenFiles:
    """The files that were not written in one run."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._saved: dict[str, _Saved] = {}
        # What a program reads where a file of the user's is left as it is.
        self._kept: dict[str, bytes] = {}
        self._placeholders: set[str] = set()
        self._open, self._replace = io.open, os.replace
        self.sizes: dict[str, int] = {}

    # --- saving

    def take(self, saved: Any) -> tuple[str, bytes] | None:
        """Remember an object; return its key and its marker, or None where all of it is computed."""
        tracker = self._tracker
        storages: list[tuple[int, str, Any]] = []
        numbers: dict[int, int] = {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                if not isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
                    return None
                storage = getattr(value, "_untyped_storage", value)
                if storage._cdata not in numbers:
                    numbers[storage._cdata] = len(storages)
                    values = tracker.copied(storage) if tracker.has_values(storage) else None
                    storages.append((storage.nbytes(), torch.serialization.location_tag(storage), values))
                return numbers[storage._cdata], None if storage is value else value.dtype

        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(saved)
        if all(values is not None for _, _, values in storages):
            return None
        key = uuid.uuid4().hex
        self._saved[key] = _Saved(stream.getvalue(), storages)
        return key, _HEAD + key.encode() + b"\n"

    def save(self, real: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what torch.save does, as far as it was computed."""
        try:
            taken = self.take(obj)
        except Exception:  # noqa: BLE001  # it cannot be pickled: torch has its own error for that
            taken = None
        if taken is None:
            return real(obj, f, *args, **kwargs)
        if isinstance(f, str | os.PathLike):
            self.write(os.fspath(f), *taken)
        else:
            f.write(taken[1])
        return None

    def save_file(
        self, real: Callable[..., Any], tensors: Any, filename: Any, metadata: Any = None, **kwargs: Any
    ) -> Any:
        """Do what safetensors.torch.save_file does, as far as it was computed."""
        taken = self.take((dict(tensors), metadata))
        if taken is None:
            return real(tensors, filename, metadata, **kwargs)
        return self.write(os.fspath(filename), *taken)

    def write(self, path: str, key: str, marker: bytes) -> None:
        """Put a marker where there is no file; where there is one, remember it for that name."""
        real = os.path.realpath(path)
        self.sizes[path] = self._saved[key].n_bytes
        if self._is_users(real):
            self._kept[real] = marker
            return
        try:
            with self._open(real, "wb") as file:
                file.write(marker)
        except OSError as error:
            raise for_program(RuntimeError(f"cannot save to {path}: {error}")) from None
        self._placeholders.add(real)

    def _is_users(self, path: str) -> bool:
        return Path(path).is_file() and path not in self._placeholders

    # --- loading

    def load(
        self, real: Callable[..., Any], f: Any, map_location: Any = None, *args: Any, **named: Any
    ) -> Any:
        """Do what torch.load does."""
        saved = self._found(f)
        return real(f, map_location, *args, **named) if saved is None else self._restored(saved, map_location)

    def load_file(
        self, real: Callable[..., Any], filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any
    ) -> Any:
        """Do what safetensors.torch.load_file does."""
        saved = self._found(filename)
        return real(filename, device, *args, **kwargs) if saved is None else self._restored(saved, device)[0]

    def safe_open(self, real: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse to open what safetensors has not written piece by piece."""
        if self._found(filename) is None:
            return real(filename, *args, **kwargs)
        raise RecorderError(
            f"safetensors.safe_open: {filename} was not written, as its values were not computed. "
            "Load it by safetensors.torch.load_file, or simulate with computation."
        )

    def _found(self, source: Any) -> _Saved | None:
        """Return what the marker at a path or in an open file stands for, None for other contents."""
        head: Any = b""
        if not hasattr(source, "read"):
            path = os.path.realpath(os.fspath(source))
            if path in self._kept:
                head = self._kept[path]
            elif Path(path).is_file():
                with suppress(OSError), self._open(path, "rb") as file:
                    head = file.read(_MARKER_BYTES)
        elif hasattr(source, "seek") and hasattr(source, "tell"):
            before = source.tell()
            head = source.read(_MARKER_BYTES)
            source.seek(before)
        found = _MARKER.match(head) if isinstance(head, bytes) else None
        return self._saved.get(found[1].decode()) if found else None

    def _restored(self, saved: _Saved, map_location: Any) -> Any:
        """Build again what was saved; what has no values gets memory on its device alone."""
        place = torch.serialization._get_restore_location(map_location)
        made: dict[int, Any] = {}

        def storage(number: int) -> Any:
            n_bytes, location, values = saved.storages[number]
            fresh = self._tracker.storage_without_values(n_bytes) if values is None else values.clone()
            return place(fresh, location)

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, given: Any) -> Any:
                number, dtype = given
                if number not in made:
                    made[number] = storage(number)
                untyped = getattr(made[number], "_untyped_storage", made[number])
                if dtype is None:
                    return untyped
                return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)

        try:
            return Unpickler(io.BytesIO(saved.pickled)).load()
        finally:
            made.clear()  # a class is part of a cycle, which would keep the storages until it is collected

    # --- the program's own files

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``open`` does; one that would be overwritten gets a shadow."""
        is_plain = isinstance(file, str | os.PathLike) and buffering != 0 and not any(args)
        if is_plain and not kwargs.get("opener"):
            path = os.path.realpath(os.fspath(file))
            if sorted(mode) == ["b", "w"] and self._is_users(path):
                return _Shadow(path, self)
            if mode == "rb" and path in self._kept:
                return io.BytesIO(self._kept[path])
        return self._open(file, mode, buffering, *args, **kwargs)

    def settle(self, shadow: str, path: str) -> None:
        """Let a shadow take a file's place, or where a marker is in it leave the file as it is."""
        found: list[_Saved] = []
        # An empty file cannot be mapped, and a large one is not to be read.
        if Path(shadow).stat().st_size:
            with (
                self._open(shadow, "rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents,
            ):
                keys = (key.decode() for key in _MARKER.findall(contents))
                found = [self._saved[key] for key in keys if key in self._saved]
                self._kept[path] = contents[:] if found else b""
        if not found:
            shutil.copymode(path, shadow)
            self._replace(shadow, path)
            self._kept.pop(path, None)
        else:
            Path(shadow).unlink()
            self.sizes[path] = sum(saved.n_bytes for saved in found)

    def moved(self, real: Callable[..., None], source: Any, target: Any, **kwargs: Any) -> None:
        """Rename: not over a file that was there, if what is renamed was not computed."""
        before, after = os.path.realpath(os.fspath(source)), os.path.realpath(os.fspath(target))
        if os.fspath(source) in self.sizes:
            self.sizes[os.fspath(target)] = self.sizes.pop(os.fspath(source))
        if before in self._placeholders and self._is_users(after):
            self._kept[after] = Path(before).read_bytes()
            Path(before).unlink()
            self._placeholders.discard(before)
            return
        real(source, target, **kwargs)
        for path in [*self._placeholders]:
            if path == before or path.startswith(before + os.sep):
                self._placeholders.discard(path)
                self._placeholders.add(after + path[len(before) :])

    def close(self) -> None:
        """Remove the markers."""
        for path in self._placeholders:
            if self._found(path) is not None:
                with suppress(OSError):
                    Path(path).unlink()
        self._placeholders.clear()

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written."""
        if self.sizes:
            listed = (f"{path} ({format_bytes(n_bytes)})" for path, n_bytes in self.sizes.items())
            yield Note(
                "files-not-written",
                f"these files were not written, as their values were not computed: {shown(listed, 'file')}",
            )


def patch_files(files: UnwrittenFiles, patches: Patches) -> None:
    """Save and load by what was computed: torch, and safetensors from when the program imports it on."""

    def wrap(owner: Any, ours: Callable[..., Any]) -> None:
        # Not guarded: torch's own would write over files.
        patches.set_existing(owner, ours.__name__, partial(ours, getattr(owner, ours.__name__)))

    def patch_tensors() -> None:
        for ours in (files.save_file, files.load_file):
            wrap(sys.modules["safetensors.torch"], ours)

    for owner in (torch, torch.serialization):
        for ours in (files.save, files.load):
            wrap(owner, ours)
    for owner in (builtins, io):
        patches.set(owner, "open", files.open)
    for name in ("rename", "replace"):
        patches.set(os, name, partial(files.moved, getattr(os, name)))
    patches.callback(files.close)
    patches.enter_context(
        when_imported("safetensors", lambda: wrap(sys.modules["safetensors"], files.safe_open))
    )
    patches.enter_context(when_imported("safetensors.torch", patch_tensors))


def patch_checkpoints(tracker: Tracker, patches: Patches) -> None:
    """Let torch.load leave large tensors in their files; what is small is read.

    A tensor then has its shape and type from the header, and as little memory as any other without values.
    """

    def unread(real: Callable[..., Any], reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        if kind is not torch.UntypedStorage or not tracker.is_large(n_bytes):
            return real(reader, name, n_bytes, kind)
        return torch.empty(n_bytes, dtype=torch.uint8, device="cpu")

    # torch.load reads from its file one storage after the other, and requests it by its bytes.
    patches.wrap(torch._C.PyTorchFileReader, "get_storage_from_record", unread)
