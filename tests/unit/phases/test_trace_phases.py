"""Phases and iterations of small jobs, which run on the model of the allocator. Events count from 0."""

import pickle
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.phases.trace_phases import Phase, annotated, find_phases
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.stack_roles import assign_roles

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
# What an event shows: nothing, forward, backward, a step, or something between the phases.
U, F, B, S, X = Phase.UNKNOWN, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER


def frames(*stack):
    return [{"name": name, "filename": file, "line": 1} for name, file in stack]


MAIN = frames(("main", "/w/proj/train.py"))
LOAD = frames(("load_batch", "/w/proj/data.py")) + MAIN
FORWARD = (
    frames(("forward", "/w/proj/model.py"), ("_call_impl", f"{TORCH}/nn/modules/module.py")) + MAIN
)
LOSS = frames(("cross_entropy", f"{TORCH}/nn/functional.py")) + MAIN
ENGINE = frames(("torch::autograd::Engine::evaluate_function(int)", "??"))
STEP = frames(
    ("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py"), ("wrapper", f"{TORCH}/optim/optimizer.py")
)
HOOK_STEP = [*STEP, *frames(("hook", "/w/proj/train.py")), *ENGINE]
ZERO_GRAD = frames(("zero_grad", f"{TORCH}/optim/optimizer.py")) + MAIN
RECOMPUTE = frames(
    ("forward", "/w/proj/model.py"),
    ("recompute_fn", f"{TORCH}/utils/checkpoint.py"),
    ("unpack_hook", f"{TORCH}/utils/checkpoint.py"),
)
NO_FRAMES = []


class Job:
    """What a program did. A free without a stack has that of its alloc, as with context='alloc'."""

    def __init__(self):
        ticks = count(1000)
        self.now = lambda: next(ticks)
        self.model = RecordedAllocator(clock=self.now, record=False)
        self.model.free(
            self.model.malloc(512)
        )  # has got the segment, so that no event is about one
        self.model.start_recording()
        self.annotations = []

    def alloc(self, *stacks):
        """Allocate once per stack: one event each."""
        return [self.model.malloc(512, frames=stack) for stack in stacks]

    def free(self, addrs, stack=None):
        for addr in addrs:
            self.model.free(addr, frames=stack)

    def note(self, name, stage, device=0):
        self.annotations.append(
            {"name": name, "stage": stage, "device": device, "time_us": self.now()}
        )

    @contextmanager
    def within(self, name, device=0):
        self.note(name, "START", device)
        yield
        self.note(name, "END", device)

    def snapshot(self):
        return {**self.model.snapshot(), "external_annotations": self.annotations}


@pytest.fixture
def load(tmp_path):
    def load(job):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(job.snapshot() if isinstance(job, Job) else job))
        snapshot = load_snapshot(path)
        return snapshot, snapshot.devices[0]

    return load


@pytest.fixture
def phases_of(load):
    def phases_of(job):
        snapshot, device = load(job)
        return find_phases(
            snapshot, device, replay(snapshot, device).allocations, assign_roles(snapshot.stacks)
        )

    return phases_of


def inside(load, job, prefix="Optimizer.step#"):
    """The numbers of the events inside annotations that begin with the prefix."""
    snapshot, device = load(job)
    return annotated(snapshot, device, prefix).nonzero()[0].tolist()


# The stacks of allocations, and what each event shows.
SHOWN = {
    "by its stack": ([LOAD, FORWARD, LOSS, ENGINE, ZERO_GRAD, STEP], [U, F, F, B, X, S]),
    "an empty stack is the engine's if no stack has C++": ([FORWARD, NO_FRAMES], [F, B]),
    "it is no evidence where the engine has frames": ([FORWARD, NO_FRAMES, ENGINE], [F, U, B]),
    "nor where all stacks are empty": ([NO_FRAMES, NO_FRAMES], [U, U]),
}


