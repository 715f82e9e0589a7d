"""What ran in backward belongs to the call that made its node, and nothing that ran is left out."""

import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is
from torch.nn import functional as F  # noqa: E402  # as everybody calls it
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.recorder.timing.timed import (  # noqa: E402
    backward_names,
    coverage,
    forward_names,
    on_a_busy_machine,
    rows,
    rows_of,
    timer_for,
    trace_of,
)

pytestmark = pytest.mark.smoke("times")

SLEEP_S = 0.03
SLEEP_MS = 1000 * SLEEP_S


class Sleep(torch.autograd.Function):
    """Takes its time in backward, so that it shows whose time it is."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP_S)
        return gradient


apply_sleep = Sleep.apply  # under a name of its own, before any timer is there


def slow(row) -> bool:
    return row.backward_ms is not None and row.backward_ms >= SLEEP_MS


W = torch.ones(4, requires_grad=True)
X = torch.ones(2, 4)


@on_a_busy_machine
def test_a_custom_function_is_one_row_named_after_its_class():
    def step():
        square = Sleep.apply
        square(W * 2).sum().backward()

    found = rows(step)
    assert forward_names(found) == ["mul", "Sleep", "sum"]
    assert [row.name for row in found if slow(row)] == ["Sleep"]


@on_a_busy_machine
def test_a_custom_function_kept_from_before_the_timer_still_has_its_backward():
    found = rows(lambda: apply_sleep(W * 2).sum().backward())
    assert [(row.phase, row.name) for row in found if slow(row)] == [("backward", "SleepBackward")]


def test_a_functions_own_calls_are_hidden_in_forward_and_in_backward():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2 + 0

    assert [row.name for row in rows(lambda: Both.apply(W).sum().backward())] == ["Both", "sum"]


def test_a_backward_pass_inside_a_call_is_a_part_of_the_call():
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                return torch.autograd.grad(y.exp().sum(), y)[0]

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    trace = trace_of(lambda: Inner.apply(W * 2).sum().backward())
    assert [(row.name, row.phase) for row in rows_of(trace)] == [
        ("mul", "forward"),
        ("Inner", "forward"),
        ("sum", "forward"),
    ]


@on_a_busy_machine
def test_the_time_of_a_node_is_its_calls_and_no_others():
    def step():
        y = (W * 2).exp()
        z = Sleep.apply(y)
        (z + 1).sum().backward()

    found = {row.name: row for row in rows(step)}
    assert found["Sleep"].backward_ms >= SLEEP_MS
    for other in ("mul", "exp", "add", "sum"):
        assert found[other].backward_ms < SLEEP_MS, other


@on_a_busy_machine
def test_what_runs_after_a_node_and_before_the_next_is_in_its_tile():
    def wait(gradient):
        time.sleep(SLEEP_S)

    def step():
        y = W * 2
        y.register_hook(wait)  # runs before the node of mul, after that of exp
        y.exp().sum().backward()

    found = {row.name: row for row in rows(step)}
    assert found["exp"].backward_ms >= SLEEP_MS


@on_a_busy_machine
def test_tiles_add_up_to_nearly_the_whole_backward():
    def step():
        y = W
        for _ in range(3):
            y = Sleep.apply(y * 1)
        y.sum().backward()

    assert 0.97 <= coverage(trace_of(step))[1] <= 1


def several_results():
    a, b = (W * 2).chunk(2)
    return a * b


def cast_by_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return LAYER(X).float()


LAYER, LSTM, SCALER = nn.Linear(4, 4), nn.LSTM(4, 4), torch.amp.GradScaler("cpu")
CLASSES = torch.zeros(2).long()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: F.cross_entropy(torch.ones(2, 4) * W, CLASSES), ["mul", "cross_entropy", "sum"]),
        (several_results, ["mul", "chunk", "mul", "sum"]),
        (lambda: LSTM(torch.ones(3, 1, 4))[0], ["lstm", "sum"]),
        (cast_by_autocast, ["linear", "float", "sum"]),
        (lambda: SCALER.scale(LAYER(X).sum()), ["linear", "sum", "mul", "sum"]),
    ],
    ids=["several nodes", "several results", "lstm", "autocast", "scaler"],
)
def test_a_call_is_one_row_with_the_backward_of_all_its_nodes(call, names):
    assert backward_names(rows(lambda: call().sum().backward())) == names


def test_changes_in_place_and_through_views_belong_to_their_calls():
    def step():
        y = W * 2
        y[0] = 3.0
        y[1:] += 1
        y.mul_(2)
        y.sum().backward()

    found = rows(step)
    assert forward_names(found) == ["mul", "setitem", "getitem", "add_", "setitem", "mul_", "sum"]
    assert {"setitem", "add_", "mul_"} <= set(backward_names(found))
    assert not [row for row in found if row.phase == "backward"]


def test_a_graph_that_runs_twice_has_both_times():
    def step():
        loss = Sleep.apply(W * 2).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    found = {row.name: row for row in rows(step)}
    assert found["Sleep"].backward_ms >= 2 * SLEEP_MS


def test_nodes_that_backward_itself_makes_have_rows_of_phase_backward():
    def step():
        x = W * 1
        (gradient,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        gradient.sum().backward()

    found = rows(step)
    left = [row for row in found if row.phase == "backward"]
    assert left
    assert {(row.forward_ms, row.module, row.stack) for row in left} == {(None, None, -1)}


@on_a_busy_machine
def test_a_graph_from_an_earlier_iteration_is_timed_as_left_over():
    timer = timer_for()
    with timer:
        loss = Sleep.apply(W * 2).sum()
        timer.begin(0)
        loss.backward()
        timer.end()
    trace = timer.trace()
    assert [row.name for row in rows_of(trace) if slow(row)] == ["SleepBackward"]
    assert coverage_of_backward(trace) > 0.9


def coverage_of_backward(trace):
    rows_ms = sum(row.backward_ms for row in rows_of(trace))
    return rows_ms / trace["iterations"][0]["backward_ms"]


def test_hooks_are_gone_when_the_iteration_is_over():
    timer = timer_for()
    with timer:
        timer.begin(0)
        loss = (W * 2).exp().sum()
        loss.backward(retain_graph=True)
        timer.end()
        n_rows = len(timer.trace()["calls"]["name"])
        loss.backward()
        timer.begin(1)
        timer.end()
    assert timer.trace()["iterations"][1]["backward_ms"] is None
    assert len(timer.trace()["calls"]["name"]) == n_rows


# --- checkpointing

# Up to torch 2.11 a checkpoint calls functions that have rows, beside what is in it.
OF_CHECKPOINTS = ("empty", "_NoopSaveInputs")


@on_a_busy_machine
def test_recomputation_without_reentry_is_backward_time_of_the_first_node_that_needs_it():
    calls = []

    def block(x):
        calls.append(len(calls))
        if len(calls) % 2 == 0:
            time.sleep(SLEEP_S)  # the second time: in backward
        return x.exp().sin()

    found = rows(lambda: checkpoint(block, W * 2, use_reentrant=False).sum().backward())
    names = [name for name in forward_names(found) if name not in OF_CHECKPOINTS]
    assert names == ["mul", "exp", "sin", "sum"]
    assert [row.name for row in found if slow(row)] == ["sin"]


@on_a_busy_machine
def test_a_reentrant_checkpoint_is_one_row_with_the_backward_of_all_that_is_in_it():
    def block(x):
        return Sleep.apply(x.exp()).sin()

    found = rows(lambda: checkpoint(block, W * 2, use_reentrant=True).sum().backward())
    assert forward_names(found) == ["mul", "CheckpointFunction", "sum"]
    assert [row.name for row in found if slow(row)] == ["CheckpointFunction"]


@pytest.mark.parametrize(
    ("use_reentrant", "names"),
    [(False, ["mul", "exp", "sin", "sum"]), (True, ["mul", "CheckpointFunction", "sum"])],
)
def test_recomputation_is_not_recorded_as_forward(use_reentrant, names):
    def step():
        loss = checkpoint(lambda x: x.exp().sin(), W * 2, use_reentrant=use_reentrant).sum()
        torch.autograd.backward(loss)

    found = [row for row in rows(step) if row.name not in OF_CHECKPOINTS]
    assert [row.name for row in found if row.phase == "forward"] == names
    # Up to torch 2.10 backward makes its first gradient by a function that has a row, too.
    assert {row.name for row in found if row.phase != "forward"} <= {"ones_like"}
