"""Growth from step to step, on hand-made jobs: what is left behind for good, and what only looks like it."""

from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.analysis import analyze_device
from snapconv.answers.growth import Fate, Trend, find_growth, report_growth, unfreed_lines
from snapconv.answers.notes import device_notes
from snapconv.classification.categories import Category
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
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
        return analyze_device(snapshot, snapshot.devices[0], StackFacts(snapshot.stacks, project))

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
                    one["name"]
                    for one in training.trace.events[first_event[found.rows[0]]]["frames"][:1]
                ),
                found.first_iteration,
                found.last_iteration,
                found.block_bytes,
            )
            for found in find_growth(analysis)
        ]

    return suspects


def trained(
    n, keep=lambda number: [KEEP], *, size=lambda number: 5120, frees=lambda number, kept: []
):
    """So many steps, which keep what ``keep`` says; after each, what ``frees`` returns of it is freed."""
    training, kept = Training(), []
    for number in range(n):
        kept += training.step(*keep(number), size=size(number))
        for addr in list(frees(number, kept)):
            kept.remove(addr)
            training.free(addr)
    return training


def cut_short():
    """The last of three iterations: what it would have freed is still there."""
    training = trained(2)
    training.alloc(FORWARD, 2048)
    training.alloc(KEEP)
    return training


def one_freed_late():
    training = Training()
    kept = [training.step(KEEP) for _ in range(20)]
    training.free(kept[2][0])
    return training


LINE = frame("keep", "/home/me/project/log.py", 5)
WAYS = [[frame("clone", f"{TORCH}/_tensor.py", number), LINE, MAIN] for number in range(3)]


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        pytest.param(
            trained(5), ("keep", 0, 4, 5 * 5120), id="every iteration leaves something behind"
        ),
        pytest.param(
            trained(6, lambda number: [KEEP] * (1 + (number == 5))),
            ("keep", 0, 4, 5 * 5120),
            id="the last iteration has more than the others kept: it does not count",
        ),
        pytest.param(trained(3), ("keep", 0, 2, 3 * 5120), id="three iterations are the fewest"),
        pytest.param(
            trained(8, lambda number: [KEEP] * (number != 1)),
            ("keep", 2, 7, 6 * 5120),
            id="begins late",
        ),
        pytest.param(
            trained(6, lambda number: [KEEP] * (number + 1)),  # one more hook in every step
            ("keep", 0, 4, (1 + 2 + 3 + 4 + 5) * 5120),
            id="gets larger, as that of hooks does",
        ),
        pytest.param(
            trained(7, lambda number: [WAYS[(0, 1, 1, 2, 0, 2, 0)[number]]]),
            ("clone", 0, 6, 7 * 5120),
            id="a line that several stacks reach grows as a whole",
        ),
        pytest.param(
            trained(5, size=lambda number: (number + 1) * 1000, frees=lambda _, kept: kept[:-1]),
            ("keep", 0, 4, 4000),
            id="a cache that is replaced by a larger one",
        ),
        pytest.param(one_freed_late(), ("keep", 3, 19, 17 * 5120), id="a little is freed late"),
        pytest.param(trained(5, lambda _: [[]]), ("", 0, 4, 5 * 5120), id="without a stack"),
    ],
)
def test_what_grows_is_found_with_its_iterations_and_bytes(training, expected, suspects):
    assert suspects(training) == [expected]


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(trained(2), id="two iterations"),
        pytest.param(cut_short(), id="three, of which the last was cut short"),
        pytest.param(
            trained(3, size=lambda n: (8192, 4096, 2048)[n]), id="each fills less of a cache"
        ),
        pytest.param(
            trained(3, lambda _: [STEP]), id="three states made on first use, of experts say"
        ),
        pytest.param(trained(3, lambda _: [[]]), id="three without a stack"),
        pytest.param(
            trained(9, lambda n: [KEEP] * (n % 3 == 1)), id="three at equal distance are chance"
        ),
        pytest.param(
            trained(12, frees=lambda n, kept: kept if n % 5 == 4 else []),
            id="the collector frees it at times",
        ),
        pytest.param(
            trained(8, frees=lambda n, kept: kept if n == 7 else []), id="freed at the end"
        ),
        pytest.param(trained(8, lambda n: [KEEP] * (n < 5)), id="growth that has ended"),
        pytest.param(
            trained(7, lambda n: [STEP, STEP] * (n == 0)), id="weights and states of the first step"
        ),
        pytest.param(
            trained(9, frees=lambda _, kept: kept[:-4]), id="a cache that frees the oldest"
        ),
        pytest.param(trained(8, frees=lambda n, kept: kept if n == 3 else []), id="freed together"),
        pytest.param(
            trained(8, frees=lambda _, kept: kept[:-1]), id="lives into the next iteration"
        ),
    ],
)
def test_what_only_looks_like_growth_is_none(training, suspects):
    assert suspects(training) == []


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
    ("n", "certainty"), [(3, "likely"), (4, "likely"), (7, "likely"), (8, "certain")]
)
def test_the_number_of_iterations_is_the_certainty(analysis_of, n, certainty):
    (found,) = find_growth(analysis_of(trained(n, size=lambda _: 40 << 10)))
    assert (found.certainty, found.n_iterations, found.bytes_per_iteration) == (
        certainty,
        n,
        40 << 10,
    )


