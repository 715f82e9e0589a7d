"""One hypothesis about the whole job explains what was there before the trace; and how certain that is."""

from collections import Counter

import numpy as np
import pytest

from snapconv.classification.categories import Category, Certainty
from snapconv.classification.classify import classify
from snapconv.classification.inventory import BITS, bits_of_count
from snapconv.classification.job import states_beside_each_other
from snapconv.classification.predictions import Hypothesis
from snapconv.columns import is_among
from snapconv.torch_knowledge.optimizers import same_states
from tests.classified_jobs import (
    ADD_TO_GRADIENT,
    APPLY,
    ENGINE,
    FORWARD,
    LAYER,
    MAIN,
    NO_FRAMES,
    RELEASE,
    STEP,
    SUBJECT,
    TORCH,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    features_of,
    frames,
    likely,
)

WEIGHT, GRADIENT, STATE = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
OPTIMIZER_FILE = f"{TORCH}/optim/optimizer.py"
# How many parameters of which sizes: three layers, a table and a head.
MODEL = {4096: 6, 16384: 3, 40960: 1, 8192: 4}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "snapshot.pickle"


def late(*, copies, has_step=True):
    """A model that was there before the trace, so many times, and a step of it."""
    job = Job()
    # Weights are made first.
    for n_blocks in (1, copies - 1):
        for size, n in MODEL.items():
            for _ in range(n * n_blocks):
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


def test_what_the_optimizer_of_the_step_contradicts_is_likely_at_most(path):
    """AdamW keeps two states: where only one could be, the weights may be none of the blocks."""
    for copies, is_certain in ((3, True), (2, False)):
        features = features_of(late(copies=copies), path)
        found = classify(features)
        rows = ~features.is_traced & (features.sizes == 16384)
        assert found.is_certain[rows].all() == is_certain
        assert found.is_certain[rows].any() == is_certain


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


@pytest.mark.parametrize("times", [1, 3])
def test_a_model_that_is_there_three_times_may_be_trained_though_no_forward_saves(times, path):
    """Activations may be on the CPU: a model of four layers seldom has three of every size."""
    job = Job()
    for _ in range(times):
        for size in (40960, *(4096, 6144, 16384, 8192) * 4, 73728):
            job.older(NO_FRAMES, size)
    job.does(*[FORWARD] * 4, MAIN)
    features = features_of(job, path)
    is_certain = classify(features).is_certain[features.sizes == 16384]
    assert is_certain.all() == (times == 1)


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
    hypothesis = Hypothesis(same_states(2), 1, 1)
    assert str(hypothesis) == "weights + 2 states + gradients + a copy of the model"
    assert hypothesis.per_parameter == 5
    assert str(Hypothesis(is_trained=False)) == "weights (nothing is trained)"


def with_states(parameters, states):
    """A model of matrices and states of it from before the trace, and a step of an unknown optimizer."""
    job = Job()
    for sizes in (parameters, states):
        for size, n in sizes.items():
            for _ in range(n):
                job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size, n in parameters.items() for _ in range(n)]
    job.does(frames(("step", "/w/proj/own.py"), ("wrapper", OPTIMIZER_FILE)))
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    return job


def total(*counts):
    return {
        size: sum(count.get(size, 0) for count in counts)
        for size in {size for count in counts for size in count}
    }


# Matrices in float32, by their sides.
MATRICES = {(32, 48): 3, (48, 96): 2, (160, 96): 1, (224, 160): 4, (224, 352): 2, (352, 96): 2}
PARAMETERS = {4 * rows * columns: n for (rows, columns), n in MATRICES.items()}
TWO_STATES = {size: 2 * n for size, n in PARAMETERS.items()}
# Two squares of each side, as of SOAP: what is averaged, and its eigenvectors.
SIDES = Counter()
for pair, n in MATRICES.items():
    SIDES.update(dict.fromkeys(pair, n))
SQUARES = {4 * side**2: 2 * n for side, n in SIDES.items()}


