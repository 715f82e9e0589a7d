"""Lines with several operations: which of the allocations is whose."""

import pytest

from snapconv.analysis.operation_names import order_of
from snapconv.analysis.source_lines import Line
from snapconv.analysis.source_steps import Step
from snapconv.session import load
from tests.builders import MIB, TraceBuilder, frame

MODEL = """
import torch

def forward(self, x, w):
    h = torch.relu(x @ w)
    return torch.cat(
        (torch.tanh(h), h * 2),
    )

def loop(x, ws):
    for w in ws:
        x = torch.relu(x @ w)

def mixed(self, x):
    return torch.relu(self.norm(x) * 2)
"""
FILE = "/home/me/project/model.py"
CALL = frame("main", "/home/me/project/train.py", 30)
OTHER = [frame("other", "/home/me/project/train.py", 12), CALL]


def at(line, function="forward", *below):
    return [*below, frame(function, FILE, line), CALL]


def names(tmp_path, *stacks):
    """The operations of allocations with these stacks, in their order."""
    builder = TraceBuilder().segment(2 * MIB)
    for stack in stacks:
        builder.alloc(512, frames=stack)
    path = builder.write(tmp_path / "snapshot.pickle")
    (tmp_path / "model.py").write_text(MODEL)
    (device,) = load(path, sources=[tmp_path]).devices
    return [device.operations[number] for number in device.operation_id.tolist()]


def steps(*bounds, in_loop=False):
    named = tuple(Step(str(place), 1, 1, *bound) for place, bound in enumerate(bounds))
    return Line(named, 1, 1, in_loop)


def test_allocations_come_in_the_order_of_evaluation(tmp_path):
    assert names(tmp_path, OTHER, at(5), at(5)) == ["other", "matmul", "relu"]


def test_every_visit_of_a_line_begins_anew(tmp_path):
    found = names(tmp_path, OTHER, at(5), at(5), OTHER, at(5), at(5))
    assert found == ["other", "matmul", "relu", "other", "matmul", "relu"]


def test_what_a_line_calls_does_not_end_the_visit(tmp_path):
    norm = frame("layer_norm", "/venv/lib/python3.11/site-packages/torch/nn/functional.py", 9)
    found = names(
        tmp_path, OTHER, at(15, "mixed", norm), at(15, "mixed", norm), at(15, "mixed"), at(15, "mixed")
    )
    assert found == ["other", "layer_norm", "layer_norm", "mul", "relu"]


def test_the_lines_of_one_statement_are_one_visit(tmp_path):
    # `cat` is called at line 6, after both operations at line 7.
    found = names(tmp_path, OTHER, at(7), at(7), at(6), OTHER)
    assert found == ["other", "tanh", "mul", "cat", "other"]


def test_a_loop_of_one_line_repeats_its_order(tmp_path):
    loop = [at(12, "loop")] * 4
    assert names(tmp_path, OTHER, *loop) == ["other", "matmul", "relu", "matmul", "relu"]


def test_of_a_number_that_does_not_tell_the_last_operation_counts(tmp_path):
    assert names(tmp_path, OTHER, at(7), at(7), at(7), OTHER) == ["other", "mul", "mul", "mul", "other"]


def test_a_trace_that_begins_in_the_midst_of_a_line_has_its_end(tmp_path):
    assert names(tmp_path, at(7), at(6)) == ["mul", "cat"]


def test_memory_from_before_the_trace_has_the_last_operation(tmp_path):
    builder = TraceBuilder().segment(2 * MIB).alloc(512, traced=False, frames=at(5))
    path = builder.alloc(512, frames=OTHER).write(tmp_path / "snapshot.pickle")
    (tmp_path / "model.py").write_text(MODEL)
    (device,) = load(path, sources=[tmp_path]).devices
    assert {device.operations[number] for number in device.operation_id.tolist()} == {"relu", "other"}


def test_frames_of_cpp_say_more_than_the_source(tmp_path):
    native = {"name": "at::_ops::gelu::call(at::Tensor const&)", "filename": "??", "line": 0}
    assert names(tmp_path, OTHER, at(5, "forward", native)) == ["other", "gelu"]


def test_explain_says_that_the_order_told(tmp_path):
    builder = TraceBuilder().segment(2 * MIB)
    path = builder.alloc(512, frames=OTHER).alloc(512, frames=at(5)).alloc(512, frames=at(5))
    path = path.alloc(512, frames=at(7)).write(tmp_path / "snapshot.pickle")
    (tmp_path / "model.py").write_text(MODEL)
    session = load(path, sources=[tmp_path])
    told = [session.explain(f"#{event}").allocations[0].origin.operation_from for event in (1, 2, 4)]
    assert told == [
        "the innermost Python function of its stack",
        "what its line of source calls, by the order of evaluation",
        "what its line of source calls last, of several",
    ]


@pytest.mark.parametrize(
    ("line", "n", "expected"),
    [
        (steps((1, 1), (1, 1)), 2, [0, 1]),
        # What may copy did, or did not.
        (steps((0, 1), (1, 1)), 2, [0, 1]),
        (steps((0, 1), (1, 1)), 1, [1]),
        # One alone may allocate any number.
        (steps((1, None), (1, 1)), 4, [0, 0, 0, 1]),
        (steps((1, 1), (1, None)), 3, [0, 1, 1]),
        (steps((1, None), (1, None)), 2, [0, 1]),
        (steps((1, None), (1, None)), 3, None),
        # Several visits in a row.
        (steps((1, 1), (1, 1)), 6, [0, 1, 0, 1, 0, 1]),
        (steps((1, None), (1, 1), in_loop=True), 4, [0, 1, 0, 1]),
        # Too few, too many, or either of two.
        (steps((1, 1), (1, 1)), 1, None),
        (steps((1, 1), (1, 1)), 3, None),
        (steps((0, 1), (0, 1), (1, 1)), 2, None),
    ],
)
def test_the_number_of_allocations_tells_whose_they_are(line, n, expected):
    assert order_of(line, n) == expected
