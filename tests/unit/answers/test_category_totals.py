"""Sums by category: what is likely, what is one of two categories, and models of equal sizes."""

import pickle

import numpy as np
import pytest

from snapconv.answers.category_totals import (
    EITHER_LABEL,
    CategoryTotal,
    likely_words,
    n_models,
    rows_of_summary,
)
from snapconv.session import load
from tests.classified_jobs import APPLY, ENGINE, FORWARD, MAIN, STEP, ZERO_GRAD, Job


@pytest.mark.parametrize(
    ("likely_bytes", "words"),
    [(0, ""), (9, ""), (512, "512 B of it likely"), (1024, "likely"), (1015, "likely")],
)
def test_a_sum_shows_how_much_of_it_is_likely(likely_bytes, words):
    assert likely_words(1024, likely_bytes) == words


def test_what_is_one_of_two_categories_is_a_row_beside_the_unknown():
    categories = (CategoryTotal("weight", 1, 8, 512, likely_bytes=512), CategoryTotal("unknown", 3, 24, 1536))
    either = CategoryTotal(EITHER_LABEL, 2, 16, 1024)
    assert rows_of_summary(categories, either) == (categories[0], CategoryTotal("unknown", 1, 8, 512), either)


SIZES = (4096, 8192, 12_288, 4096)


def trained(n_copies, *, more=(), missing=0, sizes=SIZES, n_trained=1):
    """Models of equal sizes are placed, of which the first is trained, and ``more`` beside them.

    They may as well be the layers of one model, of which the first ``n_trained`` are trained.
    """
    job = Job()
    for copy in range(n_copies):
        for size in sizes[: len(sizes) - missing * (copy > 0)]:
            job.alloc(APPLY, size)
    for size in more:
        job.alloc(APPLY, size)
    for _ in range(2):
        job.does(FORWARD)
        gradients = [job.alloc(ENGINE, size) for size in sizes * n_trained]
        job.does(STEP)
        for addr in gradients:
            job.free(addr, ZERO_GRAD)
    job.does(MAIN)
    return job


@pytest.fixture
def found(tmp_path):
    def of_job(job, *, live=True):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(job.snapshot()))
        (device,) = load(path).devices
        return n_models(device, np.full(len(device.allocations), live))

    return of_job


@pytest.mark.parametrize(("n_copies", "expected"), [(1, None), (2, 2), (3, 3)])
def test_weights_that_are_all_there_several_times_are_several_models(n_copies, expected, found):
    assert found(trained(n_copies)) == expected


def test_at_a_moment_without_weights_there_are_no_models(found):
    assert found(trained(2), live=False) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"more": (2048,)}, 2),
        ({"more": (5120,)}, None),
        ({"more": (8192,)}, None),
        ({"missing": 1}, None),
        ({"sizes": SIZES[:2]}, None),
    ],
    ids=[
        "a few are not trained",
        "several are not",
        "a size has another",
        "a copy lacks a part",
        "of two sizes",
    ],
)
def test_nearly_all_bytes_are_there_as_often(given, expected, found):
    assert found(trained(2, **given)) == expected


@pytest.mark.parametrize(("n_trained", "n_placed"), [(2, 4), (3, 6), (1, 6)])
def test_layers_of_one_model_that_have_no_gradients_are_no_models(n_trained, n_placed, found):
    """They are frozen, or memory ran out in the backward before it came to them."""
    assert found(trained(n_placed, n_trained=n_trained)) is None


def test_the_largest_layers_of_two_networks_are_no_models(found):
    """A generator and a critic that mirror each other have one large layer of a size each."""
    job = Job()
    for _ in range(2):
        job.alloc(APPLY, 400_000)
    generator = (2048, 4096, 8192, 400_000)
    for size in generator[:3]:
        job.alloc(APPLY, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in generator]:
        job.free(addr, ZERO_GRAD)
    assert found(job) is None
