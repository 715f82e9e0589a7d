"""Write a large, lawful memory snapshot of a training run, and what is true of it beside it.

    python scripts/bench/generate.py --events 1000000 --stacks all --seed 0 OUT.pickle

A transformer is trained on paper: its allocations go through a model of the caching allocator.
Steps are equal, so one is placed and then repeated with later times until the number of events is
reached.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.caching_allocator import (
    Block,
    CachingAllocator,
)  # the root is on the path only now
from scripts.bench.snapshot_writer import Annotation, Event, Snapshot, write_snapshot
from scripts.bench.stacks import StackTable
from scripts.bench.training_loop import Action, Allocate, Free, Shape, TrainingLoop

MIN_EVENTS, MAX_EVENTS = 10_000, 10_000_000
MAX_LAYERS = 48
EVENTS_PER_LAYER = 2_500
FIRST_TIME_US = 1_760_000_000_000_000
CUDA_MALLOC_US = 350
MAX_WARM_UP_STEPS = 20


@dataclass(slots=True)
class Truth:
    """The generator's own count; ``_allocated_bytes`` are of blocks, all of one device."""

    events: int = 0
    steps: int = 0
    distinct_stacks: int = 0
    start_allocated_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_event: int = -1
    end_allocated_bytes: int = 0
    start_requested_bytes: int = 0
    peak_requested_bytes: int = 0
    end_requested_bytes: int = 0
    start_reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    end_reserved_bytes: int = 0

    def grow(self, requested_bytes: int, block_bytes: int, *, event: int) -> None:
        """Count an allocation, or with negative numbers a free."""
        self.end_requested_bytes += requested_bytes
        self.end_allocated_bytes += block_bytes
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.end_requested_bytes)
        if self.end_allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes, self.peak_event = self.end_allocated_bytes, event

    def reserve(self, n_bytes: int) -> None:
        """Count a new segment; none is ever given back."""
        self.end_reserved_bytes += n_bytes
        self.peak_reserved_bytes = self.end_reserved_bytes


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events and annotations with times from 0 to ``duration_us``, so that they can be repeated."""

    events: list[Event]
    annotations: list[Annotation]
    duration_us: int


class Simulation:
    """Turns what a program does into trace entries, and keeps the true totals."""

    def __init__(self, seed: int) -> None:
        self.allocator = CachingAllocator()
        self.truth = Truth()
        self.tracebacks: dict[int, int] = {}
        self._blocks: dict[str, tuple[Block, int]] = {}
        self._random = random.Random(seed)

    def run(self, actions: Iterable[Action], n_events: int) -> Stretch:
        """Run until fewer than two events are left of that many: no action makes more than two."""
        events: list[Event] = []
        annotations: list[Annotation] = []
        now_us = 0
        for action in actions:
            if len(events) + 2 > n_events:
                break
            now_us += self._random.randint(0, 15)
            if isinstance(action, Allocate):
                now_us = self._allocate(action, now_us, events)
            elif isinstance(action, Free):
                self._free(action, now_us, events)
            else:
                annotations.append(Annotation(action.name, action.stage, now_us))
        self.truth.events += len(events)
        return Stretch(events, annotations, now_us + self._random.randint(100, 1_000))

    def _allocate(self, action: Allocate, now_us: int, events: list[Event]) -> int:
        traceback_id = self.truth.events + len(events)
        block, segment = self.allocator.allocate(action.n_bytes, traceback_id)
        if segment is not None:
            events.append(
                Event("segment_alloc", segment.addr, segment.size, action.stack_id, now_us)
            )
            self.truth.reserve(segment.size)
            now_us += CUDA_MALLOC_US
        is_shared = segment is not None
        events.append(
            Event("alloc", block.addr, action.n_bytes, action.stack_id, now_us, is_shared)
        )
        self.tracebacks[traceback_id] = action.stack_id
        self._blocks[action.tensor] = block, block.size
        self.truth.grow(action.n_bytes, block.size, event=self.truth.events + len(events) - 1)
        return now_us

    def _free(self, action: Free, now_us: int, events: list[Event]) -> None:
        block, block_bytes = self._blocks.pop(action.tensor)
        n_bytes = block.requested_bytes
        events.append(Event("free_requested", block.addr, n_bytes, action.stack_id, now_us))
        events.append(Event("free_completed", block.addr, n_bytes, action.stack_id, now_us, True))
        self.allocator.free(block)
        self.truth.grow(-n_bytes, -block_bytes, event=-1)


def simulate(n_events: int, seed: int, *, stacks: StackTable) -> tuple[list[Stretch], Simulation]:
    """Run the program until its steps repeat, then repeat one; give all stretches in order."""
    chooser = random.Random(seed)
    n_layers = max(2, min(MAX_LAYERS, n_events // EVENTS_PER_LAYER))
    shape = Shape(
        n_layers, batch=chooser.randint(2, 4), length=chooser.choice((384, 500, 512, 639))
    )
    loop = TrainingLoop(shape, stacks)
    simulation = Simulation(seed)
    truth = simulation.truth
    stretches = [simulation.run(loop.set_up(), n_events)]
    stretches.append(simulation.run(loop.step(is_first=True), n_events - truth.events))
    step = list(loop.step(is_first=False))
    for _ in range(MAX_WARM_UP_STEPS):
        before = simulation.allocator.layout()
        stretches.append(simulation.run(step, n_events - truth.events))
        if simulation.allocator.layout() == before:
            break
    else:
        raise RuntimeError(
            f"the steps did not repeat within {MAX_WARM_UP_STEPS}: a bug of the generator"
        )
    cycle = stretches[-1]
    n_repeats = (n_events - truth.events) // max(len(cycle.events), 1)
    stretches += [cycle] * n_repeats
    truth.events += n_repeats * len(cycle.events)
    stretches.append(simulation.run(step, n_events - truth.events))
    truth.steps = sum(len(stretch.annotations) == 4 for stretch in stretches)
    truth.distinct_stacks = len(stacks.stacks)
    return stretches, simulation


def timed_events(stretches: Iterable[Stretch]) -> Iterator[tuple[Event, int]]:
    """Go through all events with their times on the clock."""
    start_us = FIRST_TIME_US
    for stretch in stretches:
        for event in stretch.events:
            yield event, start_us + event.time_us
        start_us += stretch.duration_us


def timed_annotations(stretches: Iterable[Stretch]) -> list[Annotation]:
    """List all annotations with their times on the clock."""
    annotations = []
    start_us = FIRST_TIME_US
    for stretch in stretches:
        for annotation in stretch.annotations:
            annotations.append(annotation._replace(time_us=start_us + annotation.time_us))
        start_us += stretch.duration_us
    return annotations


def generate(path: Path, n_events: int, *, has_cpp: bool, seed: int) -> Truth:
    """Write the snapshot and, beside it and after it, ``<stem>.truth.json``."""
    stacks = StackTable(has_cpp=has_cpp)
    stretches, simulation = simulate(n_events, seed, stacks=stacks)
    snapshot = Snapshot(
        segments=simulation.allocator.segments,
        tracebacks=simulation.tracebacks,
        n_events=simulation.truth.events,
        events=timed_events(stretches),
        annotations=timed_annotations(stretches),
    )
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        write_snapshot(file, snapshot, stacks=stacks)
    partial.replace(path)
    text = json.dumps(asdict(simulation.truth), indent=2)
    path.with_suffix(".truth.json").write_text(text + "\n", encoding="utf-8")
    return simulation.truth


def main() -> None:
    """Read the command line and generate one file."""
    parser = argparse.ArgumentParser(description="Write a large memory snapshot of a training run.")
    parser.add_argument("output", type=Path, metavar="OUT.pickle")
    parser.add_argument(
        "--events", type=int, default=1_000_000, help="10000 to 10000000; one less may come"
    )
    parser.add_argument(
        "--stacks", choices=("all", "python"), default="all", help="as torch's stacks="
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not MIN_EVENTS <= arguments.events <= MAX_EVENTS:
        parser.error(f"--events must be {MIN_EVENTS} to {MAX_EVENTS}")
    start = time.perf_counter()
    has_cpp = arguments.stacks == "all"
    truth = generate(arguments.output, arguments.events, has_cpp=has_cpp, seed=arguments.seed)
    seconds = time.perf_counter() - start
    n_mib = arguments.output.stat().st_size / 2**20
    print(f"{arguments.output}: {truth.events} events, {n_mib:.1f} MiB, {seconds:.1f} s")
    print(json.dumps(asdict(truth)))


if __name__ == "__main__":
    main()
