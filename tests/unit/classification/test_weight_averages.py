"""Averages of the weights that a library keeps on the device are known by the lines that update them."""

import pytest

from snapconv.classification.weight_averages import averages_are_updated
from tests.classified_jobs import FORWARD, MAIN, SITE, TORCH, Job, features_of, frames


@pytest.mark.parametrize(
    ("function", "file", "expected"),
    [
        ("update_parameters", f"{TORCH}/optim/swa_utils.py", True),
        ("step", f"{SITE}/diffusers/training_utils.py", True),
        ("update", f"{SITE}/timm/utils/model_ema.py", True),
        ("update_bn", f"{TORCH}/optim/swa_utils.py", False),
        ("update_parameters", "/w/proj/averages.py", False),
    ],
)
def test_an_average_is_known_by_the_function_that_updates_it(function, file, expected, tmp_path):
    job = Job()
    job.does(FORWARD, frames((function, file)) + MAIN)
    assert averages_are_updated(features_of(job, tmp_path / "snapshot.pickle")) == expected
