"""``snapconv.recording`` in a job of somebody else's, on a simulated GPU."""

import logging
import os
import pickle
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402  # after the skip
from snapconv.errors import OutputWriteError  # noqa: E402
from snapconv.recorder import driver, environment, recording  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.smoke("recording")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 64 MiB."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        environment, "_has_driver", lambda: True
    )  # as a build with CUDA asks for it
    with simulated(SimulationOptions(capacity_bytes=64 << 20)):
        yield


class Job:
    """A model, its optimizer, and steps."""

    def __init__(self):
        self.model = torch.nn.Linear(64, 8).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, n_steps):
        for _ in range(n_steps):
            self.model(torch.randn(32, 64, device="cuda")).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


@pytest.fixture
def job(gpu):
    return Job()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def metadata(capture):
    return pickle.loads((capture / "snapshot.pickle").read_bytes())["snapconv"]


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_step_after_the_end_of_the_block_begins_no_iteration(job, tmp_path):
    with snapconv.recording(tmp_path / "out", steps=[0, 1]) as recording:
        recording.step()
    job.train(1)
    recording.step()
    assert names(tmp_path / "out") == ["step-000000.capture"]
    # An iteration would begin with hooks in torch.
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_block_without_chosen_steps_is_one_capture_at_its_end(job, tmp_path, caplog):
    with snapconv.recording(
        tmp_path / "out", model=job.model, optimizer=job.optimizer
    ) as recording:
        job.train(3)
    assert names(tmp_path / "out") == ["end-000003.capture"]
    assert recording.captures == [tmp_path / "out" / "end-000003.capture"]
    found = metadata(recording.captures[0])
    assert found["entry"]["kind"] == "production"
    assert found["ended"]["how"] == "complete"
    assert {row["name"]: row["bytes"] for row in found["parameters"]} == {
        "weight": 64 * 8 * 4,
        "bias": 8 * 4,
    }
    assert {row["state"] for row in found["optimizer_states"]} >= {"exp_avg", "exp_avg_sq"}
    assert warnings_in(caplog) == []


def test_chosen_steps_are_captured_and_no_others(job, tmp_path):
    with snapconv.recording(tmp_path, model=job.model, steps=[1, 3]):
        job.train(6)
    assert names(tmp_path) == ["step-000001.capture", "step-000003.capture"]
    found = metadata(tmp_path / "step-000003.capture")
    assert {row["iteration"] for row in found["phases"]} == {3}
    assert {row["phase"] for row in found["phases"]} == {"forward", "backward", "optimizer"}


def test_what_a_capture_holds_can_be_read(job, tmp_path):
    with snapconv.recording(tmp_path, steps=[1]):
        job.train(2)
    session = snapconv.load(tmp_path / "step-000001.capture" / "snapshot.pickle")
    assert session.devices[0].replay.allocated.peak > 64 * 8 * 4


def test_an_oom_is_captured_as_it_was_and_reaches_the_job(job, tmp_path):
    def train():
        job.train(2)
        kept = torch.empty(1 << 20, device="cuda")
        kept.add_(torch.empty(1 << 30, device="cuda"))

    with pytest.raises(torch.cuda.OutOfMemoryError), snapconv.recording(tmp_path, steps=[100]):
        train()
    assert names(tmp_path) == ["oom-000002.capture"]
    snapshot = pickle.loads((tmp_path / "oom-000002.capture" / "snapshot.pickle").read_bytes())
    assert snapshot["snapconv"]["ended"]["how"] == "oom"
    live = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert 4 << 20 in [
        block["requested_size"] for block in live if block["state"] == "active_allocated"
    ]


def test_an_oom_is_left_alone_where_asked(job, tmp_path):
    with (
        pytest.raises(torch.cuda.OutOfMemoryError),
        snapconv.recording(tmp_path, steps=[100], on_oom=False),
    ):
        torch.empty(1 << 30, device="cuda")
    assert names(tmp_path) == []


def test_an_exception_of_the_job_goes_through_untouched(job, tmp_path):
    error = KeyError("theirs")

    def train():
        job.train(1)
        raise error

    with pytest.raises(KeyError) as caught, snapconv.recording(tmp_path):
        train()
    assert caught.value is error
    assert names(tmp_path) == ["exception-000001.capture"]


def test_a_signal_captures_the_step_it_came_in_and_reaches_the_job_too(job, tmp_path):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(True))
    try:
        with snapconv.recording(tmp_path, steps=[100], on_signal=signal.SIGUSR1):
            job.train(1)
            os.kill(os.getpid(), signal.SIGUSR1)
            job.train(2)
        assert names(tmp_path) == ["signal-000001.capture"]
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        after = signal.signal(signal.SIGUSR1, before)
    assert heard == [True, True]
    assert after.__code__.co_filename == __file__


