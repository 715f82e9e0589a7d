"""Blocks that take the place of a weight which is freed while it is trained."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    RELEASE,
    STEP,
    ZERO_GRAD,
    Job,
    Stack,
    at_line,
    classified,
    frames,
)

IN_PLACE = (Category.WEIGHT, Evidence.FREE_SITE, "in-place-of-a-weight")
SIZE = 7000
BACKUP = frames(("backup", "/w/proj/attack.py")) + MAIN
# As test code frees, on another line of the same function: so another function.
RESTORE = frames(("restore", "/w/proj/attack.py")) + MAIN
COPIED = frames(("at::_ops::clone::call(at::Tensor const&)", "??")) + BACKUP


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SIZE: classified(job, tmp_path / "snapshot.pickle", size)


def attacked(
    *,
    made_by: Stack = COPIED,
    beside: int = 0,
    n_times: int = 1,
    freed_by: Stack = RESTORE,
    trained: bool = True,
) -> Job:
    """The values of a weight are kept before it is moved, and put back after another backward."""
    job = Job()
    weight = job.alloc(APPLY, SIZE)
    job.alloc(APPLY, 9000)
    for _ in range(n_times):
        job.does(FORWARD)
        gradient = job.alloc(ENGINE, SIZE) if trained else None
        kept = [job.alloc(made_by, SIZE) for _ in range(1 + beside)]
        job.does(FORWARD, ENGINE)
        job.free(weight, freed_by)
        weight = kept[0]
        job.does(STEP)
        if gradient is not None:
            job.free(gradient, ZERO_GRAD)
    return job


def test_the_block_that_takes_the_place_of_a_weight_is_one(found):
    assert found(attacked())[2] == IN_PLACE
    assert found(attacked(made_by=BACKUP))[2] == IN_PLACE


def test_what_takes_its_place_in_turn_is_one_too(found):
    rows = found(attacked(n_times=3))
    assert [row for row in rows if row[0] == Category.WEIGHT][1:] == [IN_PLACE] * 3


def test_of_two_blocks_that_may_be_meant_neither_is(found):
    assert IN_PLACE not in found(attacked(beside=1))


def test_a_weight_that_is_no_longer_trained_needs_no_other_place(found):
    assert IN_PLACE not in found(attacked(trained=False))


@pytest.mark.parametrize("freed_by", [STEP, RELEASE], ids=["an optimizer", "a graph"])
def test_what_the_program_itself_does_not_free_is_put_nowhere(freed_by, found):
    assert IN_PLACE not in found(attacked(freed_by=freed_by))


def test_a_gradient_that_is_made_later_shows_that_the_weight_is_trained(found):
    job = Job()
    weight = job.alloc(APPLY, SIZE)
    job.does(FORWARD)
    job.alloc(COPIED, SIZE)
    job.does(FORWARD)
    job.free(weight, RESTORE)
    job.does(FORWARD)
    job.alloc(ENGINE, SIZE)
    job.does(STEP)
    assert found(job)[1] == IN_PLACE


@pytest.mark.parametrize("kept", [True, False], ids=["a copy of a gradient", "a batch"])
def test_a_weight_that_a_module_places_again_has_left_its_place_to_nothing(kept, found):
    """Offloaded after every step; and its place is not where something else of the size is."""
    job = Job()
    weight, other = job.alloc(APPLY, SIZE), None
    for _ in range(3):
        other = other or job.alloc(COPIED, SIZE)
        job.does(FORWARD)
        gradient = job.alloc(ENGINE, SIZE)
        job.does(ENGINE)
        job.free(weight, RESTORE)
        job.does(STEP)
        job.free(gradient, ZERO_GRAD)
        if not kept:
            job.free(other, MAIN)
            other = None
        weight = job.alloc(APPLY, SIZE)
    job.does(FORWARD)
    assert IN_PLACE not in found(job)


def test_what_is_gone_before_the_next_gradient_was_not_trained(found):
    job = Job()
    weight = job.alloc(APPLY, SIZE)
    for turn in range(2):
        batch = job.alloc(COPIED, SIZE)
        job.does(FORWARD)
        gradient = job.alloc(ENGINE, SIZE)
        job.does(ENGINE)
        if turn == 0:
            job.free(weight, RESTORE)
        job.does(STEP)
        job.free(gradient, ZERO_GRAD)
        job.free(batch, MAIN)
    assert IN_PLACE not in found(job)


def test_less_than_a_kibibyte_may_be_anything(found):
    def made(size: int) -> Job:
        job = Job()
        weight = job.alloc(APPLY, size)
        job.does(FORWARD)
        job.alloc(ENGINE, size)
        job.alloc(COPIED, size)
        job.does(FORWARD, ENGINE)
        job.free(weight, RESTORE)
        job.does(STEP)
        return job

    assert found(made(1024), 1024)[2] == IN_PLACE
    assert IN_PLACE not in found(made(1023), 1023)


# --- begun late: the weight was there before


def late(*, made_by: Stack = COPIED, has_gradient: bool = True, optimizer: str = "AdamW") -> Job:
    """The same, of which nothing shows what the block was that is freed; two states of its size stay."""
    job = Job()
    weight, *_ = [job.older(NO_FRAMES, SIZE) for _ in range(3)]
    for _ in range(3):
        job.older(NO_FRAMES, 9000)
    job.note(f"Optimizer.step#{optimizer}.step", "START")
    job.does(STEP)
    job.note(f"Optimizer.step#{optimizer}.step", "END")
    job.does(FORWARD)
    if has_gradient:
        job.alloc(ENGINE, SIZE)
    job.alloc(ENGINE, 9000)
    job.alloc(made_by, SIZE)
    job.does(FORWARD, ENGINE)
    job.free(weight, RESTORE)
    job.does(FORWARD, STEP)
    return job


def weights_of(rows):
    return [row[2] for row in rows if row[0] == Category.WEIGHT]


def test_a_clone_takes_the_place_of_what_was_there_before_the_trace(found):
    rows = found(late())
    assert weights_of(rows) == ["in-place-of-a-weight"] * 2
    assert [row[0] for row in rows].count(Category.OPTIMIZER_STATE) == 2


@pytest.mark.parametrize("n_later", [0, 1])
def test_of_two_parameters_of_a_size_what_is_freed_beside_one_gradient_may_be_the_other_one(n_later, found):
    """The trace begins within a backward; the program clones each gradient and frees it."""
    job = Job()
    for size in (SIZE, SIZE, 9000):
        job.older(NO_FRAMES, size)
    earlier = job.older(NO_FRAMES, SIZE)
    job.does(ENGINE)
    later = job.alloc(ENGINE, SIZE)
    for gradient in (earlier, later):
        job.alloc(COPIED, SIZE)
        job.free(gradient, RESTORE)
    job.does(STEP, FORWARD)
    for size in (SIZE, SIZE, 9000) * n_later:
        job.alloc(ENGINE, size)
    job.does(ENGINE, STEP)
    assert "in-place-of-a-weight" not in weights_of(found(job))


def test_while_one_of_two_gradients_of_a_size_is_there_what_is_freed_may_be_the_other_one(found):
    """That of the step before, which a hook lets go just before the new one is made."""
    job = Job()
    for size in (SIZE, SIZE, 9000):
        job.older(NO_FRAMES, size)
    before = job.older(NO_FRAMES, SIZE)
    job.does(FORWARD)
    job.alloc(ENGINE, SIZE)
    job.alloc(COPIED, SIZE)
    job.free(before, RESTORE)
    for size in (SIZE, 9000):
        job.alloc(ENGINE, size)
    job.does(ENGINE, STEP)
    assert "in-place-of-a-weight" not in weights_of(found(job))


def test_what_is_no_clone_may_be_a_state_but_then_no_weight_is_left_either(found):
    """Two blocks are left, as many as the optimizer has states: so what was freed is the weight."""
    rows = found(late(made_by=BACKUP))
    assert weights_of(rows) == ["beside-gradients-and-states"]
    assert [row[0] for row in rows].count(Category.OPTIMIZER_STATE) == 2


def test_without_a_gradient_what_is_freed_may_be_the_gradient(found):
    assert "in-place-of-a-weight" not in weights_of(found(late(has_gradient=False)))


@pytest.mark.parametrize(
    "made_by",
    [at_line(RESTORE, 2), frames(("helper", "/w/proj/other.py")) + at_line(RESTORE, 2), RESTORE],
    ids=["by the same line", "by what it calls", "in the same function"],
)
def test_a_line_that_frees_what_it_made_the_time_before_renews_a_weight_or_a_state(made_by, found):
    """Two blocks are left, as many as the optimizer has states; of another one, one may be the weight."""
    rows = found(late(made_by=made_by))
    assert [row[0] for row in rows].count(Category.OPTIMIZER_STATE) == 2
    assert weights_of(rows) == ["beside-gradients-and-states"]
    assert weights_of(found(late(made_by=made_by, optimizer="Own"))) == ["as-many-as-gradients"]
