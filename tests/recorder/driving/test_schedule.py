import gc

import pytest

from snapconv.recorder.interception import Event
from snapconv.recorder.schedule import Sign, StepCounter, plan


class Optimizer:
    """Something that steps."""


def parts(**lengths):
    return [part.value for part in plan(**lengths)]


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


class Ends:
    """Counts what a StepCounter reports."""

    def __init__(self, **options):
        self.n = 0
        self.counter = StepCounter(self.add, **options)
        self.optimizers = {}

    def add(self):
        self.n += 1

    def play(self, program):
        """Let the counter see what each letter stands for.

        g, c: the generator and the critic step; G, C: a GradScaler leaves their steps out; b: a
        backward pass, and with parentheses one in which something happens; f: one that fails; s:
        snapconv.step(); B: an optimizer is built.
        """
        for event in program.replace("b", "()"):
            if event in "()f":
                backward = (
                    (Event.BACKWARD_BEGINS, None, False),
                    (Event.BACKWARD_ENDS, False, event != "f"),
                )
                for kind, *arguments in {"(": backward[:1], ")": backward[1:], "f": backward}[
                    event
                ]:
                    self.counter.listeners[kind](*arguments)
            elif event == "s":
                self.counter.saw(Sign.SCRIPT)
            elif event == "B":
                self.counter.listeners[Event.OPTIMIZER_BUILT](None)
            else:
                optimizer = self.optimizers.setdefault(event.lower(), Optimizer())
                self.counter.listeners[Event.SCALER_BEGINS](optimizer)
                if event.islower():
                    self.counter.listeners[Event.STEP_ENDS](optimizer)
                self.counter.listeners[Event.SCALER_ENDS](optimizer)


@pytest.mark.parametrize(
    ("program", "n"),
    [
        pytest.param("gcgcgc", 3, id="the steps of the first optimizer that stepped count"),
        pytest.param("GgG", 3, id="a step that the scaler left out ends an iteration too"),
        pytest.param("gCgCgC", 3, id="a scaler of two optimizers makes one iteration"),
        pytest.param("GcGcGc", 3, id="also where it leaves the first one out"),
        pytest.param(
            "(g(g)c)", 1, id="a step inside of a backward pass ends the iteration with the pass"
        ),
        pytest.param("(gf)", 1, id="also where a pass within it fails"),
    ],
)
def test_steps_of_optimizers_end_iterations(program, n):
    ends = Ends()
    ends.play(program)
    assert ends.n == n


@pytest.mark.parametrize(
    ("program", "n"),
    [
        pytest.param("(b)(b)(b)", 3, id="without an optimizer a backward pass ends one"),
        pytest.param("fff", 0, id="one that fails ends none"),
        pytest.param("BbbbbgbbbbgBbbbbg", 3, id="an optimizer is built: its first step counts"),
        pytest.param("(g)(g)(g)", 3, id="a step inside of a pass is one end and not two"),
        pytest.param("bsbsbs", 3, id="the script takes over and ends nothing twice"),
        pytest.param("sbbbbsbbbbs", 3, id="the script is believed above backward passes"),
        pytest.param("Bsgggsgggs", 3, id="and above optimizers"),
    ],
)
def test_the_greatest_sign_counts(program, n):
    ends = Ends(lowest_sign=Sign.BACKWARD)
    ends.play(program)
    assert ends.n == n


def test_a_script_that_is_going_to_say_it_is_waited_for():
    ends = Ends(lowest_sign=Sign.SCRIPT)
    ends.play("bbbbsBgggs")
    assert ends.n == 2


def test_another_optimizer_takes_over_when_the_first_is_gone():
    ends = Ends()
    ends.play("g")
    ends.optimizers.clear()
    gc.collect()
    ends.play("c")
    assert ends.n == 2
