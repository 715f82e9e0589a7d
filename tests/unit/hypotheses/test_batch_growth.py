"""Memory at another batch, where stacks alone show what forward computes from weights."""

import pytest

import snapconv
from snapconv.hypotheses.batch_growth import scaled_requests
from tests.builders import MIB, frame
from tests.faulty_jobs import CALL, ENGINE, PLACEMENT, STEP, TORCH, Job, at

PARAMETRIZED = frame("forward", f"{TORCH}/nn/utils/parametrize.py", 275)
OTHER = frame("forward", "/home/me/project/parametrize.py", 275)


def job(computing):
    """Steps with a weight of 4 MiB, computed by some code, and an activation of 6 MiB."""
    made = Job()
    made.alloc(8 * MIB, at(3, PLACEMENT))
    for _ in range(2):
        saved = [made.alloc(4 * MIB, at(12, CALL, computing)), made.alloc(6 * MIB, at(12, CALL))]
        # The gradient of the computed weight is as large as it is.
        made.free([*saved, made.alloc(4 * MIB, ENGINE)], ENGINE)
        made.trace.alloc(MIB, frames=STEP).free(frames=STEP)
    return made


@pytest.mark.parametrize(("computing", "weight"), [(PARAMETRIZED, 4), (OTHER, 2)])
def test_what_a_parametrization_makes_and_its_gradient_do_not_grow(computing, weight, tmp_path):
    (device,) = snapconv.load(job(computing).trace.write(tmp_path / "s.pickle")).devices
    in_step = (device.features.in_forward | device.features.by_engine) & device.features.is_traced
    sizes = scaled_requests(device, 0.5)[in_step]
    assert {size // MIB for size in sizes.tolist()} == {weight, 3}
