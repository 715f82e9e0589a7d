"""Histories and trials drawn by chance, and whether the compiled core replays each as its twin does."""

import pickle
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIB,
    AllocatorSettings,
)
from snapconv.allocator.allocator_trace import Ledger
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallChange, CallKind, find_calls
from snapconv.hypotheses.compiled_replay import CompiledReplay, OddCalls
from snapconv.hypotheses.model_replay import ModelReplay
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.hypotheses.trial_requests import requests_of
from snapconv.native.library import core
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from tests.property.histories import CONFS, run, seeded_program

COLLECTING = "garbage_collection_threshold:{},per_process_memory_fraction:{}"
ODD = "odd"


def drawn_calls(number: int, folder: Path) -> AllocatorCalls:
    """Make a history from a number, read its file, and change its calls as answers do."""
    rng = random.Random(f"calls {number}")
    program = seeded_program(number, rng.choice((40, 150, 400)))
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(run(program).snapshot))
    snapshot = load_snapshot(path)
    device = snapshot.devices[0]
    first_event = rng.choice((0, 0, rng.randrange(len(device.events) + 1)))
    return changed(calls_of(snapshot, device, first_event), rng)


def calls_of(snapshot: Snapshot, device: DeviceSnapshot, first_event: int = 0) -> AllocatorCalls:
    """Find the calls of one device."""
    replayed = replay(snapshot, device)
    return find_calls(snapshot, device, replayed, first_event=first_event)


def changed(calls: AllocatorCalls, rng: random.Random) -> AllocatorCalls:
    """Change some calls: sizes, streams, frees that complete at once, and when the cache is emptied."""
    if not len(calls):
        return calls
    if rng.random() < 0.3:
        rows = np.arange(len(calls.stream))
        completed = tuple(rows[rows % rng.randint(1, 4) == 0].tolist())
        streams = tuple(sorted(set(calls.stream.tolist()))[: rng.randrange(3)])
        emptied = tuple(rng.choices(calls.event.tolist(), k=rng.randrange(3)))
        calls = calls.changed(CallChange(completed, emptied, streams))
    if rng.random() < 0.3:
        scale = rng.choice((0.4, 1.3, 3.0))
        sizes = np.maximum(calls.requested_bytes * scale, 1).astype(np.int64)
        calls = calls.resized(sizes, scale)
    if rng.random() < 0.3:
        events = sorted(rng.choices(calls.event.tolist(), k=rng.randint(1, 4)))
        kinds = [rng.choice((CallKind.EMPTY_CACHE, CallKind.DEVICE_IS_FULL)) for _ in events]
        calls = calls.insert(kinds, np.full(len(events), -1), events)
    return calls


def drawn_trial(calls: AllocatorCalls, rng: random.Random) -> Trial:
    """Draw settings, memory and the kind of a trial."""
    settings = calls.file_settings
    conf = rng.choice((None, None, *CONFS, "collecting", "max_split_size_mb:64"))
    if conf == "collecting":
        threshold = rng.choice((0.1, 0.5, 0.8))
        conf = COLLECTING.format(threshold, rng.choice((0.3, 0.7, 0.99)))
    if conf is not None:
        # A smallest max_split_size_mb is refused beside larger segments.
        is_refused = settings.large_segment_bytes > LARGE_SEGMENT_BYTES
        base = AllocatorSettings() if is_refused else rng.choice((settings, AllocatorSettings()))
        settings = replace(base, padding_bytes=settings.padding_bytes).changed(conf)
    most = int(calls.reserved_after.max(initial=MIB))
    capacity = rng.choice((None, most, most // 2, int(most * rng.uniform(0.3, 1.5))))
    device_bytes = rng.choice((None, None, capacity))
    return Trial(settings, capacity, device_bytes, rng.random() < 0.3, is_check=rng.random() < 0.25)


def _figures(run: Any) -> dict[str, Any]:
    outcome = run.outcome
    counters = [field.name for field in fields(Ledger) if field.type is int or field.type == "int"]
    values = {name: getattr(outcome.ledger, name) for name in counters}
    for name in ("ran_out", "failed_again", "served", "is_placed_anew", "differs_at"):
        values[name] = getattr(outcome, name)
    return values | {"sizes": list(map(int, run.sizes))}


def _replayed(run: Any, calls: AllocatorCalls, n_at_once: int) -> dict[str, Any]:
    if run.start():
        for first in range(0, len(calls), n_at_once):
            if not run.make(calls.select(slice(first, first + n_at_once))):
                break
    return _figures(run)


def difference(calls: AllocatorCalls, trial: Trial, n_at_once: int = 1 << 16) -> str:
    """Say where the core's replay differs from its twin's; ODD: it left the calls to the twin."""
    requests = requests_of(calls, trial)
    library = core()
    assert library is not None
    expected = _replayed(ModelReplay(requests), calls, n_at_once)
    try:
        with CompiledReplay(library, requests) as compiled:
            actual = _replayed(compiled, calls, n_at_once)
    except OddCalls:
        return ODD
    differing = [name for name in expected if repr(expected[name]) != repr(actual[name])]
    return "".join(f"{name}: {actual[name]}, not {expected[name]}\n" for name in differing)[:2000]
