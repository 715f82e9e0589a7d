"""From a file of any kind to the raw value in it, or to an error that names what the file is.

Pickles of protocols 2 to 5, JSON text, and the HTML pages of torch's own viewer with pickles
embedded, all of them also in gzip or zip. Recognised by content, never by name; unpacked piece by
piece, within bounds.
"""

import binascii
import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ctypes import CDLL
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeGuard

from snapconv.errors import (
    InputError,
    MalformedSnapshotError,
    NotASnapshotError,
    TruncatedFileError,
)
from snapconv.files import open_input
from snapconv.json_text import JsonError, read_json
from snapconv.notes import Progress
from snapconv.snapshot.event_table import ACTION_CODES, Action
from snapconv.snapshot.readers.compiled_pickle import CompiledEvents, OddFile, read_compiled
from snapconv.snapshot.readers.first_viewer import data_of_page
from snapconv.snapshot.readers.plain_pickle import load_plain_pickle
from snapconv.units import counted, format_bytes, shown

_SNIFF_BYTES = 4096
_TITLE_OF_TIMELINE = b"<title>GPU Memory Timeline HTML</title>"
_TIMELINE_REMEDY = 'write all of it: prof.export_memory_timeline("x.raw.json.gz")'
_LFS_POINTER = re.compile(
    rb"version https://git-lfs[^\n]*\n(?:[^\n]*\n)*?size (\d{1,15})\s"
)
_MAX_NAMES = 1000
# The first byte of a pickle, and the protocols that torch and Python write with it.
_PROTO, _PROTOCOLS = 0x80, range(2, 6)
_SOME_KEY = {"segments", "device_traces", "host_segments", "host_traces"}
# What begins a line of a log; torch's JSON begins with `[{` or `{`.
_LOG_BEGINS = re.compile(
    rb"Traceback \(most recent|\[(?:[A-Za-z]|\d{1,4}[-/:]\d|\d{1,6}\] )"
)
_EMBEDDED = rb'"base64"\s*:\s*"([A-Za-z0-9+/=\\\s]*)"'
# Real snapshots shrink 5 to 40 times, as JSON up to 92 times; beyond this a small file is an
# attempt to fill the memory. A hostile pickle costs 16 bytes of memory for a byte: 1 MiB of gzip
# has to stay below 3 GB.
_MAX_RATIO = 120
_MAX_FREE_BYTES = 32 << 20
_PIECE_BYTES = 1 << 16
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The errors of zipfile for archives that are damaged, or made by somebody who means harm.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, ValueError, OverflowError,
    RuntimeError, OSError,
)  # fmt: skip
_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (
        b"SQLite format 3\x00",
        "it is a SQLite database, perhaps a report that was already made",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with Zstandard: decompress it first (zstd -d FILE)",
    ),
    (b"\xfd7zXZ", "it is compressed with xz: decompress it first (xz -d FILE)"),
    (b"BZh", "it is compressed with bzip2: decompress it first (bzip2 -d FILE)"),
    *(
        (
            start,
            "it looks like a pickle of protocol 0 or 1; dump it again with protocol 2 to 5",
        )
        for start in (b"(dp", b"(lp", b"}q", b"]q", b"(d.", b"cc", b"ctorch")
    ),
)


@dataclass(frozen=True, slots=True)
class Container:
    """The wrapping of the raw value.

    ``format`` is pickle, json or html, ``packing`` gzip, zip or none. ``n_bytes`` is the size of
    the file, ``n_unpacked_bytes`` that of the content of its packing or its page.
    """

    format: str
    n_bytes: int
    n_unpacked_bytes: int
    packing: str = ""
    pickle_protocol: int | None = None
    n_embedded: int = 1

    @property
    def description(self) -> str:
        """Return the format and the packing, as in ``pickle in gzip``."""
        return f"{self.format} in {self.packing}" if self.packing else self.format


