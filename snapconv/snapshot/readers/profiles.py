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
from snapconv.torch_knowledge.profiler_categories import OF_TIMELINE

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
_NEVER_SEEN = 0


class _Trace:
    """Events of one device; every allocation that is made here has an address of its own."""

    def __init__(self) -> None:
        self.events: list[Raw] = []
        self._next = _FIRST_ADDRESS

    def alloc(self, size: int, category: str, *, time_us: int | None = None, frames: object = None) -> int:
        """Append an allocation and return its address."""
        self._next += size + 1
        place = {"addr": self._next, "size": size, "frames": frames, "time_us": time_us}
        self.events.append({"action": "alloc", "category": category} | place)
        return self._next

    def free(self, address: int, size: int, *, time_us: int | None = None, frames: object = None) -> None:
        """Append the end of an allocation."""
        place = {"addr": address, "size": size, "frames": frames, "time_us": time_us}
        self.events += [{"action": action} | place for action in ("free_requested", "free_completed")]


def read_timeline(raw: object) -> tuple[object, Form | None]:
    """Turn what export_memory_timeline wrote into the value of a snapshot; others stay as they are."""
    if not isinstance(raw, list) or not raw or not all(isinstance(row, list) for row in raw):
        return raw, None
    if len(raw) == 2 and len(raw[0]) == len(raw[1]) > 0 and isinstance(raw[1][0], list):
        return _of_sums(*raw)
    return _of_timeline(raw) if len(raw[0]) == 4 else (raw, None)


# --- export_memory_timeline


def _of_timeline(rows: list[Any]) -> tuple[Raw, Form]:
    """Read ``x.raw.json.gz``: time in ns (-1: before), action, bytes, position of the category, a row each.

    A free has no identity: of equal tensors of a category the newest is taken. A tensor that was written to
    has the category of its new version, as a free and an alloc.
    """
    checked = [_numbers(row, f"[{i}]", (_NS, _ACTION, _SIGNED, _POSITION)) for i, row in enumerate(rows)]
    begin = min((time for time, *_ in checked if time >= 0), default=0)
    trace, live = _Trace(), defaultdict[tuple[int, int], list[int]](list)
    for time, _, size, position in _without_versions(checked):
        time_us, addresses = (begin if time < 0 else time) // 1000, live[position, abs(size)]
        if size > 0:
            addresses.append(trace.alloc(size, OF_TIMELINE[position], time_us=time_us))
        elif size:
            trace.free(addresses.pop() if addresses else _NEVER_SEEN, -size, time_us=time_us)
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
_ACTION, _WRITTEN = Bounds(1, 4, "an action from 1 to 4"), 3
_SIGNED = Bounds(-BYTES.high, BYTES.high, "at most 2^48 bytes")
_POSITION = Bounds(0, len(OF_TIMELINE) - 1, f"a category from 0 to {len(OF_TIMELINE) - 1}")


def _of_sums(times: list[Any], sums: list[Any]) -> tuple[Raw, Form]:
    """Read ``x.json``: at every time in us the bytes of each category, after a zero.

    The sum of a category is one allocation, and another one where it changes.
    """
    trace, live = _Trace(), dict[int, tuple[int, int]]()
    for i, (time, row) in enumerate(zip(times, sums, strict=True)):
        time_us = expect(time, _US, f"[0][{i}]")
        has = _numbers(row, f"[1][{i}]", (BYTES,) * (1 + len(OF_TIMELINE)))[1:]
        changed = [one for one, size in enumerate(has) if size != live.get(one, (0, 0))[1]]
        # What goes first: the sum of a moment is never more than the file has.
        for position in changed:
            if position in live:
                trace.free(*live.pop(position), time_us=time_us)
        for position in filter(has.__getitem__, changed):
            size = has[position]
            live[position] = trace.alloc(size, OF_TIMELINE[position], time_us=time_us), size
    title = "a memory timeline of torch.profiler (export_memory_timeline): sums by category"
    lacks = f"{_TIMELINE_LACKS}; all of a category is one allocation"
    return {"device_traces": [trace.events]}, Form(title, _PROFILER, _SOME_DEVICE, lacks)


