"""Which frames are a module's, and that looking at a stack keeps nothing alive."""

import functools
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

from snapconv.recorder.timing.marks import lines_of_methods  # noqa: E402
from tests.recorder.timing.timed import rows_of, timer_for, trace_of  # noqa: E402

pytestmark = pytest.mark.smoke("times")

W = torch.ones(4, requires_grad=True)


class Mixin:
    def mixed(self, x):
        return x * 2


class Plain:
    def forward(self, x):
        return x * 2


def decorated(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


class Net(Mixin, nn.Module):
    @decorated
    def wrapped(self, x):
        return x * 2

    @staticmethod
    def static(x):
        return x * 2

    @property
    def doubled(self):
        return W * 2

    def other_name(this, x):  # what Skyline does not see either
        return x * 2

    def inner(self, x):
        def with_self():
            return x * 2 if self.training else x

        def without():
            return x * 2

        return with_self() + without()

    def forward(self, x):
        return self.inner(self.doubled * self.other_name(self.static(self.wrapped(self.mixed(x)))))


def functions_of_modules(trace):
    frames = {tuple(frame) for stack in trace["stacks"] for frame in stack if frame[0] == __file__}
    return {name for _, _, name, is_of_module in frames if is_of_module}


def test_a_frame_is_a_modules_where_its_variable_self_is_one():
    net = Net()
    trace = trace_of(lambda: (net(W) * Plain().forward(W)).sum().backward(), net)
    assert functions_of_modules(trace) == {
        "forward",
        "mixed",
        "wrapped",
        "doubled",
        "inner",
        "with_self",
    }
    plain = next(
        row
        for row in rows_of(trace)
        if trace["stacks"][row.stack][0][2] == "forward" and row.module is None
    )
    assert not trace["stacks"][plain.stack][0][3]


def test_a_module_used_without_being_called_is_a_module_too():
    net = Net()
    trace = trace_of(lambda: net.mixed(W).sum().backward(), net)
    assert functions_of_modules(trace) == {"mixed"}
    assert rows_of(trace)[0].module is None


def test_a_method_is_known_by_its_lines():
    spans = lines_of_methods(nn.Module)[__file__, "forward"]
    first = Net.forward.__code__.co_firstlineno
    assert any(begin <= first + 1 <= end for begin, end in spans)
    assert not any(
        begin <= Plain.forward.__code__.co_firstlineno + 1 <= end for begin, end in spans
    )


def test_a_value_that_the_script_lets_go_is_let_go_at_once():
    gone = []

    class Forgets(nn.Module):
        def forward(self, x):
            x = x * 2
            first = weakref.ref(x)
            x = x + 1
            gone.append(first() is None)
            return x

    with torch.no_grad():
        trace_of(lambda: Forgets()(W))
    assert gone == [True, True]


def test_a_script_that_walks_through_its_variables_is_not_disturbed():
    timer = timer_for()
    with timer:
        timer.begin(0)
        a, b = W, W
        before = locals()
        doubled = [value * 2 for value in list(before.values()) if isinstance(value, torch.Tensor)]
        assert "doubled" not in before
        timer.end()
    assert len(doubled) == 2
    assert a is b
