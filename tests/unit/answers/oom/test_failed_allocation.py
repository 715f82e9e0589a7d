"""Why a request failed: each cause made with the allocator's model, and remedies against the model itself."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.answers.advice.findings import goal_of
from snapconv.answers.oom.remedies import Remedies
from snapconv.answers.oom.rest_of_step import RestOfStep
from snapconv.cli.app import main
from snapconv.hypotheses.changes import removed
from snapconv.writers.text.oom import oom_lines
from tests.builders import MIB, TraceBuilder, frame
from tests.metadata_builder import metadata

FIXTURES = Path(__file__).parents[4] / "fixtures"
MODEL = [
    frame("forward", "/home/me/project/model.py", 5),
    frame("main", "/home/me/project/train.py", 9),
]
OTHER = [frame("load", "/home/me/project/data.py", 3)]
STEP = frame("step", "/site-packages/torch/optim/sgd.py", 1)
CALL = frame("_call_impl", "/site-packages/torch/nn/modules/module.py", 1)


class Job:
    """Calls to an allocator, kept so that they can be made again under other settings."""

    def __init__(self, capacity, conf=""):
        self.capacity = capacity
        self.calls = []
        self.model = self._new(conf)
        self.addrs = {}

    def _new(self, conf):
        return RecordedAllocator(settings=AllocatorSettings.from_conf(conf), capacity=self.capacity)

    def alloc(self, name, size, *, stream=0, pool=(0, 0), frames=OTHER):
        self.calls.append((name, size, stream, pool))
        self.addrs[name] = self.model.malloc(size, stream=stream, pool=pool, frames=frames)

    def free(self, *names):
        for name in names:
            self.calls.append((name, None, 0, (0, 0)))
            self.model.free(self.addrs.pop(name), frames=OTHER)

    def fail(self, size, *, stream=0, pool=(0, 0)):
        with pytest.raises(ModelOutOfMemory):
            self.alloc("failed", size, stream=stream, pool=pool, frames=MODEL)

    def is_served_under(self, conf):
        """Whether 99 % of the memory serve all calls under other settings: the model itself, no file."""
        settings = AllocatorSettings.from_conf(conf)
        model = RecordedAllocator(settings=settings, capacity=int(self.capacity * 0.99))
        addrs = {}
        try:
            for name, size, stream, pool in self.calls:
                if size is None:
                    model.free(addrs.pop(name))
                else:
                    addrs[name] = model.malloc(size, stream=stream, pool=pool)
        except ModelOutOfMemory:
            return False
        return True

    def explained(self, tmp_path, **options):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(options.pop("raw", None) or self.model.snapshot()))
        return snapconv.load(path).explain_oom(**options)


def full():
    job = Job(100 * MIB)
    job.alloc("a", 60 * MIB)
    job.alloc("b", 36 * MIB, frames=MODEL)
    job.fail(30 * MIB)
    return job


def fragmented():
    """60 MiB cut into three blocks, and the middle one kept: 40 MiB free, not in one piece."""
    job = Job(100 * MIB)
    job.alloc("whole", 60 * MIB)
    job.free("whole")
    for i in range(3):
        job.alloc(f"part {i}", 20 * MIB)
    job.free("part 0", "part 2")
    job.alloc("rest", 36 * MIB)
    job.fail(25 * MIB)
    return job


def of_another_stream():
    job = Job(100 * MIB)
    job.alloc("whole", 80 * MIB, stream=1)
    job.free("whole")
    job.alloc("small", 5 * MIB, stream=1)
    job.fail(30 * MIB)
    return job


def of_a_private_pool():
    job = Job(100 * MIB)
    job.alloc("graph", 90 * MIB, pool=(0, 1))
    job.free("graph")
    job.fail(30 * MIB)
    return job


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (full, "full"),
        (fragmented, "fragmented"),
        (of_another_stream, "wrong pool or stream"),
        (of_a_private_pool, "wrong pool or stream"),
    ],
)
def test_the_cause_is_the_one_that_was_made(tmp_path, make, cause):
    found, _ = make().explained(tmp_path, replay=False)
    assert (found.verdict.cause, found.verdict.is_inferred) == (cause, False)


def test_a_request_is_shown_with_its_line_its_segment_and_its_stream(tmp_path):
    found, _ = of_another_stream().explained(tmp_path, replay=False)
    request = found.request
    assert (request.block_bytes, request.segment_bytes, request.stream) == (30 * MIB, 30 * MIB, 0)
    assert [line.place for line in request.lines] == ["model.py:5", "train.py:9"]
    assert request.pool == (0, 0)


def test_the_block_of_a_request_and_the_segment_that_it_needs_are_two_figures(tmp_path):
    """Between 1 and 10 MiB a segment has 20 MiB (kMinLargeAlloc, kLargeBuffer); only 14 are free."""
    job = Job(98 * MIB)
    job.alloc("a", 84 * MIB)
    job.fail(4_100_000)
    found, _ = job.explained(tmp_path, replay=False)
    assert (found.request.block_bytes, found.request.segment_bytes) == (
        -(-4_100_000 // 512) * 512,
        20 * MIB,
    )
    assert found.state.memory.free_bytes == 14 * MIB


def test_oom_replays_what_advise_finds():
    session = snapconv.load(FIXTURES / "out_of_memory.pickle")
    _, remedies = session.explain_oom()
    goal = goal_of(session.devices[0], capacity=None, save=None)
    (advice,) = session.advise(goal_bytes=goal)
    names = [remedy.name for remedy in remedies.tried if not remedy.is_setting]
    assert names == ["batch or sequence × 0.8"]
    assert [found.what for found in advice.findings] == [
        ("Make the batch or the sequence smaller: × 0.8.")
    ]


def test_free_memory_of_the_device_that_was_refused_names_no_cause_but_a_limit_of_the_settings(
    tmp_path,
):
    job = full()
    raw = job.model.snapshot()
    raw["device_traces"][0][-1]["device_free"] = 50 * MIB
    found, _ = job.explained(tmp_path, raw=raw, replay=False)
    assert (found.verdict.cause, found.verdict.is_inferred) == ("not known", False)
    raw["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
    found, _ = job.explained(tmp_path, raw=raw, replay=False)
    assert (found.verdict.cause, found.verdict.is_inferred) == ("limited", False)


@pytest.mark.parametrize(
    ("total", "cause", "outside"),
    [
        (None, "full", None),
        (100 * MIB, "full", 0),
        (200 * MIB, "full", 100 * MIB),
        (2 << 30, "held outside torch", 1948 * MIB),  # more than half of a small device
        (4 << 30, "held outside torch", 3996 * MIB),
    ],
)
def test_what_is_not_torchs_is_a_figure_of_its_own(tmp_path, total, cause, outside):
    found, _ = full().explained(tmp_path, replay=False, device_total=total)
    assert (found.verdict.cause, found.state.memory.outside_bytes) == (cause, outside)


def test_holders_are_those_of_the_moment(tmp_path):
    found, _ = full().explained(tmp_path, replay=False)
    assert [(row.line.place, row.block_bytes) for row in found.state.lines] == [
        ("data.py:3", 60 * MIB),
        ("model.py:5", 36 * MIB),
    ]


def test_of_several_failed_allocations_the_first_is_explained(tmp_path):
    job = full()
    job.fail(50 * MIB)
    found, _ = job.explained(tmp_path, replay=False)
    assert (found.n_failed, found.request.block_bytes) == (2, 30 * MIB)


def test_a_file_without_a_failed_allocation_is_explained_at_its_dump(tmp_path):
    raw = TraceBuilder().segment(20 * MIB).alloc(MIB).snapshot()
    for traces, event in ((raw["device_traces"], 1), ([[]], None)):
        found, remedies = Job(None).explained(tmp_path, raw=raw | {"device_traces": traces})
        assert (found.request, found.verdict, remedies) == (None, None, None)
        assert (found.state.event, found.inside.n_bytes) == (event, 19 * MIB)


SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)


@pytest.mark.parametrize("make", [full, fragmented, of_another_stream])
def test_a_setting_serves_a_request_where_the_allocator_itself_does(tmp_path, make):
    job = make()
    _, remedies = job.explained(tmp_path)
    tried = {remedy.name: remedy.is_served for remedy in remedies.tried}
    assert {name: tried[name] for name in SETTINGS} == {
        name: job.is_served_under(name) for name in SETTINGS
    }
    # a snapshot's event
    assert remedies.n_events == len(job.model.snapshot()["device_traces"][0]) - 1


def test_settings_are_tried_with_all_that_a_memory_fraction_left(tmp_path):
    """What torch had is below the fraction: it is not taken from it once more."""
    job = fragmented()
    raw = job.model.snapshot()
    raw["device_traces"][0][-1]["device_free"] = 100 * MIB
    raw["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
    found, remedies = job.explained(tmp_path, raw=raw)
    assert found.verdict.cause == "limited"
    assert {remedy.name: remedy.is_served for remedy in remedies.tried}["max_split_size_mb:32"]


def test_a_previous_output_freed_before_the_next_call_is_tried(tmp_path):
    """The next output of 45 MiB does not fit beside the previous one of 30 MiB; alone it does."""
    job, call = Job(100 * MIB), [CALL, *MODEL]
    job.alloc("other", 32 * MIB)
    job.alloc("out 0", 30 * MIB, frames=call)
    job.alloc("loss 0", MIB)
    job.alloc("out 1", 30 * MIB, frames=call)
    job.model.free(job.addrs.pop("out 0"), frames=MODEL[1:])
    job.alloc("loss 1", MIB)
    with pytest.raises(ModelOutOfMemory):
        job.model.malloc(45 * MIB, frames=call)
    _, remedies = job.explained(tmp_path)
    served = [remedy.name for remedy in remedies.tried if remedy.is_served]
    assert served[0] == "The old output is still alive while train.py:9 makes the next one"


def test_where_free_memory_is_in_pieces_the_largest_batch_that_fits_is_named(tmp_path):
    """What the trace frees is taken to grow with the batch: only at 0.3 a free block is large enough."""
    _, remedies = fragmented().explained(tmp_path)
    assert [(one.name, one.is_served) for one in remedies.tried if not one.is_setting] == [
        ("batch or sequence × 0.3", True)
    ]


def test_changes_of_which_none_is_enough_are_tried_together(tmp_path, monkeypatch):
    """10 MiB are free, 50 without one of two blocks, 90 without both; 80 are requested."""
    job = Job(100 * MIB)
    for name, size in (("other", 10), ("a", 40), ("b", 40)):
        job.alloc(name, size * MIB)
    job.fail(80 * MIB)

    def two_findings(analysis, **_):
        changes = [removed(analysis, np.array([row])) for row in (1, 2)]
        common = {"kind": "fault", "estimated": "", "how": ("del it",)}
        return SimpleNamespace(
            findings=[
                SimpleNamespace(what=f"change {i}.", change=one, **common)
                for i, one in enumerate(changes)
            ]
        )

    monkeypatch.setattr("snapconv.answers.oom.remedies.advise", two_findings)
    _, remedies = job.explained(tmp_path)
    assert [(one.name, one.is_served) for one in remedies.tried][:3] == [
        ("change 0", False),
        ("change 1", False),
        ("all 2 changes of the program together", True),
    ]


def test_where_the_own_settings_do_not_fail_nothing_is_claimed(tmp_path):
    job = full()
    raw = job.model.snapshot()
    # A free that the trace never had: under its own settings the request is now served.
    before = raw["device_traces"][0][-1]["time_us"]
    addr = raw["segments"][0]["blocks"][0]["address"]
    free = {"addr": addr, "size": 60 * MIB, "stream": 0, "frames": [], "time_us": before}
    events = [{**free, "action": action} for action in ("free_requested", "free_completed")]
    raw["device_traces"][0][-1:-1] = events
    raw["segments"][0]["blocks"][0]["state"] = "inactive"
    _, remedies = job.explained(tmp_path, raw=raw)
    assert remedies.tried == ()
    assert "a replay of the file as it is serves this request" in remedies.why_none


def test_where_an_event_names_no_pool_another_pool_is_an_inference(tmp_path):
    job = of_a_private_pool()
    raw = job.model.snapshot()
    raw["segments"].append(TraceBuilder().segment(2 * MIB, traced=False).raw_segments()[0])
    for event in raw["device_traces"][0]:
        del event["pool_id"]
    found, _ = job.explained(tmp_path, raw=raw, replay=False)
    assert (found.request.pool, found.verdict.cause) == (None, "wrong pool or stream")
    assert found.verdict.is_inferred


def test_of_several_devices_those_that_failed_are_explained(tmp_path, capsys):
    fine = TraceBuilder(0).segment(20 * MIB).alloc(MIB)
    failed = TraceBuilder(1).segment(20 * MIB).alloc(MIB).oom(30 * MIB)
    path = tmp_path / "snapshot.pickle"
    for raw, expected in ((fine.snapshot(failed), [1]), (fine.snapshot(), [0])):
        path.write_bytes(pickle.dumps(raw))
        assert main(["oom", str(path), "--json"]) == 0
        devices = json.loads(capsys.readouterr().out)["devices"]
        assert [one["device"] for one in devices] == expected


def test_what_keeps_the_free_memory_of_a_private_pool_is_named(tmp_path):
    job = TraceBuilder().segment(20 * MIB, traced=False, segment_pool_id=(1, 0))
    job.alloc(2 * MIB, traced=False).oom(10 * MIB, 4 * MIB)
    verdict = snapconv.load(job.write(tmp_path / "x.pickle")).explain_oom(replay=False)[0].verdict
    stuck = "18.00 MiB is stuck in the private pool (1, 0), kept by 2.00 MiB from train.py:7: "
    assert verdict.reason.startswith(stuck)


def test_buffers_count_in_what_is_moved_and_a_step_of_adam_is_for_what_is_trained(tmp_path):
    job = (
        TraceBuilder().segment(20 * MIB, traced=False).alloc(20 * MIB, traced=False).oom(4 * MIB, 0)
    )
    found, _ = snapconv.load(job.write(tmp_path / "x.pickle")).explain_oom(replay=False)
    remedies = Remedies(n_events=1, tried=(), is_setup=True, model_bytes=24 * MIB)
    text = " ".join(" ".join(oom_lines(found, remedies, file="x")).split())
    assert (
        "weights and buffers take 24.00 MiB in all; if all are trained, a step of Adam needs"
    ) in text
    assert "120.00 MiB for weights, gradients, states and temporaries, plus activations" in text


MOVED = [frame("_apply", "/site-packages/torch/nn/modules/module.py", 9), *OTHER]
ADAM = [frame("step", "/site-packages/torch/optim/adam.py", 1), *OTHER]


@pytest.mark.parametrize(("frames", "is_setup"), [(MOVED, True), (ADAM, False)])
def test_no_smaller_batch_is_named_where_the_request_does_not_grow_with_it(
    tmp_path, capsys, frames, is_setup
):
    """Weights that are moved and states of an optimizer have the same size whatever the batch."""
    job = Job(100 * MIB)
    for i in range(3):
        job.alloc(f"weight {i}", 30 * MIB, frames=MOVED)
    with pytest.raises(ModelOutOfMemory):
        job.alloc("more", 30 * MIB, frames=frames)
    _, remedies = job.explained(tmp_path)
    (batch,) = (one for one in remedies.tried if not one.is_setting)
    assert (batch.name, batch.is_enough) == ("batch or sequence × 0.25", False)
    assert remedies.least_bytes == 120 * MIB - int(0.99 * 100 * MIB)
    assert remedies.is_setup is is_setup
    (advice,) = snapconv.load(tmp_path / "snapshot.pickle").advise(goal_bytes=50 * MIB)
    assert "batch" not in [one.kind for one in advice.findings]
    assert main(["oom", str(tmp_path / "snapshot.pickle")]) == 0
    said = (
        "a smaller batch does not help while the model is put on the device"
    ) in capsys.readouterr().out
    assert said is is_setup
    assert main(["oom", str(tmp_path / "snapshot.pickle"), "--json"]) == 0
    (values,) = json.loads(capsys.readouterr().out)["devices"]
    assert [one["is_enough"] for one in values["remedies"]["tried"] if not one["is_setting"]] == [
        False
    ]


@pytest.mark.parametrize(("on_cpu", "model"), [(60 * MIB, 150 * MIB), (0, 0)])
def test_a_model_that_is_built_on_the_device_has_no_size_yet(tmp_path, on_cpu, model):
    """What is still to be built, or is on the meta device, is in no file."""
    job = Job(100 * MIB)
    for i in range(3):
        job.alloc(f"weight {i}", 30 * MIB, frames=MOVED)
    with pytest.raises(ModelOutOfMemory):
        job.alloc("more", 30 * MIB, frames=MOVED)
    raw = job.model.snapshot() | {"snapconv": metadata(parameters_on_cpu_bytes=on_cpu)}
    _, remedies = job.explained(tmp_path, raw=raw)
    assert (remedies.is_setup, remedies.model_bytes) == (True, model)


BACKWARD = [frame("backward", "/site-packages/torch/autograd/__init__.py", 388), *OTHER]


@pytest.mark.parametrize(
    ("stack", "is_known", "is_assumed"),
    [
        (ADAM, True, False),
        (BACKWARD, True, True),
        # Its history may have hundreds of copies of all weights.
        ([frame("step", "/site-packages/torch/optim/lbfgs.py", 1), *OTHER], False, False),
    ],
    ids=["Adam", "not seen", "LBFGS"],
)
def test_what_an_optimizer_of_no_table_needs_is_not_known(tmp_path, stack, is_known, is_assumed):
    job = Job(100 * MIB)
    for i in range(3):
        job.alloc(f"weight {i}", 30 * MIB, frames=MOVED)
    job.alloc("small", 512, frames=stack)
    with pytest.raises(ModelOutOfMemory):
        job.alloc("more", 30 * MIB, frames=stack)
    found, remedies = job.explained(tmp_path)
    assert (remedies.card_bytes is not None, remedies.is_optimizer_assumed) == (
        is_known,
        is_assumed,
    )
    text = "\n".join(oom_lines(found, remedies, file="x"))
    assert ("    yes  a card with " in text) is is_known
    assert ("assumed: for each weight the optimizer keeps three states and" in text) is is_assumed


@pytest.mark.parametrize(("most", "is_enough"), [(50, True), (89, True), (91, None)])
def test_a_remedy_is_enough_only_where_the_rest_of_the_step_fits_too(
    tmp_path, monkeypatch, most, is_enough
):
    """Cut blocks and segments take a tenth more at least: 90 MiB need 99 of 100 MiB."""
    monkeypatch.setattr(RestOfStep, "_find_earlier", lambda _: 0)  # the rest is known
    monkeypatch.setattr(RestOfStep, "most_bytes", lambda *_: most * MIB)
    job = Job(100 * MIB)
    job.alloc("kept", 60 * MIB, frames=MODEL)
    job.free("kept")
    for name in ("a", "b", "c"):
        job.alloc(name, 29 * MIB, frames=MODEL)
    job.fail(29 * MIB)
    _, remedies = job.explained(tmp_path)
    served = [one for one in remedies.tried if one.is_served]
    assert served
    assert {one.is_enough for one in served} == {is_enough}
    rests = {True: "the whole step needs at most", None: "the whole step may need"}
    assert all(one.detail.startswith(rests[is_enough]) for one in served)


def test_a_model_that_moves_between_its_calls_is_no_setup(tmp_path):
    job = Job(100 * MIB)
    job.alloc("weight", 60 * MIB, frames=MOVED)
    job.alloc("output", 20 * MIB, frames=[MODEL[0], CALL, MODEL[1]])
    with pytest.raises(ModelOutOfMemory):
        job.alloc("more", 30 * MIB, frames=MOVED)
    _, remedies = job.explained(tmp_path)
    assert not remedies.is_setup


@pytest.mark.parametrize(("freed", "is_enough"), [(28, False), (29, None)])
def test_what_leaves_less_than_a_hundredth_free_is_no_remedy(tmp_path, freed, is_enough):
    """Without the copy of the weights 100 of 100 MiB are reserved, or 98; what follows is not known."""
    job = Job(100 * MIB)
    job.alloc("kept", (98 - freed) * MIB + (2 * MIB if freed == 28 else 0))
    job.alloc("freed", freed * MIB, frames=MODEL)
    job.free("freed")
    job.alloc("freed", freed * MIB, frames=MODEL)
    job.fail(freed * MIB)
    _, remedies = job.explained(tmp_path)
    served = [one for one in remedies.tried if one.is_served]
    assert all(one.is_enough is is_enough or one.kind == "batch" for one in served)
    assert not any(one.is_enough for one in remedies.tried)
