"""What batches are drawn from: which numbers of times their sizes are accepted."""

from types import SimpleNamespace

import numpy as np
import pytest

from snapconv.classification.data_on_device import drawn_from, may_be_data
from snapconv.classification.rule import Decided
from tests.classified_jobs import ENGINE, FORWARD, INDEX, MAIN, NO_FRAMES, Job, cpp, features_of, frames

# A memory of 30,000 steps in its columns, and batches of 512: 58.59 times as large.
MEMORY = (30_000, 960_000, 3_840_000)
BATCH = (512, 16_384, 65_536)


@pytest.fixture
def sizes_found(tmp_path):
    """The sizes that batches are drawn from, of blocks from before the trace."""

    def found(kept, drawn):
        job = Job()
        for size in kept:
            job.older(NO_FRAMES, size)
        for size in drawn:
            job.alloc(INDEX, size)
        features = features_of(job, tmp_path / "snapshot.pickle")
        rows = drawn_from(features, Decided(len(features.alloc)))
        return sorted(set(features.sizes[rows].tolist()))

    return found


def test_of_several_numbers_the_one_counts_that_explains_most_of_the_batches(sizes_found):
    """Weights that are powers of two are 2.5 times as large as most of the batches, too."""
    by_chance = [5 * size // 2 for size in BATCH[1:]]
    assert sizes_found([*by_chance, *MEMORY], BATCH) == sorted(MEMORY)


def test_four_fifths_of_the_batches_must_come_from_it(sizes_found):
    assert sizes_found(MEMORY, [*BATCH, 20_604]) == sorted(MEMORY)
    assert sizes_found(MEMORY, [*BATCH, 20_612]) == []


@pytest.mark.parametrize(("other", "is_data"), [(4_830_000, True), (4_830_001, False)])
def test_most_bytes_are_as_many_times_as_large_as_batches_where_they_may_be_data(other, is_data, tmp_path):
    job = Job()
    for size in (*MEMORY, other):
        job.older(NO_FRAMES, size)
    for size in BATCH:
        job.alloc(INDEX, size)
    features = features_of(job, tmp_path / "snapshot.pickle")
    rows = np.flatnonzero(~features.is_traced)
    assert may_be_data(features, Decided(len(features.alloc)), rows) is is_data


FILL = frames(cpp("at::_ops::empty_like::call(at::Tensor const&)")) + MAIN


@pytest.mark.parametrize(
    ("before", "after", "is_data"),
    [
        ((), (FORWARD, ENGINE), True),
        ((FORWARD,), (FORWARD, ENGINE), True),
        ((FORWARD, ENGINE), (FORWARD, ENGINE), False),
        ((FORWARD,), (FORWARD,), False),
    ],
    ids=["first", "after an agent acted", "after it was trained", "without training"],
)
def test_a_replay_buffer_may_be_made_with_the_first_steps_of_an_agent(before, after, is_data, tmp_path):
    job = Job()
    job.does(*before)
    for size in MEMORY:
        job.alloc(FILL, size)
    for size in BATCH:
        job.alloc(INDEX, size)
    job.does(*after)
    features = features_of(job, tmp_path / "snapshot.pickle")
    rows = drawn_from(features, Decided(len(features.alloc)))
    assert sorted(set(features.sizes[rows].tolist())) == (sorted(MEMORY) if is_data else [])


@pytest.mark.parametrize(("other", "is_data"), [(4_830_000, True), (4_830_008, False)])
def test_without_frames_of_cpp_the_data_must_be_half_of_what_is_not_known(other, is_data):
    sizes = np.array([*MEMORY, other, *BATCH], np.int64)
    is_older = np.arange(len(sizes)) < len(MEMORY) + 1
    features = SimpleNamespace(
        sizes=sizes,
        unrecorded=is_older,
        outside=~is_older,
        is_live_at_dump=is_older,
        alloc=np.where(is_older, -1, 0),
        first=lambda _: 0,
        has_cpp=False,
        may_be_input=~is_older,
    )
    found = drawn_from(features, Decided(len(sizes)))
    assert sizes[found].tolist() == (list(MEMORY) if is_data else [])
