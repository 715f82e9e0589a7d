"""Whether a second, frozen model may be there: modules that run from two places, and once save nothing."""

import pickle

import pytest

from snapconv.classification.categories import Category
from snapconv.classification.features import find_features
from snapconv.classification.second_models import frozen_modules_ran
from snapconv.phases.trace_phases import find_phases
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.stack_roles import assign_roles
from tests.classified_jobs import (
    COPY,
    ENGINE,
    MAIN,
    NO_FRAMES,
    OTHER,
    RELEASE,
    TORCH,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    frames,
)

LINES = range(10, 14)


def in_model(file, line, called_at):
    own = [{"name": "forward", "filename": f"/w/proj/{file}", "line": line}]
    call = frames(("_call_impl", f"{TORCH}/nn/modules/module.py"))
    return [*own, *call, {"name": "main", "filename": "/w/proj/train.py", "line": called_at}]


def forward(job, called_at, *, file="model.py", lines=LINES):
    return [job.alloc(in_model(file, line, called_at)) for line in lines]


def backward(job, saved):
    job.does(ENGINE)
    for addr in saved:
        job.free(addr, RELEASE)


@pytest.fixture
def is_frozen(tmp_path):
    def is_frozen(job):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(job.snapshot()))
        snapshot = load_snapshot(path)
        (device,) = snapshot.devices
        found, roles = replay(snapshot, device), assign_roles(snapshot.stacks)
        phases = find_phases(snapshot, device, found.allocations, roles)
        return frozen_modules_ran(find_features(found, phases, roles))

    return is_frozen


def job_with(*, before=(True, True), after=False, **second):
    """Steps of a forward that is trained, and beside some of them another, of which nothing is saved."""
    job = Job()

    def run_second():
        for addr in forward(job, **second):
            job.free(addr, in_model("model.py", 99, 1))

    for has_second in before:
        if has_second:
            run_second()
        backward(job, forward(job, called_at=2))
    if after:
        run_second()
    return job


def test_a_teacher_runs_the_same_lines_from_another_place_in_every_step_and_saves_nothing(is_frozen):
    assert is_frozen(job_with(called_at=1)) is True


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"before": (True,)}, None),
        ({"before": (True, False)}, False),
        ({"before": (False, False), "after": True}, False),
        ({"before": (False,), "after": True}, False),
    ],
    ids=[
        "before the only step",
        "before the first step of two",
        "after the last step",
        "after the only step",
    ],
)
def test_what_ran_beside_some_steps_may_be_a_validation(job, expected, is_frozen):
    assert is_frozen(job_with(called_at=1, **job)) is expected


@pytest.mark.parametrize(
    "second",
    [{"called_at": 1, "file": "vae.py"}, {"called_at": 1, "lines": LINES[:1]}, {"called_at": 2}],
    ids=["another model", "a single line", "the same place"],
)
def test_what_else_runs_without_saving_is_no_copy(second, is_frozen):
    assert not is_frozen(job_with(**second))


def one_step(*, frozen_first, batch=None, result=None, n_bytes=OTHER):
    """A forward without gradient, and a step; backward uses what is made between."""
    job = Job()
    trained = [] if frozen_first else forward(job, called_at=2)
    for addr in forward(job, called_at=1):
        job.free(addr, in_model("model.py", 99, 1))
    between = [job.alloc(stack, n_bytes) for stack in (batch, result) if stack]
    trained += forward(job, called_at=2) if frozen_first else []
    backward(job, [*trained, *between])
    return job


COMPUTED = frames(("at::_ops::softmax_int::call(at::Tensor const&)", "??")) + MAIN


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"frozen_first": False}, True),
        ({"frozen_first": True}, None),
        ({"frozen_first": True, "batch": COPY}, False),
        ({"frozen_first": True, "result": COMPUTED}, True),
        ({"frozen_first": True, "result": COMPUTED, "n_bytes": 4}, None),
        ({"frozen_first": True, "batch": COPY, "result": COMPUTED}, False),
    ],
    ids=[
        "between forward and backward",
        "before the forward",
        "before a batch of its own",
        "with a result that backward needs",
        "with a loss that is added up",
        "with a measure, before a batch of its own",
    ],
)
def test_in_a_single_step_a_frozen_forward_is_a_part_of_it_or_a_validation(step, expected, is_frozen):
    assert is_frozen(one_step(**step)) is expected


