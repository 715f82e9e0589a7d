"""Another batch size, estimated from two runs, against the program run with it."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from snapconv.allocator.allocator_settings import KIB, MIB
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.answers.what_if.batch_scale import OtherRun, scale_batch
from snapconv.answers.what_if.setting_trials import Request
from snapconv.classification.categories import Category
from snapconv.errors import InputError
from snapconv.phases.trace_phases import Phase
from snapconv.session import load
from tests.builders import frame

FIXTURES = Path(__file__).parents[4] / "fixtures"
CALL = frame("_call_impl", "/site-packages/torch/nn/modules/module.py")
STEP = frame("step", "/site-packages/torch/optim/sgd.py")


def train(batch, *, n_steps=3, n_extra=0):
    """Weights of 3 MiB; per sample two activations of one line, of which one has 100 KiB that do not grow."""
    model = CachingAllocator()
    for _ in range(4):
        model.malloc(3 * MIB, frames=[frame("init", line=1)])
    for _ in range(n_steps):
        kept = [model.malloc(batch * MIB // 4, frames=[CALL, frame("forward", line=2)])]
        kept.append(model.malloc(batch * 300 * KIB + 100 * KIB, frames=[CALL, frame("forward", line=2)]))
        for _ in range(n_extra):
            kept.append(model.malloc(batch * KIB, frames=[CALL, frame("forward", line=3)]))
        model.free(model.malloc(5 * MIB, frames=[STEP, frame("update", line=4)]))
        for addr in kept:
            model.free(addr)
    return model


@pytest.fixture
def session_of(tmp_path):
    def read(model):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pickle"
        path.write_bytes(pickle.dumps(model.snapshot()))
        return load(path)

    return read


@pytest.mark.parametrize("scale", [0.5, 2, 3.5])
def test_two_batch_sizes_give_a_third_exactly(scale, session_of):
    run, other, truth = session_of(train(8)), session_of(train(6)), train(int(8 * scale))
    (found,) = run.what_if(Request(), batch_scale=scale, other_batch=other, other_scale=6 / 8)
    outcome = found.tried[0].outcome
    assert outcome.peak_allocated == truth.max_allocated_bytes
    assert outcome.peak_reserved == truth.ledger.max_reserved_bytes
    assert found.estimated[0].startswith(f"batch × {scale:g}: 100.0 % of the requested bytes by the other")


def test_the_ratio_follows_where_most_of_what_differs_agrees(session_of):
    run, other = session_of(train(8, n_extra=1500)), session_of(train(4, n_extra=1500))
    (analysis,), (other_analysis,) = run.devices, other.devices
    found = scale_batch(analysis, 2, OtherRun(other_analysis))
    assert "of batch × 0.5" in found.how


def test_a_ratio_that_does_not_follow_has_to_be_given(session_of):
    run, other = session_of(train(8)), session_of(train(6))
    (analysis,), (other_analysis,) = run.devices, other.devices
    with pytest.raises(InputError, match="give the other one's with --other-scale"):
        scale_batch(analysis, 2, OtherRun(other_analysis))


def test_the_same_batch_size_shows_nothing(session_of):
    run, other = session_of(train(8)), session_of(train(8))
    with pytest.raises(InputError, match="has the same batch size"):
        run.what_if(Request(), batch_scale=2, other_batch=other)


def test_a_line_that_allocates_another_number_of_times_is_estimated_by_its_category(session_of):
    run, other = session_of(train(8, n_extra=2)), session_of(train(4, n_extra=3))
    (analysis,), (other_analysis,) = run.devices, other.devices
    found = scale_batch(analysis, 2, OtherRun(other_analysis, 0.5))
    by_category = scale_batch(analysis, 2)
    sizes = analysis.allocations.requested_bytes
    extra = sizes == 8 * KIB
    assert np.count_nonzero(extra) == 6
    assert (found.requested_bytes[extra] == by_category.requested_bytes[extra]).all()
    assert not found.how.startswith("100.0 %")


def test_without_another_run_the_categories_decide():
    session = load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    found = scale_batch(analysis, 2)
    sizes, category = analysis.allocations.requested_bytes, analysis.classification.category
    for fixed in (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT, Category.WORKSPACE):
        assert (found.requested_bytes[category == fixed] == sizes[category == fixed]).all()
    assert (
        found.requested_bytes[category == Category.ACTIVATION] == 2 * sizes[category == Category.ACTIVATION]
    ).all()
    temporary = (category == Category.TEMPORARY) & (analysis.allocations.alloc_event >= 0)
    phase = analysis.phases.phase[analysis.allocations.alloc_event[temporary]]
    expected = np.where(phase == Phase.OPTIMIZER, 1, 2) * sizes[temporary]
    assert (found.requested_bytes[temporary] == expected).all()
    assert {Phase.OPTIMIZER, Phase.BACKWARD} <= set(phase.tolist())
