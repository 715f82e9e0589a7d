"""Which phases a program goes through, as far as the observer can see."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after the check that torch is there
from torch.utils.checkpoint import checkpoint  # noqa: E402

from snapconv.recorder.captured.clock import ClockMarks  # noqa: E402
from snapconv.recorder.observe.observer import Observer  # noqa: E402
from snapconv.recorder.observe.phases import PhaseLog  # noqa: E402
from tests.recorder.metadata.watching import train, watching  # noqa: E402

X = torch.ones(2, 3)


def phases_of(program, **options) -> list[str]:
    with watching(**options) as observer:
        program(observer)
        return [row["phase"] for row in observer.facts({})["phases"]]


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


def test_accumulation_has_a_forward_and_a_backward_for_each_part():
    def program(_):
        model = nn.Linear(3, 3)
        for _ in range(2):
            model(X).sum().backward()

    assert phases_of(program) == ["forward", "backward"] * 2


def test_forward_without_a_graph_ends_with_the_call():
    def program(observer):
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model(X)
        assert observer.facts({})["phases"][0]["ended_us"] is not None

    assert phases_of(program) == ["forward"]


def test_evaluation_between_forward_and_backward_ends_no_forward():
    def program(observer):
        model = nn.Linear(3, 3)
        loss = model(X).sum()
        with torch.no_grad():
            model(X)
        assert observer.facts({})["phases"][0]["ended_us"] is None
        loss.backward()

    assert phases_of(program) == ["forward", "backward"]


def test_forward_goes_on_after_a_gradient_penalty():
    def program(_):
        model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
        x = X.clone().requires_grad_()
        out = model(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        (out + gradient.norm()).backward()

    assert phases_of(program) == ["forward", "backward", "forward", "backward"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_forward_that_runs_again_is_backward(use_reentrant):
    def program(_):
        model = nn.Linear(3, 3)
        x = X.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()

    assert phases_of(program) == ["forward", "backward"]


def test_a_phase_ends_with_its_iteration():
    def program(observer):
        model = nn.Linear(3, 3)
        model(X)
        observer.iteration_ended(0)
        assert observer.facts({})["phases"][0]["ended_us"] is not None

    assert phases_of(program) == ["forward"]


def test_a_backward_that_fails_is_over_and_its_error_is_theirs():
    def program(_):
        model = nn.Linear(3, 3)
        with pytest.raises(RuntimeError, match="scalar"):
            model(X).backward()
        model(X).sum().backward()

    assert phases_of(program) == ["forward", "backward"] * 2


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
    with torch.profiler.profile() as profile:
        phases_of(lambda _: nn.Linear(3, 3)(X).sum().backward())
    names = [event.name for event in profile.events() if event.name.startswith("snapconv:")]
    assert sorted(names) == ["snapconv:backward", "snapconv:forward"]


def test_times_are_brought_to_the_clock_of_the_trace():
    with watching() as observer:
        model = nn.Linear(3, 3)
        model(X).sum().backward()
        here = observer.facts({})
        stamps = [
            {
                "name": f"snapconv:{row['phase']}",
                "stage": "START",
                "device": 0,
                "time_us": row["began_us"] + 10**9,
            }
            for row in here["phases"]
        ]
        there = observer.facts({"external_annotations": stamps})
    for key in ("parameters", "saved"):
        moved = [b["noted_us"] - a["noted_us"] for a, b in zip(here[key], there[key], strict=True)]
        # An annotation is written within the time that the recorder saw: by so much the shift may be less.
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


def test_a_forward_that_switches_gradients_off_itself_ends_with_the_call():
    class Teacher(nn.Linear):
        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    def program(observer):
        teacher, student = Teacher(3, 3), nn.Linear(3, 3)
        teacher(X)
        assert observer.facts({})["phases"][0]["ended_us"] is not None
        (student(X) - teacher(X)).sum().backward()

    assert phases_of(program) == ["forward", "forward", "backward"]


@pytest.mark.parametrize("result", [None, 3.0])
def test_a_forward_that_returns_no_tensor_may_have_a_graph(result):
    class Keeps(nn.Linear):
        def forward(self, x):
            self.loss = super().forward(x).sum()
            return result

    def program(_):
        model = Keeps(3, 3)
        model(X)
        model.loss.backward()

    assert phases_of(program) == ["forward", "backward"]


def test_a_phase_that_another_thread_ends_meanwhile_ends_once():
    log, ended = PhaseLog(ClockMarks()), []

    class Range:
        def __exit__(self, *_):
            log.end()  # as another thread may do here
            ended.append("once")

    log.begin("forward", 0)
    log._range.__exit__(None, None, None)
    log._range = Range()
    log.end()
    assert ended == ["once"]
    assert log.rows[0].ended_us is not None


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
