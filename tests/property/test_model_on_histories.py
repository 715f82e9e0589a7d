"""Replays by the allocator model against the programs that made the traces.

A trace shows when memory was requested and freed, and nothing of why it lies where it does. Under
its own settings the model must put everything where it lay; under others, where the program would
have put it.
"""

import pickle
import random
from dataclasses import replace

import pytest

from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.hypotheses.allocator_calls import find_calls
from snapconv.hypotheses.trial import try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from tests.builders import write_anew
from tests.drawn_inputs import drawn
from tests.model_check import find_difference
from tests.property.histories import CONFS, make_calls, run, seeded_program

SEEDS = range(drawn(100))


def calls_of(history, path):
    write_anew(path, pickle.dumps(history.snapshot))
    snapshot = load_snapshot(path)
    device = snapshot.devices[0]
    replayed = replay(snapshot, device)
    return find_calls(snapshot, device, replayed), device, replayed


@pytest.mark.parametrize("seed", SEEDS)
def test_the_own_settings_give_the_own_segments(seed, tmp_path):
    program = seeded_program(seed, 300)
    kept = tuple(
        call for call in program.calls if call.kind != "release_pool"
    )  # a trial releases none
    program = replace(program, calls=kept, padding=0)
    if program.conf.startswith("expandable"):
        # Where a segment begins, and how far it may grow, is in the events only.
        program = replace(program, capacity=None, record_from=0, keep=None)
    calls, device, replayed = calls_of(run(program), tmp_path / "snapshot.pickle")
    difference = find_difference(calls, device, replayed.allocations.addr)
    if difference and (calls.start.n_inexact or calls.n_unsure_returns):
        pytest.skip(
            "the file lacks sizes of blocks of before the trace, or whether the device was full"
        )
    assert difference == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_other_settings_give_what_the_program_would_have_needed(seed, tmp_path):
    program = seeded_program(seed, 300)
    # A call of empty_cache() that found nothing to release left no event.
    kept = tuple(call for call in program.calls if call.kind not in ("empty_cache", "release_pool"))
    program = replace(program, calls=kept, padding=0, capacity=None, record_from=0, keep=None)
    calls, _, _ = calls_of(run(program), tmp_path / "snapshot.pickle")
    choice = random.Random(seed)
    conf, capacity = choice.choice(CONFS), choice.choice((None, 96 * MIB, 512 * MIB))
    outcome = try_out(calls, Trial(AllocatorSettings.from_conf(conf), capacity=capacity))
    allocator, is_out_of_memory = make_calls(replace(program, conf=conf, capacity=capacity))
    ledger = allocator.ledger
    assert (outcome.ran_out is not None) == is_out_of_memory
    assert outcome.ledger.max_reserved_bytes == ledger.max_reserved_bytes
    assert outcome.ledger.max_allocated_bytes == ledger.max_allocated_bytes
    assert outcome.ledger.n_segment_allocs == ledger.n_segment_allocs
    assert outcome.ledger.n_segment_maps == ledger.n_segment_maps
    assert outcome.ledger.reserved_bytes == ledger.reserved_bytes
