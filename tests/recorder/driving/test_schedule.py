import functools
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
        self.optimizers = {}

    def add(self):
        self.n += 1

    def play(self, program):
        """Do what each letter stands for.

        g, c: the generator and the critic step; G, C: a GradScaler leaves their steps out; b: a backward
        pass, and with parentheses one in which something happens; p: a profiler's step; s: snapconv.step().
        """
        events = iter(program)
        for event in events:
            if event == ")":
                return
            if event == "(":
                self.counter.runs_backward(lambda: self.play(events))
            elif event == "b":
                self.counter.runs_backward(lambda: None)
            elif event in "ps":
                self.counter.saw(Sign.PROFILER if event == "p" else Sign.SCRIPT)
            else:
                optimizer = self.optimizers.setdefault(event.lower(), Optimizer())
                step = functools.partial(self.counter.stepped, optimizer)
                self.counter.scaler_steps(optimizer, step if event.islower() else lambda: None)


@pytest.mark.parametrize(
    ("program", "n"),
    [
        pytest.param("gcgcgc", 3, id="the steps of the first optimizer that stepped count"),
        pytest.param("GgG", 3, id="a step that the scaler left out ends an iteration too"),
        pytest.param("gCgCgC", 3, id="a scaler of two optimizers makes one iteration"),
        pytest.param("GcGcGc", 3, id="also where it leaves the first one out"),
        pytest.param("(g(g)c)", 1, id="a step inside of a backward pass ends the iteration with the pass"),
    ],
)
def test_steps_of_optimizers_end_iterations(program, n):
    ends = Ends()
    ends.play(program)
    assert ends.n == n


@pytest.mark.parametrize(
    ("program", "waits_for", "n"),
    [
        pytest.param("(b)(b)(b)", None, 3, id="without an optimizer a backward pass ends one"),
        pytest.param("bbbbgbbbbgbbbbg", Sign.OPTIMIZER, 3, id="an optimizer is built: its first step counts"),
        pytest.param("(g)(g)(g)", None, 3, id="a step inside of a pass is one end and not two"),
        pytest.param("bpbpbp", None, 3, id="a profiler takes over and ends nothing twice"),
        pytest.param("bsbsbs", None, 3, id="the script takes over and ends nothing twice"),
        pytest.param("bbbbpbbbbpbbbbp", Sign.PROFILER, 3, id="an expected profiler counts from the first on"),
        pytest.param("bbbbsbbbbsbbbbs", Sign.SCRIPT, 3, id="an expected script counts from the first on"),
        pytest.param("gggpsgggpsgggps", Sign.SCRIPT, 3, id="the script is believed above optimizers"),
    ],
)
def test_the_greatest_sign_counts(program, waits_for, n):
    ends = Ends(least=Sign.BACKWARD)
    if waits_for is not None:
        ends.counter.waits_for(waits_for)
    ends.play(program)
    assert ends.n == n


def test_another_optimizer_takes_over_when_the_first_is_gone():
    ends = Ends()
    ends.play("g")
    ends.optimizers.clear()
    gc.collect()
    ends.play("c")
    assert ends.n == 2


@pytest.mark.parametrize(("least", "steps", "n"), [(Sign.OPTIMIZER, "g", 1), (Sign.BACKWARD, "", 0)])
def test_a_backward_pass_that_fails_keeps_its_error_and_ends_an_iteration_after_a_step_alone(least, steps, n):
    ends = Ends(least=least)

    def backward():
        ends.play(steps)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ends.counter.runs_backward(backward)
    assert ends.n == n


def ends_of(train, *, n_built=1):
    """How many iterations are counted while a program with an optimizer of torch's trains a weight."""
    torch = pytest.importorskip("torch")
    ends = Ends(least=Sign.BACKWARD)
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
    ends, optimizer = Ends(least=Sign.BACKWARD), Optimizer()
    optimizer.param_groups = [{"params": [None]}]
    ends.counter.optimizer_built(optimizer)
    for _ in range(3):
        ends.counter.runs_backward(lambda: None)
    assert ends.n == 0
