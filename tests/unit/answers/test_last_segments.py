"""The last segment of checkpoint_sequential: when a checkpoint of it helps, and more segments do."""

import pytest

from tests.builders import MIB, frame
from tests.unit.answers.test_advice import CALL, ENGINE, TORCH, Loop, at

SEQUENTIAL = frame("checkpoint_sequential", f"{TORCH}/utils/checkpoint.py", 640)


def in_segment(function: str, line: int = 5) -> list:
    layer = frame(function, "/home/me/project/model.py", line)
    return at(20, SEQUENTIAL, CALL, layer)


def segment(stacks: list, *, head: int) -> Loop:
    """Make tensors of 4 MiB, one at each stack, and what a head of so many MiB makes after them.

    Backward makes the head's gradient first, and then the segment's: each node frees its own.
    """
    loop = Loop()
    for _ in range(2):
        saved = [loop.alloc(4 * MIB, stack) for stack in stacks]
        if head:
            output = loop.alloc(head * MIB, at(22, CALL))
            loop.trace.alloc(head * MIB, frames=ENGINE).free(frames=ENGINE)
            loop.trace.free(output, frames=ENGINE)
        gradient = loop.alloc(4 * MIB, ENGINE)
        for addr in reversed(saved):
            inner = loop.alloc(4 * MIB, ENGINE)
            loop.trace.free(addr, frames=ENGINE).free(gradient, frames=ENGINE)
            gradient = inner
        loop.trace.free(gradient, frames=ENGINE)
    return loop


BLOCKS = [in_segment("block", line) for line in (5, 6, 7)]


def last_segments(advice_on, loop: Loop) -> list:
    findings = advice_on(loop, goal_bytes=MIB).findings
    return [finding for finding in findings if finding.kind == "last-segment"]


def test_a_checkpoint_of_the_last_segment_keeps_its_output_while_a_head_runs(advice_on):
    """Beside the head's two tensors of 16 MiB stays one of 4 MiB, of three."""
    (finding,) = last_segments(advice_on, segment(BLOCKS, head=16))
    assert finding.saved_bytes == 2 * 4 * MIB


@pytest.mark.parametrize("head", [0, 1])
def test_nothing_is_gained_where_a_model_ends_with_its_last_segment(advice_on, head):
    """Its tensors are all there again when the first node of its backward makes gradients."""
    assert not last_segments(advice_on, segment(BLOCKS, head=head))


@pytest.mark.parametrize(
    ("stacks", "has_several"),
    [
        (BLOCKS, False),
        ([*BLOCKS, BLOCKS[0]], False),  # a layer that calls the same part twice
        ([*BLOCKS, *BLOCKS], True),
        ([in_segment("linear"), in_segment("gelu")], True),
    ],
    ids=["one layer", "a part of it twice", "equal layers", "other layers"],
)
def test_more_segments_are_advised_where_the_last_may_have_several_layers(
    advice_on, stacks, has_several
):
    (finding,) = last_segments(advice_on, segment(stacks, head=32))
    assert any("more segments" in step for step in finding.how) is has_several
