import gc

import pytest

from snapconv.recorder.schedule import Part, Schedule, Sign, StepCounter, counting_steps


class Optimizer:
    """Something that steps."""


def parts(**plan):
    schedule = Schedule(**plan)
    return [schedule.part(iteration).value for iteration in range(schedule.n_iterations)]


def test_memory_comes_after_the_warm_up_and_times_after_another():
    assert parts(warm_up=2, iterations=2, has_timing=True) == [
        "warm-up",
        "warm-up",
        "memory",
        "memory",
        "timing warm-up",
        "timing",
        "timing",
    ]


def test_without_times_there_is_nothing_after_memory():
    assert parts(warm_up=0, iterations=1, has_timing=False) == ["memory"]


def test_after_the_plan_there_is_nothing_to_do():
    schedule = Schedule(warm_up=0, iterations=1, has_timing=False)
    assert schedule.part(1) is Part.AFTER


class Ends:
    """Counts what a StepCounter reports."""

    def __init__(self, **options):
        self.n = 0
        self.counter = StepCounter(self.add, **options)

    def add(self):
        self.n += 1


def test_an_iteration_ends_with_the_steps_of_the_first_optimizer_that_stepped():
    ends, generator, critic = Ends(), Optimizer(), Optimizer()
    for _ in range(3):
        ends.counter.stepped(generator, (), {})
        ends.counter.stepped(critic, (), {})
    assert ends.n == 3


def test_another_optimizer_takes_over_when_the_first_is_gone():
    ends, first, second = Ends(), Optimizer(), Optimizer()
    ends.counter.stepped(first)
    del first
    gc.collect()
    ends.counter.stepped(second)
    assert ends.n == 2


def scaled(counter, optimizer, *, is_finite):
    """What a GradScaler's step does."""
    counter.scaler_steps(optimizer, lambda: counter.stepped(optimizer) if is_finite else None)


def test_a_step_that_the_scaler_left_out_ends_an_iteration_too():
    ends, optimizer = Ends(), Optimizer()
    scaled(ends.counter, optimizer, is_finite=False)  # infinite gradients at first, as usual
    scaled(ends.counter, optimizer, is_finite=True)
    scaled(ends.counter, optimizer, is_finite=False)
    assert ends.n == 3


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_scaler_that_steps_several_optimizers_makes_one_iteration_of_them(is_finite):
    ends, critic, generator = Ends(), Optimizer(), Optimizer()
    for _ in range(3):
        scaled(ends.counter, critic, is_finite=is_finite)
        scaled(ends.counter, generator, is_finite=not is_finite)
    assert ends.n == 3


def test_a_step_inside_of_a_backward_pass_ends_the_iteration_with_the_pass():
    ends, of_weight, of_bias = Ends(), Optimizer(), Optimizer()

    def backward():
        ends.counter.stepped(of_weight)
        ends.counter.runs_backward(lambda: ends.counter.stepped(of_weight))  # a pass inside the pass
        ends.counter.stepped(of_bias)
        return ends.n

    assert ends.counter.runs_backward(backward) == 0
    assert ends.n == 1


def test_a_backward_pass_that_fails_after_a_step_ends_the_iteration_and_keeps_its_error():
    ends, optimizer = Ends(), Optimizer()

    def backward():
        ends.counter.stepped(optimizer)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ends.counter.runs_backward(backward)
    assert ends.n == 1


def without_optimizers():
    return Ends(least=Sign.BACKWARD)


def test_without_an_optimizer_a_backward_pass_ends_an_iteration():
    ends = without_optimizers()
    for _ in range(3):
        ends.counter.runs_backward(lambda: ends.counter.runs_backward(lambda: None))  # a pass inside the pass
    assert ends.n == 3


