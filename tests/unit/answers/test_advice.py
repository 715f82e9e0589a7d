"""Advice on hand-made jobs: what is kept for nothing, what only looks like it, and what a change saves."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapconv
from snapconv.answers.advice.checkpointing import Module, cheapest, whole_layers
from snapconv.answers.advice.evidence import Evidence
from snapconv.answers.advice.findings import KINDS
from snapconv.cli.app import main
from snapconv.hypotheses.changes import Demand, freed_from, removed, smaller
from snapconv.replay.device_replay import AllocationTable
from snapconv.writers.text.advice import advice_lines
from tests.builders import MIB, TraceBuilder, frame
from tests.metadata_builder import memory_row, metadata, parameter

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py")
STEP = [frame("_single_tensor_sgd", f"{TORCH}/optim/sgd.py")]


def at(line, *inner):
    """A stack of the script's line, with what it calls."""
    return [*reversed(inner), frame("main", "/home/me/project/train.py", line)]


def layer(number):
    return [CALL, frame(f"layer{number}", "/home/me/project/model.py", number)]


# What frees a graph that no backward went through.
NODE = [frame("torch::autograd::generated::AddmmBackward0::~AddmmBackward0()", "??")]


class Loop:
    """A script whose names keep what a line made until the line has made it again."""

    def __init__(self):
        self.trace, self.kept = TraceBuilder().segment(1 << 30), {}

    def alloc(self, size, stack):
        self.trace.alloc(size, frames=stack)
        return self.trace.events[-1]["addr"]

    def assign(self, name, line, *sizes, by=()):
        """``name = call()`` in a line: the call allocates in layers, then the name's old value is freed.

        ``by``: the native frames that free it, such as a node of autograd.
        """
        new = [self.alloc(size, at(line, *layer(i))) for i, size in enumerate(sizes)]
        if name in self.kept:
            self.delete(name, line, by=by)
        self.kept[name] = new

    def delete(self, name, line, *, by=()):
        for addr in self.kept.pop(name):
            self.trace.free(addr, frames=[*by, *at(line)])


def outputs(*, deletes, n=3):
    loop = Loop()
    for _ in range(n):
        loop.assign("out", 20, 10 * MIB)
        loop.trace.alloc(MIB, frames=at(21)).free(frames=at(21))
        if deletes:
            loop.delete("out", 22)
    return loop


def test_a_previous_output_is_a_fault_and_its_saving_is_that_of_the_program_without_it(advice_on):
    kept, deleted = advice_on(outputs(deletes=False)), advice_on(outputs(deletes=True))
    (fault,) = kept.faults
    assert (fault.kind, fault.where.place, fault.line.place) == (
        "previous-kept",
        "train.py:20",
        "model.py:0",
    )
    assert kept.peak.n_bytes == 20 * MIB
    assert kept.together.n_bytes == deleted.peak.n_bytes == 11 * MIB
    assert deleted.findings == ()


def test_a_graph_that_stays_through_the_next_forward_is_a_certain_fault(advice_on):
    loop = Loop()
    for _ in range(2):
        loop.assign("out", 20, *[MIB * (1 + i) for i in range(8)], by=NODE)
    advice = advice_on(loop)
    assert [(fault.kind, fault.is_certain) for fault in advice.faults][1:] == [
        ("previous-kept", True)
    ]
    assert (advice.peak.n_bytes, advice.faults[1].peak.n_bytes) == (72 * MIB, 36 * MIB)


