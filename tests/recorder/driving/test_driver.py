"""The parts of a recording in their order, and what is kept and said where it ends early."""

import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from snapconv.recorder import environment, memory_history
from snapconv.recorder.driver import Driver
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.options import RecordedProgram, RecordingOptions

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


def test_cuda_that_starts_is_heard_once_and_anew_where_that_was_interrupted(tmp_path, monkeypatch):
    """torch runs its queue once more where a queued call of the program failed (2.13).

    The simulated device has started before the program begins, so the driver is called here.
    """
    n_started, interrupts = [], [KeyboardInterrupt]

    def interrupted_once(_options):
        if interrupts:
            raise interrupts.pop()
        n_started.append(1)

    monkeypatch.setattr(memory_history, "start", interrupted_once)
    monkeypatch.setattr(memory_history, "stop", lambda: None)
    monkeypatch.setattr(environment, "require_history", lambda: None)
    program = RecordedProgram("train.py", "script")
    options = RecordingOptions(
        output=tmp_path, project_root=tmp_path, program=program, on_oom=False
    )
    driver = Driver(options, SimpleNamespace(cuda_started=lambda _driver: True))
    with pytest.raises(KeyboardInterrupt):
        driver.cuda_starts()
    driver.cuda_starts()
    driver.cuda_starts()
    assert len(n_started) == 1
    assert driver.close() is None


class TestSeveralThreads:
    """A program may train on several threads; each ends iterations when it likes."""

    def test_an_iteration_that_ends_while_another_thread_ends_one_is_the_same(
        self, run, monkeypatch
    ):
        iteration_ended, others = Observer.iteration_ended, []

        def end_on_another_thread(observer, number):
            if not others:
                other = threading.Thread(target=sys.modules["__main__"].step)
                others.append(other)
                other.start()
                other.join(10)
            iteration_ended(observer, number)

        monkeypatch.setattr(Observer, "iteration_ended", end_on_another_thread)
        done = run("train(4)")
        assert [other.is_alive() for other in others] == [False]
        assert [row["kind"] for row in done.metadata["iterations"]] == ["warm-up", "memory"]
        assert done.metadata["ended"]["how"] == "complete"

    def test_the_end_of_the_program_waits_until_an_iteration_has_ended(self, run, monkeypatch):
        iteration_ended = Observer.iteration_ended

        def end_slowly(observer, number):
            if number == 1:
                sys.modules["__main__"].is_ending.set()
                time.sleep(0.5)
            iteration_ended(observer, number)

        monkeypatch.setattr(Observer, "iteration_ended", end_slowly)
        script = """
        import threading
        is_ending = threading.Event()
        train(1)
        threading.Thread(target=step, daemon=True).start()
        is_ending.wait(10)
        """
        done = run(script)
        assert done.metadata["ended"]["how"] == "finished"
        assert all(row["ended_us"] is not None for row in done.metadata["iterations"])
