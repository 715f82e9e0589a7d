"""Memory that torch.profiler or an early viewer wrote down -> a snapshot's dictionary: a trace, no segments.

torch.profiler's forms are those of torch/profiler/_memory_profiler.py and _profile_to_snapshot of
torch/cuda/_memory_viz.py (2.13); the page of trace_plot is that of torch 2.0.1. None has segments: what the
allocator reserved, and what blocks round up to, is in none of them.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from snapconv.errors import MalformedSnapshotError
from snapconv.json_text import JsonError, read_json
from snapconv.snapshot.fields import BYTES, TIME, Bounds, Rows, expect
from snapconv.torch_knowledge.profiler_categories import CATEGORIES, OF_TIMELINE

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What a file is that is no snapshot of an allocator.

    ``kinds`` are those of its devices, in the order of its traces; ``writer`` wrote it, and ``lacks`` says
    what a reader of its answers should know.
    """

    title: str
    writer: str
    kinds: tuple[str, ...]
    lacks: str


_NO_ALLOCATOR = "it has tensors and not the allocator: what was reserved, and rounding, is not in it"
_NO_DEVICE = "it does not name its device"
_PROFILER = "torch.profiler"
_TIMELINE_LACKS = f"{_NO_ALLOCATOR}; it has no stacks, and {_NO_DEVICE}"
# What the file does not name.
_SOME_DEVICE = ("device",)
# Beyond what any address of a process is, and within the bounds of one.
_FIRST_ADDRESS = 1 << 58


class _Trace:
    """Events of one device; every allocation that is made here has an address of its own."""

    def __init__(self) -> None:
        self.events: list[Raw] = []
        self._next = _FIRST_ADDRESS

    def alloc(self, size: int, *, category: str, time_us: int | None = None, frames: object = None) -> int:
        """Append an allocation and return its address."""
        address = self._next
        self._next += max(size, 1)
        times = {} if time_us is None else {"time_us": time_us}
        entry = {"action": "alloc", "addr": address, "size": size, "frames": frames, "category": category}
        self.events.append(entry | times)
        return address

    def free(self, address: int, size: int, *, time_us: int | None = None, frames: object = None) -> None:
        """Append the end of an allocation."""
        times = {} if time_us is None else {"time_us": time_us}
        for action in ("free_requested", "free_completed"):
            self.events.append({"action": action, "addr": address, "size": size, "frames": frames} | times)

    def free_unseen(self, size: int, *, time_us: int) -> None:
        """Append the end of memory whose beginning the file does not have."""
        address = self.alloc(size, category=CATEGORIES[0])
        self.events.pop()
        self.free(address, size, time_us=time_us)


def read_timeline(raw: object) -> tuple[object, Form | None]:
    """Turn what export_memory_timeline wrote into the value of a snapshot; others stay as they are."""
    if isinstance(raw, list) and raw and all(isinstance(row, list) for row in raw):
        if _is_sums(raw):
            return _of_sums(*raw)
        if len(raw[0]) == 4:
            return _of_timeline(raw)
    return raw, None


def _is_sums(raw: list[Any]) -> bool:
    return len(raw) == 2 and len(raw[0]) == len(raw[1]) > 0 and all(isinstance(row, list) for row in raw[1])


# --- export_memory_timeline


def _of_timeline(rows: list[Any]) -> tuple[Raw, Form]:
    """Read ``x.raw.json.gz``: time in ns (-1: before), action, bytes, position of the category, a row each.

    A free has no identity: of equal tensors of a category the newest is taken. A tensor that was written to
    has the category of its new version, as a free and an alloc.
    """
    checked = [_numbers(row, f"[{i}]", (_NS, _ACTION, _SIGNED, _POSITION)) for i, row in enumerate(rows)]
    begin = min((time for time, *_ in checked if time >= 0), default=0)
    trace, live = _Trace(), defaultdict[tuple[int, int], list[int]](list)
    for time, action, size, position in _without_versions(checked):
        time_us, key = (begin if time < 0 else time) // 1000, (position, abs(size))
        if size > 0 or (size == 0 and action != _DESTROY):
            live[key].append(trace.alloc(size, category=OF_TIMELINE[position], time_us=time_us))
        elif live[key]:
            trace.free(live[key].pop(), -size, time_us=time_us)
        else:
            trace.free_unseen(-size, time_us=time_us)
    title = "a raw memory timeline of torch.profiler (export_memory_timeline)"
    return {"device_traces": [trace.events]}, Form(title, _PROFILER, _SOME_DEVICE, _TIMELINE_LACKS)


