"""From a file of any kind to the raw value in it, or to an error that names what the file is.

Pickles of protocols 2 to 5, JSON text, and the HTML pages of torch's own viewer with pickles embedded, all of
them also in gzip or zip, and also with the snapshots of several ranks in one value. Recognised by content,
never by name.
"""

import binascii
import io
import os
import re
from collections.abc import Iterator
from ctypes import CDLL
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeGuard

from snapconv.errors import InputError, MalformedSnapshotError, NotASnapshotError, TruncatedFileError
from snapconv.files import open_input
from snapconv.json_text import JsonError, read_lenient_json
from snapconv.notes import Progress
from snapconv.snapshot.event_table import ACTION_CODES, Action
from snapconv.snapshot.readers.compiled_pickle import Fill, NoPickle, OddFile, fill_from_pieces, read_compiled
from snapconv.snapshot.readers.packings import most_unpacked_bytes, packing_of, unpacked
from snapconv.snapshot.readers.unpickle import load_plain_pickle
from snapconv.units import counted, shown

_SNIFF_BYTES = 4096
_MAX_RANK = 1 << 31
_N_NAMES = 6
_SOME_KEY = {"segments", "device_traces", "host_segments", "host_traces"}
_EMBEDDED = rb'"base64"\s*:\s*"([A-Za-z0-9+/=\\\s]*)"'

_OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"SQLite format 3\x00", "a SQLite database, perhaps a report that was already made"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard: decompress it first (zstd -d FILE)"),
    (b"\xfd7zXZ", "compressed with xz: decompress it first (xz -d FILE)"),
    (b"BZh", "compressed with bzip2: decompress it first (bzip2 -d FILE)"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
)


@dataclass(frozen=True, slots=True)
class Container:
    """The wrapping of the raw value: ``format`` is pickle, json or html, ``packing`` gzip, zip, both or none.

    ``n_bytes`` is the size of the file, ``n_unpacked_bytes`` that of what its packing or its page contains.
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

    @property
    def is_of_zip(self) -> bool:
        """Whether the value was a file of a zip."""
        return self.packing in ("zip", "gzip in zip")


def read_raw(path: Path, progress: Progress | None = None, *, member: str = "") -> tuple[object, Container]:
    """Read the value in a file; ``member`` names the file that is meant in a zip of several.

    Raises NotASnapshotError for other formats, TruncatedFileError for files that break off,
    MalformedSnapshotError for damaged ones, UnsafePickleError for pickles that import code.
    """
    try:
        with open_input(path) as file:
            n_bytes = os.fstat(file.fileno()).st_size
            value, container = _read(file, n_bytes, member, most_unpacked_bytes(n_bytes), progress)
            return value, replace(container, n_bytes=n_bytes)
    except OSError as error:
        hint = (
            f"it is a folder without snapshot.pickle: name one of its files, or type `snapconv ranks {path}`"
            if isinstance(error, IsADirectoryError)
            else "check the path"
        )
        raise InputError(f"cannot be read: {error.strerror or error}; {hint}") from error


def read_raw_compiled(
    path: Path, core: CDLL, progress: Progress | None = None, *, member: str = ""
) -> tuple[object, Container]:
    """Read a pickle, packed or not, with the compiled core; the traces in the value are CompiledTrace.

    Raises NoPickle for everything else, OddFile for whatever is wrong: read_raw has the errors.
    """
    try:
        with open_input(path) as file:
            return _read_compiled(file, os.fstat(file.fileno()).st_size, core, member, progress)
    except (OSError, InputError) as error:
        raise OddFile from error


def _read_compiled(
    file: io.BufferedReader, n_bytes: int, core: CDLL, member: str, progress: Progress | None
) -> tuple[object, Container]:
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    packing = packing_of(head)
    fill: Fill = file.readinto
    pieces = _Counted(iter(()))
    if packing:
        most = most_unpacked_bytes(n_bytes)
        pieces = _Counted(unpacked(file, packing, member, most=most, progress=progress))
        head = next(pieces, b"")
        fill = fill_from_pieces(chain([head], pieces))
    if len(head) < 2 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        raise NoPickle

    def report(n_read: int) -> None:
        if progress and not packing:
            progress("loading", n_read, n_bytes)

    raw = read_compiled(core, fill, ACTION_CODES, oom=Action.OOM, report=report)
    for _ in pieces:
        pass  # the end of a packed file has its checksum
    n_unpacked_bytes = pieces.n_bytes if packing else n_bytes
    return raw, Container("pickle", n_bytes, n_unpacked_bytes, packing, pickle_protocol=head[1])


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


def _read(
    file: BinaryIO, n_bytes: int, member: str, most: int, progress: Progress | None
) -> tuple[object, Container]:
    head = file.read(_SNIFF_BYTES)
    file.seek(0)
    if not head:
        raise TruncatedFileError("the file is empty (0 bytes): the job was probably killed while dumping")
    if head[:1] == b"\x80":
        return _read_pickle(file, n_bytes, head, progress)
    if packing := packing_of(head):
        data = b"".join(unpacked(file, packing, member, most=most, progress=progress))
        inner = packing_of(data[:4])
        if inner and (packing, inner) != ("zip", "gzip"):
            raise NotASnapshotError(f"the file is a {inner} file in a {packing} file: unpack it once")
        value, container = _read(io.BytesIO(data), len(data), "", most, progress)
        return value, replace(container, packing=f"gzip in {packing}" if inner else packing)
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


def as_snapshot_dict(raw: object, member: str = "", *, is_of_zip: bool = False) -> dict[str, object]:
    """Bring the known top-level shapes into one, or name what the value is instead.

    ``member`` is the key or the position of the snapshot that is meant, where the value has several; of a
    zip, it may have been the name of the file.
    """
    if _is_snapshot(raw):
        if member and not is_of_zip:
            raise NotASnapshotError(f"the file has one snapshot: leave #{shown(member)} out")
        return raw
    if isinstance(raw, list) and all(isinstance(item, dict) and "blocks" in item for item in raw):
        return {"segments": raw}
    several = _snapshots_in(raw)
    if not several and isinstance(raw, list):
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_list(raw)}")
    if not several and isinstance(raw, dict):
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_dict(raw)}")
    if not several:
        raise NotASnapshotError(f"this is not a memory snapshot: it contains a single {type(raw).__name__}")
    if len(several) == 1 and not member:
        return next(iter(several.values()))
    if member not in several:
        names = [shown(name) for name in list(several)[:_N_NAMES]]
        more = f" and {len(several) - _N_NAMES} more" if len(several) > _N_NAMES else ""
        raise NotASnapshotError(
            f"the file has {counted(len(several), 'snapshot')}: name one of them, as in 'FILE#{names[0]}'; "
            f"it has {', '.join(names)}{more}"
        )
    return several[member]


def _is_snapshot(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and bool(_SOME_KEY & value.keys())


def _snapshots_in(raw: object) -> dict[str, dict[str, object]]:
    """Find the snapshots of several ranks in one value, by their keys or positions."""
    if isinstance(raw, list):
        return {str(i): each for i, each in enumerate(raw) if _is_snapshot(each)}
    if not isinstance(raw, dict):
        return {}
    keys = [key for key in raw if isinstance(key, str) or (isinstance(key, int) and abs(key) < _MAX_RANK)]
    return {str(key): raw[key] for key in keys if _is_snapshot(raw[key])}


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
