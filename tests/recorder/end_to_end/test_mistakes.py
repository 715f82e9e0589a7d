"""What users do wrong, or what goes wrong for them: a clear message, and nothing half written."""

import errno
import os
import re
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from snapconv.cli.app import main
from snapconv.recorder import capture_folder as capture_files
from tests.entries import FOLDER, file_of, imports_from, weights_of
from tests.recordings import convert, record

pytest.importorskip("torch")

WITH_THE_CNN = {**os.environ, "PYTHONPATH": str(FOLDER / "cnn"), "OMP_NUM_THREADS": "1"}
FEW_AND_SMALL = ("--steps", "5", "--batch-size", "4")
PROVIDERS = file_of("cnn", "providers").read_text(encoding="utf-8")


@pytest.fixture
def say(tmp_path, monkeypatch, capfd):
    """Run ``snapconv record --simulate`` in an empty folder; returns the exit code and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, script=None, name="train.py"):
        if script is not None:
            Path(name).write_text(script, encoding="utf-8")
        capfd.readouterr()
        with imports_from(FOLDER / "cnn"):
            sys.path.insert(0, "")  # the recorder puts the script's own folder here
            code = main(["record", "--simulate", *arguments])
        said = capfd.readouterr()
        return code, said.out + said.err

    return run


def left(folder):
    """What a recording left in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".py")


def process(*arguments, cwd, **options):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "snapconv", "record", "--simulate", *map(str, arguments)],
        cwd=cwd,
        env=WITH_THE_CNN,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


# --- the entry


def test_an_entry_that_is_not_there_is_named_with_the_folder_it_was_looked_for_in(say, tmp_path):
    code, said = say("tarin.py")
    assert code == 6
    assert said == f"error: there is no entry file tarin.py in {tmp_path}\n"
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        (
            "model_provider()",
            "model_provider(width)",
            r"line \d+: skyline_model_provider must take no parameters",
        ),
        (
            "input_provider(batch_size=32)",
            "input_provider(n=32)",
            r"line \d+: skyline_input_provider must take one parameter, batch_size",
        ),
        (
            "input_provider(batch_size=32)",
            "input_provider(batch_size)",
            r"line \d+: skyline_input_provider must take one parameter, batch_size, with an int",
        ),
        (
            "iteration_provider(model)",
            "iteration_provider(model, optimizer)",
            r"line \d+: skyline_iteration_provider must take one parameter, the model",
        ),
        (
            "return ResidualNet().cuda()",
            "ResidualNet().cuda()",
            r"skyline_model_provider must return a model.*NoneType",
        ),
        (
            "return random_batch(batch_size)",
            "return random_batch(batch_size)[0]",
            r"skyline_input_provider must return all inputs .* in a tuple or list",
        ),
        (
            "    return iteration\n",
            "",
            r"skyline_iteration_provider must return a function",
        ),
        (
            "def skyline_input_provider",
            "def input_provider",
            r"defines skyline_model_provider but no skyline_input_provider",
        ),
    ],
)
def test_a_provider_that_is_not_as_it_must_be_is_named_with_the_rule(say, tmp_path, right, wrong, rule):
    assert right in PROVIDERS
    code, said = say("entry.py", script=PROVIDERS.replace(right, wrong), name="entry.py")
    assert code == 6
    assert re.search(rf"error: entry\.py.*{rule}", said), said
    assert "Traceback" not in said
    assert left(tmp_path) == []


def test_a_script_that_never_allocates_is_asked_about_the_gpu(say, tmp_path):
    code, said = say("train.py", script="import torch\nprint(torch.ones(3).sum().item())\n")
    assert code == 6
    assert "error: nothing was allocated on a CUDA device while train.py ran, so there is no capture" in said
    assert said.startswith("snapconv: recording train.py") or "3.0\n" in said
    assert "Traceback" not in said
    assert left(tmp_path) == []


# --- how it ends

EARLY = """
import sys
import torch
from model import ResidualNet
model = ResidualNet().cuda()
sys.exit({})
"""


@pytest.mark.parametrize(("argument", "code"), [("", 0), ("4", 4)])
def test_a_script_that_exits_early_leaves_what_there_was_and_keeps_its_exit_code(
    say, tmp_path, argument, code
):
    found, said = say("train.py", script=EARLY.format(argument))
    assert found == code
    assert "train.py called sys.exit when 0 of 4 iterations were done" in said
    assert left(tmp_path) == ["train.capture"]
    rows = convert(tmp_path / "train.capture").rows("SELECT name, size_bytes FROM weight_entries")
    assert dict(rows) == {name: weight.size_bytes for name, weight in weights_of("cnn").items()}


def test_a_script_that_ends_in_the_middle_of_a_c_call_leaves_nothing_half_written(tmp_path):
    (tmp_path / "train.py").write_text("import os, torch\ntorch.ones(9, device='cuda')\nos._exit(3)\n")
    assert process("train.py", cwd=tmp_path).returncode == 3
    assert left(tmp_path) == []