@pytest.mark.parametrize(("stacks", "shown"), SHOWN.values(), ids=SHOWN)
def test_an_event_shows_its_phase(phases_of, stacks, shown):
    job = Job()
    job.alloc(*stacks)
    assert phases_of(job).certain.tolist() == shown


def test_events_that_show_nothing_continue_the_phase_before(phases_of):
    job = Job()
    job.alloc(LOAD, FORWARD, FORWARD, LOAD, ENGINE, LOAD, LOAD, FORWARD)
    found = phases_of(job)
    assert found.certain.tolist() == [U, F, F, U, B, U, U, F]
    assert found.phase.tolist() == [U, F, F, F, B, B, B, F]
    assert found.run_end.tolist() == [0, 2, 2, 2, 4, 4, 4, 7]
    assert found.run_last.tolist() == [0, 3, 3, 3, 6, 6, 6, 7]


# The stacks of allocations, and the iteration of each.
ITERATIONS = {
    "it ends with the optimizer": ([FORWARD, ENGINE, STEP, STEP] * 2, [*[0] * 4, *[1] * 4]),
    "with the step of another model too": ([FORWARD, ENGINE, STEP, ENGINE, STEP], [0, 0, 0, 1, 1]),
    "without an optimizer, with backward": (
        [FORWARD, ENGINE, ENGINE, FORWARD, ENGINE],
        [0, 0, 0, 1, 1],
    ),
    "it may have several backwards": ([*[FORWARD, ENGINE] * 3, STEP, FORWARD], [*[0] * 7, 1]),
    "what follows a step belongs to the next": (
        [FORWARD, ENGINE, STEP, ZERO_GRAD, LOAD, FORWARD, ENGINE, STEP],
        [0, 0, 0, 1, 1, 1, 1, 1],
    ),
    "but for the last step": ([FORWARD, ENGINE, STEP, ZERO_GRAD, LOAD], [0] * 5),
    "unless a forward follows": ([FORWARD, ENGINE, STEP, ZERO_GRAD, FORWARD], [0, 0, 0, 1, 1]),
    "without phases there is one": ([LOAD, MAIN, LOAD], [0, 0, 0]),
    "a checkpointed forward is in backward": (
        [FORWARD, NO_FRAMES, RECOMPUTE, NO_FRAMES, RECOMPUTE],
        [0] * 5,
    ),
}


@pytest.mark.parametrize(("stacks", "iterations"), ITERATIONS.values(), ids=ITERATIONS)
def test_an_event_is_in_an_iteration(phases_of, stacks, iterations):
    job = Job()
    job.alloc(*stacks)
    found = phases_of(job)
    assert found.iteration.tolist() == iterations
    assert found.n_iterations == iterations[-1] + 1


def test_frees_show_their_phase_where_they_have_stacks_of_their_own(phases_of):
    job = Job()
    job.free(job.alloc(FORWARD), ENGINE)
    found = phases_of(job)
    assert found.free_sites_known
    assert found.certain.tolist() == [F, B, B]


def test_frees_that_repeat_the_stack_of_their_alloc_show_nothing(phases_of):
    job = Job()
    job.free(job.alloc(FORWARD, ENGINE, STEP))
    found = phases_of(job)
    assert not found.free_sites_known
    assert found.certain.tolist() == [F, B, S, *[U] * 6]
    assert (found.run_end[2:] == 2).all()
    assert (found.run_last[2:] == 8).all()


def test_frees_of_preexisting_blocks_show_that_frees_have_stacks(phases_of):
    job = Job()
    job.free(job.alloc(None), ZERO_GRAD)
    snapshot = job.snapshot()
    snapshot["device_traces"] = [snapshot["device_traces"][0][1:]]
    found = phases_of(snapshot)
    assert found.free_sites_known
    assert found.certain.tolist() == [X, X]


def test_a_long_backward_with_python_only_stacks_leaves_the_sites_of_frees_known(phases_of):
    job = Job()
    job.free(job.alloc(FORWARD), NO_FRAMES)
    for _ in range(20):
        job.free(job.alloc(NO_FRAMES), NO_FRAMES)
    assert phases_of(job).free_sites_known