def _without_versions(rows: Sequence[list[int]]) -> Iterator[list[int]]:
    """Leave out the two rows of a tensor that was written to, where its category stays."""
    i = 0
    while i < len(rows):
        row, following = rows[i], rows[i + 1] if i + 1 < len(rows) else []
        if row[1] == _WRITTEN and following == [row[0], _WRITTEN, -row[2], row[3]] and row[2] < 0:
            i += 2
        else:
            i += 1
            yield row


_NS = Bounds(-1, TIME.high, "a time in ns, or -1")
_ACTION, _WRITTEN, _DESTROY = Bounds(1, 4, "an action from 1 to 4"), 3, 4
_SIGNED = Bounds(-BYTES.high, BYTES.high, "at most 2^48 bytes")
_POSITION = Bounds(0, len(OF_TIMELINE) - 1, f"a category from 0 to {len(OF_TIMELINE) - 1}")


def _of_sums(times: list[Any], sums: list[Any]) -> tuple[Raw, Form]:
    """Read ``x.json``: at every time in us the bytes of each category, after a zero.

    What a sum gains is one allocation, what it loses is of the newest ones.
    """
    trace, stacks = _Trace(), [list[tuple[int, int]]() for _ in OF_TIMELINE]
    had = [0] * (1 + len(OF_TIMELINE))
    bounds = (BYTES,) * len(had)
    for i, (time, row) in enumerate(zip(times, sums, strict=True)):
        time_us, has = expect(time, _US, f"[0][{i}]"), _numbers(row, f"[1][{i}]", bounds)
        change = [now - before for now, before in zip(has[1:], had[1:], strict=True)]
        had = has
        # What goes first: the sum of a moment is never more than the file has.
        for position, n_bytes in sorted(enumerate(change), key=lambda one: one[1]):
            if n_bytes < 0:
                _shrink(trace, stacks[position], -n_bytes, OF_TIMELINE[position], time_us)
            elif n_bytes:
                address = trace.alloc(n_bytes, category=OF_TIMELINE[position], time_us=time_us)
                stacks[position].append((address, n_bytes))
    title = "a memory timeline of torch.profiler (export_memory_timeline): sums by category"
    lacks = f"{_TIMELINE_LACKS}; each allocation is a change of a sum"
    return {"device_traces": [trace.events]}, Form(title, _PROFILER, _SOME_DEVICE, lacks)


_US = Bounds(-1, TIME.high, "a time in us, or -1")


def _shrink(trace: _Trace, stack: list[tuple[int, int]], n_bytes: int, category: str, time_us: int) -> None:
    """Free the newest allocations; what is left of the last of them is allocated again."""
    while n_bytes > 0:
        address, size = stack.pop()
        trace.free(address, size, time_us=time_us)
        if size > n_bytes:
            stack.append((trace.alloc(size - n_bytes, category=category, time_us=time_us), size - n_bytes))
        n_bytes -= size


def _numbers(row: object, where: str, bounds: Sequence[Bounds]) -> list[int]:
    """Return a list of as many numbers, each within its bounds."""
    values = expect(row, list, where)
    if len(values) != len(bounds):
        raise MalformedSnapshotError(f"{where}: expected {len(bounds)} numbers, got {len(values)}")
    return [
        expect(value, bound, f"{where}[{i}]")
        for i, (value, bound) in enumerate(zip(values, bounds, strict=True))
    ]


# --- the page of profile_plot


def read_plot(raw: Raw, form: Form | None) -> tuple[Raw, Form | None]:
    """Turn a dictionary of profile_plot into a whole trace; others stay as they are, with what they are."""
    return of_plot(raw) if form is None and is_plot(raw) else (raw, form)


