"""Data that lay on the device before the trace is known by the batches that are drawn from it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    COPY,
    ENGINE,
    FORWARD,
    INDEX,
    LOAD,
    MAIN,
    NO_FRAMES,
    REORDER_CACHE,
    STEP,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    cpp,
    frames,
)

# Seen, done and got of 3,000 steps of an agent: 40, 4 and 8 bytes each. Batches of 128.
DATA, BATCHES = (120_000, 12_000, 24_000), (5_120, 512, 1_024)
WEIGHT = 7_000
CAT = frames(cpp("at::_ops::cat::call(c10::IListRef<at::Tensor> const&, long)")) + MAIN


def drawn(data=DATA, batches=BATCHES, *, line=INDEX, others=(), engine=ENGINE):
    """An iteration in which batches are drawn from what was there before the trace; others are no batches."""
    job = Job()
    for size in (WEIGHT, *data):
        job.older(NO_FRAMES, size)
    made = [job.alloc(line, size) for size in batches] + [job.alloc(INDEX, size) for size in others]
    job.does(FORWARD)
    gradient = job.alloc(engine, WEIGHT)
    for addr in made:
        job.free(addr, MAIN)
    job.free(gradient, ZERO_GRAD)
    return job


@pytest.fixture
def said(tmp_path):
    """The categories of the first blocks of each size of the data, and the reason of the first."""

    def found(job):
        rows = [classified(job, tmp_path / "snapshot.pickle", size)[0] for size in DATA]
        return categories(rows), rows[0][2]

    return found


def test_what_is_as_many_times_as_large_as_each_batch_is_the_data(said):
    assert said(drawn()) == ([Category.INPUT] * 3, "as-many-times-as-large-as-batches")


FILLED = frames(cpp("at::_ops::zeros::call(c10::ArrayRef<long>)"), ("__init__", "/w/proj/replay.py")) + MAIN


@pytest.mark.parametrize(
    ("is_first", "is_kept", "line", "is_data"),
    [
        (True, True, FILLED, True),
        (False, True, FILLED, False),
        (True, False, FILLED, False),
        (True, True, STEP, False),
    ],
    ids=["a buffer", "made after a forward", "freed", "of an optimizer"],
)
def test_data_that_is_made_before_the_first_forward_and_kept_is_known_likewise(
    is_first, is_kept, line, is_data, said
):
    job = Job()
    job.older(NO_FRAMES, WEIGHT)
    if not is_first:
        job.does(FORWARD)
    data = [job.alloc(line, size) for size in DATA]
    for _ in range(2):
        batches = [job.alloc(INDEX, size) for size in BATCHES]
        job.does(FORWARD)
        gradient = job.alloc(ENGINE, WEIGHT)
        for addr in batches:
            job.free(addr, MAIN)
        job.free(gradient, ZERO_GRAD)
    if not is_kept:
        for addr in data:
            job.free(addr, MAIN)
    assert (said(job)[1] == "as-many-times-as-large-as-batches") == is_data


def test_beside_labels_there_may_be_the_order_of_the_samples(said):
    assert said(drawn((*DATA, DATA[2])))[0] == [Category.INPUT] * 3
    assert said(drawn((*DATA, *DATA[2:] * 2)))[0] == [Category.INPUT, Category.INPUT, Category.UNKNOWN]


UNKNOWN = ([Category.UNKNOWN] * 3, "persistent-since-before-the-recording")


@pytest.mark.parametrize("line", [CAT, COPY, MAIN], ids=["side by side", "copied", "computed"])
def test_only_rows_chosen_by_number_are_drawn_from_data(line, said):
    assert said(drawn(line=line)) == UNKNOWN


def test_with_python_stacks_all_that_may_be_batches_may_be_drawn(said):
    assert said(drawn(line=MAIN, engine=NO_FRAMES))[0] == [Category.INPUT] * 3
    assert said(drawn(line=MAIN, engine=NO_FRAMES, batches=DATA)) == UNKNOWN


@pytest.mark.parametrize(
    "batches",
    [BATCHES[:1], (5_120, 5_120), (5_120, 516, 1_028), DATA],
    ids=["one", "one size", "other times", "all"],
)
def test_one_size_may_agree_by_chance(batches, said):
    assert said(drawn(batches=batches)) == UNKNOWN


# Of 6,656 bytes and others, four fifths are of the batches.
@pytest.mark.parametrize(("n_others", "expected"), [(8, Category.INPUT), (9, Category.UNKNOWN)])
def test_nearly_all_that_is_chosen_is_drawn_from_the_data(n_others, expected, said):
    assert said(drawn(others=(208,) * n_others))[0] == [expected] * 3


# 375 for every 16 bytes of a batch, as the others have.
@pytest.mark.parametrize(("size", "category"), [(750, Category.UNKNOWN), (1_125, Category.INPUT)])
def test_data_of_less_than_a_kibibyte_may_agree_by_chance(size, category, tmp_path):
    job = drawn((*DATA[:2], size), (*BATCHES[:2], size * 16 // 375))
    assert categories(classified(job, tmp_path / "snapshot.pickle", size)) == [category]


def test_what_the_trace_makes_is_no_data_from_before(tmp_path):
    job = drawn()
    job.alloc(MAIN, DATA[1])
    rows = categories(classified(job, tmp_path / "snapshot.pickle", DATA[1]))
    assert rows == [Category.INPUT, Category.UNKNOWN]


@pytest.mark.parametrize(("n_others", "expected"), [(197, Category.INPUT), (198, Category.UNKNOWN)])
def test_of_more_than_200_sizes_nothing_is_looked_for(n_others, expected, said):
    others = tuple(2_001 + 2 * number for number in range(n_others))
    assert said(drawn((*DATA, *others)))[0] == [expected] * 3


@pytest.mark.parametrize(("search", "category"), [(REORDER_CACHE, Category.UNKNOWN), (LOAD, Category.INPUT)])
def test_what_a_search_chooses_of_its_caches_is_no_batch(search, category, said):
    job = Job()
    for size in DATA:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    made = [job.alloc(INDEX[:1] + search, size) for size in BATCHES]
    job.does(FORWARD)
    for addr in made:
        job.free(addr, search)
    assert said(job)[0] == [category] * 3


def test_what_modules_choose_by_number_is_drawn_from_no_data(said):
    """The rows of a table of words."""
    job = drawn()
    stack = INDEX[:1] + FORWARD
    job.free(job.alloc(stack, 50_000), stack)
    assert said(job)[0] == [Category.INPUT] * 3


@pytest.mark.parametrize(
    ("n_columns", "line", "is_frozen"), [(2, INDEX, False), (2, CAT, True), (5, INDEX, True)]
)
def test_columns_of_steps_and_of_the_next_ones_are_no_frozen_layers(n_columns, line, is_frozen, tmp_path):
    """Beside batches, so much is drawn from a rollout that these are not nearly all."""
    job = drawn(DATA * n_columns, line=line, others=(30_001, 40_001))
    rows = classified(job, tmp_path / "snapshot.pickle", DATA[0])
    assert [reason == "kept-without-gradient" for *_, reason in rows] == [is_frozen] * n_columns


REPEATED = frames(cpp("at::_ops::repeat_interleave_self_int::call(at::Tensor const&)")) + INDEX
SELECT = frames(cpp("at::_ops::index_select::call(at::Tensor const&, long, at::Tensor const&)")) + LOAD
ONLY_SOURCE = "all-that-a-batch-can-be-drawn-from"
# 4,000 samples of 40 bytes, of which a batch has 128.
SAMPLES, BATCH = 160_000, 5_120


def beside(*others, known=(), made=(), n_samples=1, batch=BATCH, line=INDEX, engine=ENGINE):
    """A set of samples and what else is there: open, drawn from as well, or made in the trace before."""
    job = Job()
    for size in (WEIGHT, *[SAMPLES] * n_samples, *others, *known):
        job.older(NO_FRAMES, size)
    kept = [job.alloc(MAIN, size) for size in made]
    drawn = job.alloc(line, batch)
    job.does(FORWARD)
    gradient = job.alloc(engine, WEIGHT)
    for addr in (drawn, *kept):
        job.free(addr, MAIN)
    job.free(gradient, ZERO_GRAD)
    return job


@pytest.mark.parametrize(
    ("job", "is_source"),
    [
        (beside(), True),
        (beside(n_samples=2), True),
        (beside(BATCH - 8), True),
        (beside(BATCH), False),
        (beside(made=[BATCH - 8]), True),
        (beside(made=[BATCH]), False),
        (beside(line=SELECT), False),
        (beside(line=REPEATED), False),
        (beside(line=CAT), False),
        (beside(line=MAIN), False),
        (beside(line=MAIN, engine=NO_FRAMES), False),
        (beside(batch=SAMPLES), False),
        (beside(600, batch=512), False),
        (beside(500, batch=512), True),
    ],
    ids=[
        "one",
        "two of a size",
        "beside what is smaller",
        "beside what is as large, in another order",
        "after something smaller was made",
        "after something as large was made, in another order",
        "by a line that may repeat rows of less",
        "repeated",
        "put together",
        "computed",
        "without C++ frames",
        "as large as the batch",
        "beside something small that is larger",
        "beside something smaller",
    ],
)
def test_a_batch_was_drawn_from_the_only_thing_that_is_larger(job, is_source, tmp_path):
    rows = classified(job, tmp_path / "snapshot.pickle", SAMPLES)
    old = [reason for *_, reason in rows if reason != "made-outside-modules-used-in-forward"]
    assert all((reason == ONLY_SOURCE) is is_source for reason in old)
    assert old


def test_without_training_it_may_be_a_table_of_words(tmp_path):
    job = Job()
    for size in (WEIGHT, SAMPLES):
        job.older(NO_FRAMES, size)
    drawn = job.alloc(INDEX, BATCH)
    job.does(FORWARD)
    job.free(drawn, MAIN)
    assert classified(job, tmp_path / "snapshot.pickle", SAMPLES)[0][2] != ONLY_SOURCE


@pytest.mark.parametrize(("size", "is_source"), [(BATCH, True), (BATCH + 8, False)])
def test_what_is_as_large_as_the_batch_and_freed_may_be_the_batch_before(size, is_source, tmp_path):
    job = Job()
    for other in (WEIGHT, SAMPLES):
        job.older(NO_FRAMES, other)
    former = job.older(NO_FRAMES, size)
    drawn = job.alloc(INDEX, BATCH)
    job.free(former, MAIN)
    job.does(FORWARD)
    gradient = job.alloc(ENGINE, WEIGHT)
    job.free(drawn, MAIN)
    job.free(gradient, ZERO_GRAD)
    reason = classified(job, tmp_path / "snapshot.pickle", SAMPLES)[0][2]
    assert (reason == ONLY_SOURCE) is is_source


def test_what_is_larger_may_be_gone_again_before_the_batch_is_drawn(tmp_path):
    job = Job()
    for size in (WEIGHT, SAMPLES):
        job.older(NO_FRAMES, size)
    job.free(job.alloc(MAIN, BATCH + 8), MAIN)
    drawn = job.alloc(INDEX, BATCH)
    job.does(FORWARD)
    gradient = job.alloc(ENGINE, WEIGHT)
    job.free(drawn, MAIN)
    job.free(gradient, ZERO_GRAD)
    assert classified(job, tmp_path / "snapshot.pickle", SAMPLES)[0][2] == ONLY_SOURCE


@pytest.mark.parametrize(("size", "is_source"), [(160_000, True), (160_001, False)])
def test_a_batch_has_no_more_than_4096_rows_of_whole_bytes(size, is_source, tmp_path):
    """Of 160,001 bytes, 5,120 would be rows of one byte each."""
    job = beside(n_samples=0)
    job.older(NO_FRAMES, size)
    assert (classified(job, tmp_path / "snapshot.pickle", size)[0][2] == ONLY_SOURCE) is is_source
