"""The peak without a graph as predicted, and as Python itself has it: models run with a graph and without."""

import sys

import pytest

from tests.builders import MIB, TraceBuilder

MODULE_FILE = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
MODEL_FILE = "/home/me/project/model.py"
CALLS = """
class Module:
    def __call__(self, *values):
        return self._call_impl(*values)

    def _call_impl(self, *values):
        return self.forward(*values)
"""
WRAPPER_FILE = "/opt/venv/lib/python3.11/site-packages/transformers/utils/generic.py"
WRAPPER = """
def returns_object(function):
    def wrapper(self, *values):
        return [function(self, *values)]

    return wrapper
"""
MODELS = """
class Layer(Module):
    def __init__(self, size):
        self.size = size

    def forward(self, x):
        return compute("linear", self.size, x)


class Act(Layer):
    def forward(self, x, size=None):
        return compute("silu", size or x.size, x)


class Perceptron(Module):
    def __init__(self, width, inner):
        self.first, self.act, self.last = Layer(inner), Act(inner), Layer(width)

    def forward(self, x):
        x = self.first(x)
        x = self.act(x)
        return self.last(x)


class Gated(Perceptron):
    def __init__(self, width, inner):
        super().__init__(width, inner)
        self.gate = Layer(inner)

    def forward(self, x):
        return self.last(compute("mul", self.gate.size, self.act(self.gate(x)), self.first(x)))


class Halves(Gated):
    def forward(self, x):
        both = self.gate(x)
        return compute("mul", both.size // 2, both, self.act(both, both.size // 2))


class Attention(Layer):
    def forward(self, x):
        s, c, n = compute("linear", self.size, x), compute, self.size
        return c("div", n, c("exp", n, c("sub", n, s)), c("sum", 1, c("exp", n, c("sub", n, s))))


class Block(Module):
    def __init__(self, width, mixer):
        self.norm1, self.attention, self.norm2, self.mixer = Layer(width), Layer(width), Layer(width), mixer

    def forward(self, x):
        normed = self.norm1(x)
        normed = self.attention(normed)
        x = compute("add", x.size, x, normed)
        normed = self.norm2(x)
        normed = self.mixer(normed)
        return compute("add", x.size, x, normed)


class Blocks(Module):
    def __init__(self, *blocks):
        self.first, self.blocks, self.head = Layer(blocks[0].norm1.size), blocks, Layer(3)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Base(Blocks):
    @returns_object
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.first(x)


class Headed(Module):
    def __init__(self, base, head):
        self.base, self.head = base, head

    def forward(self, x):
        outputs = self.base(x)
        x = self.head(outputs[0])
        return compute("linear", 2 * x.size, x)


class Down(Module):
    def __init__(self, width):
        self.first, self.act, self.last = Layer(width), Act(width), Layer(width)

    def forward(self, x):
        x = self.first(x)
        x = self.act(x)
        return self.last(x)


class Up(Down):
    def forward(self, x, skipped):
        x = compute("cat", x.size + skipped.size, x, skipped)
        x = self.first(x)
        x = self.act(x)
        return self.last(x)


class UNet(Module):
    def __init__(self, *widths):
        self.down = [Down(width) for width in widths]
        self.up = [Up(width) for width in reversed(widths)]

    def forward(self, x):
        skipped = []
        for block in self.down:
            x = block(x)
            skipped.append(x)
        x = compute("linear", 2, x)
        for block in self.up:
            x = block(x, skipped.pop())
        return x
"""
SAVES_INPUTS = ("linear", "mul", "silu", "div", "sum")


class Storage:
    """Memory in the trace of a job, freed where Python drops the last reference."""

    def __init__(self, job, size, operation):
        self.job = job
        job.trace.alloc(size * MIB, frames=job.frames(operation))
        self.addr = job.trace.events[-1]["addr"]

    def __del__(self):
        self.job.trace.free(self.addr, frames=self.job.frames())


class Tensor:
    def __init__(self, job, size, operation, *inputs):
        self.size, self.storage = size, Storage(job, size, operation)
        saved = [one.storage for one in inputs if operation in SAVES_INPUTS]
        self.graph = (saved, [one.graph for one in inputs]) if job.keeps_graph else None


class Job:
    """Three forwards of a model, each output dropped before the next."""

    def __init__(self, model, *, keeps_graph):
        self.trace, self.keeps_graph = TraceBuilder().segment(1 << 30), keeps_graph
        names = {"compute": lambda operation, size, *inputs: Tensor(self, size, operation, *inputs)}
        exec(compile(CALLS, MODULE_FILE, "exec"), names)
        exec(compile(WRAPPER, WRAPPER_FILE, "exec"), names)
        apart = MODELS.replace("\n\n\n", "\n" * 60)  # as classes of one file are
        exec(compile(apart, MODEL_FILE, "exec"), names)
        loop = f"model = {model}\nfor _ in range(3):\n    model(compute('to', 1))\n"
        exec(compile(loop, "/home/me/project/train.py", "exec"), names)

    def frames(self, operation=None):
        """Return the frames of the models and the loop, below the operation."""
        found, at = [], sys._getframe().f_back
        while at:
            code = at.f_code
            if code.co_filename.startswith(("/opt/venv", "/home/me")):
                found.append(
                    {"name": code.co_name, "filename": code.co_filename, "line": at.f_lineno}
                )
            at = at.f_back
        native = [
            {"name": f"at::_ops::{operation}::call(at::Tensor const&)", "filename": "??", "line": 0}
        ]
        return native * bool(operation) + found


@pytest.mark.parametrize(
    "model",
    [
        "Blocks(*[Block(5, Perceptron(5, 20)) for _ in range(4)])",
        "Blocks(*[Block(5, Gated(5, 12)) for _ in range(4)])",
        "Blocks(*[Block(5, Halves(5, 10)) for _ in range(4)])",
        "Blocks(Block(6, Perceptron(6, 24)), Block(6, Gated(6, 9)), Block(6, Halves(6, 12)))",
        "Headed(Base(*[Block(5, Perceptron(5, 10)) for _ in range(3)]), Layer(20))",
        "Blocks(*[Block(5, Attention(20)) for _ in range(4)])",
        "UNet(16, 12, 8, 4)",
    ],
)
def test_the_peak_without_a_graph_is_that_of_the_model_run_without_one(model, advice_on):
    (fault,) = advice_on(Job(model, keeps_graph=True)).faults
    assert fault.kind == "unused-graph"
    assert fault.peak.n_bytes == advice_on(Job(model, keeps_graph=False)).peak.n_bytes
