"""What scripts do, on their own or in spite of us: they run as alone, and the capture is what was meant."""

import os
from pathlib import Path

import pytest

from tests.recorder.driving.conftest import TRAINING

pytest.importorskip("torch")


TWO_ITERATIONS = {
    "a step that a scaler leaves out": """
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    for number in range(2):
        loss = model(torch.randn(4, 64, device="cuda")).sum()
        if number == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    """,
    "a scaler with two optimizers": """
    scaler, other = torch.amp.GradScaler("cuda"), torch.optim.SGD(model.parameters())
    for _ in range(2):
        for one in (optimizer, other):
            scaler.scale(model(torch.randn(4, 64, device="cuda")).sum()).backward()
            scaler.step(one)
            scaler.update()
            one.zero_grad()
    """,
    "a CUDA graph is captured": """
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)  # torch 2.5 demands it
    train(1)
    is_capturing = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        train(7)
    finally:
        torch.cuda.is_current_stream_capturing = is_capturing
    train(1)
    """,
}


@pytest.mark.parametrize("script", TWO_ITERATIONS.values(), ids=TWO_ITERATIONS)
def test_what_an_optimizer_steps_once_is_one_iteration(run, script):
    done = run(script)
    assert done.code == 0, done.err
    # Where the first step is left out, the states are made in the second, which so ends with more
    # memory.
    assert (
        "iteration 1 done (memory; 2 of 4)" in done.err
        or "iteration 1 done (memory; 2 of 5)" in done.err
    )


def test_a_script_that_switches_the_history_off_is_told_what_that_cost(run):
    done = run("train(1)\ntorch.cuda.memory._record_memory_history(enabled=None)\ntrain(3)")
    assert "train.py switched torch's memory history off" in done.err
    done = run("torch.cuda.memory._record_memory_history()\ntrain(4)", options=["--force"])
    assert "memory history off" not in done.err


def test_optimizers_that_step_inside_of_backward_make_iterations_of_whole_passes(run):
    script = """
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step_at_once(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_at_once)
    backward = torch.autograd.backward
    for _ in range(5):
        model(torch.randn(4, 64, device="cuda")).sum().backward()
    """
    done = run(script)
    assert done.metadata["ended"]["how"] == "complete", done.err
    forwards = [row["iteration"] for row in done.metadata["phases"] if row["phase"] == "forward"]
    assert forwards == [0, 1]
    recorded = [row["iteration"] for row in done.metadata["phases"] if row["phase"] == "optimizer"]
    assert recorded == [0] * 4 + [1] * 4  # one for each parameter


