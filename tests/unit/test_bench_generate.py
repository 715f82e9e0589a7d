"""The benchmark's generated snapshots are lawful, and the replay finds what is true of them."""

import json
import pickle
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.what_if.setting_trials import Request
from snapconv.replay.history_verdict import Verdict

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
N_EVENTS = 10_000


def generate(path, stacks, seed=0):
    options = ["--events", str(N_EVENTS), "--stacks", stacks, "--seed", str(seed)]
    subprocess.run(
        [sys.executable, BENCH / "generate.py", *options, path], check=True, capture_output=True
    )
    return path


@pytest.fixture(scope="module", params=["all", "python"])
def stacks(request):
    return request.param


@pytest.fixture(scope="module")
def generated(stacks, tmp_path_factory):
    return generate(tmp_path_factory.mktemp("generated") / "sample.pickle", stacks)


@pytest.fixture(scope="module")
def snapshot(generated):
    return pickle.loads(generated.read_bytes())


@pytest.fixture(scope="module")
def session(generated):
    return snapconv.load(generated)


def test_the_file_is_what_pickle_would_write(generated, snapshot):
    assert pickle.dumps(snapshot, protocol=4) == generated.read_bytes()


def test_the_truth_is_what_the_replay_finds(generated, session):
    truth = json.loads(generated.with_suffix(".truth.json").read_text(encoding="utf-8"))
    (device,) = session.devices
    for name in ("allocated", "requested", "reserved"):
        curve = getattr(device.replay, name)
        stated = [truth[f"{moment}_{name}_bytes"] for moment in ("start", "peak", "end")]
        assert [curve.start, curve.peak, curve.end] == stated
    assert truth["peak_event"] == device.peak_event
    assert truth["events"] == len(device.device.events)
    assert truth["steps"] >= 3
    assert N_EVENTS - 1 <= truth["events"] <= N_EVENTS


def test_every_event_is_one_that_the_allocator_makes(session):
    (device,) = session.devices
    assert device.history.verdict is Verdict.COMPLETE
    assert device.replay.size_check.n_checked > 0
    assert device.replay.size_check.n_different == 0
    (tried,) = session.what_if(Request(("expandable_segments:False",)))
    assert tried.model_is_exact


def test_a_list_of_frames_is_shared_as_torch_shares_it(snapshot):
    actions = defaultdict(list)
    for event in snapshot["device_traces"][0]:
        actions[id(event["frames"])].append(event["action"])
    kinds = {("alloc",), ("segment_alloc", "alloc"), ("free_requested", "free_completed")}
    assert {tuple(shared) for shared in actions.values()} == kinds


def test_backward_has_no_python_frames(stacks, snapshot):
    for event in snapshot["device_traces"][0]:
        is_python = [frame["filename"].endswith(".py") for frame in event["frames"]]
        in_backward = any("Engine::thread_main" in frame["name"] for frame in event["frames"])
        assert all(is_python) if stacks == "python" else in_backward != any(is_python)


def test_the_same_seed_gives_the_same_bytes(generated, stacks, tmp_path):
    again = generate(tmp_path / "again.pickle", stacks)
    other = generate(tmp_path / "other.pickle", stacks, seed=1)
    assert again.read_bytes() == generated.read_bytes()
    assert other.read_bytes() != generated.read_bytes()


def test_an_irregular_snapshot_is_one_that_holds_its_own_live_blocks(tmp_path):
    path = tmp_path / "irregular.pickle"
    subprocess.run([sys.executable, BENCH / "irregular.py", "3000", path], check=True)
    (device,) = snapconv.load(path).devices
    assert 2999 <= len(device.device.events) <= 3001
    assert device.replay.allocations.alloc_event.min() >= 0
    assert device.replay.size_check.n_checked > 0
    assert device.replay.size_check.n_different == 0
