"""Memory whose stack shows its purpose, and workspaces, which only their size shows."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    LAYER,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    RELEASE,
    STEP,
    TORCH,
    WORKSPACE_BYTES,
    Job,
    categories,
    cpp,
    frames,
    likely,
)

WORKSPACE = Category.WORKSPACE

WEIGHT = Category.WEIGHT
INPUT = Category.INPUT
ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY


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


HOPPER_WORKSPACE_BYTES = 33_554_432
# Norms of 2,560 numbers, and of 2,048, of which the workspace has 4,096 rows.
WIDTH, FITTING_WIDTH = 4 * 2560, 4 * 2048


def inference(*older_sizes, width=WIDTH):
    """A forward whose scores are as large as Hopper's workspace; a model of four layers is older."""
    job = Job()
    for size in (*4 * (width, width * 2560), *older_sizes):
        job.older(NO_FRAMES, size)
    for _ in range(4):
        job.free(job.alloc(FORWARD, HOPPER_WORKSPACE_BYTES), FORWARD)
    return job


def test_the_only_old_block_as_large_as_a_workspace_is_likely_one_though_scores_are_as_large(
    tmp_path,
):
    """cuBLAS's default on Hopper; no matrix that has 2,560 columns is as large."""
    job = inference(HOPPER_WORKSPACE_BYTES)
    assert likely(job, tmp_path / "snapshot.pickle", HOPPER_WORKSPACE_BYTES) == [(WORKSPACE, 0.9)]


@pytest.mark.parametrize(
    ("older_sizes", "width", "others"),
    [
        ([HOPPER_WORKSPACE_BYTES] * 2, WIDTH, ()),
        ([HOPPER_WORKSPACE_BYTES], FITTING_WIDTH, ()),
        ([HOPPER_WORKSPACE_BYTES], WIDTH, (ENGINE,)),
        ([HOPPER_WORKSPACE_BYTES], WIDTH, (STEP,)),
        ([HOPPER_WORKSPACE_BYTES, WORKSPACE_BYTES], WIDTH, ()),
    ],
    ids=["two", "a matrix of the model", "with a gradient", "with a state", "on another card"],
)
def test_an_old_block_as_large_as_a_workspace_may_be_a_weight(older_sizes, width, others, tmp_path):
    job = inference(*older_sizes, width=width)
    for stack in others:
        job.alloc(stack, HOPPER_WORKSPACE_BYTES)
    rows = likely(job, tmp_path / "snapshot.pickle", HOPPER_WORKSPACE_BYTES)
    assert WORKSPACE not in [category for category, _ in rows]


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


# As DataParallel's forward makes them, and its backward frees what was saved of them.
@pytest.mark.parametrize(
    ("function", "file", "category"),
    [("replicate", "replicate", WEIGHT), ("scatter", "scatter_gather", INPUT)],
)
def test_what_a_forward_copies_to_its_other_devices_is_what_it_copies(
    function, file, category, found
):
    job = Job()
    job.does(FORWARD)
    addr = job.alloc(frames((function, f"{TORCH}/nn/parallel/{file}.py")) + FORWARD)
    job.does(FORWARD, ENGINE)
    job.free(addr, RELEASE)
    assert categories(found(job)) == [category]


def test_a_workspace_is_one_wherever_it_is_made(found):
    job = Job()
    workspace = frames(cpp("at::cuda::getCurrentCUDABlasHandle()"))
    for stack in (workspace + ENGINE, workspace + STEP, workspace + FORWARD):
        job.free(job.alloc(stack), RELEASE)
    assert categories(found(job)) == [WORKSPACE] * 3


def product(job, stack, size=WORKSPACE_BYTES):
    """Multiply: the result is made first, then what cuBLAS needs."""
    job.alloc(stack, OTHER)
    return job.alloc(stack, size)


def test_a_workspace_is_kept_and_rare_and_made_where_it_is_used(found):
    job = Job()
    for _ in range(5):
        job.alloc(FORWARD, WORKSPACE_BYTES)
    job.alloc(LOSS, OTHER)
    assert categories(found(job, WORKSPACE_BYTES)) == [ACTIVATION] * 5
    job = Job()
    job.free(product(job, FORWARD), FORWARD)
    product(job, LOAD)
    assert categories(found(job, WORKSPACE_BYTES)) == [TEMPORARY, Category.UNKNOWN]


@pytest.mark.parametrize("stack", [FORWARD, NO_FRAMES], ids=["forward", "backward"])
@pytest.mark.parametrize("size", [8_519_680, 33_554_432])
def test_without_frames_of_cpp_a_workspace_is_inferred_from_its_size(size, stack, found):
    job = Job()
    job.does(FORWARD, NO_FRAMES)
    for _ in range(4):
        product(job, stack, size)
    assert found(job, size) == [(WORKSPACE, Evidence.SIZES, "cublas-workspace-size")] * 4


def test_what_a_line_makes_alone_is_its_result_and_no_workspace(found):
    """An upsampled picture may be as large as a workspace."""
    job = Job()
    job.alloc(FORWARD, OTHER)
    job.alloc(LAYER, WORKSPACE_BYTES)
    assert categories(found(job, WORKSPACE_BYTES)) == [ACTIVATION]


def test_more_than_four_blocks_of_the_size_of_a_workspace_are_none(found):
    job = Job()
    job.does(FORWARD, NO_FRAMES)
    for _ in range(5):
        product(job, FORWARD)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))


def test_with_frames_of_cpp_no_workspace_is_guessed_by_its_size(found):
    job = Job()
    job.alloc(FORWARD + ENGINE, WORKSPACE_BYTES)
    job.alloc(FORWARD, WORKSPACE_BYTES)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))
