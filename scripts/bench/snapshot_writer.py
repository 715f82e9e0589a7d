"""Events, segments and annotations -> the pickle that torch 2.10 dumps for them, streamed.

What is one object in torch is one object here: a frame's dictionary in all stacks, a list of frames
in its events and in the block that is still live, the empty list of all free blocks. What torch
makes anew is new:
a list per captured stack, the texts of every frame, the compile context of every event.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from scripts.bench.caching_allocator import Block, Segment
from scripts.bench.pickle_stream import PickleStream, fetch, integer
from scripts.bench.stacks import StackTable

ALLOCATOR_SETTINGS: dict[str, object] = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "graph_capture_record_stream_reuse": False,
    "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
}


class Event(NamedTuple):
    """A trace entry; ``shares_stack`` says that its list of frames is the one of the entry before."""

    action: str
    addr: int
    size: int
    stack_id: int
    time_us: int
    shares_stack: bool = False


class Annotation(NamedTuple):
    """One end of a record_function range."""

    name: str
    stage: str
    time_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What to write; a traceback is named by the index of the first event that has it.

    ``tracebacks`` gives the stack of each that the segments speak of. ``events`` may be generated
    on the go, each with the time to write for it.
    """

    segments: Sequence[Segment]
    tracebacks: Mapping[int, int]
    n_events: int
    events: Iterable[tuple[Event, int]]
    annotations: Sequence[Annotation]


def write_snapshot(file: BinaryIO, snapshot: Snapshot, *, stacks: StackTable) -> None:
    """Write the pickle of a snapshot of one device."""
    stream = PickleStream(file)
    writer = _SnapshotWriter(stream, stacks, snapshot)
    for piece in writer.pieces():
        stream.write(piece)
    stream.close()


