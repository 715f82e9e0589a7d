"""Graphs of before the trace that a loss keeps through the next forward, and what only looks like them."""

import pytest

from tests.builders import MIB, frame
from tests.faulty_jobs import CALL, ENGINE, GRAPH, PLACEMENT, at, graph_of_before_the_trace, layer


def test_the_graph_of_the_call_before_the_trace_is_a_fault_of_the_name_that_the_loss_has(advice_on):
    advice = advice_on(graph_of_before_the_trace())
    (fault,) = advice.faults
    assert (fault.kind, fault.where.place, fault.held_bytes) == (
        "previous-kept",
        "train.py:21",
        36 * MIB,
    )
    assert (advice.peak.n_bytes, fault.peak.n_bytes) == (92 * MIB + 512, 56 * MIB + 512)
    assert (
        fault.what
        == "The old output (and its graph) is still alive while train.py:20 makes the next one."
    )
    assert fault.how[0] == (
        "If backward is needed, `del` the name that has it (train.py:21 assigns it) before "
        "train.py:20 runs."
    )


def test_the_saving_is_that_of_the_program_that_deletes_the_loss(advice_on):
    (fault,) = advice_on(graph_of_before_the_trace()).faults
    deleted = advice_on(graph_of_before_the_trace(deletes=True))
    assert (fault.peak.n_bytes, deleted.faults) == (deleted.peak.n_bytes, ())


def test_without_stacks_a_graph_is_likely_alone_as_a_list_of_outputs_has_the_same_lifetimes(
    advice_on,
):
    (fault,) = advice_on(graph_of_before_the_trace()).faults
    assert not fault.is_certain


def test_a_trace_of_more_steps_has_the_same_fault(advice_on):
    job = graph_of_before_the_trace()
    for _ in range(2):
        graph = [*job.trace._live][-9:]
        job.forward(20, GRAPH)
        job.alloc(512, at(21))
        job.free(graph, at(21))
    kinds = {fault.kind for fault in advice_on(job).faults}
    assert kinds == {"unused-graph", "previous-kept"}


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("a backward went through it", {"freed_at": ENGINE}),
        ("a model was replaced", {"stack_of": lambda i: [PLACEMENT, frame("build", line=i)]}),
        ("a batch was replaced", {"stack_of": lambda i: [frame("to_device", line=i)]}),
        ("a cache dropped its oldest entry", {"entries": 3}),
        ("the next forward leaves something else", {"old": [size + MIB // 2 for size in GRAPH]}),
        ("few blocks, such as a state", {"old": GRAPH[:4]}),
        ("a module freed what it kept", {"freed_at": at(21, CALL, frame("forget", line=5))}),
        (
            "library code freed it",
            {"freed_at": at(21, frame("collect", "/site-packages/lib/loop.py"))},
        ),
        ("another forward came first", {"old": [MIB] * 8}),
    ],
)
def test_what_only_looks_like_an_old_graph_is_no_fault(advice_on, what, changes):
    kinds = [fault.kind for fault in advice_on(graph_of_before_the_trace(**changes)).faults]
    assert "previous-kept" not in kinds, what


def test_layers_of_one_stack_are_a_graph_too(advice_on):
    job = graph_of_before_the_trace(stack_of=lambda _: layer(0))
    (fault,) = advice_on(job).faults
    assert (fault.kind, fault.held_bytes) == ("previous-kept", 36 * MIB)