def test_a_backward_pass_that_fails_ends_none():
    ends = without_optimizers()
    with pytest.raises(ZeroDivisionError):
        ends.counter.runs_backward(lambda: 1 // 0)
    assert ends.n == 0


def test_where_an_optimizer_was_built_backward_passes_end_none_and_its_first_step_counts():
    ends, optimizer = without_optimizers(), Optimizer()
    ends.counter.waits_for(Sign.OPTIMIZER)
    for _ in range(3):
        for _ in range(4):
            ends.counter.runs_backward(lambda: None)
        ends.counter.stepped(optimizer)
    assert ends.n == 3


def test_a_step_inside_of_a_backward_pass_is_one_end_and_not_two():
    ends, optimizer = without_optimizers(), Optimizer()
    for _ in range(3):
        ends.counter.runs_backward(lambda: ends.counter.stepped(optimizer))
    assert ends.n == 3


@pytest.mark.parametrize("sign", [Sign.PROFILER, Sign.SCRIPT])
def test_a_greater_sign_takes_over_and_ends_nothing_twice(sign):
    ends = without_optimizers()
    for _ in range(5):
        ends.counter.runs_backward(lambda: None)
        ends.counter.saw(sign)
    assert ends.n == 5


@pytest.mark.parametrize("sign", [Sign.PROFILER, Sign.SCRIPT])
def test_a_greater_sign_that_is_expected_counts_from_its_first_on(sign):
    ends = without_optimizers()
    ends.counter.waits_for(sign)
    for _ in range(3):
        for _ in range(4):
            ends.counter.runs_backward(lambda: None)
        ends.counter.saw(sign)
    assert ends.n == 3


def test_a_script_that_ends_its_iterations_itself_is_believed_above_its_optimizers():
    ends, critic = Ends(), Optimizer()
    ends.counter.waits_for(Sign.SCRIPT)
    for _ in range(3):
        for _ in range(5):
            ends.counter.stepped(critic)
        ends.counter.saw(Sign.PROFILER)
        ends.counter.saw(Sign.SCRIPT)
    assert ends.n == 3


def ends_of(train, *, n_built=1):
    """How many iterations are counted while a program with an optimizer of torch's trains a weight."""
    torch = pytest.importorskip("torch")
    ends = without_optimizers()
    with counting_steps(ends.counter):
        w = torch.ones(3, requires_grad=True)
        optimizers = [torch.optim.SGD([w], lr=0.1) for _ in range(n_built)]
        train(torch, w, optimizers)
    return ends.n


def backward(w):
    loss = w.square().sum()
    loss.backward()
    return loss


def update(torch, w):
    with torch.no_grad():
        w.sub_(w.grad * 0.1)


def by_hand(torch, w, _):
    for _ in range(6):
        backward(w)
        update(torch, w)


@pytest.mark.parametrize("n_built", [1, 2])
def test_an_optimizer_that_never_steps_is_waited_for_no_longer_after_two_updates_without_it(n_built):
    assert ends_of(by_hand, n_built=n_built) == 4


def test_an_optimizer_that_is_gone_is_waited_for_no_longer():
    def throw_away(_, w, optimizers):
        optimizers.clear()
        gc.collect()
        for _ in range(6):
            backward(w)

    assert ends_of(throw_away) == 4


def test_gradients_that_are_accumulated_are_waited_for_however_many_there_are():
    def accumulate(_, w, optimizers):
        for _ in range(2):
            for _ in range(8):
                backward(w)
            optimizers[0].step()

    assert ends_of(accumulate) == 2


def test_passes_that_a_step_runs_itself_are_no_updates_without_it():
    """L-BFGS writes parameters and runs backward passes many times in one step."""

    def descend(torch, w, _):
        optimizer = torch.optim.LBFGS([w], lr=0.1, max_iter=6)
        for _ in range(2):
            optimizer.step(lambda: backward(w))

    assert ends_of(descend) == 2


def test_one_update_before_the_step_is_waited_for():
    """As sharpness-aware minimisation climbs first."""

    def climb(torch, w, optimizers):
        for _ in range(3):
            backward(w)
            update(torch, w)
            backward(w)
            optimizers[0].step()

    assert ends_of(climb) == 3


def test_an_optimizer_whose_groups_hold_no_tensors_does_no_harm():
    ends, optimizer = without_optimizers(), Optimizer()
    optimizer.param_groups = [{"params": [None]}]
    ends.counter.optimizer_built(optimizer)
    for _ in range(3):
        ends.counter.runs_backward(lambda: None)
    assert ends.n == 0
