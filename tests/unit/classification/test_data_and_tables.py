"""Data that stays on the device, and tables with sparse gradients, in a trace that begins late."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    HOOK,
    INDEX,
    LOAD,
    MAIN,
    NO_FRAMES,
    STEP,
    TORCH,
    ZERO_GRAD,
    Job,
    categories,
    frames,
    likely,
)

SGD_STEP = frames(("_multi_tensor_sgd", f"{TORCH}/optim/sgd.py")) + MAIN
WEIGHTS = (16384, 49152, 2048)
GIVEN_GRADIENT = (
    frames(
        ("at::_ops::clone::call(at::Tensor const&)", "??"),
        ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??"),
    )
    + ENGINE
)


def late(*columns, n_rows, n_in_batch, trains=True, results=(), job=None):
    """A step whose batches are rows of columns from before the trace; a column has bytes of a row."""
    job = job or Job()
    for size in (*WEIGHTS, *(n_rows * row_bytes for row_bytes in columns)):
        job.older(NO_FRAMES, size)
    batch = [job.alloc(INDEX, n_in_batch * row_bytes) for row_bytes in columns if n_in_batch]
    for size in results:
        job.free(job.alloc(FORWARD, size), FORWARD)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in WEIGHTS] if trains else []
    for addr in batch:
        job.free(addr, MAIN)
    if trains:
        job.does(STEP)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    return job


@pytest.mark.parametrize(
    ("columns", "n_rows", "n_in_batch"),
    [((68, 24), 5000, 96), ((68, 24, 4), 768, 192)],
    ids=["two columns, 625 rows for 12", "three columns, four for one"],
)
def test_what_is_as_many_times_as_large_as_batches_is_data(columns, n_rows, n_in_batch, found):
    job = late(*columns, n_rows=n_rows, n_in_batch=n_in_batch)
    for row_bytes in columns:
        assert categories(found(job, n_rows * row_bytes)) == [Category.INPUT]


@pytest.mark.parametrize(
    ("columns", "n_rows", "trains"),
    [((68,), 5000, True), ((68, 24), 384, True), ((68, 24), 5000, False)],
    ids=["one column", "two columns, four for one", "nothing is trained"],
)
def test_what_may_be_as_large_by_chance_is_not_said_to_be_data(columns, n_rows, trains, found):
    job = late(*columns, n_rows=n_rows, n_in_batch=96, trains=trains)
    for row_bytes in columns:
        assert Category.INPUT not in categories(found(job, n_rows * row_bytes))


def test_more_equal_blocks_than_batches_are_no_data(found):
    """A frozen layer's weights are as many times as large as batches by chance, in every layer."""
    columns, n_rows = (68, 24), 5000
    job = Job()
    for row_bytes in columns:
        job.older(NO_FRAMES, n_rows * row_bytes)
    job = late(*columns, n_rows=n_rows, n_in_batch=96, job=job)
    for row_bytes in columns:
        assert categories(found(job, n_rows * row_bytes)) == [Category.UNKNOWN] * 2


def test_sizes_of_a_frozen_model_that_batches_divide_by_chance_are_no_data(found):
    """Of kernels between many widths, some are as many times as large as some batch."""
    columns, n_rows = (68, 24), 5000
    job = Job()
    for size in (7 * 1024, 11 * 1024, 13 * 1024, 17 * 1024):
        job.older(NO_FRAMES, size)
    job = late(*columns, n_rows=n_rows, n_in_batch=96, job=job)
    for row_bytes in columns:
        assert Category.INPUT not in categories(found(job, n_rows * row_bytes))


@pytest.mark.parametrize(("n_rows", "is_data"), [(850, True), (1024, False), (96, False)])
def test_data_that_is_used_as_a_whole_has_the_rows_of_what_forward_makes(n_rows, is_data, tmp_path):
    """A graph's features: 2 x 5 x 5 x 17 nodes, while weights are products of other numbers."""
    job = late(2000, n_rows=n_rows, n_in_batch=0, results=(n_rows * 128, n_rows * 24))
    expected = [(Category.INPUT, 0.9)] if is_data else []
    assert [
        each
        for each in likely(job, tmp_path / "s.pickle", n_rows * 2000)
        if each[0] == Category.INPUT
    ] == expected


N_LOOKED_UP = 900