def test_growth_may_come_with_every_third_iteration(analysis_of):
    training = trained(12, lambda number: [KEEP] * (number % 3 == 1), size=lambda _: 3 << 10)
    (found,) = find_growth(analysis_of(training))
    assert (found.first_iteration, found.last_iteration) == (1, 10)
    assert (found.n_iterations, found.bytes_per_iteration) == (4, 1 << 10)


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [((1, 3, 4, 6, 7, 9, 10), False), ((1, 3, 4, 6, 7, 9, 10, 12), True), ((9, 9, 9, 9), False)],
)
def test_batches_of_random_lengths_may_grow_for_a_while(analysis_of, sizes, grows):
    training = trained(len(sizes), size=lambda n: sizes[n] * 1000, frees=lambda _, kept: kept[:-1])
    assert [found.fate for found in find_growth(analysis_of(training))] == [Fate.REPLACED] * grows


def test_parts_of_a_step_are_not_compared(suspects):
    """Without a trace of the optimizer, iterations end with backward; a step may sum up several."""
    engine = [frame("torch::autograd::Engine::evaluate_function(int)", "??", 0)]
    training = Training()
    for _ in range(6):
        training.free(training.alloc(FORWARD, 2048))
        training.alloc(KEEP)
        training.free(training.alloc(engine, 2048))
    assert suspects(training) == []
    for _ in range(4):
        training.step(KEEP)
    assert suspects(training) != []


def test_every_stack_is_shown_most_bytes_first(suspects):
    training = Training()
    for _ in range(5):
        training.step(KEEP)
        training.alloc(FORWARD, 512)
    assert [name for name, *_ in suspects(training)] == ["keep", "forward"]


def test_the_rows_are_what_was_left_behind_and_the_ends_what_was_allocated_then(analysis_of):
    analysis = analysis_of(trained(5))
    (suspect,) = find_growth(analysis)
    assert analysis.allocations.block_bytes[suspect.rows].tolist() == [5120] * 5
    assert np.all(analysis.iteration[suspect.rows] == [0, 1, 2, 3, 4])
    ends = [analysis.replay.allocated.at(iteration.last_event) for iteration in analysis.iterations]
    assert list(report_growth(analysis).end_bytes) == ends


def notes_of(analysis):
    return [note.message for note in device_notes(analysis) if note.slug == "growth"]


def test_a_note_names_what_an_iteration_adds_and_the_line(analysis_of):
    (said,) = notes_of(analysis_of(trained(5)))
    assert "iteration from 0 to 4 adds 5.00 KiB that is never freed in this trace" in said
    assert "most by log.py:5 (likely)" in said


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


# --- without iterations: what a server leaks, by the lines that leave memory behind again and again


KIB = 1024
HANDLE, CACHE, LOAD, NOW = (
    [frame("serve", "/home/me/project/serve.py", line)] for line in (1, 2, 3, 4)
)


@pytest.fixture
def served(tmp_path):
    """A hundred requests: each frees what it used, every tenth is cached, and the last is not over."""
    trace = TraceBuilder().segment().alloc(64 * KIB, frames=LOAD)
    for number in range(100):
        trace.alloc(4 * KIB, frames=HANDLE).free()
        if number % 10 == 0:
            trace.alloc(2 * KIB, frames=CACHE)
    session = snapconv.load(trace.alloc(8 * KIB, frames=NOW).write(tmp_path / "server.pickle"))
    return unfreed_lines(session.devices[0])


