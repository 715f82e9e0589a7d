"""Weights that a call of the program replaces by what it made on another line: the new value is a weight."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    SITE,
    STEP,
    TORCH,
    ZERO_GRAD,
    Job,
    Stack,
    at_line,
    classified,
    frames,
)

NEW_VALUE = (Category.WEIGHT, Evidence.FREE_SITE, "replaces-a-weight")
SIZE = 7000
NORMED = frames(("unit_norm", "/w/proj/model.py")) + MAIN
PUT = at_line(NORMED, 9)
# `self.weight = Parameter(…)`: PyTorch's own code lets go of the old one.
PUT_BY_MODULE = frames(("__setattr__", f"{TORCH}/nn/modules/module.py")) + PUT
BY_TORCH = frames(("svd_lowrank", f"{TORCH}/_lowrank.py")) + NORMED
BY_A_LIBRARY = frames(("split", f"{SITE}/adapters/layer.py")) + NORMED


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job: classified(job, tmp_path / "snapshot.pickle", SIZE)


def trained() -> tuple[Job, int]:
    """A model that has run, and the address of one of its weights."""
    job = Job()
    for size in (3000, 3000, 9000):
        job.alloc(APPLY, size)
    weight = job.alloc(APPLY, SIZE)
    job.does(FORWARD, ENGINE)
    return job, weight


def replaced(
    made: Stack = NORMED, put: Stack = PUT, *, n_times: int = 1, between: Stack | None = None, beside: int = 0
) -> Job:
    """A weight gets a new value after every backward; ``beside``: so many more blocks of its size."""
    job, weight = trained()
    for _ in range(n_times):
        others = [job.alloc(made, SIZE) for _ in range(beside)]
        new = job.alloc(made, SIZE)
        if between is not None:
            job.does(between)
        job.model.free(weight, frames=put)
        weight = new
        job.does(STEP, FORWARD, ENGINE)
        for addr in others:
            job.free(addr, MAIN)
    return job


@pytest.mark.parametrize("put", [PUT, PUT_BY_MODULE], ids=["by the line", "by a module"])
def test_what_replaces_a_weight_is_its_new_value(put, found):
    assert found(replaced(put=put))[1] == NEW_VALUE


def test_so_is_what_replaces_that(found):
    assert found(replaced(n_times=3))[1:] == [NEW_VALUE] * 3


@pytest.mark.parametrize(
    ("made", "put"), [(BY_TORCH, PUT), (BY_A_LIBRARY, NORMED)], ids=["of torch", "that the same line calls"]
)
def test_the_new_value_may_come_from_a_function(made, put, found):
    assert found(replaced(made, put))[1] == NEW_VALUE


def test_layers_may_replace_their_weights_before_they_have_run(found):
    """What was placed counts as temporary then. Of fewer blocks, the new values may be a batch."""
    job = Job()
    sizes = (SIZE,) * 4 + (9000,) * 4 + (800,)
    weights = [job.alloc(APPLY, size) for size in sizes]
    for size, weight in zip(sizes, weights, strict=True):
        job.alloc(NORMED, size)
        job.model.free(weight, frames=PUT)
    job.does(FORWARD, ENGINE, STEP)
    assert found(job)[4:] == [NEW_VALUE] * 4


def test_layers_of_one_size_are_replaced_one_after_the_other(found):
    job, weight = trained()
    for former in (weight, job.alloc(APPLY, SIZE)):
        job.alloc(NORMED, SIZE)
        job.model.free(former, frames=PUT)
    job.does(STEP, FORWARD, ENGINE)
    assert [row for row in found(job) if row == NEW_VALUE] == [NEW_VALUE] * 2


def test_two_functions_may_replace_it_in_turn(found):
    job, weight = trained()
    other = frames(("scale", "/w/proj/model.py")) + MAIN
    for made in (NORMED, other, NORMED, other):
        new = job.alloc(made, SIZE)
        job.model.free(weight, frames=at_line(made, 9))
        weight = new
        job.does(STEP, FORWARD, ENGINE)
    assert found(job)[1:] == [NEW_VALUE] * 4


def test_a_function_may_replace_weights_of_several_sizes(found):
    """What it made of another size just before is no second of this one."""
    job, weight = trained()
    weights = {9000: job.alloc(APPLY, 9000), SIZE: weight, 5000: job.alloc(APPLY, 5000)}
    for _ in range(2):
        made = {size: job.alloc(NORMED, size) for size in weights}
        for addr in weights.values():
            job.model.free(addr, frames=PUT)
        weights = made
        job.does(STEP, FORWARD, ENGINE)
    assert found(job)[1:] == [NEW_VALUE] * 2


@pytest.mark.parametrize(
    "job",
    [
        replaced(put=at_line(MAIN, 9)),
        replaced(put=[*PUT[:1], *at_line(MAIN, 2)]),
        replaced(put=frames(("unit_norm", "/w/proj/other.py")) + MAIN),
        replaced(put=frames(("scale", "/w/proj/model.py")) + MAIN),
        replaced(put=NO_FRAMES),
        replaced(made=MAIN, put=NO_FRAMES),
        replaced(put=PUT_BY_MODULE[:1]),
        replaced(made=MAIN),
        replaced(made=BY_A_LIBRARY),
        replaced(between=FORWARD),
        replaced(between=ENGINE),
        replaced(beside=1),
    ],
    ids=[
        "by its caller",
        "in another call",
        "by a function of the same name",
        "by another function of the file",
        "by nobody",
        "made by the program, freed by nobody",
        "by PyTorch alone",
        "made by its caller",
        "made by what another line calls",
        "before a forward",
        "before a backward",
        "two of its size",
    ],
)
def test_otherwise_nobody_knows(job, found):
    assert NEW_VALUE not in found(job)


def test_what_is_no_longer_in_use_replaces_nothing(found):
    job, weight = trained()
    kept = job.alloc(NORMED, SIZE)
    job.does(STEP)
    job.free(kept, STEP)
    job.model.free(weight, frames=PUT)
    job.does(FORWARD, ENGINE)
    assert NEW_VALUE not in found(job)


def test_what_replaces_a_gradient_is_no_weight(found):
    job, _ = trained()
    gradient = job.alloc(ENGINE, SIZE)
    other = job.alloc(ENGINE, SIZE)
    job.alloc(NORMED, SIZE)
    job.model.free(gradient, frames=PUT)
    job.does(STEP)
    job.free(other, ZERO_GRAD)
    assert NEW_VALUE not in found(job)


def test_a_file_without_the_stacks_of_frees_shows_no_replacement(found):
    """There the weight seems to be freed by the code that made it."""
    job = Job()
    weight = job.alloc(APPLY[:1] + PUT, SIZE)
    for stack in (FORWARD, ENGINE):
        job.free(job.alloc(stack, 500))
    job.alloc(NORMED, SIZE)
    job.free(weight)
    for stack in (STEP, FORWARD, ENGINE):
        job.free(job.alloc(stack, 500))
    assert NEW_VALUE not in found(job)


def test_what_was_made_after_the_weight_had_gone_is_not_its_value(found):
    job, weight = trained()
    job.model.free(weight, frames=PUT)
    job.alloc(NORMED, SIZE)
    job.does(STEP)
    assert NEW_VALUE not in found(job)


def test_what_was_there_before_the_recording_may_be_of_another_call(found):
    job = Job()
    weight = job.older(APPLY, SIZE)
    job.older(NORMED, SIZE)
    placed = job.alloc(APPLY, SIZE)
    job.model.free(weight, frames=PUT)
    job.model.free(placed, frames=PUT)
    job.does(FORWARD, ENGINE, STEP)
    assert NEW_VALUE not in found(job)


def test_what_replaces_what_nobody_knows_is_not_known(found):
    """A line that makes what layers have, which may be their weights or not."""
    job, weight = trained()
    sizes = (SIZE,) * 4 + (9000,) * 4 + (800,)
    made = [job.alloc(at_line(MAIN, 50), size) for size in sizes]
    job.does(FORWARD, ENGINE)
    job.model.free(weight, frames=MAIN)
    job.alloc(NORMED, SIZE)
    job.model.free(made[0], frames=PUT)
    job.does(STEP, FORWARD, ENGINE)
    assert NEW_VALUE not in found(job)


def test_a_block_of_another_size_is_not_its_value(tmp_path):
    job, weight = trained()
    job.alloc(NORMED, 5000)
    job.model.free(weight, frames=PUT)
    job.does(STEP, FORWARD, ENGINE)
    assert NEW_VALUE not in classified(job, tmp_path / "snapshot.pickle", 5000)


@pytest.mark.parametrize(("size", "put"), [(5000, PUT), (SIZE, at_line(MAIN, 20))], ids=["size", "site"])
def test_what_else_is_freed_does_not_tell_which_of_two_it_is(size, put, found):
    """What was freed of a smaller size, or by code that the file has seen before."""
    job = Job()
    seen = job.alloc(put, 600)
    job.model.free(seen, frames=put)
    weight, other = job.alloc(APPLY, SIZE), job.alloc(APPLY, size)
    job.does(FORWARD, ENGINE)
    for _ in range(2):
        job.alloc(NORMED, SIZE)
    job.model.free(weight, frames=PUT)
    job.model.free(other, frames=put)
    job.does(STEP, FORWARD, ENGINE)
    assert NEW_VALUE not in found(job)
