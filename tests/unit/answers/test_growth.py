"""Growth from step to step, on hand-made jobs: what is left behind for good, and what only looks like it."""

import numpy as np
import pytest

from snapconv.analysis import analyze_device
from snapconv.answers.growth import Confidence, Fate, find_growth, report_growth
from snapconv.answers.notes import device_notes
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import find_stack_facts
from tests.builders import TraceBuilder, frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
MAIN = frame("main", "/home/me/project/train.py", 30)
BUILD = [frame("build", "/home/me/project/train.py", 8), MAIN]
KEEP = [frame("keep", "/home/me/project/log.py", 5), MAIN]
FORWARD = [
    frame("forward", "/home/me/project/model.py", 7),
    frame("_call_impl", f"{TORCH}/nn/modules/module.py"),
    MAIN,
]
STEP = [frame("_single_tensor_adamw", f"{TORCH}/optim/adamw.py"), MAIN]
WEIGHT_BYTES = 1 << 20


class Training:
    """A weight, and then steps: forward, backward without a trace of its own, and the optimizer's update."""

    def __init__(self):
        self.trace = TraceBuilder().segment(64 << 20)
        self.alloc(BUILD, WEIGHT_BYTES)

    def alloc(self, stack, size=5120):
        self.trace.alloc(size, frames=stack)
        return self.trace.events[-1]["addr"]

    def free(self, addr):
        self.trace.free(addr, frames=[MAIN])

    def step(self, *kept, size=5120):
        """One step, which keeps an allocation of each of these stacks; return where they are."""
        activation = self.alloc(FORWARD, 2048)
        places = [self.alloc(stack, size) for stack in kept]
        self.free(activation)
        self.free(self.alloc(STEP, 2048))
        return places


@pytest.fixture
def analysis_of(tmp_path):
    def analysis_of(training):
        snapshot = load_snapshot(training.trace.write(tmp_path / "s.pickle"))
        project = find_project(snapshot.stacks, root="/home/me/project")
        return analyze_device(snapshot, snapshot.devices[0], find_stack_facts(snapshot.stacks, project))

    return analysis_of


@pytest.fixture
def suspects(analysis_of):
    """The innermost functions of the suspects, with the iterations and the bytes of each."""

    def suspects(training):
        analysis = analysis_of(training)
        first_event = analysis.allocations.alloc_event
        return [
            (
                "".join(
                    one["name"] for one in training.trace.events[first_event[found.rows[0]]]["frames"][:1]
                ),
                found.first_iteration,
                found.last_iteration,
                found.block_bytes,
            )
            for found in find_growth(analysis)
        ]

    return suspects


def test_the_jobs_have_an_iteration_per_step(analysis_of):
    training = Training()
    for _ in range(4):
        training.step()
    assert len(analysis_of(training).iterations) == 4


def test_what_every_iteration_leaves_behind_grows_the_last_one_with_them(suspects):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
    assert suspects(training) == [("keep", 0, 4, 5 * 5120)]


def test_the_last_iteration_does_not_count_where_it_has_more_than_the_others_kept(suspects):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
    training.step(KEEP, KEEP)
    assert suspects(training) == [("keep", 0, 4, 5 * 5120)]


def test_three_iterations_are_the_fewest(suspects):
    training = Training()
    training.step(KEEP)
    training.step(KEEP)
    assert suspects(training) == []
    training.step(KEEP)
    assert suspects(training) == [("keep", 0, 2, 3 * 5120)]


@pytest.mark.parametrize(
    ("n", "expected"), [(2, []), (3, [("keep", 0, 2, 3 * 5120)]), (6, [("keep", 0, 5, 6 * 5120)])]
)
def test_what_is_left_behind_after_each_step_counts_for_that_step(n, expected, suspects):
    training = Training()
    for _ in range(n):
        training.step()
        training.alloc(KEEP)
    assert suspects(training) == expected


