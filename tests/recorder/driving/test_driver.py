"""The parts of a recording in their order, and what is kept and said where it ends early."""

import json
import pickle
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from snapconv.recorder import driver as driver_module
from snapconv.recorder.driver import Driver
from snapconv.recorder.later_peaks import Peaks
from snapconv.recorder.options import RecordedProgram, RecordingOptions
from snapconv.recorder.program.script import Ended
from snapconv.recorder.record import OneCapture


class Log(list):
    """What was called, in order."""

    def call(self, name):
        return lambda *arguments, **named: self.append((name, *arguments, *named.values()))


class Observer:
    failure = None

    def __init__(self, log):
        for name in ("start", "iteration_began", "iteration_ended", "note_now"):
            setattr(self, name, log.call(name))
        self.stop = log.call("stop")


@pytest.fixture
def log(monkeypatch):
    log = Log()
    monkeypatch.setattr(
        driver_module.memory_history, "start", lambda _: log.append(("history on",))
    )
    monkeypatch.setattr(driver_module.memory_history, "is_on", lambda: True)
    monkeypatch.setattr(driver_module.memory_history, "stop", log.call("history off"))
    monkeypatch.setattr(driver_module.SpanLog, "begin", lambda *_, **__: None)
    monkeypatch.setattr(
        driver_module.memory_history, "out_of_memory_observer", lambda _: nullcontext()
    )
    monkeypatch.setattr(driver_module, "probe", lambda **_: {})
    monkeypatch.setattr(driver_module.Interception, "listen", lambda *_: None)
    monkeypatch.setattr(driver_module.Driver, "wait_for_cuda", lambda _: None)
    monkeypatch.setattr(driver_module.environment, "require_history", lambda: None)
    monkeypatch.setattr(driver_module.environment, "choose_device", lambda _: 0)
    monkeypatch.setattr(driver_module.environment, "is_capturing_graph", lambda: False)
    monkeypatch.setattr(driver_module.environment, "device_values", lambda: [{}])
    monkeypatch.setattr(Peaks, "watch", lambda *_: None)
    monkeypatch.setattr(Peaks, "look", lambda _: {})
    monkeypatch.setattr(driver_module.Driver, "contents", lambda _: contents(log))
    return log


def begin(driver):
    """Begin, and let the program start CUDA."""
    driver.turn_on()
    driver.cuda_starts()


def contents(log):
    """A snapshot whose only content is how many there were before it."""
    log.append(("snapshot",))
    return {
        "n": log.count(("snapshot",)),
        "snapconv": {"overflowed": False, "devices": [], "notes": []},
    }


@pytest.fixture
def make(log, tmp_path):
    def make():
        asked = RecordingOptions(
            output=tmp_path / "c",
            project_root=tmp_path,
            program=RecordedProgram("train.py", "script"),
            simulation=SimpleNamespace(compute=False),
        )
        driver = Driver(asked, OneCapture(asked))
        driver.observer = cast("Any", Observer(log))
        made.append(driver)
        return driver

    made = []
    yield make
    for driver in made:  # which would go on to hear snapconv.step()
        driver.close()


def captured(folder):
    return pickle.loads((folder / "c" / "snapshot.pickle").read_bytes())


def test_cuda_that_starts_is_heard_once_and_anew_where_that_was_interrupted(make, log, monkeypatch):
    """torch runs its queue once more where a call of somebody else's failed (2.13)."""
    driver, interrupts = make(), [KeyboardInterrupt]

    def start(_options):
        if interrupts:
            raise interrupts.pop()
        log.append(("history on",))

    monkeypatch.setattr(driver_module.memory_history, "start", start)
    with pytest.raises(KeyboardInterrupt):
        driver.cuda_starts()
    driver.cuda_starts()
    driver.cuda_starts()
    assert log == [("history on",)]


# Whole recordings, without stand-ins.

RUNS_OUT = "torch.empty(1 << 30, device='cuda')"
SMALL_GPU = ["--capacity", "64MiB"]


@pytest.mark.parametrize(
    ("n_done", "says"),
    [
        (1, "the capture has the memory up to there, and no times; for times let it make 4 iter"),
        (2, "the memory part is whole, the times are not; for times let it make 4 iterations"),
    ],
)
def test_a_program_of_few_iterations_is_said_what_is_missing(run, n_done, says):
    done = run(f"train({n_done})")
    assert f"note: train.py came to its end when {n_done} of 4 iterations were done" in done.err
    assert says in done.err


def test_the_state_at_an_oom_is_what_is_kept(run):
    done = run(f"train(1); kept = torch.ones(5, device='cuda'); {RUNS_OUT}", options=SMALL_GPU)
    assert done.metadata["ended"]["how"] == "oom"
    assert actions(done)[-1] == "oom"