def test_frees_without_stacks_show_nothing(phases_of):
    job = Job()
    job.free(job.alloc(FORWARD, ENGINE))
    snapshot = job.snapshot()
    for entry in snapshot["device_traces"][0][2:]:
        del entry["frames"]
    found = phases_of(snapshot)
    assert not found.free_sites_known
    assert found.certain.tolist() == [F, B, U, U, U, U]


def test_an_annotated_step_is_the_optimizer_whatever_the_stacks_say(phases_of):
    job = Job()
    job.alloc(FORWARD)
    with job.within("Optimizer.step#AdamW.step"):
        job.alloc(LOAD, NO_FRAMES)
    job.alloc(LOAD)
    found = phases_of(job)
    assert found.certain.tolist() == [F, S, S, U]
    assert found.in_step.tolist() == [False, True, True, False]


def test_the_engine_in_a_step_that_the_trace_begins_in_is_the_backward_of_a_closure(phases_of):
    job = Job()
    job.alloc(ENGINE, LOAD)
    job.note("Optimizer.step#SGD.step", "END")
    job.alloc(LOAD)
    assert phases_of(job).certain.tolist() == [B, S, U]


def test_an_annotated_zero_grad_is_outside_of_the_phases(phases_of):
    job = Job()
    job.alloc(ENGINE)
    with job.within("Optimizer.zero_grad#SGD.zero_grad"):
        job.alloc(LOAD)
    found = phases_of(job)
    assert found.certain.tolist() == [B, X]
    assert found.in_zero_grad.tolist() == [False, True]


def test_an_annotated_zero_grad_of_a_closure_is_no_part_of_its_step(phases_of):
    job = Job()
    with job.within("Optimizer.step#LBFGS.step"):
        with job.within("Optimizer.zero_grad#LBFGS.zero_grad"):
            job.alloc(LOAD)
        job.alloc(LOAD)
    assert phases_of(job).certain.tolist() == [X, S]


def test_an_annotation_holds_events_of_its_first_and_last_microsecond(load):
    job = Job()
    job.alloc(MAIN, MAIN, MAIN, MAIN)
    times = [entry["time_us"] for entry in job.model.trace()]
    job.annotations = [
        {"name": "Optimizer.step#A", "stage": stage, "device": 0, "time_us": times[i]}
        for stage, i in (("START", 1), ("END", 2))
    ]
    assert inside(load, job) == [1, 2]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({1: ("Optimizer.step#A", "END", 0)}, [0]),
        ({1: ("Optimizer.step#A", "START", 0)}, [1, 2]),
        ({1: ("Optimizer.step#A", "START", 1), 2: ("Optimizer.step#A", "END", 1)}, [1]),
        ({1: ("Optimizer.step#A", "END", 1), 2: ("Optimizer.step#A", "START", 0)}, [2]),
        ({1: ("ProfilerStep#1", "START", 0), 2: ("Optimizer.step#A", "END", 1)}, [0, 1]),
        ({1: ("ProfilerStep#1", "START", 0)}, []),
    ],
    ids=[
        "end alone",
        "start alone",
        "another device's",
        "its own before others",
        "others",
        "another name",
    ],
)
def test_ranges_may_lack_an_end_and_those_of_other_devices_count_where_there_are_no_own(
    load, annotations, expected
):
    job = Job()
    for number in range(3):
        if number in annotations:
            job.note(*annotations[number])
        job.alloc(MAIN)
    assert inside(load, job) == expected


def test_nested_and_repeated_ranges_hold_what_is_in_any_of_them(load):
    job = Job()
    with job.within("Optimizer.step#A"):
        job.alloc(MAIN)
        with job.within("Optimizer.step#A"):
            job.alloc(MAIN)
        job.alloc(MAIN)
    job.alloc(MAIN)
    with job.within("Optimizer.step#B"):
        job.alloc(MAIN)
    assert inside(load, job) == [0, 1, 2, 4]


