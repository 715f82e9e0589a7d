"""One hypothesis about the whole job explains what was there before the trace; and how certain that is."""

import numpy as np
import pytest

from snapconv.classification.categories import Category, Certainty
from snapconv.classification.classify import classify
from snapconv.classification.inventory import Hypothesis, bits_of_count
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    STEP,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    features_of,
    frames,
    likely,
)

WEIGHT, GRADIENT, STATE = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
# How many parameters of which sizes: three layers, a table and a head.
MODEL = {4096: 6, 16384: 3, 40960: 1, 8192: 4}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshot.pickle"


def late(*, copies, has_step=True):
    """A model that was there before the trace, so many times, and a step of it."""
    job = Job()
    for size, n in MODEL.items():
        for _ in range(n * copies):
            job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size, n in MODEL.items() for _ in range(n)]
    if has_step:
        job.does(STEP)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    return job


def counts(found, rows):
    return {
        category: int(np.sum(found.category[rows] == int(category))) for category in (WEIGHT, STATE)
    }


@pytest.mark.parametrize("n_states", [1, 2])
def test_as_many_blocks_beside_the_gradients_as_adam_or_momentum_keeps_are_states(n_states, path):
    features = features_of(late(copies=1 + n_states), path)
    found = classify(features)
    for size, n in MODEL.items():
        rows = ~features.is_traced & (features.sizes == size)
        assert counts(found, rows) == {WEIGHT: n, STATE: n * n_states}


def test_weights_lie_below_their_states(path):
    features = features_of(late(copies=3), path)
    found, rows = classify(features), np.flatnonzero(~features.is_traced & (features.sizes == 4096))
    in_order = rows[np.argsort(features.allocations.addr[rows])]
    assert found.category[in_order].tolist() == [WEIGHT] * 6 + [STATE] * 12


def test_one_block_more_of_a_size_spoils_nothing(path):
    job = late(copies=3)
    job.older(NO_FRAMES, 4096)
    features = features_of(job, path)
    rows = ~features.is_traced & (features.sizes == 16384)
    assert counts(classify(features), rows) == {WEIGHT: 3, STATE: 6}


def test_the_job_is_explained_with_the_next_best_hypothesis(path):
    said = classify(features_of(late(copies=3), path)).explanation
    assert said.startswith("weights + 2 states account for 100.0 % of ")
    assert "; next best: " in said


def test_without_blocks_from_before_the_trace_there_is_nothing_to_explain(path):
    job = Job()
    job.alloc(APPLY)
    assert classify(features_of(job, path)).explanation == ""


def test_a_model_that_only_infers_is_weights(path):
    job = Job()
    for size in (40960, *(4096, 16384, 8192) * 6, 40960):
        job.older(NO_FRAMES, size)
    job.does(FORWARD, MAIN)
    features = features_of(job, path)
    assert set(classify(features).category[~features.is_traced].tolist()) == {WEIGHT}


def test_what_is_likely_has_its_probability_and_what_is_certain_more(path):
    features = features_of(late(copies=3), path)
    found = classify(features)
    is_likely = found.certainty == int(Certainty.LIKELY)
    known = found.category > 0
    assert np.all(found.probability[known & ~is_likely] >= 0.9)
    assert np.all((found.probability[is_likely] >= 0.5) & (found.probability[is_likely] < 0.9))
    assert np.all(found.probability[~known] == 0)


def test_what_the_program_frees_after_a_forward_is_likely_temporary(path):
    job = Job()
    job.does(FORWARD)
    job.free(job.alloc(MAIN), MAIN)
    job.does(FORWARD)
    assert likely(job, path) in ([(Category.TEMPORARY, 0.95)], [])


def test_a_layer_that_another_one_builds_has_weights(path):
    layer = frames(("__init__", "/w/proj/layer.py"), ("__init__", "/w/proj/model.py")) + MAIN
    job = Job()
    job.alloc(layer)
    job.does(FORWARD)
    assert categories(classified(job, path)) == [WEIGHT]


def test_a_line_of_a_step_that_replaces_weights_makes_weights(path):
    layer = frames(("__init__", "/w/proj/layer.py"), ("__init__", "/w/proj/model.py")) + MAIN
    job = Job()
    weight = job.alloc(layer)
    for _ in range(2):
        job.does(FORWARD, ENGINE)
        new = job.alloc(STEP)
        job.free(weight, STEP)
        weight = new
        job.does(STEP)
    job.does(FORWARD)
    assert categories(classified(job, path)) == [WEIGHT] * 3


@pytest.mark.parametrize(("n", "n_layers"), [(24, 24), (48, 24), (25, 24)])
def test_as_often_as_layers_is_less_surprising_than_any_other_number(n, n_layers):
    assert bits_of_count(n, n_layers) < bits_of_count(n, 0)


def test_a_hypothesis_says_what_there_is_for_every_parameter():
    assert str(Hypothesis(2, 1, 1)) == "weights + 2 states + gradients + a copy of the model"
    assert Hypothesis(2, 1, 1).per_parameter == 5
    assert str(Hypothesis(is_trained=False)) == "weights (nothing is trained)"
