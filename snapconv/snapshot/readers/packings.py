"""The packings of a file: gzip, and zip with one snapshot in it, unpacked piece by piece within bounds."""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, BinaryIO

from snapconv.errors import MalformedSnapshotError, NotASnapshotError, TruncatedFileError
from snapconv.notes import Progress
from snapconv.units import shown

# Real snapshots shrink 5 to 40 times, as JSON up to 92 times; beyond this a small file is an attempt to fill
# the memory. A hostile pickle costs 16 bytes of memory for a byte: 1 MiB of gzip has to stay below 3 GB.
_MAX_RATIO = 120
_MAX_FREE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16
_N_NAMES = 6
_MAGICS = {b"\x1f\x8b": "gzip", b"PK": "zip"}
_TOO_MUCH = (
    f"the {{}} file unpacks to more than {_MAX_RATIO} times its size, which no snapshot does; if it is one "
    "all the same, unpack it yourself ({})"
)
# What zipfile raises for archives that are damaged, or made by somebody who means harm.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, ValueError, OverflowError,
    RuntimeError, OSError,
)  # fmt: skip


def packing_of(head: bytes) -> str:
    """Return what a file is packed in by its first bytes: gzip, zip, or nothing."""
    if head[:2] == b"PK" and head[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
        return ""
    return _MAGICS.get(head[:2], "")


def most_unpacked_bytes(n_bytes: int) -> int:
    """Return how large the content of a packed file of this size may be, all packings together."""
    return n_bytes * _MAX_RATIO + _MAX_FREE_BYTES


def unpacked(
    file: BinaryIO, packing: str, member: str, *, most: int, progress: Progress | None = None
) -> Iterator[bytes]:
    """Unpack a file piece by piece; whatever is wrong with it shows at the latest after the last one.

    ``member`` names one of several files in a zip; ``most`` is how many bytes may come.
    """
    return _gunzip(file, most, progress) if packing == "gzip" else _unzip(file, member, most, progress)


def _gunzip(file: BinaryIO, most: int, progress: Progress | None) -> Iterator[bytes]:
    n_bytes, n_unpacked = _size_of(file), 0
    decompress = zlib.decompressobj(wbits=31)
    try:
        # Small pieces: at every member's end zlib copies what is left of the piece.
        while packed := file.read(_PIECE_BYTES):
            while packed:
                part = decompress.decompress(packed, most - n_unpacked + 1)
                n_unpacked += len(part)
                if n_unpacked > most:
                    raise MalformedSnapshotError(_TOO_MUCH.format("gzip", "gzip -d FILE"))
                yield part
                packed = decompress.unconsumed_tail
                if decompress.eof and decompress.unused_data.startswith(b"\x1f\x8b"):
                    packed = decompress.unused_data
                    decompress = zlib.decompressobj(wbits=31)
            if len(decompress.unused_data) > 1:
                break  # padding, not another member
            if progress:
                progress("decompressing", file.tell(), n_bytes)
    except zlib.error as error:
        raise MalformedSnapshotError(f"the gzip file is damaged: {error}") from error
    if not decompress.eof:
        raise TruncatedFileError.of("the gzip file", n_bytes)


def _unzip(file: BinaryIO, member: str, most: int, progress: Progress | None) -> Iterator[bytes]:
    n_bytes, n_unpacked = _size_of(file), 0
    try:
        with zipfile.ZipFile(file) as archive, _opened(archive, _chosen(archive, member)) as content:
            while part := content.read(_PIECE_BYTES):
                n_unpacked += len(part)
                if n_unpacked > most:
                    raise MalformedSnapshotError(_TOO_MUCH.format("zip", "unzip FILE"))
                yield part
                if progress:
                    progress("decompressing", min(file.tell(), n_bytes), n_bytes)
    except _ZIP_ERRORS as error:
        raise MalformedSnapshotError(f"the zip file cannot be unpacked: {shown(str(error))}") from error


def _opened(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        what = "has a password" if info.flag_bits & 1 else "is packed in a rare way"
        raise MalformedSnapshotError(f"the zip file {what}: unpack it yourself (unzip FILE)")
    return archive.open(info)


def _chosen(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    """Find the file of a zip that is meant: the one that is named, or the only one."""
    files = [each for each in archive.infolist() if not each.is_dir() and not _is_of_system(each.filename)]
    names = [each.filename for each in files]
    if member:
        found = [each for each in files if member in (each.filename, PurePosixPath(each.filename).name)]
    else:
        saved = [each for each in files if PurePosixPath(each.filename).name == "data.pkl"]
        is_saved = len(saved) == 1 and any(PurePosixPath(name).name == "version" for name in names)
        found = saved if is_saved else files  # torch.save puts its pickle among others of its own
    if len(found) == 1 or len(files) == 1:
        return (found or files)[0]
    if not names:
        raise NotASnapshotError("this is not a memory snapshot: the zip file is empty")
    listed = ", ".join(shown(name) for name in names[:_N_NAMES])
    more = f" and {len(names) - _N_NAMES} more" if len(names) > _N_NAMES else ""
    lack = f"no single file {shown(member)}" if member else f"{len(names)} files"
    raise NotASnapshotError(
        f"the zip file has {lack}: name one of its files, as in 'FILE.zip#{shown(names[0])}'; it has "
        f"{listed}{more}"
    )


def _is_of_system(name: str) -> bool:
    """Whether a file was put into a zip by a file manager."""
    return name.startswith("__MACOSX/") or PurePosixPath(name).name in (".DS_Store", "Thumbs.db")


def _size_of(file: BinaryIO) -> int:
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return size