def test_a_graph_of_before_the_trace_that_no_backward_frees_is_unused_like_that_of_its_replacement(
    advice_on,
):
    loop, sizes = Loop(), [MIB * (1 + i) for i in range(8)]
    loop.trace = TraceBuilder().segment(1 << 30, traced=False)
    for size in sizes:
        loop.trace.alloc(size, traced=False)
    loop.kept["out"] = [*loop.trace._live]
    loop.assign("out", 20, *sizes, by=NODE)
    advice = advice_on(loop)
    unused, previous = advice.faults
    assert (unused.kind, unused.where.place) == ("unused-graph", "train.py:20")
    assert advice.together.n_bytes == unused.peak.n_bytes
    (together,) = (text for text in advice_lines(advice, "file", 0, "") if "all together" in text)
    assert together.endswith(", as with 1 alone")
    # The replacement is in use at the end: its backward may come.
    assert unused.could_be == ("activations whose backward comes after the trace",)
    assert unused.peak.n_bytes < previous.peak.n_bytes == 36 * MIB
    assert previous.how[0].startswith("If backward is needed, `del`")


def test_graphs_of_few_operations_are_known_by_the_nodes_that_free_them(advice_on):
    """An evaluation that keeps its loss: two graphs at the peak, the last one freed as the function ends."""
    loop = Loop()
    for _ in range(3):
        loop.assign("loss", 20, *[2 * MIB] * 4, by=NODE)
    loop.delete("loss", 22, by=NODE)
    advice = advice_on(loop)
    unused = next(one for one in advice.faults if one.kind == "unused-graph")
    # Without them the newest value of each call is there.
    assert (unused.held_bytes, unused.is_certain) == (12 * MIB, True)
    assert unused.how[0].endswith("around this call.")


def test_what_nodes_free_after_a_backward_is_no_unused_graph(advice_on):
    """The input of a checkpointed layer goes with the loss: backward went through it, and freed the rest."""
    loop = Loop()
    for _ in range(3):
        loop.assign("loss", 20, 2 * MIB, by=NODE)
        saved = loop.alloc(MIB, at(20, *layer(1)))
        gradient = loop.alloc(MIB, ENGINE)
        loop.trace.free(saved, frames=ENGINE).free(gradient, frames=ENGINE)
        loop.delete("loss", 22, by=NODE)
    assert [one.kind for one in advice_on(loop).faults] == []


def test_an_output_that_is_freed_with_temporaries_of_its_successor_is_a_fault(advice_on):
    """Nothing else runs in the loop: a call's own temporaries and the old output are freed at once."""
    loop = Loop()
    for _ in range(4):
        temporaries = [loop.alloc(MIB, at(20, *layer(1))) for _ in range(3)]
        new = [loop.alloc(5 * MIB, at(20, *layer(i))) for i in (3, 4)]
        for addr in (*temporaries, *loop.kept.pop("out", ())):
            loop.trace.free(addr, frames=at(20))
        loop.kept["out"] = new
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.held_bytes, fault.saved_bytes) == (
        "previous-kept",
        10 * MIB,
        10 * MIB,
    )


def calls_with_a_graph_of_their_input(*, deletes):
    """A function of one operation keeps its input for backward; both go as the name gets its next value."""
    loop, old = Loop(), []
    for _ in range(3):
        batch = loop.alloc(6 * MIB, at(19))
        loop.trace.alloc(20 * MIB, frames=at(20, *layer(0))).free(frames=at(20, *layer(0)))
        new = [batch, loop.alloc(10 * MIB, at(20, *layer(1)))]
        for addr in old:
            loop.trace.free(addr, frames=at(20))
        old = new
        if deletes:
            for addr in old:
                loop.trace.free(addr, frames=at(21))
            old = []
    return loop


def test_what_an_old_output_holds_is_saved_with_it(advice_on):
    late = advice_on(calls_with_a_graph_of_their_input(deletes=False))
    early = advice_on(calls_with_a_graph_of_their_input(deletes=True))
    (fault,) = late.faults
    assert (fault.kind, fault.held_bytes, fault.peak) == ("previous-kept", 16 * MIB, early.peak)


def test_a_state_that_the_next_call_reads_is_no_fault(advice_on):
    loop = Loop()
    loop.kept["hidden"] = [loop.alloc(10 * MIB, at(10))]
    for _ in range(3):
        loop.assign("hidden", 20, 10 * MIB)
    assert advice_on(loop).findings == ()


