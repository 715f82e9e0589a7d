"""What the rules see of allocations."""

import numpy as np
import pytest

from snapconv.classification.features import at, first_before, last_before, next_of, of_fullest
from snapconv.phases.trace_phases import Phase
from tests.classified_jobs import (
    APPLY,
    BUILD_OPTIMIZER,
    COPY,
    CRITERION,
    ENGINE,
    FORWARD,
    HOOK,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    RECOMPUTED,
    RELEASE,
    STEP,
    ZERO_GRAD,
    ZEROS,
    Job,
    features_of,
)


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ITERATION = np.array([0, 0, 1, 1, 2, 2, -1], np.int32)


def test_the_rows_of_the_fullest_iteration_are_those_with_most_bytes_not_most_rows():
    sizes = int64(10, 10, 50, 10, 20, 20, 0)
    assert of_fullest(np.arange(7), ITERATION, sizes).tolist() == [2, 3]


def test_of_equals_the_last_iteration_counts():
    sizes = int64(30, 30, 50, 10, 20, 40, 0)
    assert of_fullest(np.arange(7), ITERATION, sizes).tolist() == [4, 5]


def test_only_the_given_rows_count():
    sizes = int64(10, 10, 50, 10, 20, 20, 0)
    assert of_fullest(int64(0, 1, 3), ITERATION, sizes).tolist() == [0, 1]


def test_before_the_trace_is_an_iteration_too():
    assert of_fullest(int64(0, 6), ITERATION, int64(1, 0, 0, 0, 0, 0, 9)).tolist() == [6]


def test_no_rows_have_no_iteration():
    assert of_fullest(int64(), ITERATION, int64(*[1] * 7)).tolist() == []


def test_an_event_before_or_beyond_a_column_has_the_missing_value():
    assert at(int64(5, 6), int64(-2, -1, 0, 1, 2), 9).tolist() == [9, 9, 5, 6, 9]
    assert at(int64(), int64(-1, 0), 9).tolist() == [9, 9]


def test_the_next_of_some_events_is_later_than_the_given_one():
    assert next_of(int64(4, 2), int64(1, 2, 3, 4), 8).tolist() == [2, 4, 4, 8]


def test_the_last_of_some_events_before_another_is_earlier_than_that():
    assert last_before(int64(2, 4), int64(2, 3, 4, 5)).tolist() == [-1, 2, 2, 4]


def test_the_first_of_some_rows_counts_for_all_that_are_followed_by_the_same_event():
    """Rows 1 and 2 are given, and event 6 follows them; event 9 follows the last row, which is not given."""
    following, alloc = int64(6, 6, 6, 9), int64(1, 2, 3, 7)
    assert first_before(following, alloc, int64(2, 1), 9).tolist() == [2, 2, 2, 9]


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
        ("from_nothing", {"batch"}),
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


class RareStep(Step):
    """A step with what is rarer: closures of backward in forward and the reverse, hooks, other iterations."""

    def __init__(self, path):
        self.names, job = [], Job()

        def make(name, stack, alloc=job.alloc):
            self.names.append(name)
            return alloc(stack, 1000 + len(self.names))

        for name, stack in {
            "old gradient": ENGINE, "old again": RECOMPUTED, "old weight": APPLY, "old state": STEP,
            "old sum": BUILD_OPTIMIZER, "old stackless": None,
        }.items():  # fmt: skip
            make(name, stack, job.older)
        job.free(make("first", MAIN, job.older), MAIN)
        zeros, given, kept = make("zeros", ZEROS), make("given", LOAD), make("kept", LOAD)
        passed, criterion = make("passed", FORWARD), make("criterion", CRITERION)
        job.free(given, FORWARD)
        again, of_hook, to_hook = make("again", RECOMPUTED), make("of hook", HOOK), make("to hook", ENGINE)
        job.free(again, ENGINE)
        job.free(of_hook, ENGINE)
        job.model.free(to_hook, frames=HOOK)
        job.free(criterion, ENGINE)
        cleared = make("cleared", ENGINE)
        job.does(STEP)
        job.free(kept, STEP)
        job.free(cleared, ZERO_GRAD)
        make("in zero_grad", ZERO_GRAD)
        job.does(FORWARD)
        job.free(passed, FORWARD)
        job.does(ENGINE)
        job.free(zeros, MAIN)
        self.features = features_of(job, path)


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    return RareStep(tmp_path_factory.mktemp("rare") / "snapshot.pickle")


RARE_KEPT = {"old gradient", "old again", "old weight", "old state", "old sum", "old stackless"}
IN_BACKWARD = {"again", "of hook", "to hook", "cleared"}
OUTSIDE = {"zeros", "given", "kept", "in zero_grad"}


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("is_traced", IN_BACKWARD | OUTSIDE | {"passed", "criterion"}),
        ("is_live_at_dump", RARE_KEPT | {"in zero_grad"}),
        ("lasts_throughout", RARE_KEPT),
        ("is_freed", IN_BACKWARD | {"first", "zeros", "given", "kept", "passed", "criterion"}),
        ("by_engine", IN_BACKWARD),
        ("is_freed_by_engine", {"again", "of hook", "to hook", "criterion"}),  # not by a step or zero_grad
        ("in_forward", {"passed", "criterion"}),
        ("by_module", {"passed"}),
        ("is_freed_in_own_forward", set()),  # one in a later one, and one that forward had not made
        ("outside", OUTSIDE),
        ("mid_forward", set()),
        ("from_nothing", {"zeros"}),
        ("may_be_input", OUTSIDE),
        ("has_no_frames", {"first", "old stackless"}),
        ("unrecorded", {"old stackless"}),
        ("preexisting_in_forward", set()),  # modules ran again for the engine
        ("preexisting_outside", set()),
    ],
)
def test_every_feature_is_that_of_some_rarer_parts_of_a_step(column, names, rare):
    assert rare.where(column) == names


def test_what_never_ends_ends_with_the_number_of_events_and_the_first_event_is_an_end(rare):
    assert rare.values("end", "old weight", "in zero_grad") == [rare.features.n_events] * 2
    assert rare.values("end", "first") == [0]


def test_what_is_preexisting_is_of_no_run_and_no_iteration(rare):
    for column in ("alloc", "alloc_run_end", "alloc_run_last", "iteration"):
        assert rare.values(column, "old weight", "old gradient", "first") == [-1] * 3


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
    none, forward, backward, optimizer = Phase.UNKNOWN, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
    assert step.values("alloc_phase", *names) == [none, forward, forward, backward, optimizer, none]
    assert step.values("end_phase", *names) == [none, backward, forward, none, none, none]
    assert step.values("iteration", *names) == [0, 0, 0, 0, 0, -1]


def test_the_next_phases_begin_with_the_first_event_that_shows_them(step):
    begins_forward, begins_backward = step.values("alloc", "hidden", "gradient")
    assert step.values("next_forward", "old data", "weight", "batch") == [begins_forward] * 3
    assert step.values("next_backward", "old data", "batch", "hidden", "loss") == [begins_backward] * 4
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


def test_a_line_is_the_innermost_frame_of_python_if_there_is_one(rare):
    lines, names = (
        rare.features.lines_of(rare.features.allocations.stack_id),
        rare.features.roles.stacks.frames.names,
    )
    assert [lines[rare.row(name)] for name in ("old stackless", "old gradient", "cleared")] == [-1] * 3
    assert names[lines[rare.row("zeros")]] == "main"  # below a frame of C++
    assert names[lines[rare.row("given")]] == "load_batch"
