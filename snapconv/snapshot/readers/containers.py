"""From a file of any kind to the raw value in it, or to an error that names what the file is.

Pickles of protocols 2 to 5, the same gzipped, JSON text, and the HTML pages of torch's own viewer
with pickles embedded. Recognised by content, never by name.
"""

import binascii
import io
import os
import re
import zlib
from collections.abc import Iterator
from ctypes import CDLL
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from snapconv.errors import InputError, MalformedSnapshotError, NotASnapshotError, TruncatedFileError
from snapconv.files import open_input
from snapconv.json_text import JsonError, read_lenient_json
from snapconv.notes import Progress
from snapconv.snapshot.event_table import ACTION_CODES, Action
from snapconv.snapshot.readers.compiled_pickle import Fill, NoPickle, OddFile, fill_from_pieces, read_compiled
from snapconv.snapshot.readers.unpickle import load_plain_pickle
from snapconv.units import shown

_SNIFF_BYTES = 4096
# Real snapshots shrink 5 to 40 times, as JSON up to 92 times; beyond this a small file is an attempt to fill
# the memory. A hostile pickle costs 16 bytes of memory for a byte: 1 MiB of gzip has to stay below 3 GB.
_MAX_GZIP_RATIO = 120
_MAX_GZIP_FREE_BYTES = 32 << 20
_SOME_KEY = {"segments", "device_traces", "host_segments", "host_traces"}
_EMBEDDED = rb'"base64"\s*:\s*"([A-Za-z0-9+/=\\\s]*)"'

_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"SQLite format 3\x00", "a SQLite database, perhaps a report that was already made"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard: decompress it first (zstd -d FILE)"),
    (b"\xfd7zXZ", "compressed with xz: decompress it first (xz -d FILE)"),
    (b"BZh", "compressed with bzip2: decompress it first (bzip2 -d FILE)"),
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save makes; if a snapshot was saved with it, take the pickle out: "
        "unzip -p FILE '*/data.pkl' > snapshot.pickle",
    ),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
)


@dataclass(frozen=True, slots=True)
class Container:
    """The wrapping of the raw value: ``format`` is pickle, json or html.

    ``n_bytes`` is the size of the file, ``n_unpacked_bytes`` that of what its gzip or page contains.
    """

    format: str
    n_bytes: int
    n_unpacked_bytes: int
    is_gzip: bool = False
    pickle_protocol: int | None = None
    n_embedded: int = 1