def test_a_cache_that_grows_with_every_call_is_no_fault(advice_on):
    loop = Loop()
    for length in range(1, 5):
        loop.assign("cache", 20, length * 5 * MIB)
    assert advice_on(loop).findings == ()


def test_temporaries_of_one_call_are_no_previous_output(advice_on):
    loop = Loop()
    for _ in range(3):
        addrs = [loop.alloc(5 * MIB, at(20, *layer(i))) for i in (1, 2)]
        for addr in addrs:
            loop.trace.free(addr, frames=at(20))
    assert advice_on(loop).findings == ()


def test_a_saving_ends_at_the_next_summit(advice_on):
    """Without the old output 10 MiB less are needed there, but 4 MiB less than at the loss."""
    loop = Loop()
    for _ in range(3):
        loop.assign("out", 20, 10 * MIB)
        loop.trace.alloc(6 * MIB, frames=at(21)).free(frames=at(21))
    (fault,) = advice_on(loop).faults
    assert (fault.held_bytes, fault.saved_bytes, fault.peak.n_bytes) == (
        10 * MIB,
        4 * MIB,
        16 * MIB,
    )


def test_changes_of_one_allocation_count_once_together(tmp_path):
    loop = Loop()
    for size in (8, 24, 40):
        loop.alloc(size * MIB, at(20))
    (analysis,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).devices
    demand, rows = Demand(analysis), np.arange(3)
    assert demand.peak.n_bytes == 72 * MIB
    half = smaller(analysis, rows, 0.5)
    early = freed_from(analysis, rows[:1], np.array([3]))
    for changes, n_bytes in (
        ([half], 36),
        ([removed(analysis, rows[:1]), half], 32),
        ([early], 64),
        # What is freed at the third event is half as large up to there.
        ([early, half], 32),
        ([freed_from(analysis, rows, np.full(3, 3)), half], 16),
    ):
        assert demand.without(changes).n_bytes == demand.replayed(changes).n_bytes == n_bytes * MIB


def test_a_failed_request_is_a_part_of_what_the_program_needs(tmp_path):
    loop = Loop()
    loop.alloc(10 * MIB, at(20))
    loop.trace.oom(30 * MIB)
    (analysis,) = snapconv.load(loop.trace.write(tmp_path / "s.pickle")).devices
    assert Demand(analysis).peak.n_bytes == 40 * MIB


def test_the_command_names_the_line_and_the_new_peak(tmp_path, capsys):
    path = outputs(deletes=False).trace.write(tmp_path / "s.pickle")
    assert main(["advise", str(path)]) == 0
    out = capsys.readouterr().out
    assert "The old output is still alive while train.py:20" in out
    assert "20.00 MiB → 11.00 MiB" in out


def forwards(*, keeps, by=NODE):
    """Forwards of eight layers without a backward; ``keeps``: a list keeps the graph of each.

    ``by``: the native frames that free them, such as a node of autograd.
    """
    loop = Loop()
    for number in range(4):
        loop.alloc(MIB, at(19))
        loop.assign(f"loss {number}", 20, *[2 * MIB] * 8)
        if not keeps:
            loop.delete(f"loss {number}", 20, by=by)
    return loop


@pytest.mark.parametrize("follows", ["", "backward", "failure"])
def test_a_graph_at_the_end_of_a_trace_is_needless_only_if_no_backward_follows(follows, advice_on):
    """Eight layers of 2 MiB: without a graph two or three of them are there together."""
    loop = Loop()
    loop.trace = TraceBuilder().segment(1 << 30, traced=False)
    made = [loop.alloc(2 * MIB, at(20, *layer(i))) for i in range(8)]
    loop.trace.alloc(MIB, frames=at(21)).free(frames=at(22))
    if follows == "backward":
        loop.trace.free(made[-1], frames=ENGINE)
    if follows == "failure":
        loop.trace.oom(64 * MIB, MIB)
    advice = advice_on(loop)
    assert not advice.faults
    found = [one for one in advice.findings if one.kind == "open-graph"]
    assert len(found) == (not follows)
    for finding in found:
        assert (finding.where.place, finding.is_certain) == ("train.py:20", False)
        assert "activations whose backward comes after the trace" in finding.could_be
        assert 10 * MIB <= finding.saved_bytes <= 12 * MIB