def test_steps_may_be_told_by_hand(gpu, tmp_path):
    with snapconv.recording(tmp_path, steps=[2]) as recording:
        for _ in range(4):
            torch.empty(100, device="cuda")
            recording.step()
    assert names(tmp_path) == ["step-000002.capture"]


def test_a_capture_may_be_asked_for(job, tmp_path):
    with snapconv.recording(tmp_path, steps=[9]) as recording:
        job.train(1)
        recording.capture("after-warm-up")
    assert names(tmp_path) == ["after-warm-up-000001.capture"]


def test_no_capture_replaces_another(job, tmp_path):
    for _ in range(2):
        with snapconv.recording(tmp_path):
            job.train(1)
    assert names(tmp_path) == ["end-000001-2.capture", "end-000001.capture"]


def test_there_are_never_more_captures_than_asked_for(job, tmp_path, caplog):
    with snapconv.recording(tmp_path, steps=range(9), max_captures=2):
        job.train(4)
    assert names(tmp_path) == ["step-000000.capture", "step-000001.capture"]
    assert "there are 2 already" in warnings_in(caplog)[0]


def test_the_ranks_of_a_job_do_not_meet(job, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with snapconv.recording(tmp_path):
        job.train(1)
    assert names(tmp_path) == ["rank3-end-000001.capture"]


def test_without_a_gpu_the_job_runs_on_with_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("snapconv.recorder.recording._TOLD", set())
    for _ in range(2):
        with snapconv.recording(tmp_path / "out") as recording:
            result = 7
            recording.step()
    assert result == 7
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "recording is off" in warning.getMessage()
    assert "\n" not in warning.getMessage()
    assert warning.exc_info is None
    assert not (tmp_path / "out").exists()


def test_a_fault_of_ours_is_logged_once_and_the_job_runs_on(job, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(driver.Driver, "contents", lambda _: 1 / 0)
    with snapconv.recording(tmp_path, steps=range(9)):
        job.train(4)
    (warning,) = warnings_in(caplog)
    assert "recording is off: division by zero" in warning
    assert "Traceback" in caplog.text  # a fault of ours, so it says where
    assert names(tmp_path) == []


def test_a_fault_of_ours_does_not_hide_the_jobs_own(job, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(driver.Driver, "contents", lambda _: 1 / 0)
    with pytest.raises(KeyError) as caught, snapconv.recording(tmp_path):
        raise KeyError("theirs")
    assert caught.value.__context__ is None
    assert len(warnings_in(caplog)) == 1


def test_a_full_disk_costs_one_capture_and_no_more(job, tmp_path, caplog, monkeypatch):
    write, calls = recording.write_capture_somewhere, []

    def write_second(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 1:
            raise OutputWriteError("the disk is full")
        return write(*arguments, **named)

    monkeypatch.setattr(recording, "write_capture_somewhere", write_second)
    with snapconv.recording(tmp_path, steps=[0, 1]):
        job.train(3)
    assert names(tmp_path) == ["step-000001.capture"]
    assert warnings_in(caplog) == ["snapconv: the disk is full"]


@pytest.mark.parametrize("steps", [(), (0, 2), (1, 3)])
def test_everything_is_off_when_the_block_is_left(job, tmp_path, steps):
    from torch.optim import optimizer

    backward, of_tensor = torch.autograd.backward, torch.Tensor.backward
    step = torch.amp.GradScaler.step
    hooks = [
        dict(optimizer._global_optimizer_pre_hooks),
        dict(optimizer._global_optimizer_post_hooks),
    ]
    with snapconv.recording(tmp_path, steps=steps):
        job.train(5)
        assert torch.autograd.backward is not backward
        assert len(optimizer._global_optimizer_post_hooks) == len(hooks[1]) + 1
    assert torch.autograd.backward is backward
    assert torch.Tensor.backward is of_tensor
    assert torch.amp.GradScaler.step is step
    assert [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks] == hooks
    job.train(1)
    assert not any(torch.cuda.memory._snapshot()["device_traces"])


WITHOUT_TYPER = """
import sys
import snapconv
with snapconv.recording(sys.argv[1]):
    pass
print([name for name in ("numpy", "typer", "torch") if name in sys.modules])
"""


def test_recording_imports_nothing_but_torch(tmp_path):
    hidden = "import sys; sys.modules['torch'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + WITHOUT_TYPER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['torch']\n"
    assert "there is no torch in this Python" in done.stderr