@pytest.mark.parametrize(
    "states",
    [
        # Momentum of matrices, both averages of the rest: Muon beside AdamW.
        PARAMETERS | {4 * 160 * 96: 2, 4 * 32 * 48: 6},
        total(TWO_STATES, SQUARES),
        # Quantized: one byte for each element.
        {size // 4: n for size, n in TWO_STATES.items()},
        TWO_STATES,
    ],
)
def test_states_of_any_sizes_that_a_rule_predicts_are_states(states, path):
    features = features_of(with_states(PARAMETERS, states), path)
    found = classify(features)
    for size, n in total(PARAMETERS, states).items():
        rows = ~features.is_traced & (features.sizes == size)
        n_weights = PARAMETERS.get(size, 0)
        assert counts(found, rows) == {WEIGHT: n_weights, STATE: n - n_weights}, size


def test_of_more_blocks_than_a_rule_predicts_nothing_is_certain(path):
    """Twice as many again of one size may be states of an optimizer that is not known, or weights."""
    states = TWO_STATES | {4 * 48 * 96: 2 * 2 + 4}
    features = features_of(with_states(PARAMETERS, states), path)
    found = classify(features)
    rows = ~features.is_traced & (features.sizes == 4 * 48 * 96)
    assert not found.is_certain[rows].any()


def test_a_third_copy_beside_adam_is_one_of_the_weights(path):
    """Three sizes are too few to show by their addresses whether the optimizer has a third state."""
    adam = frames(("step", f"{TORCH}/optim/adam.py"), ("wrapper", OPTIMIZER_FILE)) + MAIN
    sizes = [40960, 12288, 4096]
    job = Job()
    for size in sizes * 4:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in sizes]
    job.does(adam)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    features = features_of(job, path)
    found = classify(features)
    rows = np.flatnonzero(~features.is_traced & (features.sizes == 40960))
    assert found.category[rows].tolist() == [WEIGHT, WEIGHT, STATE, STATE]
    assert found.is_certain[rows].all()


def test_weights_of_a_model_that_was_cast_lie_among_states(path):
    """Two states of a parameter lie beside each other, also where they lie below the weights."""
    order = [(12288, WEIGHT), *[(8192, STATE)] * 2, *[(4096, STATE)] * 2, (8192, WEIGHT)]
    order += [(4096, WEIGHT), *[(12288, STATE)] * 2]
    job = Job()
    for size, _ in order:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in (12288, 8192, 4096)]
    job.does(STEP)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    features = features_of(job, path)
    rows = np.flatnonzero(~features.is_traced)
    in_order = rows[np.argsort(features.allocations.addr[rows])]
    found = classify(features)
    assert found.category[in_order].tolist() == [category for _, category in order]


def test_frozen_layers_beside_a_frozen_table_may_be_as_many_as_a_second_state(path):
    """Half of the layers and a table are frozen; the rest has one state each."""
    layers = {262144: 4, 196608: 2, 65536: 2, 2048: 2, 1536: 2}
    heads = {131072: 1, 98304: 1}
    trained = layers | heads
    job = Job()
    for sizes in (total(layers, layers), {1024000: 1} | heads, trained):
        for size, n in sizes.items():
            for _ in range(n):
                job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for size, n in trained.items():
        for _ in range(n):
            job.alloc(ENGINE, size)
    features = features_of(job, path)
    found = classify(features)
    for size, n in layers.items():
        rows = np.flatnonzero(~features.is_traced & (features.sizes == size))
        in_order = rows[np.argsort(features.allocations.addr[rows])]
        is_weight = found.category[in_order[n : 2 * n]] == WEIGHT
        assert (is_weight | ~found.is_certain[in_order[n : 2 * n]]).all()


def test_numbers_of_states_are_as_rare_as_in_programs():
    """Of 228 programs, 180 keep two states, 27 one and 15 none."""
    shares = np.exp2(-np.array(BITS.states))
    assert shares.sum() == pytest.approx(1)
    assert shares[:3] == pytest.approx([15 / 228, 27 / 228, 180 / 228], abs=0.01)


