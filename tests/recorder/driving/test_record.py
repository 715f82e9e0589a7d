"""Whole recordings of small scripts: what is left, and that the script does not notice."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

import snapconv
from snapconv.cli.app import main
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import RecorderError
from snapconv.recorder import capture_folder, memory_history, record

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.smoke("recording")


def test_a_script_leaves_a_capture_that_the_toolkit_reads(run):
    done = run("train(5); print('done')")
    assert (done.code, done.out) == (0, "done\n")
    assert done.metadata["ended"] == {"how": "complete", "detail": ""}
    assert [(row["iteration"], row["kind"]) for row in done.metadata["iterations"]] == [
        (0, "warm-up"),
        (1, "memory"),
    ]
    assert all(row["began_us"] < row["ended_us"] for row in done.metadata["iterations"])
    # Two weights and two biases, by hand.
    assert {row["name"]: row["bytes"] for row in done.metadata["parameters"]} == {
        "0.weight": 64 * 64 * 4,
        "0.bias": 64 * 4,
        "2.weight": 8 * 64 * 4,
        "2.bias": 8 * 4,
    }
    timing = json.loads((done.folder / "train.capture" / "timing.json").read_bytes())
    assert "linear" in timing["calls"]["name"]
    assert done.names == ["train.capture"]
    assert main(["to-sqlite", "-q", "train.capture"]) == 0
    assert done.names == ["train.capture", "train.memory.sqlite", "train.time.sqlite"]


def test_a_slow_first_step_brings_a_hint_at_the_faster_way(run, monkeypatch):
    hint = "with --no-compute a step takes seconds"
    assert hint not in run("train(3)").err
    monkeypatch.setattr(record, "_LONG_S", 0.2)
    done = run("import time; time.sleep(1); train(3)", options=["--force"])
    assert hint in done.err


def test_the_metadata_says_what_was_run_and_on_what(run):
    metadata = run("train(2)", "--lr", "1").metadata
    assert metadata["version"] == 1
    assert metadata["command"] == ["train.py", "--lr", "1"]
    assert metadata["entry"] == {"path": "train.py", "kind": "script"}
    assert metadata["project_root"] == os.getcwd()  # noqa: PTH109  # as a text
    assert metadata["max_entries"] == 1_000_000
    assert metadata["overflowed"] is False
    assert metadata["simulated"]
    (device,) = metadata["devices"]
    assert device["device"] == 0
    assert device["max_memory_allocated"] == device["memory_stats"]["allocated_bytes.all.peak"]


LIBRARY = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.exp() + 1
"""


def test_a_package_that_is_not_installed_is_the_projects_and_another_if_included(run):
    for package in ("beside/near", "lib/python3.11/site-packages/far"):
        Path(package).mkdir(parents=True)
        Path(package, "__init__.py").write_text(LIBRARY)
    script = """
    import sys
    sys.path[:0] = ["beside", "lib/python3.11/site-packages"]
    import near, far
    x = torch.ones(999, 99, device="cuda", requires_grad=True)
    kept = [net(x) for net in (near.Net(), far.Net())]
    train(2)
    """
    done = run(script, options=["--include", "far"])
    assert (done.code, done.metadata["include"]) == (0, ["far"])
    reports = to_sqlite(Path("train.capture"), ConvertOptions()).reports
    lines = {(row.line.file_path, row.line.line_number) for row in reports[0][1].peak.lines}
    assert {("beside/near/__init__.py", 6), ("far/__init__.py", 6)} <= lines


def test_the_peak_is_what_torch_says_at_the_end_of_the_memory_iteration(run):
    done = run("train(2); print(torch.cuda.max_memory_allocated())")
    (device,) = done.metadata["devices"]
    assert device["max_memory_allocated"] == int(done.out)
    (analysis,) = snapconv.load("train.capture/snapshot.pickle").devices
    assert analysis.replay.allocated.peak == int(done.out)


@pytest.mark.parametrize("options", [[], ["--no-compute"]], ids=["compute", "no-compute"])
def test_no_stack_holds_a_frame_of_ours(run, options):
    done = run("train(4)", options=options)
    snapshot, timing = done.snapshot, done.folder / "train.capture" / "timing.json"
    frames = [
        f for trace in snapshot["device_traces"] for event in trace for f in event.get("frames", ())
    ]
    assert any(frame["filename"].endswith("train.py") for frame in frames)
    package = os.path.dirname(snapconv.__file__)  # noqa: PTH120  # as a text
    assert [frame for frame in frames if frame["filename"].startswith(package)] == []
    assert timing.exists() != bool(options)
    stacks = json.loads(timing.read_bytes())["stacks"] if timing.exists() else []
    assert not any(frame[0].startswith(package) for stack in stacks for frame in stack)
    places = [f["filename"] for row in done.metadata["parameters"] for f in row["frames"]]
    assert places
    assert not any(place.startswith(package) for place in places)
    outermost = {
        [frame["name"] for frame in event["frames"] if frame["filename"].endswith(".py")][-1]
        for event in snapshot["device_traces"][0]
        if any(frame["filename"].endswith(".py") for frame in event.get("frames", ()))
    }
    assert outermost == {"<module>"}


