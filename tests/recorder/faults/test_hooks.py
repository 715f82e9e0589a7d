"""A failure in every hook of ours, one at a time: the script does not notice, and there is a capture."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from snapconv.cli.app import main
from snapconv.guest import guard
from snapconv.guest.torch_surface import Feature
from snapconv.recorder.timing import iteration, marks
from tests.recorder.faults.injected import ERROR, InjectedError, Injection

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
for i in range(4):
    loss = model(x).square().mean() + compiled(x)
    penalty, = torch.autograd.grad(loss, x, create_graph=True)
    total = loss + penalty.square().sum()
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
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
# Calls what a simulation replaces, and prints nothing that depends on where a tensor is.
SIMULATED = """
import copy, io, sys, torch, warnings
warnings.simplefilter("ignore")
torch.manual_seed(0)
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
for i in range(4):
    x = torch.randn(2, 8).to("cuda")
    loss = model(x).square().mean() + torch.tensor([1.0], device="cuda").type_as(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(i, loss.item(), loss.detach().cpu().numpy().round(3), loss.tolist(), x.get_device() <= 0)
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
print(sorted(torch.load(file)))
copy.deepcopy(model)
torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.memory_allocated(); torch.cuda.memory_summary()
torch.cuda.reset_peak_memory_stats(); torch.cuda.mem_get_info(); torch.cuda.get_device_capability()
torch.cuda.current_stream().synchronize()
x.record_stream(torch.cuda.Stream()); x.is_pinned(); torch.ones(2).pin_memory(); x.data_ptr()
x.type(); str(x)
with torch.autocast("cuda", dtype=torch.bfloat16):
    model(x)
torch.Generator("cuda"); x.new_tensor([1])
x.untyped_storage().clone(); x.untyped_storage().device
sys.exit(7)
"""
OPTIONS = ("--force", "--capacity", "64MiB")
# Without these there is nothing to write: the recording has not begun, or the writing itself fails.
WITHOUT_CAPTURE = {
    "MEMORY driver.Driver._turn_on",
    "MEMORY driver.Driver._cuda_started",
    "MEMORY record.OneCapture._finish",
}
# What puts torch back is left out: where that failed, hooks would stay for the tests that follow.
LATE = (".stop", ".close", ".leave", "begin.<locals>.<lambda>", "stop.<locals>.<lambda>")
# What a recording calls by itself, outside of any call of the program's: a failure of it ends the
# recording.
ALONE = Feature.MEMORY
# What the first script reaches: found by running it, and held to what it was, so that nothing gets
# lost.
N_AT_LEAST = {"everything": 40, "simulated": 12}


@pytest.fixture
def injection(monkeypatch):
    return Injection(monkeypatch)


def record(run, script, injection, names=()):
    injection.fail(names)
    done = run(script, before="", options=OPTIONS)
    done.failed = injection.failed
    injection.fail(())
    return done


def batches(pending, features):
    """One piece of every feature at a time; those of the recording itself alone."""
    pending = list(pending)
    while pending:
        batch = {}
        for name, is_after in list(pending):
            feature = features[name]
            if feature is ALONE and not batch:
                pending.remove((name, is_after))
                batch[feature] = name, is_after
                break
            if feature is not ALONE and feature not in batch:
                pending.remove((name, is_after))
                batch[feature] = name, is_after
        yield list(batch.values())


@pytest.mark.long
def test_a_failure_in_any_hook_changes_nothing_for_the_script(run, injection):
    """Before its work, or after it in every second. Of the second script, what the first does not come to."""
    tried = set()
    for script in (SCRIPT, MARKED):
        injection.features.clear()
        as_it_is = record(run, script, injection)
        assert as_it_is.code == 7, as_it_is.err
        assert "fault" not in as_it_is.err
        names = {
            name
            for name, feature in injection.features.items()
            if feature is not Feature.SIMULATION and not name.endswith(LATE)
        }
        pending = [(name, i % 2 == 1) for i, name in enumerate(sorted(names - tried))]
        assert pending
        check(run, injection, script, as_it_is, pending)
        tried |= names
    assert len(tried) >= N_AT_LEAST["everything"], tried


def check(run, injection, script, as_it_is, pending):
    features = dict(injection.features)
    waiting = list(batches(pending, features))
    for batch in waiting:  # grows as it goes
        done = record(run, script, injection, batch)
        failed = done.failed
        check_run(done, as_it_is, batch, features, failed)
        if (
            len(batch) > 1
        ):  # what did not come to its failure, because of another, has one by itself
            waiting += [[one] for one in batch if one[0] not in failed]


def check_run(done, as_it_is, batch, features, failed):
    """See that a run with failures is as one without, but for one note of each feature."""
    assert (done.code, done.out) == (as_it_is.code, as_it_is.out), (batch, done.err)
    if {name for name, _ in batch} & WITHOUT_CAPTURE:
        return
    assert "Traceback" not in done.err, (batch, done.err)
    notes = re.findall(
        r"note: a fault of snapconv ended one part of the recording, (.*?):.*? Please report (.*)",
        done.err,
    )
    said = [what for what, _ in notes]
    assert len(set(said)) == len(said), (batch, said)
    assert {features[name].value for name in failed} <= set(said), (batch, done.err)
    assert set(said) <= {features[name].value for name in failed}, (batch, done.err)
    assert all(ERROR in why for _, why in notes), (batch, notes)
    assert main(["to-sqlite", "--force", "--quiet", "train.capture"]) == 0, batch


# --- the simulation: what it puts into torch's place is done by torch itself where ours fails


def test_a_failure_in_any_part_of_a_simulation_leaves_it_to_the_cpu(run, injection):
    as_it_is = record(run, SIMULATED, injection)
    assert as_it_is.code == 7, as_it_is.err
    names = sorted(
        name for name, feature in injection.features.items() if feature is Feature.SIMULATION
    )
    assert len(names) >= N_AT_LEAST["simulated"], names
    wrong = {}
    for name in names:
        done = record(run, SIMULATED, injection, [(name, False)])
        said = "note: a fault of snapconv ended one part of the recording, CUDA devices" in done.err
        if (done.code, done.out) != (7, as_it_is.out) or not said:
            wrong[name] = f"{done.code} {done.out} {done.err[-700:]}"
    assert wrong == {}, "\n".join(f"{name}: {what}" for name, what in wrong.items())


# --- there are no other hooks


# Entered from outside of the recorder, and not by a guard: each with the reason why that is enough.
WITHOUT_A_GUARD = {
    # Guarded by hand, as they are called often: the tests below let what they do fail.
    "patches.py __torch_function__", "iteration.py before", "iteration.py after",
    # They hand on what a guard runs, and do nothing else that could fail.
    "schedule.py step",
    # Called where objects are freed: Python lets no exception of theirs pass. What frees memory has
    # a guard.
    "saved_tensors.py __del__",
    # Python's import asks it, where it compares a name, and of one module has the spec of the other
    # finders.
    "import_hook.py find_spec",
    # Called by our own code, with the standard library in between.
    "driver.py _own_turn", "marks.py <genexpr>", "models.py _records", "timer.py __post_init__",
    *(f"interception.py {name}" for name in ("_wrapped", "_copies", "_calls", "_zero_sharded")),
    "interception.py _wrapped_when_imported", "import_hook.py when_imported",
    "interception.py _removed_at_the_end", "replacement.py replaced",
    "patches.py patch_engine", "patches.py function_mode", "patches.py opaque_modules",
}  # fmt: skip


@pytest.mark.parametrize("script", [SCRIPT, MARKED], ids=["everything", "marked"])
def test_nothing_of_ours_is_entered_but_through_a_guard(run, monkeypatch, script):
    """Of a recording: a simulated device answers by itself where nothing of torch could."""
    package = Path(guard.__file__).parents[1]
    watched_folders = (f"{package / 'guest'}/", f"{package / 'recorder'}/")
    own_folders = (*watched_folders, f"{package / 'simulation'}/")
    entered = set()

    def watch(frame, event, _argument):
        filename = frame.f_code.co_filename
        if event != "call" or not filename.startswith(watched_folders):
            return
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(own_folders):
            entered.add(f"{Path(filename).name} {frame.f_code.co_name}")

    monkeypatch.setattr(sys, "_watch_of_a_test", watch, raising=False)
    watched = re.sub(r"(sys.exit|raise SystemExit)", r"sys.setprofile(None); \1", script)
    done = run(
        watched, before="import sys; sys.setprofile(sys._watch_of_a_test)\n", options=OPTIONS
    )
    assert done.code == 7, done.err
    by_guard = {name for name in entered if name.startswith("guard.py ")}
    assert by_guard
    assert entered - by_guard <= WITHOUT_A_GUARD


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (marks.StackRecorder, "gather"),
        (iteration.Iteration, "_may_mark"),
        (iteration.Iteration, "_keep"),
        (marks.CpuClock, "was_reached"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_failure_where_times_are_taken_changes_nothing_for_the_script(
    run, monkeypatch, kind, name
):
    def fail(*_):
        raise InjectedError(ERROR)

    as_it_is = run(MARKED, before="", options=OPTIONS)
    monkeypatch.setattr(kind, name, fail)
    done = run(MARKED, before="", options=OPTIONS)
    assert (done.code, done.out) == (7, as_it_is.out), done.err
    assert "note: a fault of snapconv ended one part of the recording, times of" in done.err
    assert main(["to-sqlite", "--force", "train.capture"]) == 0
