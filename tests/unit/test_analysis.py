"""One device analysed from end to end. Event 0 gets the segment; blocks are multiples of 512 bytes."""

import pytest

from snapconv.analysis import analyze_device
from snapconv.answers.notes import device_notes
from snapconv.classification.categories import Category
from snapconv.replay.history_verdict import Verdict
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
from tests.builders import TraceBuilder, frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
NODES = "torch::autograd::generated"
MAIN = [frame("main", "/home/me/project/train.py", 30)]
BUILD = [frame("_apply", f"{TORCH}/nn/modules/module.py"), *MAIN]
FORWARD = [frame("forward", "/home/me/project/model.py", 7), *MAIN]
LINEAR = [frame("linear", f"{TORCH}/nn/functional.py"), *FORWARD]
ENGINE = [frame("torch::autograd::Engine::evaluate_function(int)", "??", 0)]
GELU_RELEASE = [frame(f"{NODES}::GeluBackward0::release_variables()", "??", 0), *ENGINE]
STEP = [frame("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py"), *MAIN]
ANOTHER_STEP = [
    frame("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py"),
    frame("main", "/home/me/project/train.py", 31),
]
ZERO_GRAD = [frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *MAIN]


@pytest.fixture
def analysed(tmp_path):
    def analysed(builder, root=None, **fields):
        snapshot = load_snapshot(builder.write(tmp_path / "snapshot.pickle", **fields))
        return analyze_device(
            snapshot,
            snapshot.devices[0],
            StackFacts(snapshot.stacks, find_project(snapshot.stacks, root=root)),
        )

    return analysed


def slugs(analysis):
    return [note.slug for note in device_notes(analysis)]


def addr_of(builder):
    """The address of the newest allocation."""
    return builder.events[-1]["addr"]


def step(builder, *activations):
    """One training step: forward, backward, optimizer, zero_grad; the activations in bytes."""
    kept = [addr_of(builder.alloc(size, frames=LINEAR)) for size in activations]
    gradient = addr_of(builder.alloc(1024, frames=ENGINE))
    for addr in reversed(kept):
        builder.free(addr, frames=GELU_RELEASE)
    builder.alloc(512, frames=STEP).free(frames=STEP)
    return builder.free(gradient, frames=ZERO_GRAD)


def training():
    """A weight of 1,024 bytes, and steps with activations of 1,536, 4,608 and 2,048 bytes."""
    builder = TraceBuilder().segment().alloc(1024, frames=BUILD)
    for activations in ((1024, 512), (2048, 2048, 512), (2048,)):
        step(builder, *activations)
    return builder


def known_and(unknown):
    """A weight that makes 20 blocks, less one, and so many bytes that are unknown."""
    return TraceBuilder().segment().alloc(20 * 512 - 512, frames=BUILD).alloc(unknown, frames=MAIN)


def test_iterations_are_steps_with_the_peak_of_each(analysed):
    found = [
        (it.first_event, it.last_event, it.peak_event, it.peak_bytes)
        for it in analysed(training()).iterations
    ]
    # A step's last event is the free of its temporary; zero_grad belongs to the next one.
    assert found == [(0, 11, 4, 3584), (12, 26, 17, 6656), (27, 37, 30, 4096)]


def test_an_allocation_belongs_to_the_iteration_that_made_it_and_one_from_before_to_none(analysed):
    assert analysed(training()).iteration.tolist() == [0] * 5 + [1] * 5 + [2] * 3
    builder = TraceBuilder().segment(traced=False).alloc(1024, traced=False, frames=BUILD)
    assert analysed(step(builder, 512)).iteration.tolist() == [-1, 0, 0, 0]


def test_activations_are_those_at_their_high_water_mark_in_the_iteration_of_the_peak(analysed):
    analysis = analysed(training())
    rows = analysis.activation_rows
    assert analysis.activation_event == 16
    assert analysis.allocations.block_bytes[rows].tolist() == [512, 2048, 2048]  # newest first
    assert analysis.allocations.alloc_event[rows].tolist() == [16, 15, 14]
    assert set(rows.tolist()) <= set(analysis.rows(Category.ACTIVATION).tolist())


def test_more_activations_in_another_iteration_do_not_count(analysed):
    builder = TraceBuilder().segment().alloc(1024, frames=BUILD)
    step(builder, 8192)
    builder.alloc(16384, frames=MAIN)
    analysis = analysed(step(builder, 512))
    assert analysis.iterations[1].peak_bytes == analysis.replay.allocated.peak
    assert analysis.allocations.block_bytes[analysis.activation_rows].tolist() == [512]


