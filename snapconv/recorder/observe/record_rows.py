"""What was recorded while a program ran: plain rows, bounded in number, without any tensor in them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from snapconv.recorder.captured.recorder_clock import now_us
from snapconv.recorder.observe.addresses import locate
from snapconv.recorder.observe.tensors_within import plain_tensors
from snapconv.recorder.torch_types import Tensor

Row = dict[str, Any]
_Key = TypeVar("_Key", bound=Hashable)


class Notes(Generic[_Key]):
    """Rows by key: noting a key again replaces its row, and beyond the limit the oldest is forgotten.

    The trace is a ring too, which overwrites its oldest events.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: OrderedDict[_Key, Row] = OrderedDict()

    def put(self, key: _Key, row: Row) -> None:
        """Note a row."""
        self._rows[key] = row
        if len(self._rows) > self._limit:
            self._rows.popitem(last=False)

    def get(self, key: _Key) -> Row | None:
        """The row that is recorded under a key."""
        return self._rows.get(key)

    def items(self) -> list[tuple[_Key, Row]]:
        """All rows, in the order in which their keys were first recorded."""
        return list(self._rows.items())

    def rows(self) -> list[Row]:
        """The rows alone."""
        return list(self._rows.values())


def where_memory_lies(tensor: "Tensor") -> Iterator[Row]:
    """Where a tensor's memory lies now, one row per piece of it; none off the device.

    ``bytes`` is what the tensor itself needs, ``storage_bytes`` what the storage has that it views.
    """
    for piece in plain_tensors(tensor):
        location = locate(piece)
        if location is not None and location.addr and location.n_bytes:
            yield {
                "device": location.device,
                "addr": location.addr,
                "bytes": piece.numel() * piece.element_size(),
                "storage_bytes": location.n_bytes,
                "noted_us": now_us(),
            }


def shape_and_type(tensor: "Tensor") -> Row:
    """A tensor's shape and element type as plain values."""
    return {"shape": [int(n) for n in tensor.shape], "dtype": str(tensor.dtype).removeprefix("torch.")}


def on_clock(rows: list[Row], convert: Callable[[int], int]) -> list[Row]:
    """The rows with their times brought to another clock."""
    return [{**row, "noted_us": convert(row["noted_us"])} for row in rows]
