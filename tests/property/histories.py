"""Random but legal allocator programs, run on the allocator model, with the truth about every event.

    history = run(seeded_program(7))          # one history, reproducible by its number
    @given(histories())                       # any history; shrinks to few calls
    @given(programs(conf=st.just("")))        # with one ingredient fixed, then run(program)

A ``History`` is what a file shows (``snapshot``, cut at the front as a late start or a full ring
cuts it) and what only the model knows (``events`` with their true block sizes and totals). The two
are aligned: ``history.snapshot["device_traces"][0][i]`` is ``history.events[i]``.
"""

import random
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from scripts.fixtures.recorded_allocator import RecordedAllocator, RecordedEvent
from snapconv.allocator.allocator_settings import KIB, MIB, AllocatorSettings
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from tests.property.oracle import NOTHING, Totals

Event = RecordedEvent

CONFS = (
    "",
    "max_split_size_mb:32",
    "max_split_size_mb:21,max_non_split_rounding_mb:24",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,16:0,>:4]",
    "large_segment_size_mb:32",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:8",
)
BOUNDARIES = (512, KIB, MIB - 512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB)
KINDS = ("malloc", "free", "share", "finish", "process", "empty_cache", "release_pool", "snapshot")


class Call(NamedTuple):
    """One call to the allocator; any three values are legal, since they are taken modulo what exists.

    malloc: ``amount`` bytes on the stream and in the pool that ``which`` picks; free, share: the
    live block number ``amount``, share with stream ``which``; finish: stream ``which``;
    release_pool: the private pool ``which`` (used no more thereafter). The others take no argument.
    """

    kind: str
    amount: int = 0
    which: int = 0


@dataclass(frozen=True)
class Program:
    """All that a history depends on.

    Recording starts before call number ``record_from``, and the ring keeps the newest ``keep``
    events; None keeps all. ``padding`` 32 makes a torch_npu history.
    """

    calls: tuple[Call, ...]
    conf: str = ""
    n_streams: int = 1
    n_pools: int = 1
    capacity: int | None = None
    padding: int = 0
    record_from: int = 0
    keep: int | None = None


@dataclass(frozen=True)
class History:
    """A snapshot and the truth about it.

    ``events`` are the kept ones; ``complete`` are all since the allocator's birth, for the oracle.
    """

    program: Program
    snapshot: dict[str, Any]
    events: tuple[Event, ...]
    complete: tuple[Event, ...]

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The trace entries as the file has them."""
        return self.snapshot["device_traces"][0]

    @property
    def n_lost(self) -> int:
        """How many events the file does not have."""
        return len(self.complete) - len(self.events)

    @property
    def totals(self) -> list[Totals]:
        """The true totals after each kept event."""
        return [totals_of(event) for event in self.events]

    @property
    def totals_before(self) -> Totals:
        """The true totals before the first kept event."""
        return totals_of(self.complete[self.n_lost - 1]) if self.n_lost else NOTHING

    @property
    def block_bytes(self) -> dict[int, int]:
        """The true block size by event index, for every kept alloc."""
        return {i: e.block_bytes or 0 for i, e in enumerate(self.events) if e.action == "alloc"}

    @property
    def blocks_before(self) -> dict[int, Event]:
        """The blocks live before the first kept event: their alloc by address."""
        live: dict[int, Event] = {}
        for event in self.complete[: self.n_lost]:
            if event.action == "alloc":
                live[event.addr] = event
            elif event.action == "free_completed":
                del live[event.addr]
        return live


def totals_of(event: Event) -> Totals:
    """The totals that the allocator counted itself, to be compared with the oracle's."""
    return Totals(
        event.requested_bytes, event.allocated_bytes, event.active_bytes, event.reserved_bytes
    )


class _Machine:
    """An allocator and what a program needs to know to call it legally."""

    def __init__(self, program: Program) -> None:
        settings = replace(AllocatorSettings.from_conf(program.conf), padding_bytes=program.padding)
        self.allocator = RecordedAllocator(settings=settings, capacity=program.capacity)
        # Streams are pointers in real files; torch_npu's default stream is not 0.
        self.streams = [0x5500 * i + bool(program.padding) for i in range(program.n_streams)]
        self.pools = [(0, 0), *((0, i) if i % 2 else (i, 0) for i in range(1, program.n_pools))]
        self.live: list[int] = []
        self.is_recording = True
        self.n_mallocs = 0

    def make(self, call: Call) -> None:
        getattr(self, call.kind)(call)

    def malloc(self, call: Call) -> None:
        which, stream = divmod(call.which, len(self.streams))
        self.n_mallocs += 1
        name = {
            "name": f"operation{self.n_mallocs % 17}",
            "filename": "model.py",
            "line": call.which,
        }
        try:
            addr = self.allocator.malloc(
                call.amount,
                stream=self.streams[stream],
                pool=self.pools[which % len(self.pools)],
                frames=[name] if self.is_recording else None,
            )
        except ModelOutOfMemory:
            return
        if addr:
            self.live.append(addr)

    def free(self, call: Call) -> None:
        if self.live:
            self.allocator.free(self.live.pop(call.amount % len(self.live)))

    def share(self, call: Call) -> None:
        if self.live:
            addr = self.live[call.amount % len(self.live)]
            self.allocator.record_stream(addr, self.streams[call.which % len(self.streams)])

    def finish(self, call: Call) -> None:
        self.allocator.finish_stream(self.streams[call.which % len(self.streams)])

    def process(self, call: Call) -> None:
        self.allocator.process_events()

    def empty_cache(self, call: Call) -> None:
        self.allocator.empty_cache()

    def release_pool(self, call: Call) -> None:
        if len(self.pools) > 1:
            self.allocator.release_pool(self.pools.pop(1 + call.which % (len(self.pools) - 1)))

    def snapshot(self, call: Call) -> None:
        self.allocator.snapshot()