@pytest.mark.parametrize(
    ("n", "confidence"),
    [(3, Confidence.WEAK), (4, Confidence.FAIR), (7, Confidence.FAIR), (8, Confidence.STRONG)],
)
def test_the_number_of_iterations_is_the_confidence(analysis_of, n, confidence):
    training = Training()
    for _ in range(n):
        training.step(KEEP, size=40 << 10)
    (found,) = find_growth(analysis_of(training))
    assert (found.confidence, found.n_iterations, found.bytes_per_iteration) == (confidence, n, 40 << 10)


def test_three_iterations_are_no_evidence_where_the_last_one_was_cut_short(suspects):
    """What it would have freed is still there."""
    training = Training()
    for _ in range(2):
        training.step(KEEP)
    training.alloc(FORWARD, 2048)
    training.alloc(KEEP)
    assert suspects(training) == []


def test_three_iterations_are_no_evidence_where_each_fills_less_of_a_cache(suspects):
    training = Training()
    for size in (8192, 4096, 2048):
        training.step(KEEP, size=size)
    assert suspects(training) == []


def test_three_iterations_are_no_evidence_for_states_made_on_first_use(suspects):
    """Of experts, say, that are used for the first time."""
    training = Training()
    for _ in range(3):
        training.step(STEP)
    assert suspects(training) == []


def test_three_iterations_are_no_evidence_without_a_stack(suspects):
    training = Training()
    for _ in range(3):
        training.step([])
    assert suspects(training) == []


def test_growth_may_begin_late(suspects):
    training = Training()
    for number in range(8):
        training.step(*[KEEP] * (number != 1))
    assert suspects(training) == [("keep", 2, 7, 6 * 5120)]


def test_growth_may_come_with_every_third_iteration(analysis_of):
    training = Training()
    for number in range(12):
        training.step(*[KEEP] * (number % 3 == 1), size=3 << 10)
    (found,) = find_growth(analysis_of(training))
    assert (found.first_iteration, found.last_iteration) == (1, 10)
    assert (found.n_iterations, found.bytes_per_iteration) == (4, 1 << 10)


def test_three_at_equal_distance_are_chance(suspects):
    training = Training()
    for number in range(9):
        training.step(*[KEEP] * (number % 3 == 1))
    assert suspects(training) == []


def test_growth_may_get_larger_as_that_of_hooks_does(suspects):
    """One more hook in every step, and each keeps the output; of the last step nothing is certain."""
    training = Training()
    for number in range(6):
        training.step(*[KEEP] * (number + 1))
    assert suspects(training) == [("keep", 0, 4, (1 + 2 + 3 + 4 + 5) * 5120)]


def test_a_line_that_several_stacks_reach_grows_as_a_whole(suspects):
    line = frame("keep", "/home/me/project/log.py", 5)
    ways = [[frame("clone", f"{TORCH}/_tensor.py", number), line, MAIN] for number in range(3)]
    order = [0, 1, 1, 2, 0, 2, 0]
    training = Training()
    for number in order:
        training.step(ways[number])
    assert suspects(training) == [("clone", 0, 6, 7 * 5120)]


def test_a_cache_that_is_replaced_by_a_larger_one_grows(suspects, analysis_of):
    training, before = Training(), []
    for number in range(5):
        now = training.step(KEEP, size=(number + 1) * 1000)
        for addr in before:
            training.free(addr)
        before = now
    assert suspects(training) == [("keep", 0, 4, 4000)]
    (found,) = find_growth(analysis_of(training))
    assert (found.fate, found.bytes_per_iteration) == (Fate.REPLACED, 1000)


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [((1, 3, 4, 6, 7, 9, 10), False), ((1, 3, 4, 6, 7, 9, 10, 12), True), ((9, 9, 9, 9), False)],
)
def test_batches_of_random_lengths_may_grow_for_a_while(suspects, sizes, grows):
    training, before = Training(), []
    for size in sizes:
        now = training.step(KEEP, size=size * 1000)
        for addr in before:
            training.free(addr)
        before = now
    assert bool(suspects(training)) is grows


def test_what_the_collector_frees_from_time_to_time_is_none(suspects):
    training, cycles = Training(), []
    for number in range(12):
        cycles += training.step(KEEP)
        if number % 5 == 4:
            while cycles:
                training.free(cycles.pop())
    assert suspects(training) == []


