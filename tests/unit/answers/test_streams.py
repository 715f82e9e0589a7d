"""Findings about memory that streams keep: late frees, caches that nothing uses, and one stream a call."""

import json
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.answers.advice.findings import advise
from snapconv.answers.verdict import find_verdict
from snapconv.answers.what_if.conclusion import conclude
from snapconv.answers.what_if.setting_trials import ONE_STREAM, Request, try_settings
from snapconv.cli.app import main
from snapconv.writers.html.view_device import view_device
from tests.builders import MIB, frame

SIDE, N_STEPS = 7, 4


def at(line, name="step"):
    return [frame(name, "/home/me/project/train.py", line)]


def written(model, path, **fields):
    path.write_bytes(pickle.dumps(model.snapshot() | fields))
    return path


def analysed(model, tmp_path):
    return snapconv.load(written(model, tmp_path / "s.pickle")).devices[0]


def of_streams(model, tmp_path):
    """What is found about streams, by its kind."""
    found = advise(analysed(model, tmp_path)).findings
    return {one.kind: one for one in found if one.reserved_bytes is not None}


def gathering(*, waits=True, pool=(0, 0), **options):
    """In each call a buffer of 24 MiB is dropped while another stream uses it; activations of 12 stay."""
    model = RecordedAllocator(**options)
    model.malloc(40 * MIB, frames=at(20))
    for _ in range(2):
        kept = []
        for _ in range(N_STEPS):
            buffer = model.malloc(24 * MIB, frames=at(34), pool=pool)
            kept.append(model.malloc(12 * MIB, frames=at(33)))
            if waits:
                model.record_stream(buffer, SIDE)
            model.free(buffer, frames=at(35))
        model.finish_stream(SIDE)
        for addr in kept:
            model.free(addr, frames=at(36))
    return model


# The frees of all four buffers complete only with the next request, after the activations.
HELD = N_STEPS * 24 * MIB


def test_frees_that_wait_are_a_fault_with_its_line_and_what_the_replay_saves(tmp_path):
    found = of_streams(gathering(), tmp_path)["late-frees"]
    assert (found.sort, found.where.place, found.is_certain) == ("fault", "train.py:34", False)
    # The active peak comes before the last of the four is freed; without waiting one buffer is
    # enough.
    assert (found.held_bytes, found.saved_bytes) == (HELD - 24 * MIB, HELD - 24 * MIB)
    assert found.reserved_bytes == (40 + 24 + N_STEPS * 12) * MIB
    # A batch that a side stream allocates is read on the current one: then it is the side stream
    # that waits.
    assert "let the stream that allocated it wait: own.wait_stream(other)" in found.how[0]


def test_frees_that_complete_at_once_are_no_fault(tmp_path):
    assert not of_streams(gathering(waits=False), tmp_path)


def test_frees_in_the_private_pool_of_a_captured_graph_are_no_fault(tmp_path):
    assert "late-frees" not in of_streams(gathering(pool=(1, 0)), tmp_path)


@pytest.mark.parametrize("is_new", [False, True])
def test_the_variable_of_nccl_is_named_for_releases_that_read_it(tmp_path, is_new):
    """PyTorch 2.8 never records streams for NCCL; what the allocator here writes is of 2.12."""
    snapshot, path = gathering().snapshot(), tmp_path / "s.pickle"
    if not is_new:
        snapshot["allocator_settings"] = {}
        for event in snapshot["device_traces"][0]:
            del event["compile_context"], event["user_metadata"], event["pool_id"]
    path.write_bytes(pickle.dumps(snapshot))
    (found,) = advise(snapconv.load(path).devices[0]).findings
    assert any("TORCH_NCCL_AVOID_RECORD_STREAMS=1" in line for line in found.how) != is_new


@pytest.mark.parametrize("last", [60, 100])
def test_what_waits_for_a_stream_is_no_cause_of_a_failed_request(tmp_path, last):
    """PyTorch waits for all streams and returns its caches before a request fails, or is served at last."""
    model = RecordedAllocator(capacity=200 * MIB)
    model.malloc(40 * MIB, frames=at(20))
    for _ in range(8):
        buffer = model.malloc(24 * MIB, frames=at(34))
        model.malloc(12 * MIB, frames=at(33))
        model.record_stream(buffer, SIDE)
        model.free(buffer, frames=at(35))
    with suppress(ModelOutOfMemory):
        model.malloc(last * MIB, frames=at(50))
    assert not of_streams(model, tmp_path)


def setting_up(*, stream=SIDE, pool=(0, 0), n_steps=N_STEPS, again=False, empties=False, **options):
    """A set-up on one stream takes 128 MiB and frees them; then a model is built, and steps run."""
    model = RecordedAllocator(**options)
    parts = [model.malloc(32 * MIB, stream=stream, pool=pool, frames=at(12)) for _ in range(4)]
    for addr in parts:
        model.free(addr, frames=at(12))
    if empties:
        model.empty_cache()
    model.malloc(60 * MIB, frames=at(20))
    for _ in range(n_steps):
        model.free(model.malloc(48 * MIB, frames=at(33)), frames=at(33))
    if again:
        model.free(model.malloc(32 * MIB, stream=stream, frames=at(40)), frames=at(40))
    return model


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_the_cache_of_a_stream_that_nothing_uses_any_more_is_a_fault(tmp_path, conf):
    settings = AllocatorSettings.from_conf(conf)
    found = of_streams(setting_up(settings=settings), tmp_path)["idle-cache"]
    assert found.what == "The cache of stream 7 lies empty after its last use at train.py:12."
    assert found.how[0] == "Call torch.cuda.empty_cache() once after that line."
    # The set-up needs 128 MiB itself, the steps 60 + 48; an expandable segment has whole pages of
    # 20 MiB.
    assert found.held_bytes == pytest.approx(108 * MIB, abs=20 * MIB)
    assert found.saved_bytes == pytest.approx(108 * MIB, abs=20 * MIB)
    assert not found.is_certain