def test_a_gradient_that_a_recorder_names_shows_that_a_backward_may_follow(tmp_path):
    loop = Loop()
    loop.trace = TraceBuilder().segment(1 << 30, traced=False)
    gradient = loop.alloc(MIB, at(5))
    made_us = loop.trace.events[-1]["time_us"]
    for i in range(8):
        loop.alloc(2 * MIB, at(20, *layer(i)))
    loop.trace.alloc(MIB, frames=at(21)).free(frames=at(22))
    names = [parameter("weight", 1 << 50, MIB, made_us)]
    for rows in ([], [memory_row(gradient, MIB, made_us, parameter=0)]):
        document = metadata(parameters=names, gradients=rows)
        path = loop.trace.write(tmp_path / "s.pickle", snapconv=document)
        found = {one.kind for one in snapconv.load(path).advise()[0].findings}
        assert ("open-graph" in found) is not bool(rows)


def test_a_new_peak_outside_of_the_model_is_named_by_its_line(tmp_path, capsys):
    """At line 19 the next batch of 4 MiB is there beside the old one and the output of 10."""
    loop, batch = Loop(), None
    loop.trace = TraceBuilder().segment(1 << 30, traced=False)
    for _ in range(4):
        new_batch = loop.alloc(4 * MIB, at(19))
        if batch is not None:
            loop.trace.free(batch, frames=at(19))
        batch = new_batch
        loop.assign("out", 20, 10 * MIB)
        loop.trace.alloc(MIB, frames=at(21)).free(frames=at(22))
    assert main(["advise", str(loop.trace.write(tmp_path / "s.pickle"))]) == 0
    out = capsys.readouterr().out
    assert "24.00 MiB → 18.00 MiB; the new peak is at train.py:19\n" in out


def test_activations_that_no_backward_uses_are_a_fault(advice_on):
    """Each of eight layers reads the output of the one before: without a graph two or three are there."""
    advice = advice_on(forwards(keeps=False))
    (fault,) = advice.faults
    assert (fault.kind, fault.where.place, fault.is_certain) == (
        "unused-graph",
        "train.py:20",
        True,
    )
    assert advice.peak.n_bytes == (4 + 16) * MIB
    assert (4 + 4) * MIB <= advice.together.n_bytes <= (4 + 6) * MIB


def test_a_validation_whose_graph_lives_through_the_next_step_is_a_fault(advice_on):
    """The backward in between is of a later forward; a graph that backward went through is none of these."""
    loop = Loop()
    for _ in range(3):
        loop.assign("loss", 20, *[2 * MIB] * 8)
        for addr in loop.kept.pop("loss"):
            loop.trace.free(addr, frames=ENGINE)
        loop.assign("validation", 40, *[4 * MIB] * 8)
    (fault, *_) = advice_on(loop).faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == (
        "unused-graph",
        "train.py:40",
        56 * MIB,
    )


def test_what_operations_in_place_save_is_not_made_without_a_graph(advice_on):
    saved = frame("torch::autograd::VariableType::(anonymous namespace)::silu_(at::Tensor&)", "??")
    loop = Loop()
    for _ in range(3):
        loop.alloc(MIB, at(19))
        made = [
            loop.alloc(4 * MIB, [*native, *at(20, *layer(i))])
            for i in range(8)
            for native in ([], [saved])
        ]
        for addr in made:
            loop.trace.free(addr, frames=at(20))
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.peak.n_bytes) == ("unused-graph", (3 + 4 + 4) * MIB)


