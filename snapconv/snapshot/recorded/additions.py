"""What other recorders add to a snapshot: the source of its files, and tensors by their addresses.

torch-snapkit (0.1.4) adds ``source_code`` and ``shape_data`` to the file, stormlog (0.4.3) writes
its tensors beside it. A snapshot is good without them: what is wrong in them is a note that names
the place, and all of that addition is left out; so is a file of tensors that are not in its blocks.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapconv.errors import InputError
from snapconv.notes import Note
from snapconv.snapshot.fields import (
    ADDRESS,
    DEVICE,
    Bounds,
    expect,
    expect_all,
    read_json_file,
    wrong,
)
from snapconv.snapshot.segment_table import Memory
from snapconv.units import HOST

KEYS = ("source_code", "shape_data")
# The snapshot that stormlog writes, and its file of tensors in the same folder.
_STORMLOG = ("cuda_allocator_snapshot.pickle", "cuda_tensor_attribution.json")
_MOST_STORMLOG_BYTES = 64 << 20
_DIMENSION = Bounds(0, 1 << 62, "0 to 2^62")
_MOST_DIMENSIONS, _MAX_TEXT = 64, 2000
# So many tensors of one address are read, and characters of the text of a line.
_MOST_TENSORS, _MAX_LINE = 20, 200
# A pickle may name one text or one list very many times: what is read of them, for a byte of it.
_BYTES_PER_BYTE, _FREE_BYTES, _ROW_BYTES = 4, 512 << 10, 10


@dataclass(frozen=True, slots=True)
class AddedTensor:
    """A tensor at an address; ``operation`` returned it, and is empty where that is not known."""

    operation: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int | None:
        """The bytes of its values; None where the type's name does not show them."""
        name = self.dtype.replace("bool", "bool8")
        bits = re.match(r"torch\.[a-z]+(\d+)", name)
        return None if bits is None else math.prod(self.shape) * int(bits[1]) // 8


_Tensors = Mapping[int, tuple[AddedTensor, ...]]


@dataclass(frozen=True, slots=True)
class Additions:
    """Lines of source by file; tensors by address, of each device or else of all in one.

    ``tensors`` were at their addresses at some time, those of ``dumped``, a device's, at the dump;
    ``names`` are those of the latter.
    """

    sources: Mapping[str, list[str]] = field(default_factory=dict)
    tensors: tuple[_Tensors, ...] = ()
    dumped_device: int | None = None
    dumped: _Tensors = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    def source_line(self, file: str, line: int) -> str | None:
        """Return the text of a line, without its indentation; None where it is not known."""
        lines = self.sources.get(file, ())
        return lines[line - 1].strip()[:_MAX_LINE] if 0 < line <= len(lines) else None

    def tensors_of(
        self, device: int, addr: int, n_bytes: int, *, is_dumped: bool
    ) -> Iterator[AddedTensor]:
        """Yield the tensors that an allocation of so many bytes may have had.

        Those at the dump for an allocation that is live then; others by their address and size, as
        the file has no times of them.
        """
        if is_dumped and device == self.dumped_device:
            yield from self.dumped.get(addr, ())
        if self.tensors and device != HOST:
            logged = self.tensors[device if len(self.tensors) > device else 0]
            for tensor in logged.get(addr, ()):
                if tensor.n_bytes == n_bytes:
                    yield tensor


NO_ADDITIONS = Additions()


def read_additions(
    raw: dict[str, object], path: Path, memory: Memory, *, n_bytes: int
) -> tuple[Additions, tuple[Note, ...]]:
    """Read what the file, of so many bytes, and the folder beside it have; never raises."""
    notes: list[Note] = []

    def read(name: str, function: Callable[[], Any], default: Any) -> Any:
        try:
            return function()
        except InputError as error:
            message = f"{name} of another recorder is left out: {error}"
            notes.append(Note("additions-left-out", message, is_minor=True))
            return default

    key = KEYS[0]
    sources = read("the source", lambda: read_sources(raw.get(key), key, n_bytes), {})
    tensors = read("the shapes", lambda: _read_shapes(raw, n_bytes), ())
    own_name, name = _STORMLOG
    beside = path.with_name(name) if path.name == own_name else None
    dumped: tuple[Any, Any, Any] = (None, {}, {})
    if beside is not None and beside.is_file():
        dumped = read(name, lambda: _read_dumped(beside, memory), dumped)
    return Additions(sources, tensors, *dumped), tuple(notes)