def run(program: Program) -> History:
    """Run a program and cut its trace as its file would be cut."""
    machine = _Machine(program)
    n_before = 0
    for i, call in enumerate(program.calls):
        if i == program.record_from:
            n_before = machine.allocator.n_recorded
        machine.is_recording = i >= program.record_from
        machine.make(call)
    if program.record_from >= len(program.calls):
        n_before = machine.allocator.n_recorded
    complete = tuple(machine.allocator.history)
    first = (
        n_before if program.keep is None else max(n_before, len(complete) - max(program.keep, 1))
    )
    snapshot = machine.allocator.snapshot()
    snapshot["device_traces"] = [snapshot["device_traces"][0][first:]]
    return History(program, snapshot, complete[first:], complete)


def make_calls(program: Program) -> tuple[RecordedAllocator, bool]:
    """Run a program up to its first request that fails; return its allocator, and whether one did."""
    machine = _Machine(program)
    for call in program.calls:
        machine.make(call)
        if machine.allocator.history and machine.allocator.history[-1].action == "oom":
            return machine.allocator, True
    return machine.allocator, False


def without_keys(history: History, *keys: str) -> History:
    """Make the history's trace look older by leaving out keys, such as ``pool_id`` or ``time_us``."""
    trace = [{key: entry[key] for key in entry if key not in keys} for entry in history.trace]
    return replace(history, snapshot={**history.snapshot, "device_traces": [trace]})


def seeded_program(seed: int, n_calls: int = 400) -> Program:
    """Make a program from a number; a third of them loses events, some run out of memory."""
    rng = random.Random(seed)
    weights = {"malloc": rng.uniform(30, 60), "free": rng.uniform(20, 50)}
    weights |= {kind: rng.choice((0, 1, 6)) for kind in KINDS[2:]}
    near, largest = rng.random(), rng.choice((4 * KIB, MIB, 4 * MIB, 64 * MIB))

    def amount(kind: str) -> int:
        if kind != "malloc":
            return rng.randrange(1 << 16)
        if rng.random() < near:
            return max(rng.choice(BOUNDARIES) + rng.choice((-513, -512, -1, 0, 1, 512, 513)), 0)
        return rng.randint(0, largest)

    kinds = rng.choices(list(weights), list(weights.values()), k=n_calls)
    return Program(
        calls=tuple(Call(kind, amount(kind), rng.randrange(64)) for kind in kinds),
        conf=rng.choice(CONFS),
        n_streams=rng.choice((1, 1, 3)),
        n_pools=rng.choice((1, 1, 3)),
        capacity=rng.choice((None, None, 96 * MIB, 512 * MIB)),
        padding=rng.choice((0, 0, 0, 32)),
        record_from=rng.choice((0, 0, rng.randrange(n_calls + 1))),
        keep=rng.choice((None, None, rng.randint(1, 2 * n_calls))),
    )


def sizes() -> st.SearchStrategy[int]:
    """Request sizes: a few bytes, around every boundary of the allocator, and up to 64 MiB."""
    near = st.builds(
        lambda boundary, offset: max(boundary + offset, 0),
        st.sampled_from(BOUNDARIES),
        st.integers(-1025, 1025),
    )
    return st.one_of(st.integers(0, 4 * KIB), near, st.integers(MIB, 64 * MIB))


def calls() -> st.SearchStrategy[Call]:
    """One call; mallocs and frees are the most frequent."""
    which = st.integers(0, 63)
    malloc = st.builds(Call, st.just("malloc"), sizes(), which)
    free = st.builds(Call, st.just("free"), st.integers(0, 1 << 16))
    other = st.builds(Call, st.sampled_from(KINDS[2:]), st.integers(0, 1 << 16), which)
    return st.one_of(malloc, malloc, free, free, other)


def programs(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Program]:
    """Programs with every ingredient; a keyword argument replaces the strategy of that field."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "calls": st.lists(calls(), max_size=60).map(tuple),
        "conf": st.sampled_from(CONFS),
        "n_streams": st.integers(1, 3),
        "n_pools": st.integers(1, 3),
        "capacity": st.sampled_from((None, 96 * MIB, 512 * MIB)),
        "padding": st.sampled_from((0, 32)),
        "record_from": st.one_of(st.just(0), st.integers(0, 60)),
        "keep": st.one_of(st.none(), st.integers(1, 120)),
    }
    return st.builds(Program, **(fields | fixed))


def histories(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[History]:
    """Histories of ``programs(**fixed)``."""
    return programs(**fixed).map(run)
