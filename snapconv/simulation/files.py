"""Files where nothing is computed: of those that were there before, the program has versions of its own.

What it writes over such a file, renames or removes is so for this run alone, in a folder that goes with it;
what it appends, or changes in place, goes to the file, as to a log. ``torch.save``, pickle and safetensors
write a marker of some bytes in place of what was never computed. A new file that has one is removed when the
run ends, and so is a binary one that is younger than an array of uncomputed values. Other processes,
and C code that opens files by itself, are not seen.
"""

import builtins
import io
import mmap
import os
import pathlib
import pickle
import re
import shutil
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.notes import Note
from snapconv.recorder.program.own_frames import for_program, is_in_our_work, stands_in
from snapconv.recorder.program.script import when_imported
from snapconv.simulation.branches import shown
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

    @property
    def n_bytes(self) -> int:
        return len(self.pickled) + sum(n_bytes for n_bytes, _, _ in self.storages)


@dataclass(slots=True)
class _File:
    """A file or folder that the program has made: the name that it gave, and where it lies.

    ``has_arrays``: NumPy had values that were not computed when it was made.
    """

    given: str
    place: str
    has_arrays: bool = False


class UnwrittenFiles:
    """The files of one run, by their names: new ones, and versions of those that were there."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._saved: dict[str, _Saved] = {}
        self._files: dict[str, _File] = {}
        self._folder = ""
        self._open, self._pid = io.open, os.getpid()

    # --- saving

    def _take(self, saved: Any) -> bytes | None:
        """Remember an object; return its marker, or None where all of it is computed."""
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
                    is_known = tracker.has_values(storage)
                    values = torch.UntypedStorage(storage.nbytes()).copy_(storage) if is_known else None
                    storages.append((storage.nbytes(), torch.serialization.location_tag(storage), values))
                return numbers[storage._cdata], None if storage is value else value.dtype

        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(saved)
        if all(values is not None for _, _, values in storages):
            return None
        key = uuid.uuid4().hex
        self._saved[key] = _Saved(stream.getvalue(), storages)
        return _HEAD + key.encode() + b"\n"

    def save(self, real: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
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

    def save_module(
        self, real: Callable[..., None], module: Any, path: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Do what ``save`` of a scripted module does; its values count as uncomputed."""
        real(module, self.at(path, is_written=True), *args, **kwargs)

    def _opened(self, path: Any, *, has_arrays: bool = False) -> Any:
        try:
            file = self.open(self._open, path, "wb")
        except OSError as error:
            raise for_program(RuntimeError(f"cannot save to {path}: {error}")) from None
        self._add(path, follows=True, has_arrays=has_arrays)
        return file

    # --- loading

    def load(
        self, real: Callable[..., Any], f: Any, map_location: Any = None, *args: Any, **named: Any
    ) -> Any:
        """Do what torch.load does."""
        saved = self._found(f)
        if saved is None:
            return real(self._where(f), map_location, *args, **named)
        return self._restored(saved, map_location)

    def load_file(
        self, real: Callable[..., Any], filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any
    ) -> Any:
        """Do what safetensors.torch.load_file does."""
        saved = self._found(filename)
        if saved is None:
            return real(self._where(filename), device, *args, **kwargs)
        return self._restored(saved, device)[0]

    def safe_open(self, real: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse to open what safetensors has not written piece by piece."""
        if self._found(filename) is None:
            return real(self._where(filename), *args, **kwargs)
        raise RecorderError(
            f"safetensors.safe_open: {filename} was not written, as its values were not computed. "
            "Load it by safetensors.torch.load_file, or simulate with computation."
        )

    def _found(self, source: Any) -> _Saved | None:
        """Return what the marker at a path or in an open file stands for, None for other contents."""
        head: Any = b""
        if not hasattr(source, "read"):
            with suppress(OSError), self._open(self._where(source), "rb") as file:
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

    def open(self, real: Callable[..., Any], file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file as ``open`` does; one that would be written over gets a version."""
        writes = set(mode) & set("wxa") if isinstance(file, str | os.PathLike) else set()
        place = self._where(file, is_replaced="w" in writes)
        is_new = "w" in writes or (bool(writes) and not os.path.lexists(place))
        opened = real(place, mode, *args, **kwargs)
        if is_new:
            self._add(file, follows=True, has_arrays="b" in mode and self._tracker.has_given_arrays)
        return opened

    def open_number(self, real: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """Open a file as ``os.open`` does; a new one is the program's."""
        place = self._where(path)
        is_new = flags & os.O_CREAT and not os.path.lexists(place)
        number = real(place, flags, *args, **kwargs)
        if is_new:
            self._add(path, follows=True)
        return number

    def remove(self, real: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        """Remove a file or a tree; of one that was there the program has no version any more."""
        place = self._where(path, is_replaced=True, follows=False)
        if place is path or os.path.lexists(place):
            real(place, *args, **kwargs)

    def rename(self, real: Callable[..., None], src: Any, dst: Any) -> None:
        """Rename; what was there keeps its name, and the program reads it by the other."""
        name, before = self._find(src, follows=False)
        new_name, after = self._find(dst, follows=False)
        is_over_file = os.path.lexists(before) and not Path(after).is_dir()
        after = self._where(dst, is_replaced=is_over_file, follows=False)
        if self._is_users(before):
            self._files[name] = _File(os.fspath(src), self._version(name))
            self._files[new_name] = _File(os.fspath(dst), self._version(new_name))
            return Path(self._files[new_name].place).symlink_to(before)
        # A version may be in another file system.
        (shutil.move if is_over_file else real)(before, after)
        for path in [path for path in self._files if f"{path}{os.sep}".startswith(name + os.sep)]:
            self._add(os.fspath(dst) + path[len(name) :], has_arrays=self._files[path].has_arrays)
        return self._add(dst) if new_name not in self._files else None

    def make(self, real: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        """Make a folder."""
        real(self._where(path, follows=False), *args, **kwargs)
        self._add(path)

    def link(self, real: Callable[..., None], src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        """Make a link."""
        self.make(partial(real, src), dst, *args, **kwargs)

    def at(self, path: Any, *, is_written: bool) -> Any:
        """Return where C++ code of torch is to read a file, or write values that count as uncomputed."""
        if is_written and isinstance(path, str | os.PathLike):
            self._opened(path, has_arrays=True).close()
        return self._where(path)

    def look(self, real: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        """Do with the program's version of a file what changes none."""
        return real(self._where(path), *args, **kwargs)

    # --- where they are

    def _where(self, path: Any, *, is_replaced: bool = False, follows: bool = True) -> Any:
        """Return where the program's version of a file is; one that is to be replaced gets a version."""
        if not isinstance(path, str | os.PathLike) or not (is_replaced or self._files):
            return path
        name, place = self._find(path, follows=follows)
        if is_replaced and self._is_users(place):
            place = self._version(name)
            self._files[name] = _File(os.fspath(path), place)
        return path if place == name else place

    def _find(self, path: Any, *, follows: bool) -> tuple[str, str]:
        """Return a file's one name, which is no link's unless links are not followed, and its place."""
        name = _entry(path)
        if follows and (name not in self._files or self._files[name].place == name):
            name = os.path.realpath(name)
        found = next((path for path in _with_parents(name) if path in self._files), None)
        return name, name if found is None else self._files[found].place + name[len(found) :]

    def _is_users(self, place: str) -> bool:
        """Whether there is a file, a folder or a link that the program has not made."""
        path = _entry(place)
        made = (self._files.get(parent) for parent in _with_parents(path))
        if any(file is not None and path.startswith(file.place) for file in made):
            return False
        return Path(path).is_file() or Path(path).is_dir() or Path(path).is_symlink()

    def _version(self, name: str) -> str:
        """Name a place for a version of a file."""
        if not self._folder:
            self._folder = os.path.realpath(tempfile.mkdtemp(prefix="snapconv-"))
            self._add(self._folder)
        return f"{self._folder}{os.sep}{uuid.uuid4().hex[:8]}-{Path(name).name}"

    def _add(self, path: Any, *, has_arrays: bool = False, follows: bool = False) -> None:
        """Remember what the program has made."""
        name, place = self._find(path, follows=follows)
        self._files[name] = _File(os.fspath(path), place, has_arrays)

    def unwritten(self) -> dict[str, int]:
        """Return the files whose values were not computed, with their sizes."""
        found = {file.given: self._n_bytes(file) for file in self._files.values()}
        return {given: n_bytes for given, n_bytes in found.items() if n_bytes}

    def _n_bytes(self, file: _File) -> int:
        """Return the size of what was not computed in a file, 0 for any other file."""
        path = Path(file.place)
        with suppress(OSError, ValueError):  # an empty file cannot be mapped
            n_bytes = path.stat().st_size if path.is_file() else 0
            if file.has_arrays or not self._saved or n_bytes > _MOST_SEARCHED_BYTES:
                return n_bytes if file.has_arrays else 0
            with (
                self._open(path, "rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as contents,
            ):
                saved = (self._saved.get(key.decode()) for key in _MARKER.findall(contents))
                return sum(one.n_bytes for one in saved if one is not None)
        return 0

    def close(self) -> None:
        """Remove what was not computed, and the versions."""
        if os.getpid() != self._pid:
            return
        for name, file in self._files.items():
            if file.place == name and self._n_bytes(file):
                with suppress(OSError):
                    Path(name).unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._files.clear()

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written, and those that are as they were before."""
        sizes = self.unwritten()
        listed = [f"{path} ({format_bytes(n_bytes)})" for path, n_bytes in sizes.items()]
        kept = [file.given for name, file in self._files.items() if file.place != name]
        said = {
            "these files were not written, as their values were not computed": listed,
            "what the program did to these files is undone when it ends": sorted({*kept} - {*sizes}),
        }
        if any(said.values()):
            message = "; ".join(f"{what}: {shown(files, 'file')}" for what, files in said.items() if files)
            yield Note("files-not-written", message)


def _entry(path: Any) -> str:
    """Return a path in full, with links followed in all but its last part."""
    full = Path(path).absolute()
    return os.path.join(os.path.realpath(full.parent), full.name)  # noqa: PTH118  # quicker


def _with_parents(path: str) -> Iterator[str]:
    yield path
    yield from map(str, Path(path).parents)


# How the program reaches files, beside ``open``: functions of os by their names, and what is done for them.
_OF_OS = {
    **dict.fromkeys(("stat", "access", "chmod", "utime", "listdir", "scandir", "rmdir"), "look"),
    **dict.fromkeys(("remove", "unlink"), "remove"),
    **dict.fromkeys(("rename", "replace"), "rename"),
    **dict.fromkeys(("link", "symlink"), "link"),
    "mkdir": "make",
    "open": "open_number",
}

_ELSEWHERE = ("dir_fd", "src_dir_fd", "dst_dir_fd", "opener")


def patch_files(files: UnwrittenFiles, patches: Patches) -> None:
    """Let the program have versions of files, and save and load by what was computed."""

    def wrap(owner: Any, name: str, ours: Callable[..., Any]) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return

        @stands_in
        @wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            # An opener opens another file than is named: tempfile's one in that folder.
            is_elsewhere = any(kwargs.get(name) is not None for name in _ELSEWHERE)
            if is_elsewhere or is_in_our_work(sys._getframe(1)):
                return real(*args, **kwargs)
            return ours(real, *args, **kwargs)

        # Not guarded: torch's own would write over files.
        patches.set(owner, name, call)

    def patch_tensors() -> None:
        for ours in (files.save_file, files.load_file):
            wrap(sys.modules["safetensors.torch"], ours.__name__, ours)

    for owner in (torch, torch.serialization):
        for ours in (files.save, files.load):
            wrap(owner, ours.__name__, ours)
    for name in ("PyTorchFileWriter", "PyTorchFileReader"):
        patches.set(torch._C, name, _archive_class(files, getattr(torch._C, name)))
    wrap(torch.jit, "load", files.look)
    wrap(torch.jit.RecursiveScriptModule, "save", files.save_module)
    for owner, name in {builtins: "open", io: "open", tarfile: "bltn_open"}.items():
        wrap(owner, name, files.open)
    for owner in (os, getattr(pathlib, "_normal_accessor", os)):  # Python 3.10 has the functions there too
        for name, ours_name in _OF_OS.items():
            wrap(owner, name, getattr(files, ours_name))
    wrap(shutil, "rmtree", files.remove)
    patches.callback(files.close)
    patches.enter_context(
        when_imported("safetensors", lambda: wrap(sys.modules["safetensors"], "safe_open", files.safe_open))
    )
    patches.enter_context(when_imported("safetensors.torch", patch_tensors))


def _archive_class(files: UnwrittenFiles, real: type) -> type:
    """Make what reads or writes an archive in C++, as torch.export and torch.package do."""

    class Archive(real):  # type: ignore[misc]
        def __init__(self, archive: Any, *args: Any, **kwargs: Any) -> None:
            place = files.at(archive, is_written=real.__name__ == "PyTorchFileWriter")
            super().__init__(place, *args, **kwargs)

    return Archive


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
