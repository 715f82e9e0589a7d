"""Recordings of scripts that start CUDA themselves, late: a simulated card stands for the real one.

It starts as a real one does, with ``torch._C._cuda_init`` and what torch has queued, at the first
allocation at the latest.
"""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402  # needs torch to be of use
from snapconv.recorder import environment, memory_history  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.driving.conftest import TRAINING  # noqa: E402

pytestmark = pytest.mark.smoke("recording")


class Card(list):
    """What happened, in order; ``environment`` is that in which CUDA was started."""

    environment: dict = {}  # noqa: RUF012  # replaced, not changed

    def starts(self):
        self.append("init")
        self.environment = dict(os.environ)


@pytest.fixture
def card(monkeypatch):
    """Two cards; this torch has not started CUDA yet."""
    for variable in ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(variable, "the shell's")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    card = Card()
    with (
        simulated(SimulationOptions(n_devices=2)) as simulation,
        pytest.MonkeyPatch.context() as patch,
    ):
        machine = simulation.machine
        record_history, malloc = torch._C._cuda_record_memory_history, machine.malloc

        def switch(enabled, *arguments, **named):
            card.append(f"history {enabled}")
            record_history(enabled, *arguments, **named)

        def allocate(*arguments, **named):
            torch.cuda._lazy_init()
            card.append("allocation")
            return malloc(*arguments, **named)

        patch.setattr(environment, "refuse_without_cuda", lambda **_: None)
        patch.setattr(torch.cuda, "_initialized", False)
        patch.setattr(torch._C, "_cuda_init", card.starts)
        patch.setattr(torch._C, "_cuda_record_memory_history", switch)
        patch.setattr(machine, "malloc", allocate)
        yield card


def test_the_history_begins_when_the_script_starts_cuda_and_before_the_first_allocation(run, card):
    done = run("train(5)", simulate=None)
    assert done.code == 0, done.err
    assert card[:3] == ["init", "history all", "allocation"]
    assert card.count("init") == 1
    actions = [event["action"] for event in done.snapshot["device_traces"][0]]
    assert actions[:2] == ["segment_alloc", "alloc"]
    assert done.metadata["ended"]["how"] == "complete"
    assert "note:" not in done.err


def test_what_a_script_sets_in_its_environment_is_there_when_cuda_starts(run, card):
    script = """
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    exec(TRAINING)
    train(5)
    """
    done = run(script, before=f"import os\nTRAINING = {TRAINING!r}\n", simulate=None)
    assert done.code == 0, done.err
    assert card.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert card.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert done.metadata["allocator_conf"] == "expandable_segments:True"
    assert "note:" not in done.err


def test_recording_itself_never_starts_cuda(run, card):
    script = """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for _ in range(9):
        optimizer.step()
    print(torch.cuda.is_initialized())
    """
    done = run(script, before="import torch\n", simulate=None)
    assert (done.code, done.out, done.names) == (6, "False\n", [])
    assert "nothing was allocated on a CUDA device while train.py ran" in done.err
    assert card == []


def test_iterations_on_the_cpu_before_cuda_starts_are_none(run, card):
    script = """
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    for _ in range(9):
        other.step()
    del other
    exec(TRAINING)
    train(5)
    """
    done = run(script, before=f"import torch\nTRAINING = {TRAINING!r}\n", simulate=None)
    assert done.code == 0, done.err
    assert done.metadata["ended"]["how"] == "complete"
    assert {row["name"] for row in done.metadata["parameters"]} == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }


def test_where_there_is_no_card_that_is_said_after_a_script_that_used_none(run, card):
    with pytest.MonkeyPatch.context() as patch:  # which ends before the card does
        patch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0)
        done = run("print('it ran')", before="", simulate=None)
    assert (done.code, done.out) == (6, "it ran\n")
    assert "finds no usable GPU or driver on this machine" in done.err
    assert "nothing was allocated" not in done.err


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("raise ValueError('theirs')", 1, "ValueError: theirs"),
        ("import sys; sys.exit('theirs')", 1, "theirs"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, "KeyboardInterrupt"),
    ],
)
def test_a_script_that_failed_before_it_came_to_its_gpu_is_not_asked_about_it(
    run, card, ending, code, last
):
    done = run(ending, before="import torch\n", simulate=None)
    assert (done.code, done.names) == (code, [])
    assert "nothing was allocated" not in done.err
    assert "there is no capture: train.py ended before it allocated anything" in done.err
    assert done.err.splitlines()[-1] == last