def with_tables(*row_bytes, n_rows=11_000, n_blocks=1, engine=ENGINE, is_older=False):
    """Tables of so many rows, whose gradients are indices and rows of them."""
    job = Job()
    for _ in range(n_blocks):
        for size in (*WEIGHTS, *(n_rows * n for n in row_bytes)):
            job.older(NO_FRAMES, size)

    def backward():
        made = [job.alloc(ENGINE, size) for size in WEIGHTS]
        for n in row_bytes:
            made += [job.alloc(engine, 8 * N_LOOKED_UP), job.alloc(engine, n * N_LOOKED_UP)]
        return made

    ids = job.alloc(LOAD, 8 * N_LOOKED_UP)
    if is_older:
        job.model.stop_recording()
        gradients = backward()
        job.model.start_recording()
        job.does(FORWARD)
    else:
        job.does(FORWARD)
        gradients = backward()
        job.does(STEP if n_blocks > 1 else SGD_STEP)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    job.free(ids, MAIN)
    return job


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("row_bytes", [(160,), (160, 64), (96, 4)])
def test_the_rows_of_a_sparse_gradient_show_its_table(row_bytes, is_older, found):
    """A table of one number in a row has as many rows as a wide one."""
    job = with_tables(*row_bytes, is_older=is_older)
    for n in row_bytes:
        assert categories(found(job, 11_000 * n)) == [Category.WEIGHT]


def test_what_an_optimizer_keeps_of_tables_are_states_and_no_gradients(found):
    job = with_tables(160, 64, n_blocks=3)
    for n in (160, 64):
        assert sorted(categories(found(job, 11_000 * n))) == sorted(
            [Category.WEIGHT, Category.OPTIMIZER_STATE, Category.OPTIMIZER_STATE]
        )


def test_a_narrow_row_alone_shows_no_table(found):
    assert categories(found(with_tables(4), 44_000)) == [Category.UNKNOWN]


@pytest.mark.parametrize(("engine", "is_shown"), [(GIVEN_GRADIENT, True), (ENGINE, False)])
def test_what_autograd_gives_a_parameter_is_its_gradient_however_large(engine, is_shown, found):
    job = Job()
    job.older(NO_FRAMES, WEIGHTS[0])
    job.does(FORWARD)
    job.alloc(engine, 8 * N_LOOKED_UP)
    job.does(STEP, FORWARD)
    assert (categories(found(job, 8 * N_LOOKED_UP)) == [Category.GRADIENT]) == is_shown


def test_a_hook_may_make_anything_while_a_gradient_is_given(found):
    job = Job()
    job.older(NO_FRAMES, WEIGHTS[0])
    job.does(FORWARD)
    job.alloc(HOOK[:1] + GIVEN_GRADIENT[1:], 8 * N_LOOKED_UP)
    job.does(STEP, FORWARD)
    assert Category.GRADIENT not in categories(found(job, 8 * N_LOOKED_UP))


def trained(n_tensors=1, *, weights=(), has_states=True, is_renewed=False):
    """An optimizer changes one tensor of a size, beside data and weights as large."""
    job = Job()
    for stack in weights:
        (job.older if stack is NO_FRAMES else job.alloc)(stack)
    kept = [job.alloc(COPY) for _ in range(n_tensors)]
    for number in range(3):
        job.does(FORWARD)
        gradient = job.alloc(ENGINE)
        job.does(STEP)
        if has_states and not number:
            for _ in range(2):
                job.alloc(STEP)
        job.free(gradient, ZERO_GRAD)
        if is_renewed:
            job.free(kept.pop(), MAIN)
            kept.append(job.alloc(COPY))
    job.does(FORWARD)
    return job


def test_data_with_a_gradient_and_states_of_its_size_is_likely_a_parameter(tmp_path):
    rows = likely(trained(), tmp_path / "snapshot.pickle")
    assert rows == [(Category.WEIGHT, 0.9)]


def test_of_two_equal_tensors_of_which_one_is_optimized_either_may_be(tmp_path, found):
    job = trained(2)
    assert likely(job, tmp_path / "snapshot.pickle") == []
    assert categories(found(job))[:2] == [Category.UNKNOWN] * 2


@pytest.mark.parametrize(
    ("arguments", "n_weights"),
    [
        ({"weights": [APPLY]}, 1),
        ({"weights": [NO_FRAMES]}, 1),
        ({"has_states": False}, 0),
    ],
    ids=["a layer's", "an older", "a gradient alone"],
)
def test_data_as_large_as_a_parameter_is_data(arguments, n_weights, found):
    rows = categories(found(trained(**arguments)))
    assert rows[n_weights] is Category.INPUT


def test_batches_are_none_of_the_parameters_whose_states_are_there_longer(found):
    """A parameter that nothing shows is as large as batches, which come and go beside its states."""
    assert categories(found(trained(is_renewed=True))).count(Category.INPUT) == 4