_US = Bounds(-1, TIME.high, "a time in us, or -1")


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
    """Turn a dictionary of profile_plot into a whole trace; others stay as they are, with what they are.

    Its allocs have a category, and no event has a time.
    """
    traces = raw.get("device_traces")
    for trace in traces if isinstance(traces, list) and form is None else ():
        for row in trace if isinstance(trace, list) else ():
            if isinstance(row, dict) and row.get("action") == "alloc":
                return (raw, form) if "category" not in row or "time_us" in row else of_plot(raw)
    return raw, form


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
            trace.alloc(size, _NOT_SAID)
        for row in kept:
            # Those of a free are its alloc's.
            is_alloc = row.get("action") == "alloc"
            row["frames"] = (
                frames.of(row.get("frames"), f"device_traces[{number}]: frames") if is_alloc else None
            )
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
    live, before, kept, i = dict[int, tuple[int, str | None]](), list[Raw](), list[Raw](), 0
    while i < len(rows):
        action, address, size, n_events = actions[i], addresses[i], sizes[i], 1
        if action == "alloc":
            live[address] = size, categories[i]
        elif action == "free_requested":
            is_written = (actions[i + 2 : i + 3], addresses[i + 2 : i + 3]) == (["alloc"], [address])
            is_written = is_written and (sizes[i + 2], stacks[i + 2]) == (size, stacks[i])
            category = categories[i + 2] if is_written else _NOT_SAID
            if address not in live:
                live[address] = size, category if category in _LASTING else _NOT_SAID
                before.append(
                    {"action": "alloc", "addr": address, "size": size, "category": live[address][1]}
                )
            if is_written and live[address][1] == category:
                n_events = 3
            else:
                del live[address]
        if n_events == 1:
            kept.append(rows.rows[i])
        i += n_events
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


def frame_of(text: str) -> Raw:
    """Read a frame that is one text."""
    found = _FRAME.fullmatch(text) or _FRAME_OF_VIEWER.fullmatch(text)
    if not found:
        built_in = _BUILT_IN.fullmatch(text)
        return {"name": built_in[1] if built_in else text, "filename": "<torch>", "line": 0}
    file = found["file"]
    package = file.partition("/")[0].removesuffix(".py")
    if package in _INSTALLED:
        file = f"site-packages/{file}"
    elif package in sys.stdlib_module_names:
        file = f"lib/python3.0/{file}"
    return {"name": found["name"], "filename": file, "line": int(found["line"])}


