"""One row per outermost call of a torch function: its name, its place, its phase."""

import re
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is
from torch.nn import functional as F  # noqa: E402  # as everybody calls it

from tests.recorder.timing.timed import (  # noqa: E402
    backward_names,
    forward_names,
    on_a_busy_machine,
    rows,
    rows_of,
    timer_for,
    trace_of,
)

pytestmark = pytest.mark.smoke("times")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.second(F.relu(self.first(x))) + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


X = torch.ones(2, 4)
W = torch.ones(4, requires_grad=True)


def test_every_call_of_a_layer_is_a_row_with_its_module():
    net = Net()
    found = rows(lambda: net(X).sum().backward(), net)
    assert [(row.name, row.module) for row in found] == [
        ("linear", "blocks.0.first"),
        ("relu", "blocks.0"),
        ("linear", "blocks.0.second"),
        ("add", "blocks.0"),
        ("linear", "blocks.1.first"),
        ("relu", "blocks.1"),
        ("linear", "blocks.1.second"),
        ("add", "blocks.1"),
        ("sum", None),
    ]


def test_what_a_torch_function_calls_itself_is_hidden():
    layer = nn.MultiheadAttention(8, 2)
    x = torch.ones(3, 1, 8)
    assert forward_names(rows(lambda: layer(x, x, x)[0].sum().backward())) == [
        "multi_head_attention_forward",
        "sum",
    ]


CONV = nn.Conv2d(1, 1, 1)
IMAGE, LABELS = torch.ones(1, 1, 2, 2), torch.zeros(1, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: CONV(IMAGE), ["conv2d"]),
        (lambda: F.relu(W, inplace=False), ["relu"]),
        (lambda: W + 1, ["add"]),
        (lambda: 1 - W, ["rsub"]),
        (lambda: W[0], ["getitem"]),
        (lambda: W.view(2, 2).T, ["view", "T"]),
        (lambda: F.cross_entropy(W.view(1, 4), LABELS), ["view", "cross_entropy"]),
    ],
)
def test_names_are_those_of_the_functions(call, names):
    assert forward_names(rows(lambda: call().sum().backward())) == [*names, "sum"]


def asks_questions():
    y = W * 2
    assert y.shape == y.size()
    assert (y.dim(), y.numel(), len(y), y.is_leaf, y.requires_grad) == (1, 4, 4, False, True)
    y.sum().backward()


def waits_for_the_device():
    loss = (W * 2).sum()
    loss.item()
    (loss * 1).backward()


def raises():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    (W * 2).sum().backward()


def calls_on_another_thread():
    thread = threading.Thread(target=lambda: W * 3)
    thread.start()
    thread.join()
    (W * 2).sum().backward()


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (asks_questions, ["mul", "sum"]),
        (waits_for_the_device, ["mul", "sum", "item", "mul"]),
        (raises, ["mul", "sum"]),
        (calls_on_another_thread, ["mul", "sum"]),
    ],
)
def test_rows_are_the_calls_that_work_on_this_thread(step, names):
    assert forward_names(rows(step)) == names


def test_the_stack_is_that_of_the_call_without_the_recorders_frames():
    net = Net()
    trace = trace_of(lambda: net(X).sum().backward(), net)
    stack = trace["stacks"][rows_of(trace)[1].stack]
    lines = [(file.rsplit("/", 1)[-1], name, is_of_module) for file, _, name, is_of_module in stack]
    assert lines[:3] == [
        ("functional.py", "relu", False),
        ("test_calls.py", "forward", True),
        ("module.py", "_call_impl", True),
    ]
    assert not any(re.search("/snapconv/(guest|recorder|simulation)/", file) for file, *_ in stack)
    assert ("timed.py", "trace_of", False) in lines


def test_line_numbers_are_those_of_the_calls():
    def step():
        y = W * 2
        y.sum().backward()

    first = step.__code__.co_firstlineno
    trace = trace_of(step)
    found = [trace["stacks"][row.stack] for row in rows_of(trace)]
    assert [next(line for _, line, name, _ in stack if name == "step") for stack in found] == [
        first + 1,
        first + 2,
    ]


def test_what_happens_between_iterations_is_not_recorded():
    timer = timer_for()
    with timer:
        timer.begin(4)
        (W * 2).sum().backward()
        timer.end()
        (W + 2).sum().backward()
    trace = timer.trace()
    assert trace["calls"]["iteration"] == [4, 4]
    assert trace["calls"]["name"] == ["mul", "sum"]


def test_without_an_iteration_there_is_no_trace():
    timer = timer_for()
    with timer:
        (W * 2).sum().backward()
        timer.begin(0, is_warm_up=True)  # and never ended: the script stopped here
        W * 2
    assert timer.trace() is None


def test_of_a_warm_up_nothing_is_left_once_an_iteration_is_timed():
    timer = timer_for()
    with timer:
        for number, warm_up in ((7, True), (8, False)):
            timer.begin(number, is_warm_up=warm_up)
            (W * 2 if warm_up else W + 2).sum().backward()
            timer.end()
    trace = timer.trace()
    assert (trace["calls"]["iteration"], trace["calls"]["name"]) == ([8, 8], ["add", "sum"])
    assert {row["iteration"] for row in trace["iterations"]} == {8}
    assert len(trace["stacks"]) == len(set(trace["calls"]["stack"]))


