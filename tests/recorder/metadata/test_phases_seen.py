"""Which phases a program goes through, as far as the observer can see."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.recorder.spans import SpanLog  # noqa: E402
from tests.recorder.metadata.watching import train, watching  # noqa: E402

X = torch.ones(2, 3)


def stamps(facts, *, later_us: int) -> list[dict]:
    """The annotations of all phases as torch writes them, with a clock that is ahead."""
    return [
        {
            "name": f"snapconv:{row['phase']}",
            "stage": "START",
            "device": 0,
            "time_us": row["began_us"] + later_us,
        }
        for row in facts["phases"]
    ]


def test_a_step_is_forward_backward_optimizer_and_phases_follow_each_other():
    with watching() as observer:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, lambda m: m(X).sum(), optimizer, 2, observer)
        rows = observer.facts({})["phases"]
    expected = [(phase, i) for i in range(2) for phase in ("forward", "backward", "optimizer")]
    assert [(row["phase"], row["iteration"]) for row in rows] == expected
    times = [time for row in rows for time in (row["began_us"], row["ended_us"])]
    assert times == sorted(times)


def linear():
    return nn.Linear(3, 3)


def first_has_ended(observer) -> bool:
    return observer.facts({})["phases"][0]["ended_us"] is not None


def accumulates(_):
    model = linear()
    for _ in range(2):
        model(X).sum().backward()


def infers(observer):
    with torch.no_grad():
        linear()(X)
    assert first_has_ended(observer)


def evaluates_before_backward(observer):
    model = linear()
    loss = model(X).sum()
    with torch.no_grad():
        model(X)
    assert not first_has_ended(observer)
    loss.backward()


def penalizes_gradients(_):
    model = nn.Sequential(linear(), nn.Sigmoid())
    x = X.clone().requires_grad_()
    out = model(x).sum()
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    (out + gradient.norm()).backward()


def runs_forward_again(_):
    for use_reentrant in (True, False):
        checkpoint(
            linear(), X.clone().requires_grad_(), use_reentrant=use_reentrant
        ).sum().backward()


def ends_with_its_iteration(observer):
    linear()(X)
    observer.iteration_ended(0)
    assert first_has_ended(observer)


def fails_in_backward(_):
    model = linear()
    with pytest.raises(RuntimeError, match="scalar"):
        model(X).backward()
    model(X).sum().backward()


def switches_gradients_off_in_forward(observer):
    class Teacher(nn.Linear):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    teacher, student = Teacher(3, 3), linear()
    teacher(X)
    assert first_has_ended(observer)
    (student(X) - teacher(X)).sum().backward()


def returns_no_tensor(_):
    class Keeps(nn.Linear):
        def forward(self, x):
            self.loss = super().forward(x).sum()
            return self.result

    for result in (None, 3.0):
        model = Keeps(3, 3)
        model.result = result
        model(X)
        model.loss.backward()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (accumulates, "fbfb"),
        (infers, "f"),
        (evaluates_before_backward, "fb"),
        (penalizes_gradients, "fbfb"),
        (runs_forward_again, "fbfb"),
        (ends_with_its_iteration, "f"),
        (fails_in_backward, "fbfb"),
        (switches_gradients_off_in_forward, "ffb"),
        (returns_no_tensor, "fbfb"),
    ],
)
def test_a_program_goes_through_these_phases(program, expected):
    with watching() as observer:
        program(observer)
        assert "".join(row["phase"][0] for row in observer.facts({})["phases"]) == expected


def test_a_module_that_fails_leaves_no_module_running():
    class Fails(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    with watching() as observer:
        model = nn.Sequential(nn.Linear(3, 3), Fails())
        with pytest.raises(ZeroDivisionError):
            model(X)
        nn.Linear(3, 3)(X)
        facts = observer.facts({})
    assert len(facts["inputs"]) == 2


def test_phases_stand_in_the_trace_as_annotations():
    with torch.profiler.profile() as profile, watching():
        linear()(X).sum().backward()
    names = [event.name for event in profile.events() if event.name.startswith("snapconv:")]
    assert sorted(names) == ["snapconv:backward", "snapconv:forward"]


def test_times_are_brought_to_the_clock_of_the_trace():
    with watching() as observer:
        model = nn.Linear(3, 3)
        model(X).sum().backward()
        here = observer.facts({})
        there = observer.facts({"external_annotations": stamps(here, later_us=10**9)})
    for key in ("parameters", "saved"):
        moved = [b["noted_us"] - a["noted_us"] for a, b in zip(here[key], there[key], strict=True)]
        # An annotation is written within the time that the recorder saw: by so much the shift may
        # be less.
        assert all(0 <= 10**9 - shift < 100_000 for shift in moved)


def test_clocks_that_agree_are_left_alone():
    with watching() as observer:
        nn.Linear(3, 3)(X).sum().backward()
        here = observer.facts({})
        assert observer.facts({"external_annotations": stamps(here, later_us=0)}) == here


def test_a_compiled_model_is_compiled_as_without_us():
    def graphs(watched: bool) -> int:
        torch._dynamo.reset()
        found = []

        def backend(graph, _):
            found.append(graph)
            return graph.forward

        model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend=backend)

        def run():
            for _ in range(2):
                model(X).sum().backward()

        if watched:
            with watching():
                run()
        else:
            run()
        return len(found)

    assert graphs(True) == graphs(False) == 1


def test_a_phase_that_another_thread_ends_meanwhile_ends_once():
    log, ended = SpanLog(10), []

    class Range:
        def __exit__(self, *_):
            log.end()  # as another thread may do here
            ended.append("once")

    log.begin("snapconv:forward", is_range=True)
    log._range.__exit__(None, None, None)
    log._range = Range()
    log.end()
    assert ended == ["once"]
    assert log.rows[0]["ended_us"] is not None


def test_two_threads_take_turns_at_what_is_recorded():
    observer, order, has_begun, may_end = Observer(), [], threading.Event(), threading.Event()

    def first():
        has_begun.set()
        may_end.wait(20)
        order.append("first")

    threads = [
        threading.Thread(target=observer._run, args=(work,))
        for work in (first, lambda: order.append("second"))
    ]
    threads[0].start()
    has_begun.wait(20)
    threads[1].start()
    threads[1].join(0.05)
    may_end.set()
    for thread in threads:
        thread.join()
    assert order == ["first", "second"]