class _SnapshotWriter:
    """Encodes a snapshot's parts in the order of its keys."""

    def __init__(self, stream: PickleStream, stacks: StackTable, snapshot: Snapshot) -> None:
        self._stream = stream
        self._stacks = stacks
        self._snapshot = snapshot
        self._frame_memo: dict[int, int] = {}
        self._traceback_memo: dict[int, int] = {}
        self._list_opcodes: dict[int, bytes] = {}
        self._head_opcodes: dict[Event, bytes] = {}
        self._empty_list_memo: int | None = None

    def pieces(self) -> Iterator[bytes]:
        """Encode the whole snapshot; a piece must be written before the next is fetched."""
        stream, snapshot = self._stream, self._snapshot
        segments = sorted(snapshot.segments, key=lambda segment: segment.addr)
        annotations = snapshot.annotations
        yield stream.begin_dict() + stream.text("segments")
        yield from stream.list_pieces(len(segments), map(self._segment, segments))
        yield stream.text("device_traces") + b"]" + stream.memoise()
        yield from stream.list_pieces(snapshot.n_events, self._trace())
        yield b"a" + stream.text("allocator_settings") + stream.settings(ALLOCATOR_SETTINGS)
        yield stream.text("external_annotations")
        yield from stream.list_pieces(len(annotations), map(self._annotation, annotations))
        yield b"u"

    def _segment(self, segment: Segment) -> bytes:
        stream = self._stream
        live = [block for block in segment.blocks if block.is_live]
        live_bytes = sum(block.size for block in live)
        numbers = {
            "device": 0,
            "address": segment.addr,
            "total_size": segment.size,
            "allocated_size": live_bytes,
            "active_size": live_bytes,
            "requested_size": sum(block.requested_bytes for block in live),
            "stream": 0,
        }
        parts = [stream.begin_dict()]
        for key, value in numbers.items():
            parts += [stream.text(key), integer(value)]
        parts += [
            stream.text("segment_type"),
            stream.text("small" if segment.is_small else "large"),
        ]
        parts += [stream.text("segment_pool_id"), stream.pair(0, 0)]
        parts += [stream.text("is_expandable"), b"\x89"]
        # torch fills in the frames that it has at the very end, and the empty list at once.
        if segment.traceback_id is None:
            parts += [stream.text("frames"), self._empty_list()]
        parts.append(stream.text("blocks"))
        parts += stream.list_pieces(len(segment.blocks), map(self._block, segment.blocks))
        if segment.traceback_id is not None:
            parts += [stream.text("frames"), self._traceback(segment.traceback_id)]
        return b"".join(parts) + b"u"

    def _block(self, block: Block) -> bytes:
        stream = self._stream
        parts = [stream.begin_dict()]
        parts += [
            stream.text("address"),
            integer(block.addr),
            stream.text("size"),
            integer(block.size),
        ]
        parts += [
            stream.text("requested_size"),
            integer(block.requested_bytes),
            stream.text("state"),
        ]
        parts.append(stream.text("active_allocated" if block.is_live else "inactive"))
        parts.append(stream.text("frames"))
        if block.traceback_id is None:
            parts.append(self._empty_list())
        else:
            parts.append(self._traceback(block.traceback_id))
        return b"".join(parts) + b"u"

    def _empty_list(self) -> bytes:
        if self._empty_list_memo is not None:
            return fetch(self._empty_list_memo)
        self._empty_list_memo = self._stream.n_memoised
        return b"]" + self._stream.memoise()

    def _traceback(self, traceback_id: int) -> bytes:
        """Encode the list of frames of something that is live, which its event will share."""
        memo_id = self._traceback_memo.get(traceback_id)
        if memo_id is not None:
            return fetch(memo_id)
        self._traceback_memo[traceback_id] = self._stream.n_memoised
        return self._new_list(self._snapshot.tracebacks[traceback_id])

    def _new_list(self, stack_id: int) -> bytes:
        """Encode a list of frames of its own; once all its frames are known, its bytes are, too."""
        stream = self._stream
        known = self._list_opcodes.get(stack_id)
        if known is not None:
            stream.n_memoised += 1
            return known
        memo_id = stream.n_memoised
        frame_ids = self._stacks.stacks[stack_id]
        opcodes = b"".join(stream.list_pieces(len(frame_ids), map(self._frame, frame_ids)))
        if stream.n_memoised == memo_id + 1:
            self._list_opcodes[stack_id] = opcodes
        return opcodes

    def _frame(self, frame_id: int) -> bytes:
        stream = self._stream
        memo_id = self._frame_memo.get(frame_id)
        if memo_id is not None:
            return fetch(memo_id)
        self._frame_memo[frame_id] = stream.n_memoised
        frame = self._stacks.frames[frame_id]
        parts = [stream.begin_dict(), stream.text("name"), stream.new_text(frame.name)]
        parts += [stream.text("filename"), stream.new_text(frame.filename)]
        parts += [stream.text("line"), integer(frame.line)]
        return b"".join(parts) + b"u"

    def _trace(self) -> Iterator[bytes]:
        """Encode the trace entries."""
        stream = self._stream
        list_memo_id = -1
        for index, (event, time_us) in enumerate(self._snapshot.events):
            opening = stream.begin_dict()
            head = self._head_opcodes.get(event) or self._head(event)
            context = stream.text("compile_context") + stream.new_text("N/A")
            metadata = stream.text("user_metadata") + stream.text("") + stream.text("frames")
            if event.shares_stack:
                frames = fetch(list_memo_id)
            elif index in self._traceback_memo:
                list_memo_id = self._traceback_memo[index]
                frames = fetch(list_memo_id)
            else:
                list_memo_id = stream.n_memoised
                frames = self._new_list(event.stack_id)
            yield b"".join((opening, head, integer(time_us), context, metadata, frames, b"u"))

    def _head(self, event: Event) -> bytes:
        """Encode what comes before the time; it is kept if it can be written again as it is."""
        stream = self._stream
        n_memoised = stream.n_memoised
        parts = [
            stream.text("action"),
            stream.text(event.action),
            stream.text("addr"),
            integer(event.addr),
        ]
        parts += [stream.text("size"), integer(event.size), stream.text("stream"), integer(0)]
        opcodes = b"".join([*parts, stream.text("time_us")])
        if stream.n_memoised == n_memoised:
            self._head_opcodes[event] = opcodes
        return opcodes

    def _annotation(self, annotation: Annotation) -> bytes:
        stream = self._stream
        parts = [stream.begin_dict()]
        parts += [stream.new_text("stage"), stream.new_text(annotation.stage)]
        parts += [stream.new_text("name"), stream.new_text(annotation.name)]
        parts += [
            stream.text("device"),
            integer(0),
            stream.text("time_us"),
            integer(annotation.time_us),
        ]
        return b"".join(parts) + b"u"