def test_weights_are_paired_with_gradients_of_the_iteration_of_the_peak(analysed):
    analysis = analysed(training())
    assert analysis.weights.row.tolist() == [0]
    (gradient,) = analysis.weights.gradient_row.tolist()
    assert analysis.allocations.alloc_event[gradient] == 17
    assert analysis.classification.category[gradient] == Category.GRADIENT


def test_where_nothing_exceeds_the_start_the_peak_is_before_the_first_event(analysed):
    builder = TraceBuilder().segment(traced=False).alloc(2048, traced=False, frames=BUILD)
    builder.alloc(1024, traced=False, frames=LINEAR).free(frames=MAIN)
    analysis = analysed(builder)
    assert (analysis.peak_event, analysis.replay.allocated.peak) == (-1, 3072)
    assert [(it.peak_event, it.peak_bytes) for it in analysis.iterations] == [(-1, 3072)]
    assert analysis.weights.row.tolist() == [0]


def test_operations_are_named_by_the_stack_or_else_by_the_node_that_freed(analysed):
    builder = TraceBuilder().segment()
    builder.alloc(512, frames=LINEAR).free(frames=GELU_RELEASE)
    builder.alloc(1024, frames=[]).free(frames=GELU_RELEASE)
    builder.alloc(1536, frames=[]).free(frames=ENGINE)
    builder.alloc(2048, frames=[]).alloc(512).free()
    for event in builder.events[-3:]:
        del event["frames"]
    analysis = analysed(builder)
    assert analysis.allocations.stack_id[-1] == -1
    names = [analysis.operations[i] for i in analysis.operation_id]
    assert names == ["linear", "gelu", "unknown", "unknown", "unknown"]


def test_an_empty_file_is_analysed_too(analysed):
    analysis = analysed(TraceBuilder())
    assert (analysis.peak_event, analysis.activation_event, len(analysis.allocations)) == (
        -1,
        -1,
        0,
    )
    assert [(it.first_event, it.last_event, it.peak_bytes) for it in analysis.iterations] == [
        (-1, -1, 0)
    ]
    assert analysis.history.verdict is Verdict.NO_TRACE
    assert "empty-snapshot" in slugs(analysis)


def test_a_clean_trace_has_no_notes(analysed):
    assert slugs(analysed(training())) == []


def test_notes_of_the_file_and_of_the_replay_are_passed_on(analysed):
    found = analysed(training().event("no_such_action"))
    assert slugs(found) == ["unknown-action"]
    (note,) = device_notes(analysed(training(), trace_alloc_overflowed=True))
    assert (note.slug, note.device) == ("truncated-history", 0)
    pending = TraceBuilder().segment(traced=False).alloc(512, traced=False)
    pending.free(completed=False)
    pending.events.clear()
    assert "pending-free" in slugs(analysed(pending))


def test_a_file_whose_frames_are_all_elsewhere_gives_a_note(analysed):
    (note,) = device_notes(analysed(training(), root="/elsewhere"))
    assert note.slug == "no-project-frames"
    assert (
        note.message
        == "nothing is under /elsewhere: the program's own files are under /home/me/project"
    )
    assert "no-project-frames" not in slugs(
        analysed(TraceBuilder().segment().alloc(512, frames=[]))
    )


def test_gradients_without_a_weight_give_a_note(analysed):
    builder = TraceBuilder().segment().alloc(1024, frames=BUILD)
    for _ in range(3):
        builder.alloc(1024, frames=ENGINE)
    (note,) = device_notes(analysed(builder.alloc(512, frames=STEP).free(frames=STEP)))
    assert note.slug == "unmatched-gradients"
    assert note.message.startswith("2 gradients")


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        pytest.param(known_and(512), None, id="a twentieth"),
        pytest.param(known_and(1024), "record it with `snapconv record`", id="more"),
        pytest.param(
            TraceBuilder().segment(traced=False).alloc(4096, traced=False).alloc(4096, frames=MAIN),
            "of the peak could not be classified; record from the start of the program",
            id="begun late",
        ),
        pytest.param(
            TraceBuilder().segment(traced=False).alloc(4096, traced=False),
            "4.00 KiB of the dump could not be classified; the file has no events: record them",
            id="without a trace",
        ),
    ],
)
def test_more_than_a_twentieth_that_is_unknown_gives_a_note(analysed, builder, words):
    found = [
        note.message for note in device_notes(analysed(builder)) if note.slug == "much-unknown"
    ]
    assert len(found) == (words is not None)
    assert all(words in message for message in found)
