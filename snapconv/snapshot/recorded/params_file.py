"""A list of a model's tensors, from a file given beside a snapshot -> columns. Runs nothing.

Read are safetensors files (their headers, never their data), the index of a checkpoint in shards, and
JSON: what ``snapconv params`` writes, or names with shapes and dtypes. See docs/guide/better-names.md. The
files are as untrusted as a snapshot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from snapconv.columns import BoolColumn, Int64Column, read_only
from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.files import open_input
from snapconv.snapshot.fields import BYTES, check_total
from snapconv.snapshot.recorded.json_object import read_unchecked_json
from snapconv.units import shown

VERSION = 1
# What the safetensors library itself allows for a header; a list as JSON is no longer than one.
_MAX_JSON_BYTES = 100_000_000
_MAX_ROWS, _MAX_SHARDS, _MAX_NAME, _MAX_DIMENSIONS = 1_000_000, 10_000, 2000, 64
_LENGTH_BYTES = 8

# Bytes of an element, and whether it is a real floating point number, which half() and to() convert.
_DTYPES = {
    **dict.fromkeys(("float64", "double", "f64"), (8, True)),
    **dict.fromkeys(("float32", "float", "f32"), (4, True)),
    **dict.fromkeys(("float16", "half", "f16", "bfloat16", "bf16"), (2, True)),
    **dict.fromkeys(("int64", "long", "i64", "uint64", "u64", "complex64", "c64"), (8, False)),
    **dict.fromkeys(("int32", "int", "i32", "uint32", "u32"), (4, False)),
    **dict.fromkeys(("int16", "short", "i16", "uint16", "u16"), (2, False)),
    **dict.fromkeys(("int8", "i8", "uint8", "u8", "bool"), (1, False)),
    "complex128": (16, False),
}

_CHECKPOINT = (
    "a checkpoint of torch.save, which only torch can open, and only by running what is in it; save it with "
    "safetensors or, where you trust it, write its list as JSON: "
    "python -c \"import json, torch; d = torch.load('FILE', map_location='meta', weights_only=True); "
    "json.dump([[k, list(v.shape), str(v.dtype)] for k, v in d.items()], open('params.json', 'w'))\""
)


@dataclass(frozen=True, slots=True)
class ParamList:
    """The tensors of a model as listed: one row each; columns are read-only.

    ``n_bytes`` is -1 where the file has no dtype. ``is_ordered``: the rows stand in the model's order, not
    sorted by name. ``is_tied``: the row is one more name of a tensor that another row has. ``requires_grad``
    is true where the file does not contain it.
    """

    path: Path
    names: tuple[str, ...]
    n_elements: Int64Column
    n_bytes: Int64Column
    is_floating: BoolColumn
    is_buffer: BoolColumn
    requires_grad: BoolColumn
    is_tied: BoolColumn
    is_ordered: bool

    def __len__(self) -> int:
        return len(self.names)


class _Row(NamedTuple):
    name: str
    n_elements: int
    n_bytes: int
    is_floating: bool
    is_buffer: bool = False
    requires_grad: bool = True
    is_tied: bool = False


def load_params(path: str | Path) -> ParamList:
    """Read a list of parameters.

    Raises InputError (MalformedSnapshotError, TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    with _Named(path):
        rows, is_ordered = _read(path)
        return _table(path, rows, is_ordered=is_ordered)


class _Named:
    """Puts the file's name before every message, and turns the system's errors into ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise InputError(f"{self._path}: cannot be read: {reason}; check the path") from error
        if isinstance(error, MemoryError):
            raise InputError(f"{self._path}: the list does not fit into this machine's memory") from error
        if isinstance(error, InputError) and not str(error).startswith(f"{self._path}"):
            raise type(error)(f"{self._path}: {error}") from error


def _read(path: Path) -> tuple[list[_Row], bool]:
    if path.is_dir():
        raise InputError("this is a folder: name the .safetensors file in it, or the index of its shards")
    with open_input(path) as file:
        start = file.read(16)
        if not start.strip():
            raise TruncatedFileError("the file is empty")
        if _is_safetensors(start):
            return _safetensors(file, start), False
        _refuse_other_formats(start)
        file.seek(0)
        raw = read_unchecked_json(_all_of(file))
    if isinstance(raw, dict) and "weight_map" in raw:
        return _shards(path, raw["weight_map"]), False
    rows = list(_listed(raw))
    # State dictionaries keep the model's order; sorted names were sorted later.
    names = [row.name for row in rows]
    return rows, names != sorted(names) or len(names) < 2


def _is_safetensors(start: bytes) -> bool:
    """Return whether a length comes first, and then JSON; a NUL is in every length, and in no JSON."""
    return start[_LENGTH_BYTES:].startswith(b"{") and b"\0" in start[:_LENGTH_BYTES]


def _refuse_other_formats(start: bytes) -> None:
    if start.startswith(b"PK\x03\x04") or start[:1] == b"\x80":
        raise InputError(f"this is {_CHECKPOINT}")
    if not start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        raise InputError(
            "no list of parameters: expected a safetensors file, a .safetensors.index.json, or JSON as "
            "`snapconv params` writes it"
        )


def _all_of(file: BinaryIO) -> bytes:
    text = file.read(_MAX_JSON_BYTES + 1)
    if len(text) > _MAX_JSON_BYTES:
        raise MalformedSnapshotError(f"the file is larger than {_MAX_JSON_BYTES} bytes: no list of names is")
    return text.removeprefix(b"\xef\xbb\xbf")


# --- safetensors


def _safetensors(file: BinaryIO, start: bytes) -> list[_Row]:
    """Read the header alone: its length as eight bytes, then JSON: name -> dtype, shape, data_offsets."""
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if length > _MAX_JSON_BYTES:
        raise MalformedSnapshotError(f"the header has {length} bytes, of at most {_MAX_JSON_BYTES}")
    file.seek(_LENGTH_BYTES)
    text = file.read(length)
    if len(text) < length:
        raise TruncatedFileError(f"the file ends after {len(text)} of its header's {length} bytes")
    header = read_unchecked_json(text)
    rows = [(name, raw) for name, raw in _of(header, dict, "header").items() if name != "__metadata__"]
    tensors = [_tensor(name, raw, f"header[{i}]") for i, (name, raw) in enumerate(rows)]
    return [row for _, row in sorted(tensors, key=lambda tensor: tensor[0])]


def _tensor(name: str, raw: object, where: str) -> tuple[int, _Row]:
    """Make a row, and return where its data begins."""
    row = _of(raw, dict, f"{where} ({shown(name)})")
    offsets = row.get("data_offsets")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))):
        raise MalformedSnapshotError(f"{where}.data_offsets: expected two numbers of bytes")
    n_bytes = offsets[1] - offsets[0]
    dtype = _of(row.get("dtype"), str, f"{where}.dtype")
    n_elements = _n_elements(row.get("shape"), f"{where}.shape")
    # The format grows new types: their bytes are known all the same.
    width, is_floating = _dtype(dtype) or (0, False)
    if n_bytes < 0 or (width and n_bytes != width * n_elements):
        raise MalformedSnapshotError(
            f"{where}.data_offsets: {n_bytes} bytes for {n_elements} elements of {shown(dtype)}"
        )
    return offsets[0], _Row(_name(name, where), n_elements, n_bytes, is_floating)


def _shards(path: Path, raw: object) -> list[_Row]:
    """Read the headers of all shards that an index names; they are beside it."""
    weight_map = _of(raw, dict, "weight_map")
    wanted: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        wanted.setdefault(_of(shard, str, f"weight_map[{shown(name)!r}]"), set()).add(name)
    if len(wanted) > _MAX_SHARDS:
        raise MalformedSnapshotError(f"weight_map: names {len(wanted)} files, of at most {_MAX_SHARDS}")
    rows: list[_Row] = []
    for shard in sorted(wanted):
        found = _shard(path, shard)
        rows += [row for row in found if row.name in wanted[shard]]
        missing = wanted[shard] - {row.name for row in found}
        if missing:
            raise MalformedSnapshotError(f"weight_map: {shown(min(missing))} is not in {shown(shard)}")
    return rows


def _shard(index: Path, name: str) -> list[_Row]:
    # Only what is beside: an index must not lead to other folders.
    if not name or name in (".", "..") or not {"/", "\\", "\0"}.isdisjoint(name):
        raise MalformedSnapshotError(f"weight_map: expected files beside the index, got {shown(name)}")
    path = index.with_name(name)
    if not path.is_file():
        raise InputError(
            f"weight_map: there is no {shown(name)} beside the index; only its header is needed, the first "
            "megabyte or so"
        )
    with _Named(path), open_input(path) as file:
        start = file.read(16)
        if start.startswith(b"PK\x03\x04") or start[:2] == b"\x80\x02":
            raise InputError(f"this is {_CHECKPOINT}")
        if not _is_safetensors(start):
            raise MalformedSnapshotError("expected a safetensors file")
        return _safetensors(file, start)


# --- lists as JSON


def _listed(raw: Any) -> Iterator[_Row]:
    """Return rows of any of the shapes of JSON that docs/reference/capture.md describes."""
    if isinstance(raw, dict) and isinstance(raw.get("parameters"), list):
        if raw.get("version") != VERSION:
            got = shown(str(raw.get("version")))
            raise MalformedSnapshotError(f"version: expected {VERSION}, got {got}; look for a newer snapconv")
        raw = raw["parameters"]
    if isinstance(raw, dict):
        for name, value in raw.items():
            yield _described(name, value, shown(name))
        return
    for i, row in enumerate(_of(raw, list, "the file")):
        where = f"[{i}]"
        if isinstance(row, dict):
            yield _described(row.get("name"), row, where)
        elif isinstance(row, list) and len(row) in (2, 3):
            yield _row(row[0], row[1], row[2] if len(row) == 3 else None, where)
        else:
            raise MalformedSnapshotError(f"{where}: expected [name, shape, dtype], or an object of these")


def _described(name: object, raw: object, where: str) -> _Row:
    """Return a row made of an object, or of a bare shape."""
    if isinstance(raw, list):
        return _row(name, raw, None, where)
    values = _of(raw, dict, where)
    row = _row(name, values.get("shape"), values.get("dtype"), where)
    return row._replace(
        is_buffer=values.get("kind") == "buffer",
        requires_grad=values.get("requires_grad") is not False,
        is_tied=isinstance(values.get("tied_to"), str),
    )


def _row(name: object, shape: object, dtype: object, where: str) -> _Row:
    n_elements = _n_elements(shape, f"{where}.shape")
    if dtype is None:
        return _Row(_name(name, where), n_elements, -1, is_floating=True)
    text = _of(dtype, str, f"{where}.dtype")
    known = _dtype(text)
    if known is None:
        raise MalformedSnapshotError(f"{where}.dtype: expected such as float32, got {shown(text)}")
    return _Row(_name(name, where), n_elements, n_elements * known[0], known[1])


def _dtype(text: str) -> tuple[int, bool] | None:
    """Return the bytes of an element, and whether it is a float; None for a name that is not known."""
    name = text.lower().removeprefix("torch.")
    # All eight-bit floats are called so: float8_e4m3fn, F8_E5M2.
    return (1, True) if name.startswith(("float8_", "f8_")) else _DTYPES.get(name)


def _name(name: object, where: str) -> str:
    text = str(_of(name, str, f"{where}.name"))
    if not 0 < len(text) <= _MAX_NAME:
        raise MalformedSnapshotError(f"{where}.name: expected 1 to {_MAX_NAME} characters, got {len(text)}")
    return text


def _n_elements(shape: object, where: str) -> int:
    sizes = _of(shape, list, where)
    if len(sizes) > _MAX_DIMENSIONS or not all(map(_is_size, sizes)):
        raise MalformedSnapshotError(f"{where}: expected a list of sizes")
    n_elements: int = prod(sizes)
    if n_elements > BYTES.high:
        raise MalformedSnapshotError(f"{where}: more than 2^48 elements")
    return n_elements


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= BYTES.high


def _of(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        got = "nothing" if value is None else type(value).__name__
        raise MalformedSnapshotError(f"{where}: expected {kind.__name__}, got {got}")
    return value


# --- the table


def _table(path: Path, rows: list[_Row], *, is_ordered: bool) -> ParamList:
    if not rows:
        raise MalformedSnapshotError("the list is empty")
    if len(rows) > _MAX_ROWS:
        raise MalformedSnapshotError(f"expected at most {_MAX_ROWS} tensors, got {len(rows)}")
    _refuse_twice(row.name for row in rows)
    names, n_elements, n_bytes, *marks = zip(*rows, strict=True)
    is_floating, is_buffer, requires_grad, is_tied = (np.array(mark, np.bool_) for mark in marks)
    check_total(np.array(n_bytes, np.int64), "the file")
    table = ParamList(
        path=path,
        names=names,
        n_elements=np.array(n_elements, np.int64),
        n_bytes=np.array(n_bytes, np.int64),
        is_floating=is_floating,
        is_buffer=is_buffer,
        requires_grad=requires_grad,
        is_tied=is_tied,
        is_ordered=is_ordered,
    )
    return read_only(table)


def _refuse_twice(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise MalformedSnapshotError(f"{shown(name)}: named twice")
        seen.add(name)