def test_without_times_there_are_no_annotated_ranges(load):
    job = Job()
    with job.within("Optimizer.step#A"):
        job.alloc(MAIN)
    snapshot = job.snapshot()
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    assert inside(load, snapshot) == []


@pytest.mark.parametrize("has_cpp", [True, False], ids=["all stacks", "Python-only stacks"])
def test_a_step_in_a_hook_ends_neither_backward_nor_the_iteration(phases_of, has_cpp):
    def seen(stack):
        return stack if has_cpp else [frame for frame in stack if frame["filename"] != "??"]

    job = Job()
    for _ in range(2):
        job.alloc(*map(seen, (FORWARD, ENGINE, HOOK_STEP, ENGINE, HOOK_STEP)))
    found = phases_of(job)
    assert found.certain.tolist() == [F, B, S, B, S] * 2
    assert found.phase.tolist() == [F, B, B, B, B] * 2
    assert found.iteration.tolist() == [0] * 5 + [1] * 5
    assert found.has_steps


def test_a_silent_step_in_a_hook_ends_no_iteration(phases_of):
    job = Job()
    for _ in range(2):
        job.alloc(FORWARD, ENGINE)
        with job.within("Optimizer.step#SGD.step"):
            pass
        job.alloc(ENGINE)
    assert phases_of(job).iteration.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_annotated_step_ends_an_iteration_though_nothing_happens_in_it(phases_of):
    job = Job()
    for _ in range(2):
        job.alloc(FORWARD, ENGINE)
        with job.within("Optimizer.step#SGD.step"):
            pass
    job.alloc(FORWARD, ENGINE)
    assert phases_of(job).iteration.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_annotated_step_with_events_ends_one_iteration_and_not_two(phases_of):
    job = Job()
    for _ in range(2):
        job.alloc(FORWARD, ENGINE, STEP)
        with job.within("Optimizer.step#SGD.step"):
            job.alloc(LOAD)
        job.alloc(LOAD)
    job.alloc(FORWARD)
    assert phases_of(job).iteration.tolist() == [*[0] * 4, *[1] * 5, 2, 2]


def test_without_stacks_of_frees_what_follows_a_step_belongs_to_the_next_iteration_too(phases_of):
    job = Job()
    job.free(job.alloc(FORWARD, ENGINE, STEP)[:1])
    job.alloc(LOAD, FORWARD, ENGINE, STEP)
    found = phases_of(job)
    assert not found.free_sites_known
    assert found.iteration.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_without_events_there_is_one_iteration_and_nothing_in_it(phases_of):
    found = phases_of(Job())
    assert (found.n_iterations, len(found.phase), len(found.iteration)) == (1, 0, 0)


def test_the_next_event_of_a_phase_is_a_later_one(phases_of):
    job = Job()
    job.alloc(LOAD, FORWARD, ENGINE, FORWARD)
    found = phases_of(job)
    every = np.arange(-1, 4)
    assert found.next_after(Phase.FORWARD, every).tolist() == [1, 1, 3, 3, 4]
    assert found.next_after(Phase.OPTIMIZER, every).tolist() == [4] * 5
    assert found.next_after(Phase.FORWARD, np.array([3, -1, 4, 0])).tolist() == [
        4,
        1,
        4,
        1,
    ]  # 4: there is none


def test_the_first_event_of_a_phase_is_the_number_of_events_where_none_shows_it(phases_of):
    job = Job()
    job.alloc(LOAD, FORWARD, ENGINE, FORWARD)
    found = phases_of(job)
    assert [found.first(phase) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)] == [
        1,
        2,
        4,
    ]
    nothing = phases_of(Job())
    assert nothing.first(Phase.FORWARD) == 0
    assert nothing.next_after(Phase.FORWARD, np.array([-1, 0])).tolist() == [0, 0]
