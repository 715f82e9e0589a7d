"""Lines with several operations: which of the allocations is whose."""

import time
from dataclasses import fields, replace

import numpy as np
import pytest

from snapconv.classification.user_rules import NO_RULES
from snapconv.naming import operation_names
from snapconv.naming.operation_names import name_allocations, order_of
from snapconv.replay.device_replay import AllocationTable
from snapconv.session import load
from snapconv.snapshot.stack_table import StackInterner
from snapconv.stacks.operations.operation_of_stack import find_sources, infer_operations
from snapconv.stacks.operations.source_lines import Line, read_source
from snapconv.stacks.operations.source_steps import Step
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

def repeated(xs):
    y = torch.tanh(xs)
    for x in xs:
        torch.exp(x)
        y = x.contiguous() * 2
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
    return Line(named, 1, 1, (1, 1) if in_loop else None)


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


def test_of_a_number_that_does_not_show_the_last_operation_counts(tmp_path):
    assert names(tmp_path, OTHER, at(7), at(7), at(7), OTHER) == ["other", "mul", "mul", "mul", "other"]


def test_a_trace_that_begins_in_the_midst_of_a_line_has_its_end(tmp_path):
    assert names(tmp_path, at(7), at(6)) == ["mul", "cat"]


def test_memory_from_before_the_trace_has_the_last_operation(tmp_path):
    builder = TraceBuilder().segment(2 * MIB).alloc(512, traced=False, frames=at(5))
    path = builder.alloc(512, frames=OTHER).write(tmp_path / "snapshot.pickle")
    (tmp_path / "model.py").write_text(MODEL)
    (device,) = load(path, sources=[tmp_path]).devices
    assert {device.operations[number] for number in device.operation_id.tolist()} == {"relu", "other"}


def test_frames_of_cpp_show_more_than_the_source(tmp_path):
    native = {"name": "at::_ops::gelu::call(at::Tensor const&)", "filename": "??", "line": 0}
    assert names(tmp_path, OTHER, at(5, "forward", native)) == ["other", "gelu"]


def test_explain_shows_that_the_order_decided(tmp_path):
    builder = TraceBuilder().segment(2 * MIB)
    builder.alloc(512, frames=OTHER).alloc(512, frames=at(5)).alloc(512, frames=at(5))
    path = builder.alloc(512, frames=at(7)).write(tmp_path / "snapshot.pickle")
    (tmp_path / "model.py").write_text(MODEL)
    session = load(path, sources=[tmp_path])
    sources = [session.explain(f"#{event}").allocations[0].origin.operation_from for event in (1, 2, 4)]
    assert sources == [
        "the innermost Python function of its stack",
        "what its line of source calls, by the order of evaluation",
        "one of several operations that its line of source calls",
    ]