@pytest.mark.parametrize("kept_layers", [(2, 3), (0, 1)])
def test_layers_that_keep_less_for_backward_are_frozen_and_no_states_of_the_others(
    kept_layers, path
):
    """Four layers of two lines run, and two of them keep their inputs: the others are not trained."""
    lines = [FORWARD, LAYER]
    model = {16384: 4, 40960: 8}
    trained = {size: n // 2 for size, n in model.items()} | {8192: 1}
    job = Job()
    for size, n in (model | {8192: 1}).items():
        for _ in range(n):
            job.older(NO_FRAMES, size)
    saved = []
    for layer in range(4):
        results = [job.alloc(line, SUBJECT) for line in lines]
        if layer in kept_layers:
            saved += results
        else:
            for addr, line in zip(results, lines, strict=True):
                job.free(addr, line)
    for addr in saved:
        job.free(addr, RELEASE)
    gradients = [job.alloc(ENGINE, size) for size, n in trained.items() for _ in range(n)]
    job.does(frames(("step", f"{TORCH}/optim/sgd.py"), ("wrapper", OPTIMIZER_FILE)) + MAIN)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    features = features_of(job, path)
    found = classify(features)
    rows = ~features.is_traced & is_among(features.sizes, np.array(list(model)))
    assert (found.category[rows] == WEIGHT).all()


def test_states_lie_beside_each_other_and_a_copy_as_the_model_does(path):
    """Three blocks more of each size: with an average of the weights, the copy lies in their order."""
    sizes = [4096, 8192, 12288, 20480, 28672, 36864]
    beside = {}
    for name, order in (
        ("states", [size for size in sizes for _ in range(3)]),
        ("copy", sizes + [size for size in sizes for _ in range(2)]),
    ):
        job = Job()
        for size in sizes + order:
            job.older(NO_FRAMES, size)
        job.does(FORWARD)
        for addr in [job.alloc(ENGINE, size) for size in sizes]:
            job.free(addr, ZERO_GRAD)
        job.does(FORWARD)
        features = features_of(job, path)
        rows = np.flatnonzero(~features.is_traced)
        beside[name] = states_beside_each_other(features, rows, Counter(sizes))
    assert beside["states"] > 0.5
    assert beside["copy"] < 0


def test_a_step_shows_how_many_parameters_there_are_where_two_gradients_of_one_are_in_use(path):
    """That of the step before is there while backward makes the next one."""
    sizes = {40960: 1, 12288: 2, 4096: 2}
    job = Job()
    for n_blocks in (1, 2):
        for size, n in sizes.items():
            for _ in range(n * n_blocks):
                job.older(NO_FRAMES, size)
    former = job.older(NO_FRAMES, 40960)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size, n in sizes.items() for _ in range(n)]
    gradients.append(former)
    step = frames(("step", "/w/proj/own.py"), ("wrapper", OPTIMIZER_FILE))
    for addr in [job.alloc(step, size) for size, n in sizes.items() for _ in range(n)]:
        job.free(addr, step)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    job.does(FORWARD)
    features = features_of(job, path)
    found = classify(features)
    for size, n in sizes.items():
        rows = ~features.is_traced & (features.sizes == size)
        assert counts(found, rows) == {WEIGHT: n, STATE: 2 * n}


def test_two_losses_of_one_forward_add_to_the_same_gradients(path):
    """`backward` begins anew, without a forward between: its gradients are of no more weights."""
    sizes = (81920, 73728, 61440, 53248, 40960, 24576, 12288)
    root = frames(
        ("_make_grads", f"{TORCH}/autograd/__init__.py"),
        ("backward", f"{TORCH}/autograd/__init__.py"),
    )
    job = Job()
    for n_blocks in (1, 3):  # the weights, then two states and the gradients
        for size in sizes:
            for _ in range(n_blocks):
                job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for _ in range(2):
        loss_gradient = job.alloc(root + MAIN, 4)
        for size in sizes:
            job.free(job.alloc(ENGINE, size), ADD_TO_GRADIENT)
        job.free(loss_gradient, MAIN)
    job.does(STEP)
    job.does(FORWARD)
    features = features_of(job, path)
    found = classify(features)
    for size in sizes:
        rows = ~features.is_traced & (features.sizes == size)
        assert counts(found, rows)[WEIGHT] == 1