@pytest.mark.parametrize("lines", [[246] + [254] * 7, [246] * 2 + [254] * 3 + [256] * 3])
def test_the_call_to_change_is_that_of_a_forward_that_the_program_calls_itself(advice_on, lines):
    """The first calls of modules in the stacks are then those of the model's parts."""
    loop = Loop()
    for _ in range(3):
        loop.alloc(MIB, at(19))
        stacks = [
            at(20, frame("forward", "/home/me/project/model.py", line), *layer(i))
            for i, line in enumerate(lines)
        ]
        made = [loop.alloc(8 * MIB, stack) for stack in stacks]
        for addr in made:
            loop.trace.free(addr, frames=at(20))
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.where.place) == ("unused-graph", "train.py:20")


def test_losses_that_keep_their_graphs_are_a_fault(advice_on):
    advice = advice_on(forwards(keeps=True))
    (fault,) = advice.faults
    assert (fault.kind, fault.where.place) == ("graphs-kept", "train.py:20")
    assert advice.peak.n_bytes == (4 + 4 * 16) * MIB
    assert advice.together.n_bytes == (4 + 16) * MIB


def test_losses_that_keep_their_graphs_until_memory_runs_out_are_likely_a_fault(advice_on):
    loop = forwards(keeps=True)
    loop.trace.oom(100 * MIB)
    loop.trace.events[-1]["frames"] = at(20, *layer(0))
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.is_certain) == ("graphs-kept", False)


ENGINE = [
    frame("backward", f"{TORCH}/autograd/__init__.py"),
    frame("main", "/home/me/project/train.py", 30),
]


def training(*, zero_grad_after, temporaries=(MIB,)):
    """Steps of a model with a gradient; it is freed after the step, or only after the next forward.

    ``temporaries`` are those of one list in the optimizer's step.
    """
    loop = Loop()
    loop.alloc(10 * MIB, [frame("to", f"{TORCH}/nn/modules/module.py"), *at(5)])
    gradient = None
    for _ in range(3):
        loop.assign("loss", 20, 8 * MIB)
        if gradient is not None and not zero_grad_after:
            loop.trace.free(
                gradient, frames=[frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *at(21)]
            )
        loop.trace.free(loop.kept.pop("loss")[0], frames=ENGINE)
        gradient = loop.alloc(10 * MIB, ENGINE)
        for addr in [loop.alloc(size, STEP) for size in temporaries]:
            loop.trace.free(addr, frames=STEP)
        if zero_grad_after:
            loop.trace.free(
                gradient, frames=[frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *at(31)]
            )
    return loop


def test_gradients_that_stay_through_forward_are_a_fault(advice_on):
    late, early = (
        advice_on(training(zero_grad_after=False)),
        advice_on(training(zero_grad_after=True)),
    )
    (fault,) = late.faults
    assert (fault.kind, fault.is_certain) == ("gradients-kept", False)
    assert fault.wrong_if == "the memory holds gradients of an optimizer that steps later"
    assert late.together.n_bytes == early.peak.n_bytes < late.peak.n_bytes
    assert early.findings == ()


def test_gradients_kept_where_the_step_has_the_peak_save_beside_its_temporaries(
    advice_on, capsys, tmp_path
):
    """Alone they save nothing; without the temporaries of the step, the next forward has the peak."""
    lists = [3 * MIB] * 4
    early = advice_on(training(zero_grad_after=True))
    late = advice_on(training(zero_grad_after=False, temporaries=lists))
    fault, free = late.findings
    assert (fault.kind, fault.held_bytes, fault.peak.n_bytes) == (
        "gradients-kept",
        0,
        late.peak.n_bytes,
    )
    assert free.kind == "foreach"
    assert fault.saved_bytes == late.peak.n_bytes - free.saved_bytes - late.together.n_bytes > 0
    assert late.together.n_bytes == early.peak.n_bytes - MIB
    main(["advise", str(tmp_path / "s.pickle")])
    shown = capsys.readouterr().out
    assert "saves      nothing alone" in shown
    main([str(tmp_path / "s.pickle")])
    assert "MiB with others: snapconv advise)" in capsys.readouterr().out