@pytest.mark.parametrize(
    ("line", "n", "expected"),
    [
        (steps((1, 1), (1, 1)), 2, [0, 1]),
        # What may copy did not. If it did, the same number may be that of visits in which it did not.
        (steps((0, 1), (1, 1)), 1, [1]),
        (steps((0, 1), (1, 1)), 2, None),
        (steps((0, 1), (1, 1), in_loop=True), 2, None),
        (steps((0, 1), (1, 1), (1, 1)), 2, [1, 2]),
        (steps((0, 1), (1, 1), (1, 1)), 3, [0, 1, 2]),
        (steps((0, 1), (1, 1), (1, 1), in_loop=True), 3, [0, 1, 2]),
        (steps((0, 1), (0, 1), (0, 1), (1, 1), (1, 1)), 4, None),
        (steps((0, 1), (0, 1), (0, 1), (1, 1), (1, 1)), 5, [0, 1, 2, 3, 4]),
        (steps((0, 1), (0, 1), (0, 1), (1, 1), (1, 1), in_loop=True), 5, None),
        # One alone may allocate any number.
        (steps((1, None), (1, 1)), 4, [0, 0, 0, 1]),
        (steps((0, 1), (1, None)), 4, None),
        (steps((0, None), (0, 1)), 1, None),
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
def test_the_number_of_allocations_shows_whose_they_are(line, n, expected):
    assert order_of(line, n) == expected


EITHER = """import torch

def forward(x):
    return torch.relu(x) if x.flag else torch.exp(x)

def both(x):
    return torch.relu(x + 1 if x.flag else x * 2)

def copy(x, w):
    return x.contiguous() @ w
"""


@pytest.mark.parametrize(
    ("line", "function", "n", "expected"),
    [
        # The arms never both run in one visit: these are two visits, and there is no evidence of which arm.
        (4, "forward", 2, None),
        (7, "both", 2, None),
        (7, "both", 3, None),
        # What is contiguous is not copied, and two visits in a row may look like one.
        (10, "copy", 1, ["matmul"]),
        (10, "copy", 2, None),
        (10, "copy", 4, None),
    ],
)
def test_arms_that_exclude_each_other_and_visits_in_a_row_are_not_taken_apart(line, function, n, expected):
    found = read_source(EITHER).line(function, line)
    order = order_of(found, n)
    assert (order and [found.steps[step].name for step in order]) == expected


def test_arms_are_never_all_of_one_visit_though_other_lines_separate_visits():
    assert order_of(read_source(EITHER).line("both", 7), 3, is_alone=False) is None


def test_visits_that_other_lines_of_the_function_separate_do_not_look_like_one():
    assert order_of(steps((0, 1), (1, 1)), 2, is_alone=False) == [0, 1]
    assert order_of(steps((0, 1), (1, 1), in_loop=True), 2, is_alone=False) == [0, 1]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], ["mul", "mul"]),
        ([at(20, "repeated")], ["contiguous", "mul"]),
        # Before the loop: within it nothing separates one visit from the next.
        ([at(18, "repeated")], ["mul", "mul"]),
        # Another call of the function.
        ([[*at(20, "repeated"), CALL]], ["mul", "mul"]),
    ],
)
def test_what_else_runs_in_the_loop_separates_visits(tmp_path, others, expected):
    assert names(tmp_path, OTHER, *others, OTHER, at(21, "repeated"), at(21, "repeated"))[-2:] == expected


def test_the_same_line_in_another_call_ends_the_visit(tmp_path):
    again = [*at(5)[:1], frame("main", "/home/me/project/train.py", 31)]
    assert names(tmp_path, OTHER, at(5), again, at(5), again) == ["other", "relu", "relu", "relu", "relu"]


def stacks_of_a_script(n):
    """Stacks of lines of a script with two operations each, and those lines by frame."""
    interner = StackInterner()
    interner.ids([[{"name": "<module>", "filename": FILE, "line": line + 1}] for line in range(n)], str)
    table = interner.table()
    line = steps((1, 1), (1, 1))
    return table, {frame: replace(line, first_line=frame + 1, last_line=frame + 1) for frame in range(n)}


def operations_of(stacks, lines):
    return infer_operations(stacks, find_sources(stacks.frames, lines))


def allocations_of(stack_ids):
    n = len(stack_ids)
    column = np.arange(n, dtype=np.int64)
    columns = {field.name: column for field in fields(AllocationTable)}
    none = np.full(n, -1, np.int32)
    return AllocationTable(**(columns | {"stack_id": stack_ids, "free_stack_id": none}))


def test_many_lines_that_run_throughout_a_long_trace_are_named_in_time():
    n = 1600
    stacks, lines = stacks_of_a_script(n)
    rows = allocations_of(np.tile(np.repeat(np.arange(n, dtype=np.int32), 2), 125))
    began = time.process_time()
    found = name_allocations(stacks, operations_of(stacks, lines), rows, None, NO_RULES)
    assert time.process_time() - began < 2
    assert [found.names[name] for name in found.name_id[:4].tolist()] == ["0", "1", "0", "1"]
    assert len(set(found.id.tolist())) == 2


def test_visits_of_a_length_are_looked_at_once(monkeypatch):
    stacks, lines = stacks_of_a_script(2)
    asked = []
    monkeypatch.setattr(
        operation_names, "order_of", lambda line, n, *, is_cut, is_alone: asked.append((n, is_cut)) or None
    )
    rows = allocations_of(np.array([0, 1, 0, 1, 0, 0, 1, 0], np.int32))
    name_allocations(stacks, operations_of(stacks, {0: lines[0]}), rows, None, NO_RULES)
    assert asked == [(1, True), (1, False), (2, False)]