class _Frames:
    """Frames that are one text each, as ``name``, turned into those of a snapshot: every list once."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[object, object]] = {}  # with the list, so that its id stays its own
        self._frames: dict[str, Raw] = {}

    def of(self, frames: object, where: str) -> object:
        """Return the frames of a stack, without those that are the call of a module and no code."""
        if id(frames) not in self._lists:
            names = [
                expect(expect(frame, dict, where).get("name"), str, where)
                for frame in expect(frames, list, where)
            ]
            kept = [name for name in names if not name.startswith(_CALL_OF_MODULE)]
            self._frames |= {name: frame_of(name) for name in kept if name not in self._frames}
            self._lists[id(frames)] = frames, [self._frames[name] for name in kept]
        return self._lists[id(frames)][1]


# --- the page of torch 2.0

_ALLOC_DATA = re.compile(rb"\balloc_data\s*=\s*(\{[^\n]*)")
_FREE_STACK = "alloc not recorded, stack trace for free:"
_TITLE_OF_ELEMENT = re.compile(r".*allocation(?: \((?P<category>\w+)\))?")
# Of all stacks together, for each byte of the page; in real ones about one for a byte.
_FRAMES_PER_BYTE = 8


def read_alloc_data(page: bytes) -> tuple[Raw, Form] | None:
    """Read what trace_plot and profile_plot of torch 2.0 wrote into a page; None for another page.

    ``actions`` are numbers of elements: an alloc where one comes first, then a free.
    """
    found = _ALLOC_DATA.search(page)
    if not found:
        return None
    try:
        value = expect(read_json(found[1].rstrip(b"; \r"), is_lenient=True), dict, "alloc_data")
    except JsonError as error:
        raise MalformedSnapshotError(f"alloc_data of the page is damaged: {error}") from error
    sizes, stacks = _elements(value, _FRAMES_PER_BYTE * len(page))
    before, actions = (
        _items(value, key, Bounds(0, len(sizes) - 1, f"an element from 0 to {len(sizes) - 1}"))
        for key in ("initially_allocated", "actions")
    )
    frames_of = {text: frame_of(text) for text in set().union(*stacks)}
    trace, live = _Trace(), dict[int, int]()
    for element in (*dict.fromkeys(before), *actions):
        texts, size = stacks[element], sizes[element]
        title = _TITLE_OF_ELEMENT.fullmatch(texts[0]) if texts else None
        is_of_free = _FREE_STACK in texts[:2]
        frames = [frames_of[text] for text in texts[bool(title) + is_of_free :]]
        if element in live:
            trace.free(live.pop(element), size, frames=frames if is_of_free else None)
        else:
            category = (title["category"] or "") if title else ""
            live[element] = trace.alloc(size, category, frames=None if is_of_free else frames)
    is_profile = any(event.get("category") for event in trace.events)
    form = f"a page of {'profile_plot' if is_profile else 'trace_plot'} of torch 2.0"
    lacks = f"it has the bytes of its curve alone, and no segments; {_NO_DEVICE}"
    return {"device_traces": [trace.events]}, Form(form, "torch 2.0", _SOME_DEVICE, lacks)


def _items(value: Raw, key: str, kind: type | Bounds) -> list[Any]:
    """Return the values of a list, each of a kind."""
    values = expect(value.get(key), list, f"alloc_data.{key}")
    if kind is object:
        return list(values)
    return [expect(item, kind, f"alloc_data.{key}[{i}]") for i, item in enumerate(values)]


def _elements(value: Raw, most_frames: int) -> tuple[list[int], list[list[str]]]:
    """Return the sizes of the allocations and the texts of their stacks: the size first, then the frames.

    A stack is an entry of ``suffix_table``: a position in ``string_table``, and an earlier entry, which is
    the rest. A later writer has two columns in place of ``elements``, and the first entry in line.
    """
    if "elements" in value:
        rows = _items(value, "elements", dict)
        value = {
            "elements_size": [row.get("size") for row in rows],
            "elements_info": [row.get("info") for row in rows],
        } | value
    sizes, strings = _items(value, "elements_size", BYTES), _items(value, "string_table", str)
    infos, suffixes = _items(value, "elements_info", object), _items(value, "suffix_table", list)
    if len(infos) != len(sizes):
        raise MalformedSnapshotError(
            f"alloc_data.elements_info: expected {len(sizes)} entries, got {len(infos)}"
        )
    text = Bounds(0, len(strings) - 1, f"a text below {len(strings)}")
    stacks: list[list[str]] = []
    for i, info in enumerate(infos):
        where, stack, below = f"alloc_data.elements_info[{i}]", list[str](), len(suffixes)
        while info is not None:
            if not isinstance(info, list):
                # Every entry is made after its rest.
                below = expect(info, Bounds(0, below - 1, f"an entry below {below}"), where)
                info, where = suffixes[below], f"alloc_data.suffix_table[{below}]"
            if len(info) != 2:
                raise MalformedSnapshotError(f"{where}: expected a pair")
            stack.append(strings[expect(info[0], text, where)])
            info, most_frames = info[1], most_frames - 1
            if most_frames < 0:
                raise MalformedSnapshotError(f"{where}: the stacks are many times the size of the page")
        stacks.append(stack)
    return sizes, stacks
