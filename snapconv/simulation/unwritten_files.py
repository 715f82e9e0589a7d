"""Files that a program saves where nothing is computed: they are remembered and not written.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.program.moments import when_imported
from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import Tracker
from snapconv.units import format_bytes

_HEAD = b"snapconv: the values of this file were not computed, "
_MARKER = re.compile(_HEAD + rb"([0-9a-f]{32})\n")
_MARKER_BYTES = len(_HEAD) + 33
_MAX_SHOWN = 4


@dataclass(slots=True)
class _Saved:
    """A saved object: its pickle, and of each storage the size, the device and, if computed, a copy."""

    pickled: bytes = b""
    storages: list[tuple[int, str, Any]] = field(default_factory=list)
    is_computed: bool = True

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
        import torch

        self._torch = torch
        self._tracker = tracker
        self._saved: dict[bytes, _Saved] = {}
        self._kept: dict[str, bytes] = {}
        self._placeholders: set[str] = set()
        self._open, self._replace = io.open, os.replace
        self.sizes: dict[str, int] = {}

    # --- saving

    def take(self, saved: Any) -> tuple[bytes, int] | None:
        """Remember an object; return its key and its size, or None where all of it is computed."""
        taken = self._pickled(saved)
        if taken.is_computed:
            return None
        key = uuid.uuid4().hex.encode()
        self._saved[key] = taken
        return key, taken.n_bytes

    def _pickled(self, saved: Any) -> _Saved:
        torch, tracker, taken = self._torch, self._tracker, _Saved()
        numbers: dict[int, int] = {}

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> Any:
                if not isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
                    return None
                untyped = getattr(value, "_untyped_storage", value)
                dtype = getattr(value, "dtype", None) if untyped is not value else None
                if untyped._cdata not in numbers:
                    numbers[untyped._cdata] = len(taken.storages)
                    taken.storages.append(describe(untyped))
                return numbers[untyped._cdata], dtype

        def describe(storage: Any) -> tuple[int, str, Any]:
            has_values = tracker.storage_has_values(storage)
            taken.is_computed &= has_values
            location = torch.serialization.location_tag(storage)
            return storage.nbytes(), location, tracker.copied(storage) if has_values else None

        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(saved)
        taken.pickled = stream.getvalue()
        return taken

    def write(self, path: str, key: bytes, n_bytes: int) -> None:
        """Put a marker where there is no file; where there is one, remember it for that name."""
        real = os.path.realpath(path)
        self.sizes[path] = n_bytes
        if self._is_users(real):
            self._kept[real] = _marker(key)
            return
        try:
            with self._open(real, "wb") as file:
                file.write(_marker(key))
        except OSError as error:
            raise for_program(RuntimeError(f"cannot save to {path}: {error}")) from None
        self._placeholders.add(real)

    def _is_users(self, path: str) -> bool:
        return Path(path).is_file() and path not in self._placeholders

    # --- loading

    def key_of(self, source: Any) -> bytes | None:
        """Return the key of what a path or an open file stands for, None for a file of other contents."""
        if hasattr(source, "read"):
            if not (hasattr(source, "seek") and hasattr(source, "tell")):
                return None
            before = source.tell()
            head = source.read(_MARKER_BYTES)
            source.seek(before)
            return _key(head) if isinstance(head, bytes) else None
        real = os.path.realpath(os.fspath(source))
        if real in self._kept:
            return _key(self._kept[real])
        if real not in self._placeholders and not 0 < _size(real) <= _MARKER_BYTES:
            return None
        try:
            with self._open(real, "rb") as file:
                return _key(file.read(_MARKER_BYTES))
        except OSError:
            return None

    def restored(self, key: bytes, map_location: Any = None) -> Any:
        """Build again what was saved; what has no values gets memory on its device alone."""
        torch, saved = self._torch, self._saved[key]
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

        return Unpickler(io.BytesIO(saved.pickled)).load()

    # --- the program's own files

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``open`` does; one that would be overwritten gets a shadow."""
        if (
            isinstance(file, str | os.PathLike)
            and buffering != 0
            and not any(args)
            and not kwargs.get("opener")
        ):
            path = os.path.realpath(os.fspath(file))
            if sorted(mode) == ["b", "w"] and self._is_users(path):
                return _Shadow(path, self)
            if mode == "rb" and path in self._kept:
                return io.BytesIO(self._kept[path])
        return self._open(file, mode, buffering, *args, **kwargs)

    def settle(self, shadow: str, path: str) -> None:
        """Let a shadow take a file's place, or where a marker is in it leave the file as it is."""
        with self._open(shadow, "rb") as file:
            file.seek(0, os.SEEK_END)
            if file.tell():  # an empty file cannot be mapped, and a large one is not to be read
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
                    found = [key for key in _MARKER.findall(contents) if key in self._saved]
                    self._kept[path] = contents[:] if found else b""
            else:
                found = []
        if not found:
            shutil.copymode(path, shadow)
            self._replace(shadow, path)
            self._kept.pop(path, None)
        else:
            Path(shadow).unlink()
            self.sizes[path] = sum(self._saved[key].n_bytes for key in found)

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
            if self.key_of(path) is not None:
                with suppress(OSError):
                    Path(path).unlink()
        self._placeholders.clear()

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written."""
        if self.sizes:
            listed = [f"{path} ({format_bytes(n_bytes)})" for path, n_bytes in self.sizes.items()]
            more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
            yield Note(
                "files-not-written",
                "these files were not written, as their values were not computed: "
                f"{', '.join(listed[:_MAX_SHOWN])}{more}",
            )


def _marker(key: bytes) -> bytes:
    return _HEAD + key + b"\n"


def _key(head: bytes) -> bytes | None:
    found = _MARKER.match(head)
    return found[1] if found else None


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def patch_saving(files: UnwrittenFiles, patches: Patches) -> None:
    """Let torch, safetensors and the program's own files go by what was computed."""
    import torch

    def saving(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                taken = files.take(obj)
            except Exception:  # noqa: BLE001  # it cannot be pickled: torch has its own error for that
                taken = None
            if taken is None:
                return real(obj, f, *args, **kwargs)
            if isinstance(f, str | os.PathLike):
                files.write(os.fspath(f), *taken)
            else:
                f.write(_marker(taken[0]))
            return None

        return save

    def loading(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            key = files.key_of(f)
            if key is None:
                return real(f, map_location, *args, **kwargs)
            return files.restored(key, map_location)

        return load

    for owner in (torch, torch.serialization):
        patches.wrap(owner, "save", saving)
        patches.wrap(owner, "load", loading)
    for owner in (builtins, io):
        patches.set(owner, "open", files.open)
    for name in ("rename", "replace"):
        patches.wrap(
            os, name, lambda real: wraps(real)(lambda *args, **named: files.moved(real, *args, **named))
        )


class _Opened:
    """What ``safetensors.safe_open`` gives, of tensors that are not in a file."""

    def __init__(self, tensors: dict[str, Any], metadata: dict[str, str] | None) -> None:
        self._tensors, self._metadata = tensors, metadata

    def __enter__(self) -> "_Opened":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def keys(self) -> list[str]:
        return [*self._tensors]

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        return self._tensors[name]

    def get_slice(self, name: str) -> "_Slice":
        return _Slice(self._tensors[name])


class _Slice:
    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> Any:
        return self._tensor[index]

    def get_shape(self) -> list[int]:
        return [*self._tensor.shape]

    def get_dtype(self) -> str:
        names = {"bfloat16": "BF16", "float": "F", "int": "I", "uint": "U", "bool": "BOOL"}
        kind, bits = re.fullmatch(r"torch\.([a-z]+?)(\d*)", str(self._tensor.dtype)).groups()  # type: ignore[union-attr]
        return names.get(kind + bits, f"{names.get(kind, kind)}{bits}")


@contextmanager
def unwritten_files(files: UnwrittenFiles, patches: Patches) -> Iterator[None]:
    """Save and load by what was computed: torch, and safetensors from when the program imports it on."""

    def patch_tensors() -> None:
        module = sys.modules["safetensors.torch"]
        patches.wrap(module, "save_file", _saving_file(files))
        patches.wrap(module, "load_file", _loading_file(files))

    def patch_opening() -> None:
        patches.wrap(sys.modules["safetensors"], "safe_open", lambda real: _opening(files, real))

    patch_saving(files, patches)
    with when_imported("safetensors", patch_opening), when_imported("safetensors.torch", patch_tensors):
        try:
            yield
        finally:
            files.close()


def _saving_file(files: UnwrittenFiles) -> Callable[[Any], Any]:
    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def save_file(tensors: Any, filename: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> Any:
            taken = files.take((dict(tensors), metadata))
            if taken is None:
                return real(tensors, filename, metadata, *args, **kwargs)
            return files.write(os.fspath(filename), *taken)

        return save_file

    return make


def _loading_file(files: UnwrittenFiles) -> Callable[[Any], Any]:
    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            key = files.key_of(filename)
            return real(filename, device, *args, **kwargs) if key is None else files.restored(key, device)[0]

        return load_file

    return make


def _opening(files: UnwrittenFiles, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real, updated=())
    def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        key = files.key_of(filename)
        if key is None:
            return real(filename, framework, device, **kwargs)
        return _Opened(*files.restored(key, device))

    return safe_open
