"""A failure in every hook of ours, one at a time: the script does not notice, and there is a capture."""

import contextlib
import re

import pytest

pytest.importorskip("torch")

from snapconv.cli.app import main
from tests.recorder.faults.injected import ERROR, Injection

# Calls all that a recording listens to; prints what it computes, and ends with a code of its own.
SCRIPT = """
import copy, pickle, sys, torch, warnings
warnings.simplefilter("ignore")
torch.manual_seed(0)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * 2 + 0 * x

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.script = torch.jit.script(torch.nn.Linear(8, 4))
    def forward(self, x):
        return self.script(torch.relu(Double.apply(self.norm(self.first(x)))))

model = Model().cuda()
average = copy.deepcopy(model.first)
best = copy.deepcopy(model.first.weight)
again = pickle.loads(pickle.dumps(model.norm))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
compiled = torch.compile(lambda x: x.sin().sum())
x = torch.randn(16, 8, device="cuda", requires_grad=True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for i in range(4):
        loss = model(x).square().mean() + compiled(x)
        penalty, = torch.autograd.grad(loss, x, create_graph=True)
        total = loss + penalty.square().sum()
        scaler.scale(total).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        profiler.step()
        torch.func.grad(lambda y: (y * y).sum())(x.detach())
        print(i, total.item())
        if i == 1:
            try:
                torch.empty(80 << 20, device="cuda")
            except torch.cuda.OutOfMemoryError as error:
                print("out of memory")
try:
    y = torch.ones(2, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()
except RuntimeError as error:
    print(str(error)[:60])
sys.exit(7)
"""
# Says itself where an iteration ends.
MARKED = """
import torch, snapconv
model = torch.nn.Linear(4, 4).cuda()
for i in range(4):
    loss = model(torch.ones(2, 4, device="cuda")).sum()
    loss.backward()
    snapconv.step()
    print(i, loss.shape)
raise SystemExit(7)
"""
OPTIONS = ("--force", "--capacity", "64MiB")
# Without these there is nothing to write: the recording has not begun, or the writing itself fails.
WITHOUT_CAPTURE = {
    "record:record.<locals>.begin",
    "driver:Driver._begin",
    "cuda_start:CudaStart._do",
    "driver:Driver._finish",
}
# What the two scripts reach: found by running them, and held to what it was, so that none gets lost.
N_AT_LEAST = 40


@pytest.fixture
def injection(monkeypatch):
    return Injection(monkeypatch)


def record(run, script, injection, name="", *, is_after=False):
    injection.fail(name, is_after=is_after)
    done = run(script, before="", options=OPTIONS)
    injection.fail("")
    return done


@pytest.mark.parametrize("script", [SCRIPT, MARKED], ids=["everything", "marked"])
def test_a_failure_in_any_hook_changes_nothing_for_the_script(run, injection, script, capfd):
    as_it_is = record(run, script, injection)
    assert as_it_is.code == 7, as_it_is.err
    assert "fault" not in as_it_is.err
    names = sorted(injection.seen)
    if script is SCRIPT:
        assert len(names) >= N_AT_LEAST, names
    wrong = {}
    for name in names:
        for is_after in (False, True):
            done = record(run, script, injection, name, is_after=is_after)
            problems = problems_of(done, as_it_is, name)
            if injection.n_failed and problems:
                wrong[name, is_after] = problems
    assert wrong == {}


def problems_of(done, as_it_is, name):
    """What a run with a failure has that it should not."""
    found = []
    if (done.code, done.out) != (as_it_is.code, as_it_is.out):
        found.append(f"{done.code} {done.out!r}")
    if name in WITHOUT_CAPTURE:
        return found
    if "Traceback" in done.err:
        found.append(done.err)
    notes = re.findall(r"note: a fault of snapconv ended one part of the recording, (.*)", done.err)
    if len(notes) != 1 or ERROR not in notes[0]:
        found.append(f"notes: {notes} {done.err[-500:]}")
    with contextlib.redirect_stdout(None):
        code = main(["to-sqlite", "--force", "train.capture"])
    if code != 0:
        found.append(f"to-sqlite: {code}")
    return found