def test_an_oom_leaves_the_state_in_which_the_allocator_gave_up(tmp_path):
    whole = record("transformer", "train", tmp_path, options=["--simulate", "--no-compute"])
    reserved = whole.metadata["devices"][0]["max_memory_reserved"]
    capacity = reserved // 2
    options = ["--simulate", "--no-compute", "--capacity", f"{capacity}B", "--force"]
    out = record("transformer", "train", tmp_path, options=options)
    assert out.code == 1
    assert "OutOfMemoryError" in out.said
    assert str(file_of("transformer", "train")) in out.said
    assert out.metadata["ended"]["how"] == "oom"
    assert out.metadata["ended"]["detail"].startswith("OutOfMemoryError: CUDA out of memory")
    trace = out.snapshot["device_traces"][0]
    (oom,) = [event for event in trace if event["action"] == "oom"]
    assert trace[-1]["action"] in ("oom", "snapshot")
    # Nothing was freed before the snapshot: what is reserved leaves too little for the request.
    held = sum(segment["total_size"] for segment in out.snapshot["segments"])
    assert held <= capacity < held + oom["size"]
    reports = convert(out.capture)
    (report,) = reports.values["reports"]
    assert report["peak_usage_bytes"] == out.metadata["devices"][0]["max_memory_allocated"]
    assert reports.rows("SELECT requested_bytes FROM snapconv_oom_events") == [(oom["size"],)]
    names = {name for (name,) in reports.rows("SELECT name FROM weight_entries")}
    assert names == set(weights_of("transformer"))


def test_a_model_that_fits_exactly_does_fit(tmp_path):
    whole = record("cnn", "train", tmp_path, options=["--simulate", "--no-compute"])
    reserved = whole.metadata["devices"][0]["max_memory_reserved"]
    options = ["--simulate", "--no-compute", "--force", "--capacity", f"{reserved}B"]
    assert record("cnn", "train", tmp_path, options=options).code == 0


# --- other processes

# The child trains on the CPU: torch has no CUDA in a child of fork. Its steps must not count.
FORKING = """
import os
import torch
from model import ResidualNet
from train import main

torch.set_num_threads(1)
child = os.fork()
if child == 0:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    print("the child is done", flush=True)
else:
    assert os.waitpid(child, 0)[1] == 0
    main()
"""


def test_a_script_that_forks_has_one_capture_that_of_the_parent(tmp_path):
    (tmp_path / "fork.py").write_text(FORKING)
    done = process("fork.py", *FEW_AND_SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the child is done") == 1
    assert done.stdout.count("step 4: loss") == 1
    assert done.stderr.count("1 of 4 iterations done") == 1
    assert done.stderr.count("fork.capture (") == 1
    assert left(tmp_path) == ["fork.capture"]
    assert sorted(path.name for path in (tmp_path / "fork.capture").iterdir()) == [
        "snapshot.pickle",
        "timing.json",
    ]


LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from model import ResidualNet
from train import make_optimizer, train_step

model = ResidualNet().cuda()
optimizer = make_optimizer(model)
data = TensorDataset(torch.randn(80, 3, 32, 32), torch.randint(10, (80,)))
for images, labels in DataLoader(data, batch_size=16, num_workers=2):
    train_step(model, optimizer, images.cuda(), labels.cuda())
print("trained")
"""


def test_workers_of_a_data_loader_write_nothing_and_are_not_waited_for(tmp_path):
    (tmp_path / "loading.py").write_text(LOADING)
    done = process("loading.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == ["loading.capture"]


# --- the output


def test_an_output_that_is_there_is_refused_before_the_script_runs(say, tmp_path):
    (tmp_path / "train.capture").mkdir()
    code, said = say("train.py", script="print('it ran')")
    assert code == 5
    assert said.startswith("error: train.capture exists already; choose another --output")
    assert "it ran" not in said


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("missing/train.capture", "its folder does not exist; create it first"),
        ("train.py/train.capture", "its folder is not a folder"),
        (f"{'x' * 300}", "the name is too long"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_script_runs(say, tmp_path, output, why):
    code, said = say("--output", output, "train.py", script="print('it ran')")
    assert code == 5
    assert said.startswith(f"error: cannot write {output}: {why}")
    assert "it ran" not in said
    assert left(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused_before_the_script_runs(say, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    code, said = say("--output", "locked/train.capture", "train.py", script="print('it ran')")
    assert code == 5
    assert "cannot write locked/train.capture: permission denied" in said
    assert "it ran" not in said


def test_a_refused_folder_is_said_before_the_script_runs(say, tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(capture_files.Path, "mkdir", refuse)
    code, said = say("train.py", script="print('it ran')")
    assert code == 5
    assert said.startswith("error: cannot write train.capture: permission denied; choose a folder")
    assert "it ran" not in said


def limit_files():
    """Let no file of this process grow beyond 16 KiB, as on a disk that is full."""
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))


@pytest.mark.untraced  # coverage's own file may not grow either
def test_a_disk_that_fills_up_leaves_the_script_alone_and_nothing_half_written(tmp_path):
    done = process(
        *("--output", tmp_path / "cnn.capture", file_of("cnn", "train"), *FEW_AND_SMALL),
        cwd=tmp_path,
        preexec_fn=limit_files,  # there are no threads here
    )
    assert done.returncode == 5
    assert "step 4: loss" in done.stdout
    (error,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert error.startswith(
        f"snapconv: error: cannot write {tmp_path / 'cnn.capture'}: the file would be larger"
    )
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


def test_a_full_disk_is_called_so(say, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(capture_files.os, "fsync", full)
    code, said = say(str(file_of("cnn", "train")), *FEW_AND_SMALL)
    assert code == 5
    assert "train.capture: the disk is full; free some space" in said
    assert "step 4: loss" in said
    assert left(tmp_path) == []