def test_gradients_of_before_the_trace_that_are_freed_after_a_forward_are_a_fault(advice_on):
    """The trace begins with a forward; zero_grad comes after it, before the backward makes them anew."""
    zero_grad = [frame("zero_grad", f"{TORCH}/optim/optimizer.py"), *at(21)]
    loop = Loop()
    loop.trace = TraceBuilder().segment(1 << 30, traced=False).alloc(10 * MIB, traced=False)
    gradient = next(iter(loop.trace._live))
    loop.trace.alloc(10 * MIB, traced=False)
    loop.assign("loss", 20, 8 * MIB)
    loop.trace.free(gradient, frames=zero_grad)
    loop.trace.free(loop.kept.pop("loss")[0], frames=ENGINE)
    loop.alloc(10 * MIB, ENGINE)
    loop.trace.alloc(MIB, frames=STEP).free(frames=STEP)
    (fault,) = advice_on(loop).faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == (
        "gradients-kept",
        "train.py:21",
        10 * MIB,
    )


def test_a_goal_asks_for_the_largest_batch_that_reaches_it(advice_on):
    loop = Loop()
    loop.assign("out", 20, *[10 * MIB] * 4)
    assert advice_on(loop).findings == ()
    (trade,) = advice_on(loop, goal_bytes=33 * MIB).findings
    assert (trade.kind, trade.peak.n_bytes) == ("batch", 32 * MIB)
    assert trade.what == "Make the batch or the sequence smaller: × 0.8."


def test_the_findings_that_reach_a_goal_do_so_alone_or_need_each_other():
    session = snapconv.load("fixtures/training_step.pickle")
    demand = Demand(session.devices[0])
    for goal_bytes, is_alone in ((1200 * MIB, True), (500 * MIB, False), (MIB, None)):
        (advice,) = session.advise(goal_bytes=goal_bytes)
        assert [len(numbers) == 1 for numbers in advice.enough] == {
            True: [True] * 5,
            False: [False],
            None: [],
        }[is_alone]
        for numbers in advice.enough:
            changes = [advice.findings[number - 1].change for number in numbers]
            assert demand.without(changes).n_bytes <= goal_bytes
            for fewer in itertools.combinations(changes, len(changes) - 1):
                assert demand.without(fewer).n_bytes > goal_bytes


@pytest.mark.parametrize(
    ("file", "line", "how"),
    [
        (
            "/home/me/project/model.py",
            "model.py:13",
            "Use F.scaled_dot_product_attention; pass is_causal=True instead of a causal mask.",
        ),
        (
            f"{TORCH[:-5]}timm/layers/attention.py",
            "train.py:20",
            "Call timm.layers.set_fused_attn(True)",
        ),
    ],
)
def test_attention_scores_cost_nothing_to_avoid_and_what_the_queries_keep_stays(
    advice_on, file, line, how
):
    """Scores and their softmax go; copies that the product of matrices made go where their originals stay."""
    loop = Loop()
    for _ in range(2):
        made = []
        for number, (operation, size) in enumerate(
            [("linear", 6), ("clone", 2), ("bmm", 16), ("_softmax", 16), ("bmm", 2)]
        ):
            native = frame(f"at::_ops::{operation}::call(at::Tensor const&)", "??")
            inner = frame("attention", file, 10 + number)
            made.append(loop.alloc(size * MIB, [native, inner, CALL, *at(20)]))
        for addr in made:
            loop.trace.free(addr, frames=ENGINE)
    (free,), with_scores = advice_on(loop).findings, advice_on(loop, goal_bytes=MIB)
    assert (free.kind, free.sort) == ("attention", "free")
    (trade,) = [one for one in with_scores.findings if one.kind == "attention"]
    assert (trade.line.place, trade.held_bytes) == (line, 34 * MIB)
    assert trade.how[0].startswith(how)
    assert trade.peak.n_bytes == (42 - 34) * MIB