def test_after_an_error_of_the_script_nothing_of_the_timer_is_left():
    engine = torch.autograd.variable.Variable._execution_engine
    apply, compile_ = torch.autograd.Function.__dict__["apply"], torch.compile
    timer = timer_for()
    y = W * 2

    def script():
        with timer:
            timer.begin(0)
            raise KeyError

    with pytest.raises(KeyError):
        script()
    assert torch._C._len_torch_function_stack() == 0
    assert torch.autograd.variable.Variable._execution_engine is engine
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert torch.compile is compile_
    assert "__call__" not in vars(torch.jit.ScriptModule)
    y.sum().backward()


# --- phases


def test_the_phases_of_a_step_are_told_apart():
    net = Block()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        batch = torch.ones(2, 4)
        loss = net(batch).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    trace = trace_of(step, net)
    found = rows_of(trace)
    assert [row.name for row in found if row.phase == "forward"] == [
        "linear",
        "relu",
        "linear",
        "add",
        "sum",
    ]
    others = {row.name for row in found if row.phase == "other"}
    assert {"ones", "_foreach_norm"} <= others
    assert all(row.backward_ms is None for row in found if row.phase != "forward")
    assert "add_" in {row.name for row in found if row.phase == "optimizer"}
    assert trace["iterations"][0]["optimizer_ms"] > 0


@on_a_busy_machine
def test_forward_begins_with_the_first_call_of_a_module_or_for_autograd():
    def step():
        batch = torch.zeros(4) + 1  # of no module, and nothing that autograd notes
        time.sleep(0.02)
        (batch * W).sum().backward()

    trace = trace_of(step)
    assert [(row.name, row.phase) for row in rows_of(trace)] == [
        ("zeros", "other"),
        ("add", "other"),
        ("mul", "forward"),
        ("sum", "forward"),
    ]
    assert trace["iterations"][0]["forward_ms"] < 20


@on_a_busy_machine
def test_the_users_own_time_between_calls_is_forward_time():
    def step():
        y = W * 2
        time.sleep(0.02)
        y.sum().backward()

    trace = trace_of(step)
    assert trace["iterations"][0]["forward_ms"] >= 20
    assert sum(row.forward_ms for row in rows_of(trace)) < trace["iterations"][0]["forward_ms"] - 15


def test_accumulated_gradients_are_several_forwards_and_backwards():
    layer = nn.Linear(4, 4)

    def step():
        for _ in range(3):
            layer(X).sum().backward()

    found = rows(step)
    assert forward_names(found) == backward_names(found) == ["linear", "sum"] * 3


def test_without_gradients_there_is_no_backward():
    net = Net()

    def step():
        with torch.no_grad():
            net(X)

    trace = trace_of(step, net)
    assert len(forward_names(rows_of(trace))) == 8
    assert backward_names(rows_of(trace)) == []
    assert trace["iterations"][0]["backward_ms"] is None


@on_a_busy_machine
def test_an_optimizer_that_calls_the_model_has_the_rest_of_its_step():
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = layer(X).pow(2).sum()
        loss.backward()
        time.sleep(0.02)
        return loss

    trace = trace_of(lambda: optimizer.step(closure))
    found = rows_of(trace)
    assert set(forward_names(found)) == set(backward_names(found)) == {"linear", "pow", "sum"}
    iteration = trace["iterations"][0]
    assert iteration["backward_ms"] < 20 <= iteration["optimizer_ms"]


def test_the_step_of_an_inner_optimizer_belongs_to_the_outer():
    inner = torch.optim.SGD([W], lr=0.0)

    class Outer(torch.optim.Optimizer):
        def step(self, closure=None):
            inner.step()
            time.sleep(0.02)

    outer = Outer([W], {})
    trace = trace_of(lambda: ((W * 2).sum().backward(), outer.step()))
    assert trace["iterations"][0]["optimizer_ms"] >= 20


# --- modes of the user


def test_a_device_for_new_tensors_may_begin_and_end_at_any_time():
    timer = timer_for()
    with timer:
        with torch.device("cpu"):
            timer.begin(0)
            torch.ones(4)
        (W * 2).sum().backward()
        timer.end()
        timer.begin(1)
        with torch.device("cpu"):
            (W * 3).sum().backward()
            timer.end()
            timer.begin(2)
        torch.set_default_device("cpu")
        (W * 4).sum().backward()
        torch.set_default_device(None)
        timer.end()
    assert torch._C._len_torch_function_stack() == 0
    assert timer.trace()["calls"]["name"] == ["ones", *["mul", "sum"] * 3]


def test_a_script_with_more_calls_than_are_kept_goes_on(monkeypatch):
    monkeypatch.setattr("snapconv.recorder.timing.iteration.MAX_CALLS", 3)

    def step():
        y = W
        for _ in range(10):
            y = y * 1
        y.sum().backward()

    trace = trace_of(step)
    assert trace["overflowed"]
    assert forward_names(rows_of(trace)) == ["mul"] * 3
