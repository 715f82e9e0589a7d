"""What explain says of user_metadata, of annotate events (torch 2.14) and of internal_metadata (2.15)."""

import pickle

import pytest

import snapconv
from snapconv.writers.text.explanation_text import explanation_lines
from tests.builders import ADDR, TraceBuilder


@pytest.fixture
def annotations_of(tmp_path):
    """The annotations on the allocation of an event: where, what, and whether by the allocator."""

    def ask(builder, event):
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(builder.snapshot()))
        explanation = snapconv.load(path).explain(f"#{event}")
        (explained,) = explanation.allocations
        for annotation in explained.annotations:
            assert any(annotation.text in line for line in explanation_lines(explanation))
        return [
            (annotation.event, annotation.text, annotation.is_internal)
            for annotation in explained.annotations
        ]

    return ask


def test_what_was_set_at_the_alloc_and_what_was_annotated_later_are_shown(annotations_of):
    builder = TraceBuilder().segment().alloc(512, user_metadata="epoch 3")
    builder.event("annotate", addr=ADDR, size=512, user_metadata="rows").free(user_metadata="epoch 4")
    assert annotations_of(builder, 1) == [(1, "epoch 3", False), (2, "rows", False)]


def test_an_annotation_is_of_who_had_the_address_then(annotations_of):
    builder = TraceBuilder().segment().alloc(512).free().alloc(512)
    builder.event("annotate", addr=ADDR, size=512, user_metadata="the second").free()
    builder.event("annotate", addr=ADDR, size=512, user_metadata="nobody's")
    assert annotations_of(builder, 1) == []
    assert annotations_of(builder, 4) == [(5, "the second", False)]


def test_the_annotation_of_a_preexisting_block_is_shown(annotations_of):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False)
    builder.event("annotate", addr=ADDR, size=512, user_metadata="old").free()
    assert annotations_of(builder, 1) == [(0, "old", False)]


def test_annotations_by_the_allocator_are_marked(annotations_of):
    builder = TraceBuilder().segment().alloc(512, user_metadata="", internal_metadata="mallocWithAddress")
    assert annotations_of(builder, 1) == [(1, "mallocWithAddress", True)]


def test_of_many_annotations_the_first_twenty_are_shown(annotations_of):
    builder = TraceBuilder().segment().alloc(512)
    for number in range(30):
        builder.event("annotate", addr=ADDR, size=512, user_metadata=f"note {number}")
    assert [text for _, text, _ in annotations_of(builder, 1)] == [f"note {number}" for number in range(20)]


def test_an_annotation_moves_no_memory(tmp_path):
    plain = TraceBuilder().segment().alloc(512)
    annotated = TraceBuilder().segment().alloc(512).event("annotate", addr=ADDR, size=512, user_metadata="x")
    peaks = [
        snapconv.load(builder.write(tmp_path / "run.pickle")).devices[0].replay.allocated.after.tolist()
        for builder in (plain, annotated)
    ]
    assert peaks == [[0, 512], [0, 512, 512]]