def read_raw(path: Path, progress: Progress | None = None) -> tuple[object, Container]:
    """Read the value in a file.

    Raises NotASnapshotError for other formats, TruncatedFileError for files that break off,
    MalformedSnapshotError for damaged ones, UnsafePickleError for pickles that import code.
    """
    try:
        with open_input(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            value, container = _read(file, n_bytes, progress)
            return value, replace(container, n_bytes=n_bytes)
    except OSError as error:
        hint = (
            "name the snapshot file, not its folder (it is no capture: it contains no snapshot.pickle)"
            if isinstance(error, IsADirectoryError)
            else "check the path"
        )
        raise InputError(f"cannot be read: {error.strerror or error}; {hint}") from error


def read_raw_compiled(path: Path, core: CDLL, progress: Progress | None = None) -> tuple[object, Container]:
    """Read a pickle, packed or not, with the compiled core; the traces in the value are CompiledTrace.

    Raises NoPickle for everything else, OddFile for whatever is wrong: read_raw has the errors.
    """
    try:
        with open_input(path) as file:
            return _read_compiled(file, os.fstat(file.fileno()).st_size, core, progress)
    except (OSError, InputError) as error:
        raise OddFile from error


def _read_compiled(
    file: io.BufferedReader, n_bytes: int, core: CDLL, progress: Progress | None
) -> tuple[object, Container]:
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    is_gzip = head[:2] == b"\x1f\x8b"
    fill: Fill = file.readinto
    unpacked = _Counted(_gunzip(file, n_bytes, progress))
    if is_gzip:
        head = next(unpacked, b"")
        fill = fill_from_pieces(chain([head], unpacked))
    if len(head) < 2 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        raise NoPickle

    def report(n_read: int) -> None:
        if progress and not is_gzip:
            progress("loading", n_read, n_bytes)

    raw = read_compiled(core, fill, ACTION_CODES, oom=Action.OOM, report=report)
    for _ in unpacked if is_gzip else ():
        pass  # the end of a gzip file has its checksum
    n_unpacked_bytes = unpacked.n_bytes if is_gzip else n_bytes
    return raw, Container("pickle", n_bytes, n_unpacked_bytes, is_gzip, pickle_protocol=head[1])


class _Counted:
    """Pieces of bytes, with how many bytes have gone by."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.n_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.n_bytes += len(piece)
        return piece


def _read(file: BinaryIO, n_bytes: int, progress: Progress | None) -> tuple[object, Container]:
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    if not head:
        raise TruncatedFileError("the file is empty (0 bytes): the job was probably killed while dumping")
    if head[:1] == b"\x80":
        return _read_pickle(file, n_bytes, head, progress)
    if head[:2] == b"\x1f\x8b":
        data = b"".join(_gunzip(file, n_bytes, progress))
        if data[:2] == b"\x1f\x8b":
            raise NotASnapshotError("the file is gzipped twice: decompress it once (gzip -d FILE)")
        value, container = _read(io.BytesIO(data), len(data), progress)
        return value, replace(container, is_gzip=True)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"<":
        return _read_html(file.read(), progress)
    if text[:1] in (b"{", b"["):
        return _read_json(file.read()), Container("json", n_bytes, n_bytes)
    raise NotASnapshotError(f"this is not a memory snapshot: {_what_it_is(head)}")


def _read_json(text: bytes) -> object:
    try:
        return read_lenient_json(text)
    except JsonError as error:
        if error.is_truncated:
            raise TruncatedFileError.of("the JSON text", len(text)) from error
        raise NotASnapshotError(
            f"this is not a memory snapshot: it begins like JSON but is not: {error}"
        ) from error


def _read_pickle(
    file: BinaryIO, n_bytes: int, head: bytes, progress: Progress | None
) -> tuple[object, Container]:
    if n_bytes < 2:
        raise TruncatedFileError("the file breaks off after its first byte")
    protocol = head[1]
    if not 2 <= protocol <= 5:
        raise NotASnapshotError(f"this is not a memory snapshot: pickle protocol {protocol} is unknown")
    value = load_plain_pickle(file, n_bytes, progress=progress)
    return value, Container("pickle", n_bytes, n_bytes, pickle_protocol=protocol)


def _gunzip(file: BinaryIO, n_bytes: int, progress: Progress | None) -> Iterator[bytes]:
    """Unpack a file piece by piece; whatever is wrong with it shows at the latest after the last one."""
    limit = n_bytes * _MAX_GZIP_RATIO + _MAX_GZIP_FREE_BYTES
    n_unpacked = 0
    decompress = zlib.decompressobj(wbits=31)
    try:
        # Small pieces: at every member's end zlib copies what is left of the piece.
        while packed := file.read(1 << 16):
            while packed:
                part = decompress.decompress(packed, limit - n_unpacked + 1)
                n_unpacked += len(part)
                if n_unpacked > limit:
                    raise MalformedSnapshotError(
                        f"the gzip file unpacks to more than {_MAX_GZIP_RATIO} times its size, which no "
                        "snapshot does; if it is one all the same, decompress it yourself (gzip -d FILE)"
                    )
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


def _read_html(data: bytes, progress: Progress | None) -> tuple[object, Container]:
    found = re.findall(_EMBEDDED, data)
    if not found:
        raise NotASnapshotError(
            "this is not a memory snapshot: an HTML page with no snapshot embedded. Pages of "
            "torch.cuda._memory_viz trace_plot and segment_plot have one; those of the profiler's "
            "export_memory_timeline contain a picture only"
        )
    try:
        pickled = binascii.a2b_base64(found[0].replace(b"\\n", b""))
    except binascii.Error as error:
        raise MalformedSnapshotError(f"the snapshot embedded in the page is damaged: {error}") from error
    if pickled[:1] != b"\x80":
        raise MalformedSnapshotError("what is embedded in the page is not a pickle")
    value, container = _read_pickle(io.BytesIO(pickled), len(pickled), pickled[:2], progress)
    return value, replace(container, format="html", n_embedded=len(found))


def _what_it_is(head: bytes) -> str:
    for magic, description in _OTHER_FORMATS:
        if head.startswith(magic):
            return f"it is {description}"
    if head.startswith((b"(dp", b"(lp", b"}q", b"]q", b"(d.", b"cc", b"ctorch")):
        return "it looks like a pickle of protocol 0 or 1; dump it again with protocol 2 to 5"
    if b"out of memory" in head.lower() or head.startswith(b"Traceback (most recent"):
        return "it is a program's output; `snapconv oom --message LOG` explains torch's text about memory"
    shown = head[:16].decode("ascii", "replace")
    return f"it begins with {shown!r}. Expected a pickle, its gzip, JSON, or a page of torch's viewer"


def as_snapshot_dict(raw: object) -> dict[str, object]:
    """Bring the known top-level shapes into one, or name what the value is instead."""
    if isinstance(raw, list):
        if all(isinstance(item, dict) and "blocks" in item for item in raw):
            return {"segments": raw}
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_list(raw)}")
    if not isinstance(raw, dict):
        raise NotASnapshotError(f"this is not a memory snapshot: it contains a single {type(raw).__name__}")
    if not (_SOME_KEY & raw.keys()):
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_dict(raw)}")
    return raw


def _describe_list(raw: list[object]) -> str:
    if len(raw) == 2 and all(isinstance(part, list) for part in raw):
        return "two lists, as the profiler's export_memory_timeline writes; that format has no allocations"
    if isinstance(raw[0], list) and len(raw[0]) == 4:
        return "a raw memory timeline of the profiler's export_memory_timeline"
    return f"a list of {len(raw)} {type(raw[0]).__name__}"


def _describe_dict(raw: dict[object, object]) -> str:
    if "traceEvents" in raw:
        return "a Chrome trace of the profiler; dump torch.cuda.memory._snapshot() instead"
    keys = ", ".join(shown(str(key)) for key in list(raw)[:6])
    return f"a dictionary with the keys {keys or '(none)'}, and no segments or device_traces"