PROVIDERS = """
import torch

def {0}_model_provider():
    return torch.nn.Linear(16, 4).cuda()

def {0}_input_provider(batch_size=32):
    print("inputs", batch_size)
    return [torch.randn(batch_size, 16, device="cuda")]

def {0}_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def iteration(inputs):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
    return iteration
"""


@pytest.mark.parametrize("prefix", ["skyline", "deepview"])
def test_providers_are_driven_until_everything_is_recorded(run, prefix):
    done = run("", before=PROVIDERS.format(prefix), options=["--batch-size", "5"])
    assert done.code == 0
    assert done.out == "inputs 5\n" * 4  # warm-up, memory, timing warm-up, timing
    assert done.metadata["entry"] == {"path": "train.py", "kind": "providers"}
    assert done.metadata["ended"]["how"] == "complete"
    assert [row["name"] for row in done.metadata["parameters"]] == ["weight", "bias"]
    # There is no program that could go on.
    assert "everything is recorded;" not in done.err


def test_a_provider_with_wrong_parameters_fails_as_python_has_it_and_leaves_nothing(run):
    done = run("", before=PROVIDERS.format("skyline").replace("(batch_size=32)", "(n)"))
    assert done.code == 1
    assert "TypeError: skyline_input_provider() missing 1 required positional argument" in done.err
    assert not re.search("snapconv/(guest|recorder)", done.err)


def test_a_module_is_recorded_as_python_m_runs_it(run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "job.py").write_text(
        "from train import train\ntrain(2)\nprint(__spec__.name)"
    )
    run("")
    assert main(["record", "-q", "--simulate", "--no-compute", "-m", "package.job"]) == 0
    assert (tmp_path / "package.job.capture" / "snapshot.pickle").exists()


DATA_PARALLEL = """
model = torch.nn.DataParallel(torch.nn.Linear(256, 256, bias=False).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(8, 256).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_several_simulated_devices_cuda_means_the_first_as_on_a_real_machine(run):
    done = run(DATA_PARALLEL, options=["--device", "1", "--no-compute"])
    assert (done.code, "Traceback" in done.err) == (0, False)
    peaks = {row["device"]: row["max_memory_allocated"] for row in done.metadata["devices"]}
    # The second has a copy of the weight; four rows of 1,024 bytes, and four of the result.
    assert set(peaks) == {0, 1}
    assert peaks[1] == 4 * 256 * 256 + 2 * 4 * 1024
    assert {row["device"] for row in done.metadata["parameters"]} == {0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_of_the_script_runs(run):
    done = run("print('it ran')", simulate=None)
    assert (done.code, done.out) == (6, "")
    assert "record --simulate" in done.err
    assert done.names == []


def test_a_history_that_cannot_begin_is_told_before_the_script_runs(run, monkeypatch):
    def refuse(*_):
        raise RecorderError("no history")

    monkeypatch.setattr(memory_history, "start", refuse)
    done = run("print('it ran')")
    assert (done.code, done.out, done.names) == (6, "", [])
    assert "no history" in done.err


def test_nothing_of_the_recording_stays_behind_in_the_later_iterations(run):
    peak = "torch.cuda.reset_peak_memory_stats(); step(); print(torch.cuda.max_memory_allocated())"
    lines = run(f"\nfor _ in range(7):\n    {peak}\n").out.splitlines()
    # 0 warm-up, 1 memory, 2 and 3 timed, 4 to 6 on its own.
    assert len(set(lines[1:])) == 1, lines


# --- how a script may end


def test_an_exception_keeps_its_traceback_and_its_exit_code(run):
    done = run("train(1)\ndef f():\n    raise ValueError('theirs')\nf()")
    assert done.code == 1
    assert done.metadata["ended"] == {"how": "exception", "detail": "ValueError: theirs"}
    shown = done.err[done.err.index("Traceback") :].splitlines()
    places = [line.split(", ") for line in shown if line.startswith('  File "')]
    assert [(place[0], place[2]) for place in places] == [
        (f'  File "{done.folder}/train.py"', "in <module>"),
        (f'  File "{done.folder}/train.py"', "in f"),
    ]
    assert "    raise ValueError('theirs')" in shown
    assert "ValueError: theirs" in shown


def test_the_traceback_through_torch_shows_no_frame_of_ours(run):
    done = run("model(torch.randn(3, 5, device='cuda'))")
    assert done.code == 1
    assert "RuntimeError" in done.err
    assert os.path.dirname(snapconv.__file__) not in done.err  # noqa: PTH120  # as a text


def test_sys_exit_is_obeyed(run):
    done = run("import sys; train(1); sys.exit('a last word')")
    assert done.code == 1
    assert done.err.endswith("a last word\n")
    assert "Traceback" not in done.err
    assert done.metadata["ended"] == {"how": "exit", "detail": "a last word"}


def test_ctrl_c_leaves_what_there_is(run):
    done = run(
        "train(1)\nimport os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)"
    )
    assert done.code == 130
    assert "KeyboardInterrupt" in done.err
    assert "train.py was interrupted when" in done.err
    assert done.metadata["ended"]["how"] == "interrupted"


def test_a_termination_leaves_what_there_is(run):
    done = run(
        "import os, signal; train(1); os.kill(os.getpid(), signal.SIGTERM); import time; "
        "time.sleep(9)"
    )
    assert done.code == 128 + signal.SIGTERM
    assert done.metadata["ended"] == {"how": "interrupted", "detail": "SIGTERM"}
    assert "train.py was terminated (SIGTERM) when 1 of 4 iterations were done" in done.err
    assert "sys.exit" not in done.err


OOM = """
train(1)
kept = [torch.empty(1 << 20, device="cuda")]
try:
    kept += [torch.empty(1 << 30, device="cuda")]
