"""What an ``__init__`` makes for every layer on the device, and what only looks like it."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import ENGINE, FORWARD, MAIN, NO_FRAMES, Job, at_line, classified, cpp, frames

SIZES = (6000, 7000, 8000)
SCALE = 500
TO_DEVICE = cpp("at::_ops::_to_copy::call(at::Tensor const&)")
PACKS = cpp("at::_ops::bitwise_or_Tensor::call(at::Tensor const&, at::Tensor const&)")
PACKED = (Category.WEIGHT, Evidence.LIFETIME, "made-in-turn-where-layers-are-built")


def layers(*, sizes=SIZES, function="__init__", op=PACKS, lines=2, engine=ENGINE, kept=True):
    """Every layer has a weight, and with two lines its scale, which is copied to the device."""
    job, made = Job(), []
    init = [*frames((function, "/w/proj/packed.py")), *MAIN]
    for size in sizes:
        made.append(job.alloc([*frames(*([op] if op else [])), *at_line(init, 7)], size))
        if lines == 2:
            made.append(job.alloc([*frames(*([TO_DEVICE] if op else [])), *at_line(init, 8)], SCALE))
    if not kept:
        for addr in made:
            job.free(addr, MAIN)
    job.does(FORWARD, engine)
    return job


@pytest.fixture
def found(tmp_path):
    def of_size(job, size):
        return classified(job, tmp_path / "snapshot.pickle", size)

    return of_size


def test_what_lines_of_an_init_make_in_turn_and_compute_are_packed_weights(found):
    assert found(layers(), SIZES[0]) == [PACKED]
    assert found(layers(), SCALE) == [PACKED] * 3


@pytest.mark.parametrize(
    "other",
    [{"op": TO_DEVICE}, {"lines": 1}, {"op": None, "engine": NO_FRAMES}],
    ids=["data", "one line", "Python"],
)
def test_what_an_init_makes_several_times_may_be_data_as_well(other, found):
    assert found(layers(**other), SIZES[0])[0][0] is Category.UNKNOWN


@pytest.mark.parametrize(
    "other", [{"function": "load"}, {"sizes": SIZES[:2]}], ids=["of another function", "twice"]
)
def test_what_is_not_made_for_several_layers_is_a_batch(other, found):
    assert found(layers(**other), SIZES[0])[0][0] is Category.INPUT


def test_what_is_freed_before_forward_is_no_weight(found):
    assert found(layers(kept=False), SIZES[0])[0][0] is Category.TEMPORARY
