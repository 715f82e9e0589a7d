"""Files where nothing is computed: such values are never written, and are read back all the same.

A file of ``torch.save`` has all but these values, and a note in place of each: only here can it be
loaded. A new file with such a note is removed when the run ends, and so is a binary one that was
opened after the program was given an array of values that were not computed. What safetensors saves
without values is a file of holes in the folder of the run. Files that were there stay as they are.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import empty

from snapconv.notes import Note
from snapconv.simulation.files import FUNCTIONS, FileVersions, Functions, Real, To
from snapconv.simulation.patches import Patches
from snapconv.simulation.places import shortened, shown
from snapconv.simulation.tracker import Tracker
from snapconv.units import format_bytes

# A file with a note is small, unless much else is in it.
_MOST_SEARCHED_BYTES = 1 << 26


class UnwrittenFiles:
    """The files of one run: new ones, and versions of those that were there."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.files = FileVersions(tracker)
        self._pid = os.getpid()
        # No file of another run has its number.
        run = uuid.uuid4().hex
        self._head = (
            f"# snapconv: the values of this file were not computed, {run} ".encode()
        )

    def write(self, real: Real, writer: Any, name: str, contents: Any, *size: Any) -> None:
        """Write a record of a file of ``torch.save``, or a note with its size.

        Plain PyTorch does not find the record, and reads nothing.
        """
        is_storage = isinstance(contents, torch.UntypedStorage)
        if not is_storage or self.tracker.has_values(contents):
            real(writer, name, contents, *size)
            return
        note = self._head + f"{contents.nbytes()}\n".encode()
        real(writer, f"{name}-not-computed", note, len(note))

    def unwritten(self) -> dict[str, int]:
        """Return the files whose values were not computed, with their sizes."""
        return {self._shown(path): n_bytes for path, n_bytes in self._sizes().items()}

    def _shown(self, path: str) -> str:
        return shortened(self.files.name_of(path))

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for path, has_arrays in [*self.files.new.items()]:
            n_bytes = self._n_bytes(Path(path), has_arrays=has_arrays)
            if n_bytes:
                sizes[path] = n_bytes
        return sizes

    def _n_bytes(self, path: Path, *, has_arrays: bool) -> int:
        """Return the size of what was not computed in a file, 0 for any other file."""
        size = path.stat().st_size if path.is_file() else 0
        if not size or size > _MOST_SEARCHED_BYTES:
            return size if has_arrays else 0
        contents = path.read_bytes()
        if has_arrays and b"\0" in contents:  # text has none
            return size
        return sum(map(int, re.findall(self._head + rb"(\d+)", contents)))

    def close(self) -> None:
        """Remove what was not computed, and the versions."""
        if os.getpid() != self._pid:
            return
        for path in self._sizes():
            with suppress(OSError):
                os.unlink(path)
        self.files.close()

    def notes(self) -> Iterator[Note]:
        """Name the files that were not written, and those that are as they were before."""
        sizes = self._sizes()
        versions = [*self.files.versions.items()]
        unwritten = [
            f"{self._shown(path)} ({format_bytes(size)})" for path, size in sizes.items()
        ]
        undone = [shortened(name) for name, path in versions if path not in sizes]
        sentences = []
        for statement, files in (
            ("these files were not written, as their values were not computed", unwritten),
            ("what the program did to these files is undone when it ends", undone),
        ):
            if files:
                sentences.append(f"{statement}: {shown(files, 'file')}")
        if sentences:
            yield Note("files-not-written", "; ".join(sentences))


def _load(files: FileVersions, real: Real, f: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what torch.load does; not by mapping the file, which may be without some values."""
    return real(files.at(f), *args, **kwargs | {"mmap": False})


def _save_safetensors(
    files: FileVersions,
    real: Real,
    tensors: Any,
    filename: Any,
    metadata: Any = None,
    **options: Any,
) -> None:
    """Do what safetensors.torch.save_file does, with holes where nothing is computed."""
    has_values = files.tracker.has_values
    if all(has_values(tensor.untyped_storage()) for tensor in tensors.values()):
        real(tensors, files.at(filename, To.SAVE), metadata, **options)
        return
    empty_tensors = {
        name: empty(0, dtype=tensor.dtype, device="cpu") for name, tensor in tensors.items()
    }
    data = sys.modules["safetensors.torch"].save(empty_tensors, metadata)
    header = json.loads(data[8:])  # after its length
    end = 0
    for name, tensor in tensors.items():
        begin = end
        end = end + tensor.nbytes
        header[name] |= {"shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(files.at(filename, To.ARCHIVE), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


_FUNCTIONS: Functions = {
    "torch.serialization": (("load", _load),),
    "safetensors.torch": (("save_file", _save_safetensors),),
}


def patch_files(unwritten: UnwrittenFiles, patches: Patches) -> None:
    """Let the program have versions of files."""
    patches.callback(unwritten.close)
    unwritten.files.patch(patches, FUNCTIONS | _FUNCTIONS)


def patch_checkpoints(unwritten: UnwrittenFiles, patches: Patches) -> None:
    """Let torch.save and torch.load leave out what was not computed, and large tensors unread."""
    tracker = unwritten.tracker

    def read(real: Real, reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        is_there = reader.has_record(name)
        if kind is not torch.UntypedStorage or (is_there and not tracker.is_large(n_bytes)):
            return real(reader, name, n_bytes, kind)
        tensor = empty(n_bytes, dtype=torch.uint8, device="cpu")
        tracker.evaluation.forget(tensor)
        return tensor

    def cpu_copy(real: Real, storage: Any) -> Any:
        if tracker.has_values(storage) or storage.device.type == "cpu":
            return real(storage)
        return tracker.storage_without_values(storage.nbytes())

    def save(_real: Real, saved: Any, file: Any, *options: Any) -> None:
        torch.save(saved, file, *options)

    # Its format of old has no records.
    patches.wrap(torch.serialization, "_legacy_save", save)
    patches.wrap(torch.UntypedStorage, "cpu", cpu_copy)
    patches.wrap(torch._C.PyTorchFileWriter, "write_record", unwritten.write)
    # torch.load reads from its file one storage after the other, and requests it by its bytes.
    patches.wrap(torch._C.PyTorchFileReader, "get_storage_from_record", read)