def test_a_line_that_leaves_memory_behind_to_the_end_keeps_growing(served):
    found = {
        one.line.line_number: (one.n_allocations, one.block_bytes // KIB, one.trend)
        for one in served
    }
    assert found == {
        3: (1, 64, Trend.ONCE),
        2: (10, 20, Trend.GROWS),
        4: (1, 8, Trend.RECENT),
    }


def test_what_was_there_before_the_trace_was_not_allocated_in_it(tmp_path):
    trace = TraceBuilder().segment(traced=False).alloc(KIB, traced=False).alloc(2 * KIB)
    (only,) = unfreed_lines(snapconv.load(trace.write(tmp_path / "late.pickle")).devices[0])
    assert only.block_bytes == 2 * KIB


def test_weights_and_gradients_of_a_training_are_usually_kept_and_no_leak():
    """A step that was recorded alone: its gradients come one after the other, up to the end of the trace."""
    file = Path(__file__).parents[3] / "fixtures" / "training_step.pickle"
    (analysis,) = snapconv.load(file).devices
    kept = [one for one in unfreed_lines(analysis) if one.trend is Trend.KEPT]
    rows = (analysis.allocations.alloc_event >= 0) & (analysis.allocations.freed_event < 0)
    labels = ("weight", "gradient", "optimizer_state", "workspace")
    codes = [category for category in Category if category.label in labels]
    expected = analysis.allocations.block_bytes[
        rows & np.isin(analysis.classification.category, codes)
    ].sum()
    assert sum(one.block_bytes for one in kept) == expected > 0


def test_a_file_without_events_has_nothing_that_grows():
    (device,) = snapconv.load(
        Path(__file__).parents[3] / "fixtures" / "segments_only.pickle"
    ).devices
    found = report_growth(device)
    assert (found.unknown, found.never_freed) == ("the file has no events", ())


def test_a_step_that_the_trace_cuts_short_is_no_third_iteration(analysis_of):
    report = report_growth(analysis_of(cut_short()))
    assert report.unknown.startswith(
        "the trace has 2 whole iterations, and 3 are needed; record more with"
    )


def test_iterations_that_each_end_with_more_are_not_called_steady(analysis_of):
    """No line adds in every iteration, so that none is found; yet nothing says that memory stays."""
    training = trained(
        4,
        keep=lambda number: [[frame(f"keep{number}", "/home/me/project/log.py", number + 1), MAIN]],
        size=lambda _: 1 << 19,
    )
    report = report_growth(analysis_of(training))
    assert not report.lines
    assert report.unknown.startswith("allocated memory rose in 3 of 3 iterations, from ")


@pytest.mark.parametrize(("every", "is_unknown"), [(5, True), (2, False)])
def test_memory_that_mostly_rises_is_not_called_steady(analysis_of, every, is_unknown):
    """The collector frees some of what is in cycles; with batches of many lengths it rises half the time."""
    training, kept = Training(), []
    for number in range(12):
        kept += training.step(
            [frame(f"keep{number}", "/home/me/project/log.py", number + 1), MAIN], size=1 << 20
        )
        if number % every == every - 1:
            for addr in (kept.pop(), kept.pop()):
                training.free(addr)
    report = report_growth(analysis_of(training))
    assert not report.lines
    assert (
        report.unknown.startswith("allocated memory rose in 9 of 11 iterations, from ")
        is is_unknown
    )


@pytest.mark.parametrize(("is_over", "waits"), [(False, 1), (True, 0)])
def test_only_what_the_last_forward_made_may_wait_for_its_backward(analysis_of, is_over, waits):
    """What earlier steps keep of their forward waits for nothing: their backward has been."""
    training = trained(3, lambda number: [FORWARD])
    training.alloc(FORWARD, 2048)
    if is_over:
        training.free(training.alloc(STEP, 2048))
    kept = [line for line in unfreed_lines(analysis_of(training)) if line.line.line_number == 7]
    found = {line.trend is Trend.WAITS: line.n_allocations for line in kept}
    assert found == ({True: 1, False: 3} if waits else {False: 4})