def is_plot(raw: Raw) -> bool:
    """Return whether profile_plot made the traces: its allocs have a category, and no event has a time."""
    traces = raw.get("device_traces")
    for trace in traces if isinstance(traces, list) else ():
        rows = (row for row in trace if isinstance(row, dict)) if isinstance(trace, list) else ()
        alloc = next((row for row in rows if row.get("action") == "alloc"), None)
        if alloc is not None:
            return "category" in alloc and "time_us" not in alloc
    return False


def of_plot(raw: Raw) -> tuple[Raw, Form]:
    """Turn the dictionary that _profile_to_snapshot makes into a whole trace.

    It has one trace for every CUDA device and a last one for all else. What was in use before has no alloc:
    it is in the blocks at the end, or has a free alone. Here its allocs come first.
    """
    frames, traces = _Frames(), list[list[Raw]]()
    at_end = _blocks_at_end(raw)
    for number, events in enumerate(expect(raw["device_traces"], list, "device_traces")):
        rows, trace = Rows.of(events, f"device_traces[{number}]"), _Trace()
        before, kept, live = _seen(rows)
        for size in (at_end[number] - live).elements():
            trace.alloc(size, category=_NOT_SAID)
        for row in kept:
            # Those of a free are its alloc's.
            row["frames"] = frames.of(row.get("frames")) if row.get("action") == "alloc" else None
        traces.append([*trace.events, *before, *kept])
    kinds = ("cuda",) * (len(traces) - 1) + ("cpu",)
    lacks = f"{_NO_ALLOCATOR}; what was there before has no stack, and mostly no category"
    title = "a page of torch.profiler's memory (torch.cuda._memory_viz.profile_plot)"
    return {"device_traces": traces}, Form(title, _PROFILER, kinds, lacks)


# Of memory that was there before the page has no category, which leaves it to what its size shows.
_NOT_SAID = ""
# A tensor keeps these as long as it is there.
_LASTING = {"parameter", "optimizer_state"}


def _seen(rows: Rows) -> tuple[list[Raw], list[Raw], Counter[int]]:
    """Return allocs of what has only a free, the events that count, and the sizes of what is live at the end.

    A tensor that is written to ends there and begins again at the same address, with the stack of its first
    alloc: where its category stays, none of this is an event.
    """
    actions, categories, stacks = rows.texts("action"), rows.texts("category"), rows.values("frames")
    addresses, sizes = (rows.ints(key, missing=0).tolist() for key in ("addr", "size"))
    live, before, is_kept = dict[int, tuple[int, str | None]](), list[Raw](), [True] * len(rows)
    for i, (action, address, size) in enumerate(zip(actions, addresses, sizes, strict=True)):
        if action == "alloc":
            live[address] = size, categories[i]
        if action != "free_requested":
            continue
        again = slice(i + 2, i + 3)
        is_same = (actions[again], addresses[again], sizes[again]) == (["alloc"], [address], [size])
        is_same = is_same and stacks[i] == stacks[i + 2]
        was_there = live.pop(address, None)
        if was_there is None:
            lasts = is_same and categories[i + 2] in _LASTING
            was_there = size, categories[i + 2] if lasts else _NOT_SAID
            entry = {"action": "alloc", "addr": address, "size": size, "frames": None}
            before.append(entry | {"category": was_there[1]})
        if is_same and was_there[1] == categories[i + 2]:
            is_kept[i : i + 3] = [False] * 3
    kept = [row for row, is_event in zip(rows.rows, is_kept, strict=True) if is_event]
    return before, kept, Counter(size for size, _ in live.values())


def _blocks_at_end(raw: Raw) -> defaultdict[int, Counter[int]]:
    """Return the sizes of the live blocks of every device."""
    found = defaultdict[int, Counter[int]](Counter)
    segments = Rows.of(raw.get("segments"), "segments")
    devices = segments.ints("device", missing=0).tolist()
    for i, (device, blocks) in enumerate(zip(devices, segments.values("blocks"), strict=True)):
        rows = Rows.of(blocks, f"segments[{i}].blocks")
        sizes, states = rows.ints("size", BYTES).tolist(), rows.texts("state")
        found[device].update(
            size for size, state in zip(sizes, states, strict=True) if state == "active_allocated"
        )
    return found


# --- frames that are one text