def read_sources(raw: object, key: str, n_bytes: int) -> dict[str, list[str]]:
    """Read the lines of source files by their paths; raises InputError.

    ``n_bytes`` is the size of the file, unpacked.
    """
    n_remaining = _BYTES_PER_BYTE * n_bytes + _FREE_BYTES
    sources = {}
    for name, text in _dict(raw, key).items():
        file = expect(name, str, f"{key}: a file's name")
        n_remaining -= len(expect(text, str, f"{key}[{file[:_MAX_LINE]!r}]"))
        if n_remaining < 0:
            raise wrong(key, "no more text than the file has", "one text many times")
        # A form feed, which splitlines() would split at, is no end of a line of Python.
        sources[file] = text.split("\n")
    return sources


def _read_shapes(raw: dict[str, object], n_bytes: int) -> tuple[_Tensors, ...]:
    """Read, for each rank, the results of its operations by the addresses that they had."""
    key = KEYS[1]
    if raw.get(key) is None:
        return ()
    n_remaining = n_bytes // _ROW_BYTES
    ranks: list[_Tensors] = []
    for rank, logged in enumerate(expect(raw[key], list, key)):
        path = f"{key}[{rank}]"
        tensors = {}
        for text, rows in _dict(logged, path).items():
            at = f"{path}[{str(text)[:_MAX_LINE]!r}]"
            n_remaining -= len(expect(rows, list, at))
            if n_remaining < 0:
                raise wrong(key, "no more rows than the file has", "one list many times")
            results = {_result(row, at): None for row in rows}
            tensors[_address(text, at)] = tuple(results)[:_MOST_TENSORS]
        ranks.append(tensors)
    return tuple(ranks)


def _read_dumped(path: Path, memory: Memory) -> tuple[int, _Tensors, dict[int, str]]:
    """Read the tensors that stormlog found at the dump: of one device, by address."""
    value, _ = read_json_file(path, _MOST_STORMLOG_BYTES)
    index = _dict(value, "the file")
    key = "attributed_storage_pointers"
    tensors: dict[int, tuple[AddedTensor, ...]] = {}
    names = {}
    for i, item in enumerate(expect(index.get(key), list, key)):
        at = f"{key}[{i}]"
        storage = _dict(item, at)
        addr = expect(storage.get("storage_ptr_int"), ADDRESS, f"{at}.storage_ptr_int")
        rows = expect(storage.get("tensors"), list, f"{at}.tensors")[:_MOST_TENSORS]
        results: dict[AddedTensor, None] = {}
        for row in rows:
            values = _dict(row, at)
            results[_result(["", values.get("shape"), values.get("dtype")], at)] = None
        tensors[addr] = tuple(results)
        own_names = expect_all(storage.get("names"), str, f"{at}.names")
        if own_names:
            names[addr] = own_names[0][:_MAX_TEXT]
    device = expect(index.get("device_index"), DEVICE, "device_index")
    _check_blocks(tensors, device, memory)
    return device, tensors, names


def _check_blocks(tensors: _Tensors, device: int, memory: Memory) -> None:
    """Raise InputError where the tensors are not in live blocks: the file is of another snapshot.

    Few may not be so in its own: views that repeat elements, memory of no allocator.
    """
    blocks = memory.blocks
    is_live = blocks.is_live & (memory.segments.device[blocks.segment_id] == device)
    addresses, sizes = blocks.addr[is_live].tolist(), blocks.block_bytes[is_live].tolist()
    room = dict(zip(addresses, sizes, strict=True))
    n_held = 0
    for addr, rows in tensors.items():
        block_bytes = room.get(addr, -1)
        n_held += all((tensor.n_bytes or 0) <= block_bytes for tensor in rows)
    if 2 * n_held < len(tensors):
        raise InputError(
            f"only {n_held} of its {len(tensors)} addresses are those of live blocks that have "
            "room for its tensors, as of another snapshot"
        )


def _result(row: object, path: str) -> AddedTensor:
    """Read an operation, a shape and a type of elements."""
    if not isinstance(row, list) or len(row) != 3:
        raise wrong(path, "an operation, a shape and a type", type(row).__name__)
    operation, shape, dtype = row
    shape = list(shape) if isinstance(shape, tuple) else shape
    dimensions = expect_all(shape, _DIMENSION, f"{path}: shape")
    if len(dimensions) > _MOST_DIMENSIONS:
        raise wrong(path, f"at most {_MOST_DIMENSIONS} dimensions", len(dimensions))
    texts = [expect(text, str, path)[:_MAX_TEXT] for text in (operation, dtype)]
    return AddedTensor(texts[0], tuple(dimensions), texts[1])


def _address(text: object, path: str) -> int:
    if not isinstance(text, str) or re.fullmatch(r"0x[0-9a-f]{1,16}", text) is None:
        raise wrong(path, "an address such as 0x7f3c40001000", str(text)[:_MAX_LINE])
    return expect(int(text, 16), ADDRESS, path)  # type: ignore[no-any-return]


def _dict(value: object, path: str) -> dict[Any, Any]:
    return {} if value is None else expect(value, dict, path)