def read_raw(
    path: Path, progress: Progress | None = None, core: CDLL | None = None
) -> tuple[object, Container, CompiledEvents | None]:
    """Read the value in a file; the compiled core returns events and stacks apart from it.

    Raises NotASnapshotError for other formats, TruncatedFileError for files that break off,
    MalformedSnapshotError for damaged ones, UnsafePickleError for pickles that import code. With
    the core, anything but a sound pickle raises OddFile or one of these: read it again without, for
    the right error.
    """
    try:
        with open_input(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            packing = _packing_of(file.peek(4))
            unpacked = _Unpacked(file, n_bytes, packing, progress) if packing else None
            source: Any = io.BufferedReader(unpacked, _PIECE_BYTES) if unpacked else file
            compiled = None
            if core:
                value, container, compiled = _read_compiled(core, source, n_bytes, progress)
                if unpacked:
                    while source.read(_PIECE_BYTES):
                        pass  # the end of a packed file has its checksum
                    container = replace(container, n_unpacked_bytes=unpacked.n_bytes)
            elif unpacked:
                data = source.read()
                if inner := _packing_of(data):
                    raise NotASnapshotError(
                        f"the file is a {inner} file in a {packing} file: unpack it once"
                    )
                value, container = _read(io.BytesIO(data), len(data), progress)
            else:
                value, container = _read(file, n_bytes, progress)
            return value, replace(container, n_bytes=n_bytes, packing=packing), compiled
    except IsADirectoryError as error:
        hint = f"name one of its files, or type `snapconv ranks {path}`"
        raise InputError(f"this is a folder without snapshot.pickle: {hint}") from error
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror or error}; {_nearest_name(path)}"
        ) from error


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file, that of the file in it where it is in gzip or zip.

    Raises MalformedSnapshotError for more than ``max_bytes``, and for damage.
    """
    with open_input(path) as file:
        packing = _packing_of(file.peek(4))
        source: BinaryIO = file
        if packing:
            n_bytes = os.fstat(file.fileno()).st_size
            unpacked = _Unpacked(file, n_bytes, packing, None)
            source = io.BufferedReader(unpacked, _PIECE_BYTES)
        content = source.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise MalformedSnapshotError(
            f"it has more than {format_bytes(max_bytes)}: not read"
        )
    return content


def _nearest_name(path: Path) -> str:
    """Suggest a file with a similar name in the same folder."""
    similar: list[str] = []
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = [entry.name for entry in islice(entries, _MAX_NAMES)]
        similar = get_close_matches(path.name, names, 1, 0.8)
    if similar and similar[0] != path.name:
        return f"did you mean {path.parent / similar[0]}?"
    return "check the path"


def _read_compiled(
    core: CDLL, source: io.BufferedReader, n_bytes: int, progress: Progress | None
) -> tuple[object, Container, CompiledEvents]:
    head = source.peek(2)
    if len(head) < 2 or head[0] != _PROTO or head[1] not in _PROTOCOLS:
        raise OddFile

    def fill(window: memoryview) -> int:
        n_read = source.readinto(window)
        if progress and source.seekable():
            progress("loading", source.tell(), n_bytes)
        return n_read

    raw, events = read_compiled(core, fill, ACTION_CODES, oom=Action.OOM)
    return raw, Container("pickle", n_bytes, n_bytes, pickle_protocol=head[1]), events


# --- packings


def _packing_of(head: bytes) -> str:
    """Return what a file is packed in by its first bytes: gzip, zip, or nothing."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    return "zip" if head.startswith((b"PK\x03\x04", b"PK\x05\x06")) else ""