# `model.py(33): forward` of the profiler, `/w/model.py:33:forward` of the first viewer.
_FRAME = re.compile(r"(?P<file>[^\n]+)\((?P<line>\d{1,9})\): (?P<name>[^\n]+)")
_FRAME_OF_VIEWER = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d{1,9}):(?P<name>[^\n]*)")
# Without the address of the object, which is another in every run.
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)\b.*>")
# The call of a module, beside the frames of its code.
_CALL_OF_MODULE = "nn.Module: "
# The profiler cuts the folders of Python's path off, which hides what was installed.
_INSTALLED = {
    "torch", "torchvision", "torchaudio", "transformers", "accelerate", "lightning", "pytorch_lightning",
    "diffusers", "deepspeed", "peft", "timm", "numpy", "tqdm",
}  # fmt: skip


def frame_of(text: str, scripts: frozenset[str] = frozenset()) -> Raw:
    """Read a frame that is one text; ``scripts`` are files that were run, and so are no library's."""
    found = _FRAME.fullmatch(text) or _FRAME_OF_VIEWER.fullmatch(text)
    if not found:
        built_in = _BUILT_IN.fullmatch(text)
        return {"name": built_in[1] if built_in else text, "filename": "<torch>", "line": 0}
    file = found["file"]
    package = file.partition("/")[0].removesuffix(".py")
    if file not in scripts and package in _INSTALLED:
        file = f"site-packages/{file}"
    elif file not in scripts and package in sys.stdlib_module_names:
        file = f"lib/python3.0/{file}"
    return {"name": found["name"], "filename": file, "line": int(found["line"])}


# What is no frame is refused where frames are read.
_NO_FRAME = "nothing"