def test_the_cache_of_small_requests_is_one_of_its_own(tmp_path):
    model = RecordedAllocator()
    parts = [model.malloc(MIB, frames=at(12)) for _ in range(40)]
    for addr in parts:
        model.free(addr, frames=at(12))
    for _ in range(2):
        model.free(model.malloc(60 * MIB, frames=at(33)), frames=at(33))
    found = of_streams(model, tmp_path)["idle-cache"]
    assert (found.what[:42], found.saved_bytes) == (
        "The cache of stream 0 for small requests l",
        40 * MIB,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"again": True}, id="a stream that is used again needs its cache"),
        pytest.param({"n_steps": 1}, id="in one step alone, the next may use it again"),
        pytest.param({"stream": 0}, id="the stream of the steps uses it again"),
        pytest.param({"empties": True}, id="the program has returned it"),
        pytest.param({"pool": (0, 3)}, id="the private pool of a graph is returned with the graph"),
    ],
)
def test_a_cache_that_is_needed_or_cannot_be_returned_is_no_fault(tmp_path, options):
    assert "idle-cache" not in of_streams(setting_up(**options), tmp_path)


def calling(streams):
    """Each call copies on a stream, and the copies of earlier calls are gone."""
    model = RecordedAllocator()
    model.malloc(60 * MIB, frames=at(20))
    for stream in streams:
        model.free(model.malloc(24 * MIB, stream=stream, frames=at(34)), frames=at(35))
        model.free(model.malloc(16 * MIB, frames=at(33)), frames=at(33))
    return model


def test_a_line_that_makes_a_stream_in_every_call_is_a_fault(tmp_path):
    found = of_streams(calling([1, 2, 3, 4]), tmp_path)
    assert found.keys() == {"many-streams"}
    assert found["many-streams"].what == (
        "train.py:34 allocates on 4 streams, and each keeps a cache of its own."
    )
    assert found["many-streams"].saved_bytes == 3 * 24 * MIB


def test_streams_are_new_in_every_call_also_where_all_of_pytorch_have_had_their_turn(tmp_path):
    found = of_streams(calling([*range(1, 33), *range(1, 9)]), tmp_path)
    assert found["many-streams"].saved_bytes == 31 * 24 * MIB


@pytest.mark.parametrize(
    "streams",
    [
        pytest.param([1] * 4, id="one stream"),
        pytest.param([1, 2, 1, 2], id="two that may overlap"),
        pytest.param([1, 2, 3, 1, 2, 3], id="three that the program made once, and uses in turn"),
    ],
)
def test_streams_that_are_not_new_in_every_call_are_no_fault(tmp_path, streams):
    assert "many-streams" not in of_streams(calling(streams), tmp_path)


@pytest.mark.parametrize(
    ("model", "saved"),
    [
        pytest.param(gathering, HELD - 24 * MIB, id="no free waits"),
        pytest.param(
            lambda: calling([1, 2, 3, 4]), 4 * 24 * MIB - 8 * MIB, id="no cache is another's"
        ),
    ],
)
def test_what_if_tries_all_work_on_one_stream(tmp_path, model, saved):
    found = analysed(model(), tmp_path)
    trials = try_settings(found, Request.read(one_stream=True))
    own, other = trials.tried
    assert other.name == ONE_STREAM
    assert own.outcome.ledger.max_reserved_bytes - other.outcome.ledger.max_reserved_bytes == saved
    assert conclude(trials).endswith(f"less than recorded: {ONE_STREAM}")


def test_one_stream_is_an_option_of_what_if(tmp_path, capsys):
    path = written(gathering(), tmp_path / "s.pickle")
    assert main(["what-if", str(path), "--one-stream"]) == 0
    assert f"best, reserves 72.00 MiB less than recorded: {ONE_STREAM}" in capsys.readouterr().out


def test_every_output_has_the_finding(tmp_path, capsys):
    path = written(setting_up(), tmp_path / "s.pickle")
    what = "The cache of stream 7 lies empty after its last use at train.py:12"
    assert main(["advise", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"  1. likely fault: {what}.\n" in text
    assert "saves      108.00 MiB of reserved memory: 236.00 MiB → 128.00 MiB" in text
    assert main(["advise", str(path), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["devices"][0]["findings"]
    assert (finding["kind"], finding["reserved_bytes"]) == ("idle-cache", 128 * MIB)
    analysis = snapconv.load(path).devices[0]
    assert any(
        f"{what} (saves about 110 MiB of reserved memory)" in sentence
        for sentence in find_verdict(analysis).also
    )
    (advice,) = view_device(analysis).facts["advice"]
    assert (advice["what"], advice["bytes"]) == (f"likely fault: {what}.", 108 * MIB)


def test_one_stream_sets_no_variable_and_warns_of_none(capsys):
    path = Path(__file__).parents[3] / "fixtures" / "torch_npu.pickle"
    assert main(["what-if", str(path), "--one-stream"]) == 0
    assert "before you set" not in capsys.readouterr().out