def test_memory_first_then_times_and_each_turned_off_when_done(run):
    script = """
    for _ in range(4):
        print(torch._C._cuda_isHistoryEnabled())
        train(1)
    """
    done = run(script)
    assert done.out.split() == ["True", "True", "False", "False"]
    assert [row["kind"] for row in done.metadata["iterations"]] == ["warm-up", "memory"]
    timing = json.loads((done.folder / "train.capture" / "timing.json").read_text())
    assert [row["iteration"] for row in timing["iterations"]] == [3]
    assert done.metadata["ended"] == {"how": "complete", "detail": ""}
    assert done.metadata["notes"] == []
    assert "note:" not in done.err


def test_what_memory_is_for_is_noted_right_before_the_state_at_an_oom_is_taken(run):
    built_late = "late = torch.nn.Linear(64, 3).cuda()"
    done = run(f"train(1); {built_late}; {RUNS_OUT}", options=SMALL_GPU)
    assert done.err.count("taking the snapshot") == 0
    assert [3, 64] in [row["shape"] for row in done.metadata["parameters"]]


def test_a_failure_of_ours_is_kept_and_nothing_is_thrown(run, monkeypatch):
    monkeypatch.setattr(Driver, "contents", lambda _: 1 / 0)
    done = run("train(3); print('goes on')")
    assert done.out == "goes on\n"
    assert done.code == 1
    assert "error: a fault of snapconv ended the recording; your program ran on" in done.err
    assert "ZeroDivisionError" in done.err
    assert done.names == []


def test_an_oom_while_operations_are_timed_leaves_the_memory_part_as_it_was(run):
    done = run(f"train(3); {RUNS_OUT}", options=SMALL_GPU)
    assert done.code == 1
    assert "oom" not in actions(done)
    assert "the memory part is whole" in done.err


def test_an_oom_after_everything_is_recorded_costs_nothing(run):
    script = f"train(4)\ntry:\n    {RUNS_OUT}\nexcept torch.OutOfMemoryError:\n    train(1)"
    done = run(script, options=SMALL_GPU)
    assert done.code == 0
    assert done.err.count("taking the snapshot") == 1
    assert "oom" not in actions(done)
    assert done.metadata["ended"]["how"] == "complete"


def test_a_full_buffer_is_a_note_that_names_the_option(run):
    done = run("train(4)", options=["--max-entries", "77"])
    assert "note: more than 77 events: the oldest were overwritten; raise --max-entries" in done.err


@pytest.mark.parametrize(
    ("options", "what_next"),
    [((), "goes on without a recording"), (("--stop",), "is ended here")],
)
def test_what_becomes_of_a_program_that_is_recorded_is_said(run, options, what_next):
    done = run("train(6); print('goes on')", options=options)
    assert f"everything is recorded; the program {what_next}\n" in done.err
    assert done.out == ("" if options else "goes on\n")


def actions(done):
    return [event["action"] for trace in done.snapshot["device_traces"] for event in trace]


class TestSeveralThreads:
    """A program may train on several threads; each ends iterations when it likes."""

    def test_an_iteration_that_ends_while_another_thread_ends_one_is_the_same(
        self, make, log, monkeypatch
    ):
        driver = make()
        begin(driver)
        others = []

        def end_on_another_thread(*_):
            log.append(("iteration_ended",))
            other = threading.Thread(target=driver.iteration_ended)
            other.start()
            other.join(10)
            others.append(other.is_alive())

        monkeypatch.setattr(driver.observer, "iteration_ended", end_on_another_thread)
        driver.iteration_ended()
        assert others == [False]
        assert log.count(("iteration_ended",)) == 1
        assert driver.iteration == 1
        assert driver.guard.failure is None

    def test_the_end_of_the_program_waits_until_an_iteration_has_ended(
        self, make, log, monkeypatch, tmp_path
    ):
        driver = make()
        begin(driver)
        has_begun, may_end = threading.Event(), threading.Event()

        def end_slowly(*_):
            has_begun.set()
            may_end.wait(10)
            log.append(("iteration_ended",))

        monkeypatch.setattr(driver.observer, "iteration_ended", end_slowly)
        training = threading.Thread(target=driver.iteration_ended)
        training.start()
        assert has_begun.wait(10)
        ending = threading.Thread(target=driver.finish, args=(Ended("finished"),))
        ending.start()
        assert not (tmp_path / "c").exists()
        may_end.set()
        training.join(10)
        ending.join(10)
        assert log.index(("iteration_ended",)) < log.index(("snapshot",))
        assert captured(tmp_path)["snapconv"]["ended"]["how"] == "finished"
