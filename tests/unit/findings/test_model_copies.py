"""How many models of equal sizes the weights are."""

import pickle

import numpy as np
import pytest

from snapconv.findings.model_copies import n_models
from snapconv.session import load
from tests.classified_jobs import APPLY, ENGINE, FORWARD, MAIN, STEP, ZERO_GRAD, Job

SIZES = (4096, 8192, 12_288, 4096)


def trained(n_copies, *, more=(), missing=0, sizes=SIZES):
    """Models of equal sizes are placed, of which the first is trained, and ``more`` beside them."""
    job = Job()
    for copy in range(n_copies):
        for size in sizes[: len(sizes) - missing * (copy > 0)]:
            job.alloc(APPLY, size)
    for size in more:
        job.alloc(APPLY, size)
    for _ in range(2):
        job.does(FORWARD)
        gradients = [job.alloc(ENGINE, size) for size in sizes]
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
        ({"more": (8192,)}, None),
        ({"missing": 1}, None),
        ({"sizes": SIZES[:2]}, None),
    ],
    ids=["a few are not trained", "a size has another", "a copy lacks a part", "of two sizes"],
)
def test_nearly_all_bytes_are_there_as_often(given, expected, found):
    assert found(trained(2, **given)) == expected
