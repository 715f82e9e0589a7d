"""The page that trace_plot and profile_plot of torch 2.0 wrote -> a snapshot's dictionary.

``alloc_data`` has elements, which are allocations, and ``actions``: numbers of elements, an alloc
where one comes first, then a free. A stack is a row of ``suffix_table``: its first text's position
in ``string_table``, and the row with the rest, which is an earlier one. The first text has the
size, and perhaps the category.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.fields import BYTES, Bounds, Rows, expect, expect_all
from snapconv.snapshot.readers.form import Form, earlier_allocations
from snapconv.snapshot.readers.text_frames import NO_FILE

Raw = dict[str, Any]

_FORM = Form(
    "a page of profile_plot or trace_plot of torch 2.0",
    "it has the bytes of its curve alone, and no segments; it does not name its device",
    writer="torch 2.0",
)
_ALLOC_DATA = re.compile(rb"\balloc_data\s*=\s*(\{[^\n]*)")
_FREE_STACK = "alloc not recorded, stack trace for free:"
_CATEGORY = re.compile(r"allocation \((\w+)\)")
# The bound for one stack; no stack of a real file has more than 131 frames.
_MAX_TEXTS = 256


def data_of_page(page: bytes) -> bytes:
    """Return the JSON text in a page, empty for another page."""
    match = _ALLOC_DATA.search(page)
    return match[1].rstrip(b"; \r") if match else b""


def read_first_viewer(data: object) -> tuple[object, Form | None]:
    """Turn the value in a page into a snapshot's; others stay as they are."""
    if not isinstance(data, dict) or "suffix_table" not in data:
        return data, None
    tensors = list(_tensors(data))
    last = len(tensors) - 1
    element = Bounds(0, last, f"an element from 0 to {last}")
    before = list(dict.fromkeys(_items(data, "initially_allocated", element)))
    actions = _items(data, "actions", element)
    events = []
    live: set[int] = set()
    for number in (*before, *actions):
        live ^= {number}
        event = {"action": "alloc" if number in live else "free", "addr": number}
        events.append(tensors[number] | event)
    form = replace(_FORM, earlier=(earlier_allocations(len(before)),))
    return {"device_traces": [events]}, form


def _tensors(data: Raw) -> Iterator[Raw]:
    """Yield the size, the category and the frames of every element."""
    strings = _items(data, "string_table", str)
    suffixes = _items(data, "suffix_table", list)
    texts = [{"name": text, "filename": NO_FILE, "line": 0} for text in strings]
    elements = _elements(data)
    sizes = elements.ints("size", BYTES).tolist()
    infos = elements.values("info")
    for i, (size, info) in enumerate(zip(sizes, infos, strict=True)):
        stack = _stack(info, suffixes, texts, f"{elements.row_path(i)}.info")
        title, *frames = islice(stack, _MAX_TEXTS)
        category = _CATEGORY.search(title["name"])
        # The stack of its free is not where it was made.
        is_free_stack = frames and frames[0]["name"] == _FREE_STACK
        yield {
            "size": size,
            "category": category[1] if category else None,
            "frames": None if is_free_stack else frames,
        }


def _elements(data: Raw) -> Rows:
    """Return the elements; some writers have two columns in their place."""
    if "elements" in data:
        return Rows.of(data["elements"], "alloc_data.elements")
    sizes = _items(data, "elements_size", BYTES)
    infos = _items(data, "elements_info", list)
    rows = [{"size": size, "info": info} for size, info in zip(sizes, infos, strict=False)]
    return Rows.of(rows, "alloc_data.elements")


def _stack(info: Any, suffixes: list[Any], texts: list[Raw], path: str) -> Iterator[Raw]:
    """Yield the texts of a stack; its first row may stand in line."""
    text = Bounds(0, len(texts) - 1, f"a text below {len(texts)}")
    below = len(suffixes)
    while True:
        if not isinstance(info, list):
            below = expect(info, Bounds(0, below - 1, f"a row below {below}"), path)
            info = suffixes[below]
            path = f"alloc_data.suffix_table[{below}]"
        if len(info) != 2:
            raise MalformedSnapshotError(f"{path}: expected a pair")
        yield texts[expect(info[0], text, path)]
        if info[1] is None:
            return
        info = info[1]


def _items(data: Raw, key: str, kind: type | Bounds) -> list[Any]:
    return expect_all(data.get(key), kind, f"alloc_data.{key}")