def test_check_fails_where_a_change_brings_a_fault(tmp_path, capsys):
    new = str(outputs(deletes=False).trace.write(tmp_path / "new.pickle"))
    old = str(outputs(deletes=True).trace.write(tmp_path / "old.pickle"))
    assert main(["check", old, "--no-faults-above", "1MiB"]) == 0
    assert main(["check", new, "--no-faults-above", "1MiB", "--baseline", old]) == 7
    assert "The old output is still alive while train.py:20" in capsys.readouterr().out
    assert main(["check", new, "--no-faults-above", "1MiB", "--baseline", new]) == 0
    assert main(["check", new, "--no-faults-above", "10MiB"]) == 0


def test_the_verdict_names_a_fault_that_is_found_at_once(tmp_path, capsys):
    assert main([str(outputs(deletes=False).trace.write(tmp_path / "s.pickle"))]) == 0
    assert "fault: The old output is still alive while train.py:20" in capsys.readouterr().out


def test_a_long_loop_is_looked_up_in_columns_that_are_made_once(advice_on, monkeypatch):
    """A column over all allocations for each burst of frees made the cost the square of the loop's length."""
    made, freed_event = [], AllocationTable.freed_event
    monkeypatch.setattr(
        AllocationTable,
        "freed_event",
        property(lambda table: made.append(1) or freed_event.func(table)),
    )
    (fault,) = advice_on(outputs(deletes=False, n=200)).faults
    assert fault.n_allocations == 199
    assert len(made) < 50


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a.b", "a.b.c", "a.d", "e", "e.f"]),
            st.integers(1, 9),
            st.integers(1, 5),
        ),
        unique_by=lambda one: one[0],
    ),
    st.integers(1, 40),
)
def test_the_modules_to_checkpoint_are_the_cheapest_that_suffice(rows, wanted):
    modules = [
        Module(tuple(path.split(".")), None, size, cost) for path, size, cost in sorted(rows)
    ]
    sets = [
        chosen
        for n in range(len(modules) + 1)
        for chosen in itertools.combinations(modules, n)
        if not any(a.path == b.path[: len(a.path)] for a, b in itertools.permutations(chosen, 2))
    ]
    sizes = [sum(one.held_bytes for one in chosen) for chosen in sets]
    enough = [
        chosen for chosen, size in zip(sets, sizes, strict=True) if size >= min(wanted, max(sizes))
    ]
    found = cheapest(modules, wanted)
    assert tuple(found) in enough
    assert sum(one.cost for one in found) == min(
        sum(one.cost for one in chosen) for chosen in enough
    )


