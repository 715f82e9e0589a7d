"""What torch compiles or scripts is one row, and is not compiled again because of the timer."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where torch is

from tests.recorder.timing.timed import backward_names, forward_names, rows_of, timer_for  # noqa: E402

# Importing the compiler warns about what the standard library deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")

BACKEND = "aot_eager"
X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x)).sin()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def compiled_module():
    net = Net()
    return net, torch.compile(net, backend=BACKEND)


def module_compiled_in_place():
    net = Net()
    net.compile(backend=BACKEND)
    return net, net


def compiled_function():
    @torch.compile(backend=BACKEND)
    def double(x):
        return x.sin() * 2

    net = nn.Linear(4, 4)
    return net, lambda x: double(net(x))


def function_in_function():
    @torch.compile(backend=BACKEND)
    def double(x):
        return x.sin() * 2

    @torch.compile(backend=BACKEND)
    def quadruple(x):
        return double(x) * 2

    net = nn.Linear(4, 4)
    return net, lambda x: quadruple(net(x))


def function_with_custom_function():
    square = Square.apply

    @torch.compile(backend=BACKEND, fullgraph=True)
    def both(x):
        return square(x).sin()

    net = nn.Linear(4, 4)
    return net, lambda x: both(net(x))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (compiled_module, ["compiled:Net", "sum"]),
        (module_compiled_in_place, ["compiled:Net", "sum"]),
        (compiled_function, ["linear", "compiled:double", "sum"]),
        (function_in_function, ["linear", "compiled:quadruple", "sum"]),
        (function_with_custom_function, ["linear", "compiled:both", "sum"]),
    ],
)
def test_what_is_compiled_is_one_row_and_is_compiled_once(make, names):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    timer = timer_for()
    with timer:
        net, run = make()
        run(X).sum().backward()
        n_compiled = counters["stats"]["unique_graphs"]
        for number in range(2):
            timer.begin(number, is_warm_up=number == 0)
            run(X).sum().backward()
            timer.end()
        run(X).sum().backward()
    found = rows_of(timer.trace())
    assert forward_names(found) == backward_names(found) == names
    assert counters["stats"]["unique_graphs"] == n_compiled > 0
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_compiled_module_is_named_by_its_path():
    timer = timer_for()
    with timer:
        net, run = compiled_module()
        timer._module_path = {net: "body"}.get
        timer.begin(0)
        run(X).sum().backward()
        timer.end()
    assert [(row.name, row.module) for row in rows_of(timer.trace())] == [
        ("compiled:Net", "body"),
        ("sum", None),
    ]


def test_a_scripted_module_is_one_row():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.jit.script(Net())
    timer = timer_for()
    with timer:
        timer.begin(0)
        net(X).sum().backward()
        timer.end()
    found = rows_of(timer.trace())
    assert forward_names(found) == backward_names(found) == ["scripted:Net", "sum"]


def test_compile_still_returns_a_decorator_and_leaves_alone_what_it_does_not_compile():
    with timer_for():
        decorate = torch.compile(backend=BACKEND, disable=True)
        net = Net()
        assert torch.equal(decorate(net)(X), net(X))