def test_what_grows_and_is_freed_at_the_end_is_none(suspects):
    """A cache of keys and values, or a list that the program's end frees."""
    training, cache = Training(), []
    for _ in range(8):
        cache += training.step(KEEP)
    while cache:
        training.free(cache.pop())
    assert suspects(training) == []


def test_a_little_that_is_freed_late_does_not_hide_what_grows(suspects):
    training, once = Training(), []
    for number in range(20):
        kept = training.step(KEEP)
        once += kept if number == 2 else []
    training.free(once[0])
    assert suspects(training) == [("keep", 3, 19, 17 * 5120)]


def test_growth_that_has_ended_is_none(suspects):
    training = Training()
    for number in range(8):
        training.step(*[KEEP] * (number < 5))
    assert suspects(training) == []


def test_weights_and_states_of_the_first_step_are_none(suspects):
    training = Training()
    training.step(STEP, STEP)
    for _ in range(6):
        training.step()
    assert suspects(training) == []


def test_a_cache_that_frees_the_oldest_is_none(suspects):
    training, window = Training(), []
    for _ in range(9):
        window += training.step(KEEP)
        if len(window) > 4:
            training.free(window.pop(0))
    assert suspects(training) == []


def test_what_is_freed_together_after_several_iterations_is_none(suspects):
    training, held = Training(), []
    for number in range(8):
        held += training.step(KEEP)
        if number == 3:
            while held:
                training.free(held.pop())
    assert suspects(training) == []


def test_what_lives_into_the_next_iteration_is_none(suspects):
    training, before = Training(), []
    for _ in range(8):
        now = training.step(KEEP)
        for addr in before:
            training.free(addr)
        before = now
    assert suspects(training) == []


def test_parts_of_a_step_are_not_compared(suspects):
    """Without a trace of the optimizer, iterations end with backward; a step may sum up several."""
    engine = [frame("torch::autograd::Engine::evaluate_function(int)", "??", 0)]
    training = Training()
    for _ in range(6):
        training.free(training.alloc(FORWARD, 2048))
        training.alloc(KEEP)
        training.free(training.alloc(engine, 2048))
    assert suspects(training) == []
    training.step(KEEP)
    for _ in range(3):
        training.step(KEEP)
    assert suspects(training) != []


def test_every_stack_is_shown_most_bytes_first(suspects):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
        training.alloc(FORWARD, 512)
    assert [name for name, *_ in suspects(training)] == ["keep", "forward"]


def test_memory_without_a_stack_is_suspected_too(suspects):
    training = Training()
    for _ in range(5):
        training.step([])
    assert suspects(training) == [("", 0, 4, 5 * 5120)]


def test_the_rows_are_what_was_left_behind(analysis_of):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
    analysis = analysis_of(training)
    (suspect,) = find_growth(analysis)
    assert analysis.allocations.block_bytes[suspect.rows].tolist() == [5120] * 5
    assert np.all(analysis.iteration[suspect.rows] == [0, 1, 2, 3, 4])


def test_the_ends_of_iterations_are_what_was_allocated_then(analysis_of):
    training = Training()
    for _ in range(3):
        training.step(KEEP)
    analysis = analysis_of(training)
    ends = [analysis.replay.allocated.at(iteration.last_event) for iteration in analysis.iterations]
    assert list(report_growth(analysis).end_bytes) == ends


def notes_of(analysis):
    return [note.message for note in device_notes(analysis) if note.slug == "growth"]


def test_a_note_names_what_an_iteration_adds_and_the_line(analysis_of):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
    (said,) = notes_of(analysis_of(training))
    assert "iteration from 0 to 4 adds 5.00 KiB" in said
    assert "most by log.py:5 (confidence: fair)" in said


@pytest.mark.parametrize(("n_bytes", "is_said"), [(512, True), (48 << 20, False)])
def test_growth_that_takes_100_000_iterations_to_double_the_peak_is_not_worth_a_note(
    analysis_of, n_bytes, is_said
):
    training = Training()
    training.alloc(BUILD, n_bytes)
    for _ in range(5):
        training.step(KEEP, size=300)
    analysis = analysis_of(training)
    assert len(find_growth(analysis)) == 1
    assert bool(notes_of(analysis)) is is_said
