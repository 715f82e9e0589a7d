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


def built(*lines, before=False, is_late=False, runs=True):
    """So many blocks of lines of an ``__init__``: (file, line, how often, whether it packs)."""
    job = Job()
    job.does(MAIN, *[FORWARD, ENGINE] * is_late)
    for file, line, n_made, packs in lines:
        init = at_line([*frames(("__init__", f"/w/proj/{file}.py")), *MAIN], line)
        for _ in range(n_made):
            stack = [*frames(PACKS if packs else TO_DEVICE), *init]
            job.older(stack, SIZES[0]) if before else job.alloc(stack, SIZES[0])
    job.does(*[FORWARD, ENGINE] * runs)
    return job


@pytest.mark.parametrize(
    ("made", "n_packed"),
    [
        ([("a", 7, 3, True), ("a", 8, 3, False)], 6),
        ([("a", 7, 3, True), ("a", 8, 3, False), ("a", 9, 4, False)], 6),
        ([("a", 7, 3, True), ("a", 8, 4, False)], 0),
        ([("a", 7, 3, True), ("b", 8, 3, False)], 0),
        ([("a", 7, 3, False), ("a", 8, 3, False), ("b", 7, 3, True), ("b", 8, 3, True)], 6),
        ([("a", 7, 2, True), ("a", 8, 2, False)], 0),
        ([("a", 7, 5, True), ("a", 8, 5, False)], 10),
        ([("a", 7, 3, True), ("a", 8, 3, False), ("a", 9, 3, False)], 9),
    ],
    ids=[
        "in turn",
        "beside another",
        "one more often",
        "of two files",
        "only data in one",
        "of two layers",
        "of five",
        "of three lines",
    ],
)
def test_lines_that_take_turns_are_of_one_file_and_run_equally_often_for_three_layers(made, n_packed, found):
    assert found(built(*made), SIZES[0]).count(PACKED) == n_packed


@pytest.mark.parametrize(("other", "n_packed"), [({"before": True}, 6), ({"is_late": True}, 0)])
def test_layers_are_built_before_the_first_forward_and_maybe_before_the_trace(other, n_packed, found):
    made = [("a", 7, 3, True), ("a", 8, 3, False)]
    assert found(built(*made, **other), SIZES[0]).count(PACKED) == n_packed


def test_several_blocks_of_a_line_of_an_init_are_no_batches(found):
    rows = found(built(("a", 7, 3, True)), SIZES[0])
    assert {category for category, *_ in rows} == {Category.UNKNOWN}


def test_what_a_line_of_an_init_frees_again_does_not_count(found):
    job = built(("a", 7, 3, True), ("a", 8, 3, False), runs=False)
    init = at_line([*frames(("__init__", "/w/proj/a.py")), *MAIN], 8)
    job.free(job.alloc([*frames(TO_DEVICE), *init], SIZES[0]), MAIN)
    job.does(FORWARD, ENGINE)
    assert found(job, SIZES[0]).count(PACKED) == 6