def two_forwards(*, n_lines=20, n_common=20, n_kept=0, n_saved=20):
    """Twenty lines that are trained, of whose results backward finds some; and lines that are not."""
    job = Job()
    lines = [*range(100, 100 + n_common), *range(200, 200 + n_lines - n_common)]
    for _ in range(2):
        first = forward(job, called_at=1, lines=lines)
        for addr in first[n_kept:]:
            job.free(addr, in_model("model.py", 99, 1))
        second = forward(job, called_at=2, lines=range(100, 120))
        for addr in second[n_saved:]:
            job.free(addr, in_model("model.py", 99, 2))
        backward(job, [*first[:n_kept], *second[:n_saved]])
    return job


@pytest.mark.parametrize(
    ("forwards", "expected"),
    [
        ({"n_kept": 1}, True),
        ({"n_kept": 2}, False),
        ({"n_kept": 3}, False),
        ({"n_saved": 4}, True),
        ({"n_saved": 3}, False),
        ({"n_lines": 3, "n_common": 3}, True),
        ({"n_lines": 2, "n_common": 2}, False),
        ({"n_lines": 5, "n_common": 4}, True),
        ({"n_lines": 4, "n_common": 3}, False),
    ],
    ids=[
        "a result that is kept",
        "a tenth that is kept",
        "more, and less than a fifth",
        "a fifth that is saved for backward",
        "less that is saved",
        "three lines",
        "two lines",
        "four fifths of the lines in common",
        "three quarters of them",
    ],
)
def test_how_much_a_frozen_copy_keeps_and_has_in_common_with_what_is_trained(forwards, expected, is_frozen):
    assert is_frozen(two_forwards(**forwards)) == expected


@pytest.mark.parametrize(("n_saved", "expected"), [(20, True), (0, False)])
def test_without_stacks_of_frees_what_lives_until_backward_is_saved(n_saved, expected, is_frozen):
    job = Job()
    for _ in range(2):
        for addr in forward(job, called_at=1):
            job.free(addr)
        second = forward(job, called_at=2, lines=range(10, 30))
        for addr in second[n_saved:]:
            job.free(addr)
        job.free(job.alloc(ENGINE))
        for addr in second[:n_saved]:
            job.free(addr)
    assert is_frozen(job) == expected


def test_two_forwards_that_are_both_trained_are_one_model(is_frozen):
    job = Job()
    saved = [*forward(job, called_at=1), *forward(job, called_at=2)]
    backward(job, saved)
    assert not is_frozen(job)


SIZES = (7000, 9000, 20_000, 30_000)
SGD_STEP = frames(("_multi_tensor_sgd", f"{TORCH}/optim/sgd.py")) + MAIN


@pytest.mark.parametrize(
    ("has_frozen", "category"), [(True, Category.UNKNOWN), (False, Category.OPTIMIZER_STATE)]
)
def test_a_further_copy_of_every_weight_is_momentum_unless_a_frozen_model_ran(has_frozen, category, tmp_path):
    job = Job()
    for size in SIZES * 2:
        job.older(NO_FRAMES, size)
    for _ in range(2):
        for addr in forward(job, called_at=1) if has_frozen else ():
            job.free(addr, in_model("model.py", 99, 1))
        backward(job, forward(job, called_at=2))
        gradients = [job.alloc(ENGINE, size) for size in SIZES]
        job.model.free(job.alloc(SGD_STEP, OTHER), frames=SGD_STEP)
        for addr in gradients:
            job.free(addr, ZERO_GRAD)
    found = categories(classified(job, tmp_path / "snapshot.pickle", SIZES[0]))
    assert found[:2] == [Category.WEIGHT, category]