def test_a_capture_lies_where_it_was_meant_when_the_script_changes_its_folder(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    done = run("import os; os.chdir('elsewhere'); train(4)")
    os.chdir(tmp_path)
    assert done.names == ["elsewhere", "train.capture"]
    assert not list((tmp_path / "elsewhere").iterdir())
    assert "snapconv train.capture" in done.err


def test_hooks_of_the_script_on_optimizers_are_called_with_ours(run):
    script = """
    from torch.optim.optimizer import register_optimizer_step_post_hook
    hook = register_optimizer_step_post_hook(lambda *_: print("stepped"))
    train(5)
    hook.remove()
    """
    done = run(script)
    assert (done.code, done.out) == (0, "stepped\n" * 5)


def test_a_forked_child_ends_as_it_would_alone_and_writes_nothing(run):
    script = """
    import os, sys
    pid = os.fork()
    if pid == 0:  # steps on the CPU: torch refuses CUDA in a forked child
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        for _ in range(5):
            optimizer.step()
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert not os.path.exists("train.capture")
    train(2)
    """
    done = run(script, options=["--no-compute"])
    assert done.code == 0, done.err
    assert done.err.count("the capture is") == 1


def test_workers_of_a_data_loader_do_no_harm(run):
    script = """
    from torch.utils.data import DataLoader
    for batch in DataLoader(torch.randn(64, 64), batch_size=16, num_workers=1):
        model(batch.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    done = run(script)
    assert done.code == 0, done.err
    assert done.metadata["ended"]["how"] == "complete"


def test_a_simulation_takes_the_allocators_settings_that_the_script_makes_itself(run, monkeypatch):
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    # One byte over 1 MiB: by a quarter of the next power of two, 1.25 MiB, and not by 512 bytes.
    script = """
    import os, torch
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:4"
    torch.cuda.set_device(0)
    kept = torch.empty((1 << 20) + 1, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_allocated())
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ""
    more = torch.empty((1 << 20) + 1, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_allocated())
    """
    done = run(script, before="", options=["--no-compute"])
    assert done.out.split() == [str(5 << 18), str(5 << 19)], done.err


def test_the_results_of_training_are_those_without_recording(run, capfd):
    script = """
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    train(5)
    print([parameter.double().sum().item() for parameter in model.parameters()])
    """
    recorded = run(script).out
    on_cpu = (
        Path("train.py").read_text(encoding="utf-8").replace(".cuda()", "").replace("cuda", "cpu")
    )
    exec(on_cpu, {"__name__": "__main__"})
    assert recorded == capfd.readouterr().out


def test_a_script_that_needs_values_where_there_are_none_is_told_its_line(run):
    # too large to be computed all the same
    unknown = "(torch.randn(10**6, device='cuda') * 9).abs().long()"
    done = run(f"train(1)\nprint(torch.bincount({unknown}))", options=["--no-compute"])
    assert done.code == 6
    assert "train.py" in done.err
    assert "Traceback" not in done.err
    assert done.metadata["ended"]["how"] == "exception"


BY_HAND = """
import torch
model = torch.nn.Linear(64, 8).cuda()

def work():
    model.zero_grad()
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
"""


ENDS_ITSELF = """
{0}
for _ in range(4):
    for _ in range(3):
        work()
    {1}
"""
ACCUMULATED = """
for _ in range(4):
    for _ in range(3):
        model(torch.randn(32, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_ANOTHER_FILE = "import job\nfor _ in range(4):\n    work()\n    job.end()"


@pytest.mark.parametrize(
    ("before", "script", "forwards"),
    [
        pytest.param(BY_HAND, "for _ in range(4): work()", "01", id="every backward pass by hand"),
        pytest.param(
            BY_HAND, ENDS_ITSELF.format("import snapconv", "snapconv.step()"), "000111", id="itself"
        ),
        pytest.param(
            BY_HAND, ENDS_ITSELF.format("import snapconv as s", "s.step()"), "000111", id="renamed"
        ),
        pytest.param(
            BY_HAND,
            ENDS_ITSELF.format("from snapconv import step as end", "end()"),
            "000111",
            id="by its name",
        ),
        pytest.param(BY_HAND, BY_ANOTHER_FILE, "01", id="another file, from its second call on"),
        pytest.param(TRAINING, ACCUMULATED, "000111", id="gradients accumulate for an optimizer"),
    ],
)
def test_a_script_ends_its_iterations_by(run, tmp_path, before, script, forwards):
    (tmp_path / "job.py").write_text("import snapconv\ndef end():\n    snapconv.step()\n")
    done = run(script, before=before)
    assert done.metadata["ended"]["how"] == "complete", done.err
    found = [row["iteration"] for row in done.metadata["phases"] if row["phase"] == "forward"]
    assert "".join(map(str, found)) == forwards
    assert (tmp_path / "train.capture" / "timing.json").exists()


def test_a_script_without_iterations_is_said_how_to_make_some(run):
    done = run("model(torch.randn(4, 64, device='cuda'))")
    assert "call snapconv.step() at the end of each iteration" in done.err


def test_torch_is_as_before_when_steps_are_no_longer_counted(run):
    import torch

    of = torch.optim.Optimizer, torch.amp.GradScaler, torch.Tensor
    before = [dict(vars(kind)) for kind in of]
    run("train(4)")
    assert [dict(vars(kind)) for kind in of] == before