class _Frames:
    """Frames that are one text each, as ``name``, turned into those of a snapshot: every list once."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[object, object]] = {}  # with the list, so that its id stays its own
        self._frames: dict[str, Raw] = {}

    def of(self, frames: object) -> object:
        """Return the frames of a stack; what is no list of frames stays, and is refused when it is read."""
        if not isinstance(frames, list):
            return frames
        if id(frames) not in self._lists:
            turned = map(self._frame, frames)
            self._lists[id(frames)] = frames, [frame for frame in turned if frame is not None]
        return self._lists[id(frames)][1]

    def _frame(self, frame: object) -> object:
        name = frame.get("name") if isinstance(frame, dict) else None
        if not isinstance(name, str):
            return _NO_FRAME if frame is None else frame
        if name.startswith(_CALL_OF_MODULE):
            return None
        if name not in self._frames:
            self._frames[name] = frame_of(name)
        return self._frames[name]


# --- the page of torch 2.0

_ALLOC_DATA = re.compile(rb"\balloc_data\s*=\s*(\{[^\n]*)")
_FREE_STACK = "alloc not recorded, stack trace for free:"
_SIZE_OF_ELEMENT = re.compile(r".*allocation(?: \((?P<category>\w+)\))?")
# Of all stacks together, for each byte of the page; in real ones about one for a byte.
_FRAMES_PER_BYTE = 8


def read_alloc_data(page: bytes) -> tuple[Raw, Form] | None:
    """Read what trace_plot and profile_plot of torch 2.0 wrote into a page; None for another page.

    ``actions`` are numbers of elements, an alloc where they come first, then a free. A stack is an entry of
    ``suffix_table``: a position in ``string_table``, and the entry with the rest.
    """
    found = _ALLOC_DATA.search(page)
    if not found:
        return None
    text = found[1].rstrip().removesuffix(b";")
    try:
        value = expect(read_json(text, is_lenient=True), dict, "alloc_data")
    except JsonError as error:
        raise MalformedSnapshotError(f"alloc_data of the page is damaged: {error}") from error
    elements = _Elements(value, _FRAMES_PER_BYTE * len(page))
    trace, live = _Trace(), dict[int, int]()
    before = _indices(value.get("initially_allocated"), len(elements.sizes), "initially_allocated")
    actions = _indices(value.get("actions"), len(elements.sizes), "actions")
    n_before = len(before)
    for number, element in enumerate((*before, *actions)):
        frames, is_of_free, category = elements.stack(element)
        size = elements.sizes[element]
        if element in live and number >= n_before:
            trace.free(live.pop(element), size, frames=frames if is_of_free else None)
        elif element not in live:
            live[element] = trace.alloc(size, category=category, frames=None if is_of_free else frames)
    is_profile = any(entry.get("category") for entry in trace.events)
    title = f"a page of {'profile_plot' if is_profile else 'trace_plot'} of torch 2.0"
    lacks = f"it has the bytes of its curve alone, and no segments; {_NO_DEVICE}"
    return {"device_traces": [trace.events]}, Form(title, "torch 2.0", _SOME_DEVICE, lacks)


def _indices(values: object, n: int, where: str) -> list[int]:
    bounds = Bounds(0, n - 1, f"an element from 0 to {n - 1}")
    found = expect([] if values is None else values, list, f"alloc_data.{where}")
    return [expect(value, bounds, f"alloc_data.{where}[{i}]") for i, value in enumerate(found)]


class _Elements:
    """The allocations of a page of torch 2.0: their sizes, and their stacks."""

    def __init__(self, value: Raw, most_frames: int) -> None:
        rows = value.get("elements")
        if rows is None:
            sizes, infos = value.get("elements_size"), value.get("elements_info")
        else:
            checked = Rows.of(rows, "alloc_data.elements")
            sizes, infos = checked.values("size"), checked.values("info")
        sizes = expect(sizes, list, "alloc_data.elements_size")
        self.sizes = [expect(n, BYTES, f"alloc_data.elements_size[{i}]") for i, n in enumerate(sizes)]
        self._infos = expect(infos, list, "alloc_data.elements_info")
        if len(self._infos) != len(self.sizes):
            raise MalformedSnapshotError(
                f"alloc_data.elements_info: expected {len(self.sizes)} entries, got {len(self._infos)}"
            )
        self._strings = expect(value.get("string_table"), list, "alloc_data.string_table")
        self._suffixes = expect(value.get("suffix_table"), list, "alloc_data.suffix_table")
        self._frames: dict[int, Raw] = {}
        self._stacks: dict[object, tuple[list[Raw], bool, str]] = {}
        self._n_left = most_frames

    def stack(self, element: int) -> tuple[list[Raw], bool, str]:
        """Return the frames of an element, whether its free had them, and its category."""
        info = self._infos[element]
        key = tuple(info) if isinstance(info, list) and len(info) == 2 else info
        if not isinstance(key, (tuple, int, type(None))):
            raise MalformedSnapshotError(f"alloc_data.elements_info[{element}]: expected a pair of numbers")
        if key not in self._stacks:
            places = list(self._places(key, f"alloc_data.elements_info[{element}]"))
            texts = [self._strings[place] for place in places]
            title = _SIZE_OF_ELEMENT.fullmatch(texts[0]) if texts else None
            is_of_free = _FREE_STACK in texts[:2]
            skipped = bool(title) + is_of_free
            frames = [self._frame(place) for place in places[skipped:]]
            self._stacks[key] = frames, is_of_free, (title["category"] or "") if title else ""
        return self._stacks[key]

    def _places(self, info: object, where: str) -> Iterator[int]:
        """Follow the table from an entry: positions of texts, the size first, then the innermost frame."""
        n_strings, following = len(self._strings), info
        if isinstance(info, tuple):
            place, following = info
            yield self._place(place, n_strings, where)
        most = len(self._suffixes)
        while following is not None:
            # Every entry is made after its rest.
            entry = expect(following, Bounds(0, most - 1, f"an entry below {most}"), where)
            where, most = f"alloc_data.suffix_table[{entry}]", entry
            pair = expect(self._suffixes[entry], list, where)
            if len(pair) != 2:
                raise MalformedSnapshotError(f"{where}: expected a pair")
            yield self._place(pair[0], n_strings, where)
            following = pair[1]

    def _place(self, place: object, n_strings: int, where: str) -> int:
        self._n_left -= 1
        if self._n_left < 0:
            raise MalformedSnapshotError(f"{where}: the stacks together are many times the size of the page")
        found: int = expect(place, Bounds(0, n_strings - 1, f"a text below {n_strings}"), where)
        expect(self._strings[found], str, f"alloc_data.string_table[{found}]")
        return found

    def _frame(self, place: int) -> Raw:
        if place not in self._frames:
            self._frames[place] = frame_of(self._strings[place])
        return self._frames[place]