def test_a_refusal_of_ours_says_all_in_one_sentence(run, monkeypatch):
    script = (
        "import os; os.environ['WORLD_SIZE'] = '2'\ntorch.distributed.init_process_group('nccl')"
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    done = run(script, before="import torch\n")
    assert (done.code, done.names) == (6, [])
    assert done.err.count("a job of 2 ranks") == 1
    assert "there is no capture" not in done.err


def test_the_requested_device_is_the_current_one_when_cuda_starts(run, card):
    # The stand-in decides what "cuda" means before it starts, torch after that.
    script = "train(5); print(torch.cuda.current_device())"
    done = run(
        script,
        before=f"import torch; torch.cuda.init()\n{TRAINING}",
        options=["--device", "1"],
        simulate=None,
    )
    assert done.out == "1\n"
    assert {row["device"] for row in done.metadata["parameters"]} == {1}


def test_a_requested_device_that_is_not_there_is_refused_beside_the_script(run, card):
    done = run("train(5); print('it ran')", options=["--device", "5"], simulate=None)
    assert (done.code, done.out, done.names) == (6, "it ran\n", [])
    assert "there is no CUDA device 5; torch sees: 0, 1." in done.err
    assert card.count("history all") == 0


def test_that_nothing_is_recorded_is_said_when_cuda_starts_and_with_stop_the_script_ends(run, card):
    script = (
        "import sys\ntorch.cuda.init(); print('a long job', file=sys.stderr); train(5); "
        "print('it ran')"
    )
    done = run(script, options=["--device", "5", "--stop"], simulate=None)
    assert (done.code, done.out) == (6, "")
    at_once, _, at_the_end = done.err.partition("a long job\n")
    assert "nothing is recorded: there is no CUDA device 5" in at_once
    assert "there is no CUDA device 5" in at_the_end


@pytest.mark.parametrize(("rank", "timed"), [("1", 1), ("3", 0)])
def test_a_local_rank_names_the_card_to_time_where_there_is_one(
    run, card, monkeypatch, rank, timed
):
    monkeypatch.setenv("LOCAL_RANK", rank)
    done = run("train(5); print(torch.cuda.current_device())", simulate=None)
    assert (done.code, done.out) == (0, "0\n")
    assert json.loads(Path("train.capture", "timing.json").read_text())["device"] == timed


def test_a_failure_of_ours_when_cuda_starts_does_not_reach_the_script(run, card, monkeypatch):
    monkeypatch.setattr(memory_history, "start", lambda *_: 1 / 0)
    done = run("train(5); print('it ran')", simulate=None)
    assert (done.code, done.out) == (1, "it ran\n")
    assert "a fault of snapconv ended the recording" in done.err
    assert "DeferredCudaCallError" not in done.err


def test_a_forked_child_that_starts_cuda_records_nothing(run, card, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "_is_in_bad_fork", lambda: False
    )  # as in torch, before CUDA has started
    script = """
    import os, sys
    pid = os.fork()
    if pid == 0:
        torch.cuda.init()
        os._exit(3 if torch._C._cuda_isHistoryEnabled() else 4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = run(script, before="import torch\n", simulate=None)
    assert done.out == "4\n", done.err


PROVIDERS = """
import torch

def skyline_model_provider():
    return torch.nn.Linear(4, 4)

def skyline_input_provider(batch_size=2):
    return [torch.randn(batch_size, 4)]

def skyline_iteration_provider(model):
    def iteration(inputs):
        print("iteration")
        model(inputs).sum().backward()
    return iteration
"""


def test_providers_that_use_no_card_come_to_an_end(run, card):
    done = run("", before=PROVIDERS, simulate=None)
    assert (done.code, done.out) == (6, "iteration\n")
    assert "nothing was allocated" in done.err


def test_recording_in_a_job_waits_for_cuda_too(card, tmp_path):
    with snapconv.recording(tmp_path) as recording:
        assert card == []
        kept = torch.ones(5, device="cuda")
    assert card[:3] == ["init", "history all", "allocation"]
    assert [path.name for path in recording.captures] == ["end-000000.capture"]
    assert kept.shape == (5,)


def test_recording_in_a_job_that_runs_already_begins_at_once(card, tmp_path):
    torch.cuda.init()
    with snapconv.recording(tmp_path):
        assert card == ["init", "history all"]


def test_recording_is_off_when_a_job_starts_cuda_after_it(card, tmp_path, caplog):
    with snapconv.recording(tmp_path):
        pass
    assert "nothing was allocated" in caplog.text
    torch.cuda.init()
    assert card == ["init"]
