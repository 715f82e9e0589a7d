"""What the program holds itself: inferred from who made it, how often, how large; and what is only older."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    COPY,
    CRITERION,
    ENGINE,
    FORWARD,
    INDEX,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    RECOMPUTE,
    RELEASE,
    STEP,
    SUBJECT,
    TORCH,
    WORKSPACE_BYTES,
    ZERO_GRAD,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    cpp,
    frames,
)

WEIGHT, GRADIENT, INPUT = Category.WEIGHT, Category.GRADIENT, Category.INPUT
ACTIVATION, WORKSPACE = Category.ACTIVATION, Category.WORKSPACE
STATE, TEMPORARY, UNKNOWN = Category.OPTIMIZER_STATE, Category.TEMPORARY, Category.UNKNOWN
CLONE = frames(cpp("at::_ops::clone::call(at::Tensor const&)")) + MAIN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def trained_by_hand(n_kept, n_gradients):
    """A program without modules of torch: what it makes and keeps, and gradients of that size."""
    job = Job()
    for _ in range(n_kept):
        job.alloc(LOAD)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE) for _ in range(n_gradients)]:
        job.free(addr, ZERO_GRAD)
    return job


def test_a_kept_tensor_with_a_gradient_is_a_weight_though_no_module_made_it(found):
    rows = found(trained_by_hand(2, 2))
    assert rows[:2] == [(WEIGHT, Evidence.SIZES, "kept-and-has-a-gradient")] * 2


def test_more_tensors_than_gradients_of_a_size_are_not_distinguished(found):
    assert WEIGHT not in categories(found(trained_by_hand(3, 2)))


def test_beside_the_weights_of_a_module_a_gradient_of_its_size_makes_no_weight_of_a_kept_tensor(found):
    job = Job()
    job.alloc(APPLY, 2 * SUBJECT)
    job.alloc(LOAD)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert WEIGHT not in categories(found(job))


def test_a_batch_of_the_size_of_a_weight_that_has_its_gradient_is_none(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(LOAD)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert categories(found(job)) == [WEIGHT, INPUT, GRADIENT]


def test_several_tensors_of_one_line_as_large_as_weights_are_no_batch(found):
    job = Job()
    for _ in range(2):
        job.alloc(APPLY)
    kept = [job.alloc(LOAD) for _ in range(2)]
    job.does(FORWARD)
    job.free(kept[0], MAIN)
    assert categories(found(job))[2:] == [Category.UNKNOWN] * 2


@pytest.mark.parametrize(("n_blocks", "are_workspaces"), [(2, True), (3, False)])
def test_old_blocks_of_the_size_of_a_workspace_are_two_at_most(n_blocks, are_workspaces, found):
    job = Job()
    for _ in range(n_blocks):
        job.older(NO_FRAMES, WORKSPACE_BYTES)
    job.does(FORWARD)
    rows = found(job, WORKSPACE_BYTES)
    assert [category is WORKSPACE for category in categories(rows)] == [are_workspaces] * n_blocks


@pytest.mark.parametrize(
    ("stack", "engine", "is_workspace"),
    [(NO_FRAMES, ENGINE, True), (MAIN, ENGINE, False), (MAIN, NO_FRAMES, True)],
    ids=["without frames", "with frames", "with frames of Python only"],
)
def test_an_old_workspace_is_one_by_its_size_where_no_stack_of_cpp_shows_who_made_it(
    stack, engine, is_workspace, found
):
    job = Job()
    job.older(stack, WORKSPACE_BYTES)
    job.does(FORWARD, engine)
    assert (categories(found(job, WORKSPACE_BYTES)) == [WORKSPACE]) == is_workspace


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_old_workspace_is_there_at_the_end_and_of_a_size_of_its_own(is_kept, found):
    job = Job()
    old = job.older(NO_FRAMES, WORKSPACE_BYTES)
    job.does(FORWARD, ENGINE)
    if not is_kept:
        job.free(old, MAIN)
    assert (categories(found(job, WORKSPACE_BYTES)) == [WORKSPACE]) == is_kept
    for _ in range(2):
        job.free(job.alloc(FORWARD, WORKSPACE_BYTES), FORWARD)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))


def test_what_the_engine_frees_at_once_may_be_its_own_if_it_is_preexisting(found):
    job = Job()
    saved, other = job.older(NO_FRAMES), job.older(NO_FRAMES)
    job.free(saved, RELEASE)
    job.free(other, ENGINE)
    job.does(FORWARD)
    job.does(RELEASE)
    assert categories(found(job)) == [ACTIVATION, TEMPORARY]


def test_beside_an_optimizer_of_torch_what_is_as_large_as_weights_is_no_state(found):
    """An average that is made anew in every iteration, or a batch."""
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD, ENGINE, STEP)
    for _ in range(2):
        job.alloc(ZEROS)
    assert categories(found(job)) == [WEIGHT, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("phases", "category"),
    [((FORWARD, ENGINE), INPUT), ((LOSS, ENGINE), INPUT), ((ENGINE, FORWARD, ENGINE), UNKNOWN)],
)
def test_cut_in_backward_what_is_held_of_what_was_computed_may_be_of_its_forward(phases, category, found):
    job = Job()
    job.older(frames(cpp("at::_ops::div_Tensor::call(at::Tensor const&, at::Tensor const&)")) + MAIN)
    job.does(*phases)
    assert categories(found(job)) == [category]


def test_where_checkpoints_compute_again_what_the_engine_frees_may_have_been_kept(found):
    job = Job()
    other = job.older(NO_FRAMES)
    job.free(other, ENGINE)
    job.does(RELEASE, FORWARD, RECOMPUTE)
    assert categories(found(job)) == [UNKNOWN]


SHAPES = (7000, 9000)


def with_copies(*stacks, factor=1, shapes=SHAPES, is_late=False, engine=ENGINE):
    """A model whose weights have gradients, and what lines make beside every one of them."""
    job = Job()

    def make():
        for stack in stacks:
            for size in shapes:
                job.alloc(stack, factor * size)

    for size in SHAPES:
        job.alloc(APPLY, size)
    if not is_late:
        make()
    job.does(FORWARD)
    gradients = [job.alloc(engine, size) for size in SHAPES]
    if is_late:
        make()
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    return job


DEEPCOPY = frames(("__deepcopy__", f"{TORCH}/_tensor.py"), ("deepcopy", "/usr/lib/python3.11/copy.py")) + MAIN


@pytest.mark.parametrize(("stack", "category"), [(ZEROS, STATE), (CLONE, WEIGHT)], ids=["moments", "a copy"])
def test_what_a_line_makes_for_every_parameter_is_an_optimizers_or_a_second_model(stack, category, found):
    row = found(with_copies(stack), SHAPES[0])[1]
    assert row == (category, Evidence.SIZES, "made-for-every-parameter")


@pytest.mark.parametrize(("n_without", "category"), [(1, STATE), (2, UNKNOWN)])
def test_a_line_that_leaves_out_more_than_a_tenth_of_the_parameters_is_not_for_every_one(
    n_without, category, found
):
    """Twelve parameters of equal size but for the last digits."""
    shapes = [7168 + 512 * n for n in range(12)]
    job = Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in shapes[n_without:]:
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert found(job, shapes[-1])[1][0] is category


def test_a_line_that_leaves_out_a_tenth_of_the_bytes_is_for_every_parameter(found):
    """Seven parameters of one size and one three times as large; one of the seven has no moment."""
    shapes = [12 * 1024, *[4 * 1024] * 7]
    job = Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in shapes[:-1]:
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert categories(found(job, shapes[0]))[1] is STATE


@pytest.mark.parametrize(
    ("stacks", "engine"),
    [((CLONE, ZEROS), ENGINE), ((LOAD, MAIN), NO_FRAMES)],
    ids=["all stacks", "Python stacks"],
)
def test_copies_in_full_precision_are_an_optimizers_where_its_moments_are(stacks, engine, found):
    rows = found(with_copies(*stacks, factor=2, engine=engine), 2 * SHAPES[0])
    assert rows == [(STATE, Evidence.SIZES, "made-for-every-parameter")] * 2


def test_what_torchs_optimizer_steps_on_in_full_precision_are_weights(found):
    """Without C++ frames: copies of the weights, and after backward those of their gradients."""
    job = with_copies(LOAD, factor=2, engine=NO_FRAMES)
    gradients = [job.alloc(MAIN, 2 * size) for size in SHAPES]
    for size in SHAPES:
        job.alloc(STEP, 2 * size)
    for addr in gradients:
        job.free(addr, MAIN)
    for size in SHAPES:
        job.alloc(MAIN, 2 * size)
    rows = found(job, 2 * SHAPES[0])
    assert rows[0] == (WEIGHT, Evidence.SIZES, "made-for-every-parameter")
    assert rows[-1][0] is not STATE


def after_a_step(stack, *, shapes=SHAPES, until_forward=True):
    """What a line copies of the model when a step is over, and the next iteration."""
    job = with_copies()
    copies = [job.alloc(stack, size) for size in shapes]
    if not until_forward:
        for addr in copies:
            job.free(addr, MAIN)
    job.does(FORWARD, ENGINE)
    return job


def test_a_deep_copy_of_every_parameter_that_a_later_forward_finds_is_a_model(found):
    kept = (WEIGHT, Evidence.SIZES, "deep-copy-of-every-parameter")
    assert found(after_a_step(DEEPCOPY), SHAPES[0])[-1] == kept
    assert found(with_copies(DEEPCOPY), SHAPES[0])[1] == kept


@pytest.mark.parametrize(
    ("stack", "other"),
    [(CLONE, {}), (DEEPCOPY, {"shapes": SHAPES[:1]}), (DEEPCOPY, {"until_forward": False})],
    ids=["maybe of gradients", "of one parameter", "freed before"],
)
def test_other_copies_after_a_step_are_no_kept_model(stack, other, found):
    assert categories(found(after_a_step(stack, **other), SHAPES[0]))[-1] is not WEIGHT


@pytest.mark.parametrize(("line", "category"), [(LOAD, STATE), (DEEPCOPY, WEIGHT)], ids=["made", "copied"])
def test_deep_copies_after_backward_are_no_states_without_an_optimizer_of_torch(line, category, found):
    """Without C++ frames: a line that makes one for every parameter, and what keeps the best state."""
    job = with_copies(engine=NO_FRAMES)
    for size in SHAPES:
        job.alloc(line, size)
    assert found(job, SHAPES[0])[-1][0] is category


def test_copies_in_full_precision_alone_may_be_an_average(found):
    assert categories(found(with_copies(CLONE, factor=2), 2 * SHAPES[0])) == [UNKNOWN]


def test_without_frames_of_cpp_copies_in_full_precision_of_one_line_may_be_an_average(found):
    rows = found(with_copies(LOAD, factor=2, engine=NO_FRAMES), 2 * SHAPES[0])
    assert categories(rows) == [UNKNOWN]


def test_what_has_no_stack_is_of_no_line(found):
    """As where stacks were recorded later: what is left are copies of one line, maybe an average."""
    job = with_copies(None, LOAD, factor=2, engine=NO_FRAMES)
    assert categories(found(job, 2 * SHAPES[0])) == [UNKNOWN] * 2


def test_two_copies_in_full_precision_without_moments_may_be_averages(found):
    job = with_copies(CLONE, at_line(CLONE, 2), factor=2)
    assert categories(found(job, 2 * SHAPES[0])) == [UNKNOWN] * 2


def test_as_many_bytes_of_other_sizes_are_not_made_for_every_parameter(found):
    job = with_copies(ZEROS, shapes=(SHAPES[0] + 500, SHAPES[1] - 500))
    assert STATE not in categories(found(job, SHAPES[0] + 500))


def test_a_line_that_has_a_part_of_the_sizes_as_often_is_not_for_every_parameter(found):
    """Of three parameters it makes two, and as many bytes as there are in all."""
    shapes, job = (7000, 7000, 9000), Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in (7000, 7000, 9500):
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert STATE not in categories(found(job, 7000))


def test_copies_of_gradients_are_no_second_model(found):
    assert categories(found(with_copies(CLONE, is_late=True), SHAPES[0]))[2] is not WEIGHT


@pytest.mark.parametrize("shapes", [SHAPES[:1], (*SHAPES, 20_000)], ids=["for some", "and for others"])
def test_what_a_line_makes_for_some_parameters_may_be_anything(shapes, found):
    assert categories(found(with_copies(CLONE, shapes=shapes)))[1] not in (WEIGHT, STATE)


def test_a_single_size_may_agree_by_chance(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(CLONE)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert categories(found(job)) == [WEIGHT, INPUT, GRADIENT]


def trained_beside_a_module(made, gradients):
    """A module whose weights are trained, and what a line makes before, with the gradients of both."""
    job = Job()
    for size in SHAPES:
        job.alloc(APPLY, size)
    for size in made:
        job.alloc(LOAD, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in (*SHAPES, *gradients)]:
        job.free(addr, ZERO_GRAD)
    return job


BARE = (3000, 5000)


@pytest.mark.parametrize("bare", [BARE, SHAPES], ids=["of other sizes", "one for every weight"])
def test_what_a_line_makes_for_gradients_that_no_weight_has_is_trained_too(bare, found):
    trained = (WEIGHT, Evidence.SIZES, "kept-and-has-a-gradient")
    assert trained in found(trained_beside_a_module(bare, bare), bare[0])


@pytest.mark.parametrize(
    ("made", "gradients"),
    [(BARE, ()), (BARE[:1], BARE), ((*BARE, *BARE), BARE), ((*BARE, 40_000), BARE)],
    ids=["without gradients", "of one size", "more often", "and much more"],
)
def test_what_is_not_as_often_as_gradients_that_no_weight_has_is_not_trained(made, gradients, found):
    assert WEIGHT not in categories(found(trained_beside_a_module(made, gradients), BARE[0]))


@pytest.mark.parametrize(
    ("others", "expected"),
    [(INDEX[:1] + at_line(LOAD, 2), [WEIGHT, UNKNOWN]), (COPY[:1] + at_line(LOAD, 2), [INPUT, INPUT])],
    ids=["computed", "copied as well"],
)
def test_of_two_lists_that_may_be_trained_it_is_the_one_that_is_no_result(others, expected, found):
    job = Job()
    job.alloc(APPLY)
    for stack in (COPY, others):
        for size in BARE:
            job.alloc(stack, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in (SUBJECT, *BARE)]:
        job.free(addr, ZERO_GRAD)
    assert categories(found(job, BARE[0]))[:2] == expected


@pytest.mark.parametrize("others", [COPY[:1] + at_line(LOAD, 2), INDEX[:1] + at_line(LOAD, 2)])
def test_two_lists_without_a_common_size_are_both_trained(others, found):
    """Low-rank updates by hand: one line makes the matrices of one side, another line those of the other."""
    job, more = Job(), (4000, 6000)
    job.alloc(APPLY)
    for stack, sizes in ((COPY, BARE), (others, more)):
        for size in sizes:
            job.alloc(stack, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in (SUBJECT, *BARE, *more)]:
        job.free(addr, ZERO_GRAD)
    for size in (*BARE, *more):
        assert categories(found(job, size))[0] is WEIGHT


def test_a_line_that_gives_a_variable_a_new_value_shows_what_the_former_one_was(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(LOAD)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    found_of_old = found(job)[0]
    assert found_of_old == (INPUT, Evidence.FREE_SITE, "replaced-on-the-same-line")


def test_a_line_that_frees_and_makes_nothing_does_not_hide_what_another_one_replaced(found):
    other = frames(("drop", "/w/proj/cache.py")) + MAIN
    for first in (other, LOAD):  # of the file, by a block that comes first in it
        job = Job()
        job.older(first, OTHER)
        old, dropped = job.older(NO_FRAMES), job.older(NO_FRAMES)
        job.alloc(LOAD)
        job.model.free(dropped, frames=other)
        job.model.free(old, frames=LOAD)
        job.does(FORWARD, ENGINE)
        assert found(job)[0] == (INPUT, Evidence.FREE_SITE, "replaced-on-the-same-line")


def test_what_a_free_without_a_stack_ends_was_replaced_by_no_line(found, monkeypatch):
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(LOAD)
    job.model.free(old)
    job.does(FORWARD, ENGINE)
    raw = job.snapshot()
    for event in raw["device_traces"][0][1:3]:
        assert event["action"] in ("free_requested", "free_completed")
        del event["frames"]
    monkeypatch.setattr(job, "snapshot", lambda: raw)
    assert categories(found(job))[0] is UNKNOWN


def test_each_former_value_is_what_the_next_one_of_its_size_is(found):
    """One line gives two variables new values, twice: a batch and a result of a module."""
    job, made = Job(), {}
    for name, size in (("batch", SUBJECT), ("result", SUBJECT + 1)):
        made[name] = job.older(NO_FRAMES, size)
    for _ in range(2):
        for name, size, stack in (("batch", SUBJECT, LOAD), ("result", SUBJECT + 1, LOAD[:1] + FORWARD)):
            new = job.alloc(stack, size)
            job.model.free(made[name], frames=stack)
            made[name] = new
        job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [INPUT] * 3
    assert categories(found(job, SUBJECT + 1)) == [ACTIVATION] * 3
    for size in (SUBJECT, SUBJECT + 1):
        assert found(job, size)[0][2] == "replaced-on-the-same-line"


def test_without_stacks_of_frees_no_line_shows_what_a_former_value_was(found):
    """Every free has the stack of its alloc there: by it, the same line seems to free the former value."""
    job = Job()
    old = job.older(LOAD)
    job.alloc(LOAD)
    job.free(old)
    for stack in (FORWARD, ENGINE):
        job.free(job.alloc(stack, SUBJECT + 1))
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_a_value_that_is_made_later_takes_no_place(found):
    job = Job()
    job.model.free(job.older(NO_FRAMES), frames=LOAD)
    job.alloc(LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_a_value_that_was_freed_first_takes_no_place(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.free(job.alloc(LOAD), MAIN)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job))[0] is UNKNOWN


def test_a_line_that_frees_several_kinds_is_no_evidence_of_preexisting_blocks(found):
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    batch, result = job.alloc(LOAD), job.alloc(FORWARD)
    job.does(ENGINE)
    for addr in (batch, result, old):
        job.free(addr, MAIN)
    assert categories(found(job)) == [INPUT, ACTIVATION]
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


def test_a_temporary_of_its_line_is_not_older_than_those_of_the_line_get(found):
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    job.does(FORWARD, ENGINE)
    job.does(MAIN)
    job.free(old, MAIN)
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


MATMUL = frames(cpp("at::_ops::addmm::call(at::Tensor const&)"), ("mlp", "/w/proj/train.py")) + MAIN


def test_a_criterion_is_no_module_that_a_batch_is_made_for(found):
    job = Job()
    for _ in range(3):
        hidden, loss = job.alloc(MATMUL), job.alloc(CRITERION, SUBJECT + 1)
        job.free(loss, RELEASE)
        job.free(hidden, RELEASE)
        job.does(ENGINE)
    assert categories(found(job)) == [ACTIVATION] * 3


def test_what_a_module_keeps_from_step_to_step_is_no_temporary_of_a_lost_forward(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.does(LOAD, FORWARD)
    job.free(old, FORWARD)
    job.does(ENGINE)
    assert categories(found(job)) == [UNKNOWN]


def test_a_forward_without_modules_begins_with_the_first_result_that_backward_frees(found):
    job = Job()
    batch, saved, dropped, kept = (job.alloc(MAIN) for _ in range(4))
    job.free(dropped, MAIN)
    job.does(ENGINE)
    job.free(saved, RELEASE)
    job.does(ENGINE)
    job.free(kept, MAIN)
    job.free(batch, MAIN)
    assert categories(found(job)) == [INPUT, ACTIVATION, TEMPORARY, ACTIVATION]


@pytest.mark.parametrize(("state_factor", "category"), [(2, WEIGHT), (1, UNKNOWN)])
def test_copies_in_full_precision_that_an_optimizer_steps_on_are_weights(state_factor, category, found):
    """Its states are as large as what it steps on, and not as the model in half precision."""
    job = with_copies(CLONE, factor=2)
    for size in SHAPES:
        job.alloc(STEP, state_factor * size)
    job.does(STEP)
    assert categories(found(job, 2 * SHAPES[0]))[0] == category


def test_of_what_is_computed_and_still_there_the_last_iteration_has_its_batch(found):
    """What an earlier one made, on a line that nothing else frees, may be kept for anything."""
    job = Job()
    job.does(FORWARD, ENGINE, STEP)
    for line in (11, 12):
        job.alloc(at_line(LOAD, line))
        job.does(FORWARD, ENGINE, STEP)
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_what_a_line_makes_anew_and_frees_is_a_batch_though_an_earlier_iteration_made_the_last(found):
    job = Job()
    job.does(FORWARD, ENGINE, STEP)
    freed = job.alloc(LOAD)
    job.does(FORWARD, ENGINE, STEP)
    job.free(freed, MAIN)
    job.alloc(LOAD)
    job.does(FORWARD, ENGINE, STEP, FORWARD, ENGINE, STEP)
    assert categories(found(job)) == [INPUT, INPUT]


def test_what_a_line_frees_soon_after_the_beginning_is_as_temporary_as_what_else_it_frees(found):
    job = Job()
    old, other = job.older(NO_FRAMES, SUBJECT + 1), job.alloc(LOAD)
    job.free(old, MAIN)
    job.does(LOAD, LOAD)
    job.free(other, MAIN)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [TEMPORARY]
    assert categories(found(job, SUBJECT + 1)) == [TEMPORARY]
