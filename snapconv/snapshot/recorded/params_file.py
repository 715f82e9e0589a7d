"""A list of a model's tensors, from a file given beside a snapshot -> columns. Runs nothing.

Read is JSON: names with shapes and dtypes. See docs/guide/better-names.md. The file is as untrusted as a
snapshot.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.columns import BoolColumn, Int64Column, read_only
from snapconv.errors import InputError, MalformedSnapshotError
from snapconv.files import open_input
from snapconv.snapshot.fields import BYTES, check_total, errors_of, expect, read_json_file
from snapconv.units import shown

_MAX_JSON_BYTES = 100_000_000
_MAX_ROWS, _MAX_NAME, _MAX_DIMENSIONS = 1_000_000, 2000, 64

# As torch names types: torch.float32, bfloat16, float8_e4m3fn.
_DTYPE = r"(?:torch\.)?(bfloat|float|uint|int|complex)(8|16|32|64|128)(?:_\w+)?"
_CHECKPOINT = (
    "this is a checkpoint, which has not the order in which a model allocates its weights: list the model as "
    "docs/guide/better-names.md does"
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


def load_params(path: str | Path) -> ParamList:
    """Read a list of parameters.

    Raises InputError (MalformedSnapshotError, TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    with errors_of(path):
        if path.is_dir():
            raise InputError("this is a folder: name the list in it")
        with open_input(path) as file:
            start = file.read(16)
        # A checkpoint of torch.save, or a file of safetensors, which begins with a length.
        if start.startswith((b"PK\x03\x04", b"\x80")) or (b"\0" in start[:8] and start[8:9] == b"{"):
            raise InputError(_CHECKPOINT)
        text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text and not text.startswith((b"{", b"[")):
            raise InputError("no list of parameters: expected a JSON object of names with shapes")
        raw, _ = read_json_file(path, _MAX_JSON_BYTES)
        return _table(path, expect(raw, dict, "the file"))


def _table(path: Path, tensors: dict[str, object]) -> ParamList:
    names = tuple(tensors)
    rows = [_row(shown(name), value) for name, value in tensors.items()]
    if not 0 < len(rows) <= _MAX_ROWS:
        raise MalformedSnapshotError(f"expected 1 to {_MAX_ROWS} tensors, got {len(rows)}")
    wrong = next((name for name in names if not 0 < len(name) <= _MAX_NAME), None)
    if wrong is not None:
        raise MalformedSnapshotError(f"{shown(wrong)}: expected a name of 1 to {_MAX_NAME} characters")
    n_elements, n_bytes, is_floating = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    check_total(n_bytes, "the file")
    # State dictionaries keep the model's order; sorted names were sorted later.
    is_ordered = list(names) != sorted(names) or len(names) < 2
    return read_only(ParamList(path, names, n_elements, n_bytes, is_floating > 0, is_ordered))


def _row(where: str, raw: object) -> tuple[int, int, bool]:
    """Return the elements and bytes of a tensor, and whether it is real and floating."""
    values: dict[str, Any] = {"shape": raw} if isinstance(raw, list) else expect(raw, dict, where)
    n_elements, dtype = _n_elements(values.get("shape"), f"{where}.shape"), values.get("dtype")
    if dtype is None:
        return n_elements, -1, True
    if expect(dtype, str, f"{where}.dtype") in ("bool", "torch.bool"):
        return n_elements, n_elements, False
    found = re.fullmatch(_DTYPE, dtype)
    if found is None:
        raise MalformedSnapshotError(f"{where}.dtype: expected such as float32, got {shown(str(dtype))}")
    return n_elements, n_elements * (int(found[2]) // 8), "f" in found[1]


def _n_elements(shape: object, where: str) -> int:
    sizes = expect(shape, list, where)
    if len(sizes) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n <= BYTES.high for n in sizes):
        raise MalformedSnapshotError(f"{where}: expected a list of sizes")
    n_elements: int = prod(sizes)
    if n_elements > BYTES.high:
        raise MalformedSnapshotError(f"{where}: more than 2^48 elements")
    return n_elements
