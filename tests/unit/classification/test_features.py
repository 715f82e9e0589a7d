"""What the rules see of allocations."""

import numpy as np
import pytest

from snapconv.phases.trace_phases import Phase
from tests.classified_jobs import (
    APPLY,
    COPY,
    CRITERION,
    ENGINE,
    FORWARD,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    RELEASE,
    STEP,
    Job,
    features_of,
)


class Step:
    """A step of training with one allocation of each kind, and its features by their names."""

    def __init__(self, path):
        self.names, job = [], Job()

        def make(name, stack, alloc=job.alloc):
            self.names.append(name)
            return alloc(stack, 1000 + len(self.names))

        for name, stack in {
            "unnamed": NO_FRAMES, "data": LOAD, "result": FORWARD, "loss": CRITERION,
        }.items():  # fmt: skip
            make(f"old {name}", stack, job.older)
        make("weight", APPLY)
        batch = make("batch", COPY)
        hidden, scratch = make("hidden", FORWARD), make("scratch", FORWARD)
        job.free(scratch, FORWARD)
        sliced, output, loss = make("slice", LOAD), make("output", FORWARD), make("loss", LOSS)
        make("gradient", ENGINE)
        for addr in (hidden, sliced, output):
            job.free(addr, RELEASE)
        job.free(loss, ENGINE)
        make("state", STEP)
        job.free(batch, MAIN)
        job.does(FORWARD)
        self.features = features_of(job, path)

    def where(self, column):
        """The names of those that have it."""
        has = getattr(self.features, column)
        return {name for name in self.names if has[self.row(name)]}

    def row(self, name):
        (row,) = np.flatnonzero(self.features.sizes == 1001 + self.names.index(name))
        return row

    def values(self, column, *names):
        return [getattr(self.features, column)[self.row(name)] for name in names]


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    return Step(tmp_path_factory.mktemp("step") / "snapshot.pickle")


OLD = {"old unnamed", "old data", "old result", "old loss"}
BEFORE = OLD | {"weight", "batch"}
KEPT = OLD | {"weight", "gradient", "state"}
SAVED = {"hidden", "slice", "output"}


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("is_live_at_dump", KEPT),
        ("is_freed", {"batch", "scratch", "loss"} | SAVED),
        ("by_engine", {"gradient"}),
        ("is_freed_by_engine", {"loss"} | SAVED),
        ("in_forward", {"hidden", "scratch", "output", "loss"}),
        ("by_module", {"hidden", "scratch", "output"}),
        ("is_freed_in_own_forward", {"scratch"}),
        ("outside", {"weight", "batch", "slice"}),
        ("mid_forward", {"slice"}),
        ("feeds_module", BEFORE | {"hidden", "scratch", "slice", "state"}),
        ("is_copied_or_filled", {"batch"}),
        ("may_be_input", {"batch", "slice"}),
        ("has_no_frames", {"old unnamed"}),
        ("unrecorded", {"old unnamed"}),
        ("preexisting_in_forward", {"old result", "old loss"}),
        ("preexisting_outside", {"old data"}),
    ],
)
def test_every_feature_is_that_of_some_parts_of_a_step(column, names, step):
    assert step.where(column) == names
    assert step.where("is_traced") == set(step.names) - OLD
    assert step.where("has_stack") == set(step.names)


def test_without_stacks_of_frees_a_run_may_last_until_the_next_begins(tmp_path):
    job = Job()
    freed = job.alloc(FORWARD)
    job.alloc(FORWARD)
    job.older(MAIN)
    job.free(freed)
    (other, next_one), last = (job.alloc(MAIN), job.alloc(ENGINE)), job.alloc(ENGINE)
    assert other != next_one != last
    features = features_of(job, tmp_path / "a.pickle")
    first_of_backward = int(features.alloc[-2])
    assert features.alloc_run_end[:3].tolist() == [-1, *[int(features.alloc[2])] * 2]
    assert features.alloc_run_last[:3].tolist() == [-1, *[first_of_backward - 1] * 2]


def test_an_allocation_has_the_phases_of_its_beginning_and_end(step):
    names = ("batch", "hidden", "scratch", "gradient", "state", "old data")
    none, forward, backward, optimizer = (
        Phase.UNKNOWN,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    )
    assert step.values("alloc_phase", *names) == [none, forward, forward, backward, optimizer, none]
    assert step.values("end_phase", *names) == [none, backward, forward, none, none, none]
    assert step.values("iteration", *names) == [0, 0, 0, 0, 0, -1]


def test_the_next_phases_begin_with_the_first_event_that_shows_them(step):
    begins_forward, begins_backward = step.values("alloc", "hidden", "gradient")
    assert step.values("next_forward", "old data", "weight", "batch") == [begins_forward] * 3
    assert (
        step.values("next_backward", "old data", "batch", "hidden", "loss") == [begins_backward] * 4
    )
    assert step.values("next_backward", "state") == [step.features.n_events]


def test_a_run_ends_with_the_last_event_that_shows_its_phase(step):
    (last_of_forward,) = step.values("alloc", "loss")
    assert step.values("alloc_run_end", "hidden", "output") == [last_of_forward] * 2
    assert step.values("alloc_run_last", "hidden", "output") == [last_of_forward] * 2
    assert step.values("alloc_run_end", "old data") == [-1]


@pytest.mark.parametrize(
    ("placed_by", "n_bytes", "shown_by", "is_unrecorded"),
    [
        pytest.param(APPLY, 4096, MAIN, False, id="as large as a model that was placed"),
        pytest.param(APPLY, 4608, MAIN, True, id="larger"),
        pytest.param(LOAD, 4096, MAIN, True, id="nothing was placed"),
        pytest.param(APPLY, 4096, ENGINE, True, id="the engine has frames of its own"),
    ],
)
def test_beside_a_recorded_model_the_engine_made_what_has_no_frame(
    placed_by, n_bytes, shown_by, is_unrecorded, tmp_path
):
    job = Job()
    job.older(placed_by, 4096)
    job.older(NO_FRAMES, n_bytes)
    job.does(shown_by)
    assert features_of(job, tmp_path / "a.pickle").unrecorded.any() == is_unrecorded


@pytest.mark.parametrize(("placed_bytes", "is_unrecorded"), [(512, True), (2048, False)])
def test_what_has_no_frame_is_of_the_engine_where_the_model_was_placed_and_not_a_metric(
    placed_bytes, is_unrecorded, tmp_path
):
    job = Job()
    job.older(APPLY, placed_bytes)
    job.older(MAIN, 8192)
    job.older(NO_FRAMES, 4096)
    job.does(MAIN)
    assert features_of(job, tmp_path / "a.pickle").unrecorded.any() == is_unrecorded


def test_what_the_first_event_frees_is_not_live_at_the_dump(tmp_path, monkeypatch):
    """By one event for both halves, as torch's own allocator for other devices writes them."""
    job = Job()
    job.free(job.older(MAIN), MAIN)
    job.does(FORWARD)
    raw = job.snapshot()
    trace = raw["device_traces"][0]
    trace[:2] = [{**trace[0], "action": "free"}]
    monkeypatch.setattr(job, "snapshot", lambda: raw)
    features = features_of(job, tmp_path / "a.pickle")
    assert (features.end[0], features.is_freed[0], features.is_live_at_dump[0]) == (0, True, False)


def test_a_phase_may_begin_with_the_first_event(tmp_path):
    job = Job()
    job.older(MAIN)
    job.alloc(ENGINE)
    features = features_of(job, tmp_path / "a.pickle")
    assert (features.next_backward[0], features.next_forward[0]) == (0, features.n_events)