class _Unpacked(io.RawIOBase):
    """The content of a packed file; ``n_bytes`` counts the bytes that are unpacked so far.

    Damage of the file raises an error at the latest at the end.
    """

    def __init__(
        self, file: BinaryIO, n_bytes: int, packing: str, progress: Progress | None
    ) -> None:
        self.n_bytes = 0
        self._packing = packing
        self._file = file
        self._n_packed_bytes = n_bytes
        self._progress = progress
        self._pieces = _gunzip(file, n_bytes) if packing == "gzip" else _unzip(file)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, window: Any) -> int:
        """Put the next bytes into a buffer and return how many; 0 at the end."""
        while not self._left:
            if (piece := next(self._pieces, None)) is None:
                return 0
            self._count(len(piece))
            self._left = memoryview(piece)
        n = min(len(window), len(self._left))
        window[:n], self._left = self._left[:n], self._left[n:]
        return n

    def _count(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        if self._progress:
            self._progress(
                "loading",
                min(self._file.tell(), self._n_packed_bytes),
                self._n_packed_bytes,
            )
        if self.n_bytes > self._n_packed_bytes * _MAX_RATIO + _MAX_FREE_BYTES:
            command = "gzip -d FILE" if self._packing == "gzip" else "unzip FILE"
            raise MalformedSnapshotError(
                f"the {self._packing} file unpacks to more than {_MAX_RATIO} times its size, which "
                f"no snapshot does; if it is one all the same, unpack it yourself ({command})"
            )


# Thus zlib reads the header and the end of a gzip file too.
_GZIP_BITS = 16 + zlib.MAX_WBITS


def _gunzip(file: BinaryIO, n_bytes: int) -> Iterator[bytes]:
    decompress = zlib.decompressobj(wbits=_GZIP_BITS)
    try:
        # Small pieces: at every member's end zlib copies what is left of the piece.
        while packed := file.read(_PIECE_BYTES):
            while packed:
                yield decompress.decompress(packed, 1 << 20)
                packed = decompress.unconsumed_tail
                if decompress.eof and decompress.unused_data.startswith(b"\x1f\x8b"):
                    packed = decompress.unused_data
                    decompress = zlib.decompressobj(wbits=_GZIP_BITS)
            if len(decompress.unused_data) > 1:
                break  # padding, not another member
    except zlib.error as error:
        raise MalformedSnapshotError(f"the gzip file is damaged: {error}") from error
    if not decompress.eof:
        raise TruncatedFileError.of("the gzip file", n_bytes)


def _unzip(file: BinaryIO) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            info = _only_file(archive.infolist())
            has_password = info.flag_bits & 1
            if has_password or info.compress_type not in _COMPRESSIONS:
                obstacle = "has a password" if has_password else "is packed in a rare way"
                raise MalformedSnapshotError(
                    f"the zip file {obstacle}: unpack it yourself (unzip FILE)"
                )
            with archive.open(info) as content:
                while part := content.read(_PIECE_BYTES):
                    yield part
    except _ZIP_ERRORS as error:
        raise MalformedSnapshotError(
            f"the zip file cannot be unpacked: {shown(str(error))}"
        ) from error


def _only_file(infos: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    """Return the only file in a zip, without what file managers and torch.save add."""
    paths = {PurePosixPath(info.filename): info for info in infos if not info.is_dir()}
    is_torch_save = {path.name for path in paths} >= {"data.pkl", "version"}
    files = []
    for path in paths:
        is_added = path.parts[:1] == ("__MACOSX",) or path.name in (
            ".DS_Store",
            "Thumbs.db",
        )
        if is_torch_save and path.name != "data.pkl":
            is_added = True
        if not is_added:
            files.append(path)
    if not files:
        raise NotASnapshotError("this is not a memory snapshot: the zip file is empty")
    first = files[0]
    if len(files) > 1:
        raise NotASnapshotError(
            f"the zip file has {len(files)} files, and one is expected: unpack it "
            f"(unzip FILE); the first is {shown(str(first))}"
        )
    return paths[first]


# --- formats


def _read(
    file: BinaryIO, n_bytes: int, progress: Progress | None
) -> tuple[object, Container]:
    if progress:
        progress("loading", 0, n_bytes)
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    if not head:
        raise TruncatedFileError(
            "the file is empty (0 bytes): the job was probably killed while dumping"
        )
    if head[:1] == b"\x80":
        return _read_pickle(file, n_bytes, head)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"<":
        return _read_html(file.read())
    if text[:1] in (b"{", b"["):
        return _read_json(file.read()), Container("json", n_bytes, n_bytes)
    raise NotASnapshotError(f"this is not a memory snapshot: {_description(head)}")


def _read_json(text: bytes) -> object:
    try:
        return read_json(text, is_lenient=True)
    except JsonError as error:
        if error.is_truncated:
            raise TruncatedFileError.of("the JSON text", len(text)) from error
        description = (
            _log_in(text[:_SNIFF_BYTES]) or f"it begins like JSON but is not: {error}"
        )
        raise NotASnapshotError(f"this is not a memory snapshot: {description}") from error


def _read_pickle(file: BinaryIO, n_bytes: int, head: bytes) -> tuple[object, Container]:
    if n_bytes < 2:
        raise TruncatedFileError("the file breaks off after its first byte")
    protocol = head[1]
    if protocol not in _PROTOCOLS:
        raise NotASnapshotError(
            f"this is not a memory snapshot: pickle protocol {protocol} is unknown"
        )
    value = load_plain_pickle(file, n_bytes)
    return value, Container("pickle", n_bytes, n_bytes, pickle_protocol=protocol)


def _read_html(data: bytes) -> tuple[object, Container]:
    embedded = re.findall(_EMBEDDED, data)
    if not embedded:
        json_text = data_of_page(data)
        if json_text:
            return _read_json(json_text), Container("html", len(data), len(data))
        raise NotASnapshotError(f"this is not a memory snapshot: {_page(data)}")
    try:
        pickled = binascii.a2b_base64(embedded[0].replace(b"\\n", b""))
    except binascii.Error as error:
        raise MalformedSnapshotError(
            f"the snapshot embedded in the page is damaged: {error}"
        ) from error
    if pickled[:1] != b"\x80":
        raise MalformedSnapshotError("what is embedded in the page is not a pickle")
    value, container = _read_pickle(io.BytesIO(pickled), len(pickled), pickled[:2])
    return value, replace(container, format="html", n_embedded=len(embedded))


def _page(data: bytes) -> str:
    """Name a page that has no snapshot."""
    if _TITLE_OF_TIMELINE in data[:_SNIFF_BYTES]:
        return (
            "the page is a picture that torch.profiler's export_memory_timeline drew, without its "
            f"figures; {_TIMELINE_REMEDY}"
        )
    return (
        "an HTML page with no snapshot embedded. Pages of torch.cuda._memory_viz "
        "trace_plot, segment_plot and profile_plot have one"
    )


def _description(head: bytes) -> str:
    """Say what a file is that is no snapshot, by its first bytes."""
    pointer = _LFS_POINTER.match(head)
    if pointer:
        size = format_bytes(int(pointer[1]))
        return f"the file is a pointer of Git LFS to a file of {size}; run `git lfs pull`"
    for magic, description in _OTHER_FORMATS:
        if head.startswith(magic):
            return description
    log = _log_in(head)
    if log:
        return log
    begin = head[:16].decode("ascii", "replace")
    return (
        f"it begins with {begin!r}. Expected a pickle, its gzip, JSON, or a page of torch's "
        f"viewer"
    )


def _log_in(head: bytes) -> str:
    """Name a log by its first words, such as ``[rank3]: `` or ``[2026-``, which begin like JSON."""
    if _LOG_BEGINS.match(head) or b"out of memory" in head.lower():
        return (
            "it is text, such as a log; `snapconv oom --message FILE` explains torch's words "
            "in it"
        )
    return ""


# --- shapes of the value


def as_snapshot_dict(raw: object) -> dict[str, object]:
    """Return the snapshot in a value of a known shape, or name what the value is instead."""
    if _is_snapshot(raw):
        return raw
    if isinstance(raw, list) and all(
        isinstance(item, dict) and "blocks" in item for item in raw
    ):
        return {"segments": raw}
    values: Iterable[object] = ()
    if isinstance(raw, list):
        values = raw
    elif isinstance(raw, dict):
        values = raw.values()
    snapshots = [value for value in values if _is_snapshot(value)]
    if not snapshots:
        raise NotASnapshotError(f"this is not a memory snapshot: {_described(raw)}")
    if len(snapshots) > 1:
        raise NotASnapshotError(
            f"the file has {counted(len(snapshots), 'snapshot')}, as of several ranks: save each "
            "to a file of its own; snapconv ranks compares them"
        )
    return snapshots[0]


def _is_snapshot(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and bool(_SOME_KEY & value.keys())


def _described(raw: object) -> str:
    if isinstance(raw, dict):
        keys = ", ".join(shown(str(key)) for key in list(raw)[:6])
        return f"a dictionary with the keys {keys or '(none)'}, and no segments or device_traces"
    if not isinstance(raw, list):
        return f"it contains a single {type(raw).__name__}"
    if len(raw) == 2 and all(isinstance(part, list) for part in raw):
        return (
            "sums by category, as torch.profiler's export_memory_timeline wrote them; "
            f"{_TIMELINE_REMEDY}"
        )
    return f"a list of {len(raw)} {type(raw[0]).__name__}"
