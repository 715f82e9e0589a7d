"""A list of a model's tensors, from a file given beside a snapshot -> columns. Runs nothing.

Read are safetensors files (their headers, never their data), the index of a checkpoint in shards, and
JSON: names with shapes and dtypes. See docs/guide/better-names.md. The
files are as untrusted as a snapshot.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from snapconv.columns import BoolColumn, Int64Column, read_only
from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.files import open_input
from snapconv.snapshot.fields import (
    BYTES,
    check_total,
    errors_of,
    expect,
    read_json_file,
    read_unchecked_json,
)
from snapconv.units import shown

# What the safetensors library itself allows for a header; a list as JSON is no longer than one.
_MAX_JSON_BYTES = 100_000_000
_MAX_ROWS, _MAX_SHARDS, _MAX_NAME, _MAX_DIMENSIONS = 1_000_000, 10_000, 2000, 64
_LENGTH_BYTES = 8

# As torch names types and as safetensors does: float32, F32, bfloat16, float8_e4m3fn.
_DTYPE = r"(?:torch\.)?(bfloat|bf|float|f|uint|u|int|i|complex|c)(8|16|32|64|128)(?:_\w+)?"
_CHECKPOINT = (
    "this is a checkpoint of torch.save, which only torch can open, and only by running what is in it: save "
    "it with safetensors, or list the model as docs/guide/better-names.md does"
)


@dataclass(frozen=True, slots=True)
class ParamList:
    """The tensors of a model as listed: one row each; columns are read-only.

    ``n_bytes`` is -1 where the file has no dtype. ``is_ordered``: the rows stand in the model's order, not
    sorted by name.
    """

    path: Path
    names: tuple[str, ...]
    n_elements: Int64Column
    n_bytes: Int64Column
    is_floating: BoolColumn
    is_ordered: bool

    def __len__(self) -> int:
        return len(self.names)


class _Row(NamedTuple):
    name: str
    n_elements: int
    n_bytes: int
    is_floating: bool


def load_params(path: str | Path) -> ParamList:
    """Read a list of parameters.

    Raises InputError (MalformedSnapshotError, TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    with errors_of(path):
        rows, is_ordered = _read(path)
        return _table(path, rows, is_ordered=is_ordered)


def _read(path: Path) -> tuple[list[_Row], bool]:
    if path.is_dir():
        raise InputError("this is a folder: name the .safetensors file in it, or the index of its shards")
    with open_input(path) as file:
        start = file.read(16)
        if _is_safetensors(start):
            return _safetensors(file, start), False
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text and not text.startswith((b"{", b"[")):
        raise InputError(
            "no list of parameters: expected a safetensors file, a .safetensors.index.json, or a JSON "
            "object of names with shapes"
        )
    raw, _ = read_json_file(path, _MAX_JSON_BYTES)
    if isinstance(raw, dict) and "weight_map" in raw:
        return _shards(path, raw["weight_map"]), False
    rows = [_row(name, value) for name, value in expect(raw, dict, "the file").items()]
    # State dictionaries keep the model's order; sorted names were sorted later.
    names = [row.name for row in rows]
    return rows, names != sorted(names) or len(names) < 2


def _is_safetensors(start: bytes) -> bool:
    """Return whether a length comes first, and then JSON; a NUL is in every length, and in no JSON."""
    has_header = start[_LENGTH_BYTES:].startswith(b"{") and b"\0" in start[:_LENGTH_BYTES]
    if not has_header and start.startswith((b"PK\x03\x04", b"\x80")):
        raise InputError(_CHECKPOINT)
    return has_header


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
    header = expect(read_unchecked_json(text), dict, "header")
    tensors = [_tensor(name, raw) for name, raw in header.items() if name != "__metadata__"]
    return [row for _, row in sorted(tensors, key=lambda tensor: tensor[0])]


def _tensor(name: str, raw: object) -> tuple[int, _Row]:
    """Make a row, and return where its data begins."""
    where = f"header.{shown(name)}"
    found = expect(raw, dict, where)
    offsets = found.get("data_offsets")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_is_size, offsets))):
        raise MalformedSnapshotError(f"{where}.data_offsets: expected two numbers of bytes")
    n_bytes = offsets[1] - offsets[0]
    dtype = expect(found.get("dtype"), str, f"{where}.dtype")
    n_elements = _n_elements(found.get("shape"), f"{where}.shape")
    # The format grows new types: their bytes are known all the same.
    width, is_floating = _dtype(dtype) or (0, False)
    if n_bytes < 0 or (width and n_bytes != width * n_elements):
        raise MalformedSnapshotError(
            f"{where}.data_offsets: {n_bytes} bytes for {n_elements} elements of {shown(dtype)}"
        )
    return offsets[0], _Row(name, n_elements, n_bytes, is_floating)


def _shards(path: Path, raw: object) -> list[_Row]:
    """Read the headers of all shards that an index names; they are beside it."""
    wanted: dict[str, set[str]] = {}
    for name, shard in expect(raw, dict, "weight_map").items():
        wanted.setdefault(expect(shard, str, f"weight_map.{shown(name)}"), set()).add(name)
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
    with errors_of(Path(shown(name))), open_input(path) as file:
        start = file.read(16)
        if not _is_safetensors(start):
            raise MalformedSnapshotError("expected a safetensors file")
        return _safetensors(file, start)


def _row(name: str, raw: object) -> _Row:
    where = shown(name)
    values = {"shape": raw} if isinstance(raw, list) else expect(raw, dict, where)
    n_elements, dtype = _n_elements(values.get("shape"), f"{where}.shape"), values.get("dtype")
    known = (0, True) if dtype is None else _dtype(expect(dtype, str, f"{where}.dtype"))
    if known is None:
        raise MalformedSnapshotError(f"{where}.dtype: expected such as float32, got {shown(str(dtype))}")
    return _Row(name, n_elements, -1 if dtype is None else n_elements * known[0], is_floating=known[1])


def _dtype(text: str) -> tuple[int, bool] | None:
    """Return the bytes of an element, and whether it is real and floating; None for a name not known."""
    if text in ("bool", "torch.bool", "BOOL"):
        return 1, False
    found = re.fullmatch(_DTYPE, text.lower())
    return (int(found[2]) // 8, "f" in found[1]) if found else None


def _n_elements(shape: object, where: str) -> int:
    sizes = expect(shape, list, where)
    if len(sizes) > _MAX_DIMENSIONS or not all(map(_is_size, sizes)):
        raise MalformedSnapshotError(f"{where}: expected a list of sizes")
    n_elements: int = prod(sizes)
    if n_elements > BYTES.high:
        raise MalformedSnapshotError(f"{where}: more than 2^48 elements")
    return n_elements


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= BYTES.high


# --- the table


def _table(path: Path, rows: list[_Row], *, is_ordered: bool) -> ParamList:
    if not 0 < len(rows) <= _MAX_ROWS:
        raise MalformedSnapshotError(f"expected 1 to {_MAX_ROWS} tensors, got {len(rows)}")
    wrong = next((row.name for row in rows if not 0 < len(row.name) <= _MAX_NAME), None)
    if wrong is not None:
        raise MalformedSnapshotError(f"{shown(wrong)}: expected a name of 1 to {_MAX_NAME} characters")
    names, n_elements, n_bytes, is_floating = zip(*rows, strict=True)
    sizes = np.array(n_bytes, np.int64)
    check_total(sizes, "the file")
    floating = np.array(is_floating, np.bool_)
    return read_only(ParamList(path, names, np.array(n_elements, np.int64), sizes, floating, is_ordered))