def test_the_modules_to_checkpoint_are_named_with_what_their_times_say_it_costs(capsys):
    assert main(["advise", "fixtures/transformer.capture", "--save", "8MiB"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "trade: blocks.0-1.mlp keep their activations for backward." in out
    assert "of the forward (by time)" in out
    assert "Or all layers: blocks.0-1 (→ 54.36 MiB, recomputes 88 %)." in out


@pytest.mark.parametrize(
    ("paths", "n_layers"),
    [
        (["h.0", "h.1", "head.1"], 2),
        (["h.0", "h.0.mlp.0", "h.1"], 2),
        (["h.0", "h.1.mlp"], 0),
        (["stages.0", "stages.0.blocks.0", "stages.1"], 0),
    ],
)
def test_all_layers_are_those_of_lists_none_missing_and_no_stages(paths, n_layers):
    modules = [Module(tuple(path.split(".")), None, 1, 1) for path in paths]
    assert [".".join(one.path) for one in whole_layers(modules, "timm")] == ["h.0", "h.1"][
        :n_layers
    ]


def test_layers_of_a_library_are_checkpointed_by_its_own_call_with_the_peak_of_all(
    capsys, monkeypatch
):
    monkeypatch.setattr(Evidence, "library_of", lambda *_: "transformers")
    assert main(["advise", "fixtures/transformer.capture", "--save", "8MiB"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "trade: All 2 layers (blocks.0-1) keep their activations for backward." in out
    assert (
        "Call model.gradient_checkpointing_enable(). Enough for the goal: only blocks.0-1.mlp (→ "
        "54.67"
    ) in out


def test_a_known_batch_stays_a_number_of_samples_and_comes_last(capsys):
    assert main(["advise", "fixtures/transformer.capture", "--save", "60MiB"]) == 0
    trades = [line for line in capsys.readouterr().out.splitlines() if "trade: " in line]
    assert trades[-1].endswith(
        "Make the batch or the sequence smaller: × 0.125 (a batch of 1 instead of 8)."
    )


@pytest.mark.parametrize(("n_states", "what"), [(1, "1 state"), (2, "2 states")])
def test_a_finding_about_one_state_counts_one_state(advice_on, n_states, what):
    """As a page of torch.profiler may have: all that an optimizer keeps in one block."""
    loop = Loop()
    for _ in range(n_states):
        loop.alloc(4 * MIB, at(31, frame("_init_group", f"{TORCH}/optim/adam.py")))
    loop.trace.oom(MIB, device_free=0)
    (states,) = (one for one in advice_on(loop, goal_bytes=MIB).findings if one.kind == "states")
    assert states.what == f"The optimizer keeps {what} in 32 bits (train.py:31)."


def test_a_number_without_its_noun_counts_only_what_is_always_several():
    several = {"batches-early", "graphs-kept", "many-streams", "attention", "foreach"}
    assert {kind.slug for kind in KINDS if "{number}" in kind.what} == several
    assert all(kind.noun for kind in KINDS if "{counted}" in kind.what)


def test_states_that_have_16_bits_already_are_not_made_smaller():
    session = snapconv.load("fixtures/transformer.capture")
    (with_32_bits,) = session.advise(goal_bytes=MIB)
    states = session.devices[0].recorded.metadata.states
    object.__setattr__(states, "n_bytes", states.n_bytes // 2)
    (with_16_bits,) = session.advise(goal_bytes=MIB)
    assert "states" in {one.kind for one in with_32_bits.findings}
    assert "states" not in {one.kind for one in with_16_bits.findings}


def test_temporaries_of_a_step_in_which_memory_ran_out_are_no_states(advice_on):
    """What foreach makes is no state, though nothing frees it: with fused=True it would not be there."""
    loop, adam = Loop(), frame("_multi_tensor_adam", f"{TORCH}/optim/adam.py")
    for operation in ("zeros_like", "_foreach_sqrt"):
        for _ in range(4):
            loop.alloc(
                MIB, at(31, adam, frame(f"at::_ops::{operation}::call(at::Tensor const&)", "??"))
            )
    loop.trace.oom(MIB, device_free=0)
    advice = advice_on(loop, goal_bytes=MIB)
    number = {found.kind: found.n_allocations for found in advice.findings}
    assert (number["states"], number["foreach"]) == (4, 4)


def test_frees_of_memory_from_before_the_trace_and_no_allocation_are_no_fault(advice_on):
    """Recording began after the model was built; then the program deleted it."""
    loop = Loop()
    for _ in range(3):
        loop.trace.alloc(8 * MIB, traced=False)
    for _ in range(3):
        loop.trace.free(frames=at(20))
    advice = advice_on(loop)
    assert (advice.findings, advice.peak.n_bytes) == ((), 24 * MIB)