finally:
    kept.clear()
"""


def test_an_oom_shows_the_state_in_which_the_allocator_gave_up(run):
    done = run(OOM, options=["--capacity", "64MiB"])
    assert done.code == 1
    assert "OutOfMemoryError" in done.err
    assert done.metadata["ended"]["how"] == "oom"
    trace = done.snapshot["device_traces"][0]
    assert [event["size"] for event in trace if event["action"] == "oom"] == [4 << 30]
    # The 4 MiB that the script frees while the exception passes are still there.
    live = [
        b
        for s in done.snapshot["segments"]
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    ]
    assert 4 << 20 in [block["requested_size"] for block in live]


def test_an_oom_that_the_script_answers_with_sys_exit_is_an_oom(run):
    script = (
        "import sys\ntry:\n    torch.empty(1 << 30, device='cuda')\nexcept RuntimeError:\n   "
        " sys.exit(9)"
    )
    done = run(script, options=["--capacity", "64MiB"])
    assert done.code == 9
    assert done.metadata["ended"]["how"] == "oom"


def test_an_oom_that_the_script_survives_does_not_end_the_recording(run):
    script = (
        "try:\n    torch.empty(1 << 30, device='cuda')\nexcept RuntimeError:\n    pass\ntrain(5)"
    )
    done = run(script, options=["--capacity", "64MiB"])
    assert done.code == 0
    assert done.metadata["ended"]["how"] == "complete"


def test_a_script_that_ends_early_is_recorded_with_a_note(run):
    done = run("train(1)")
    assert "taking the snapshot" in done.err
    assert done.code == 0
    assert done.metadata["ended"]["how"] == "finished"
    assert "1 of 4" in done.err


def test_the_end_of_a_script_is_before_its_names_go(run):
    done = run("kept = torch.ones(1 << 20, device='cuda')", before="import torch\n")
    blocks = [block for segment in done.snapshot["segments"] for block in segment["blocks"]]
    assert [
        block["requested_size"] for block in blocks if block["state"] == "active_allocated"
    ] == [4 << 20]


def test_a_script_that_never_allocates_is_told_so_and_nothing_is_left(run):
    done = run("print('done')", before="")
    assert (done.code, done.out) == (6, "done\n")
    assert "nothing was allocated on a CUDA device while train.py ran" in done.err
    assert "taking the snapshot" not in done.err
    assert done.names == []


def test_a_script_runs_on_when_everything_is_recorded_and_stops_where_asked(run):
    assert run("train(9); print('end')").out == "end\n"
    stopped = run(
        "try:\n    train(9); print('end')\nexcept Exception:\n    pass",
        options=["--stop", "--force"],
    )
    assert (stopped.code, stopped.out) == (0, "")
    assert stopped.metadata["ended"]["how"] == "complete"


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit"
)  # it is deprecated, by one class of warning or another
@pytest.mark.parametrize("options", [[], ["--no-compute"]], ids=["compute", "no-compute"])
def test_what_torch_traces_has_nothing_of_ours_in_it(run, options):
    script = """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
        x = torch.ones(2, 8, device="cuda")
        traced = torch.jit.trace(model, x)
        print(sorted({node.kind() for node in traced.inlined_graph.nodes()}), flush=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            traced(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    done = run(script, before="", options=options)
    assert (done.code, done.out) == (0, "['aten::linear', 'aten::relu', 'prim::GetAttr']\n"), (
        done.err
    )
    assert [row["name"] for row in done.metadata["parameters"]] == ["0.weight", "0.bias"]


def test_a_full_disk_does_not_disturb_the_script(run, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture_folder.pickle, "dump", full)
    done = run("train(9); print('end')")
    assert (done.code, done.out) == (5, "end\n")
    assert f"cannot write {tmp_path / 'train.capture'}: the disk is full" in done.err
    assert done.names == []
