"""The compiled core replays every trial as its twin in Python does."""

import random
from pathlib import Path

import numpy as np
import pytest

from snapconv.hypotheses import trial as trials
from snapconv.hypotheses.compiled_replay import CompiledReplay
from snapconv.hypotheses.trial import block_sizes, try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.snapshot.load import load_snapshot
from tests.drawn_inputs import drawn
from tests.replay_twins import ODD, calls_of, difference, drawn_calls, drawn_trial
from tests.twins import needs_core, plain, twin

pytestmark = needs_core
ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "fixtures", ROOT.parent / "shared" / "snapshots")
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.pickle"))
N_TRIALS = 4


@pytest.mark.parametrize("seed", range(drawn(300)))
def test_a_drawn_trial_of_a_drawn_history_has_one_outcome(seed, tmp_path):
    calls = drawn_calls(seed, tmp_path)
    rng = random.Random(seed)
    for _ in range(N_TRIALS):
        trial = drawn_trial(calls, rng)
        assert difference(calls, trial, rng.choice((7, 1 << 16))) == "", trial


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_drawn_trial_of_a_file_has_one_outcome(path):
    snapshot = load_snapshot(path)
    rng = random.Random(path.name)
    for device in snapshot.devices:
        if device.is_host:
            continue
        calls = calls_of(snapshot, device)
        assert difference(calls, Trial(calls.file_settings, is_check=True)) == ""
        assert difference(calls, drawn_trial(calls, rng)) == ""


def calls_of_fixture():
    snapshot = load_snapshot(ROOT / "fixtures" / "training_step.pickle")
    return calls_of(snapshot, snapshot.devices[0])


def test_answers_get_their_outcomes_from_the_core(monkeypatch):
    calls = calls_of_fixture()
    with twin("no"):
        expected = plain([try_out(calls, Trial(calls.file_settings)), block_sizes(calls)])
    monkeypatch.setattr(trials, "ModelReplay", None)
    with twin("require"):
        outcome = try_out(calls, Trial(calls.file_settings))
        sizes = block_sizes(calls)
    expected[0]["ledger"]["clock"] = outcome.ledger.clock
    assert plain([outcome, sizes]) == expected


def test_what_the_core_finds_odd_its_twin_replays():
    calls = calls_of_fixture()
    # Larger than any memory: the core adds no such numbers.
    trial = Trial(calls.file_settings, capacity=1 << 60)
    assert difference(calls, trial) == ODD
    with twin("no"):
        expected = try_out(calls, trial).ledger.max_reserved_bytes
    with twin("require"):
        assert try_out(calls, trial).ledger.max_reserved_bytes == expected > 0


def test_the_core_frees_a_replay_that_ends_early(monkeypatch):
    freed = []
    leave = CompiledReplay.__exit__

    def counted(replay, *error):
        freed.append(error[0])
        leave(replay, *error)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(CompiledReplay, "__exit__", counted)
    calls = calls_of_fixture()
    with pytest.raises(KeyboardInterrupt):
        try_out(calls, Trial(calls.file_settings), progress=stopped)
    assert freed == [KeyboardInterrupt]


def test_a_row_beyond_the_allocations_is_odd_to_the_core():
    calls = calls_of_fixture()
    beyond = calls.insert([0], [len(calls.requested_bytes) + 1], np.array([0]))
    with pytest.raises(IndexError):
        try_out(beyond, Trial(calls.file_settings))
