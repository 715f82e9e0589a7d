"""Recordings of the ranks of a job: which are recorded, their names, where captures go, and an OOM of all."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402  # after the skip
from snapconv.recorder import environment  # noqa: E402
from snapconv.recorder.job import _LAUNCHERS, is_chosen, job_values, parse_ranks, process_rank  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

ROOT = Path(__file__).parents[3]
VARIABLES = {name for pair in _LAUNCHERS for name in pair} | {"MASTER_ADDR", "MASTER_PORT"}


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def train(monkeypatch):
    """Train one step on a simulated GPU."""
    monkeypatch.setattr(environment, "_has_driver", lambda: True)
    with simulated(SimulationOptions(capacity_bytes=64 << 20)):
        model = torch.nn.Linear(64, 8).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        def step():
            model(torch.randn(32, 64, device="cuda")).sum().backward()
            optimizer.step()

        yield step


@pytest.mark.parametrize(
    ("variables", "rank", "size"),
    [
        ({}, "", None),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "3", 8),  # torchrun, accelerate
        ({"RANK": "0", "WORLD_SIZE": "1"}, "", None),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, "5", 16),  # srun
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "", None),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, "9", 16),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "2", 4),  # mpirun
    ],
)
def test_the_launcher_tells_the_rank(monkeypatch, variables, rank, size):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_rank() == rank
    found = job_values()
    assert (found["rank"], found["world_size"]) == (int(rank) if rank else None, size)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", {0}),
        ("0,8, 16", {0, 8, 16}),
        ("3-5,9", {3, 4, 5, 9}),
        ("7-7", {7}),
        ("pp=2,dp=4", {0, 4}),
    ],
)
def test_ranks_are_numbers_and_ranges(text, ranks):
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "x", "5-3", "-1", "1,", "0-99999999", "1.5"])
def test_what_are_no_ranks_is_refused(text):
    with pytest.raises(ValueError, match="expected ranks"):
        parse_ranks(text)


def test_only_chosen_ranks_are_recorded(train, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (is_chosen({3}), is_chosen({0, 8}), is_chosen(())) == (True, False, True)
    for ranks in ({0, 8}, {3}):
        with snapconv.recording(tmp_path / "out", ranks=ranks) as recording:
            train()
            recording.step()
            recording.capture("now")
        assert bool(recording.captures) == (3 in ranks)
        assert (tmp_path / "out").exists() == (3 in ranks)
    metadata = pickle.loads((recording.captures[0] / "snapshot.pickle").read_bytes())["snapconv"]
    assert (metadata["rank"], metadata["world_size"], metadata["coordinates"]) == (3, 8, "")


def test_megatron_knows_the_coordinates(monkeypatch):
    class State:
        model_parallel_is_initialized = staticmethod(lambda: True)
        get_pipeline_model_parallel_rank = staticmethod(lambda: 1)
        get_data_parallel_rank = staticmethod(lambda: 3)

    monkeypatch.setenv("RANK", "7")
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", State)
    assert job_values()["coordinates"] == "pp=1,dp=3"


def test_captures_are_copied_to_a_store_and_removed_here(train, tmp_path, caplog):
    caplog.set_level("INFO", logger="snapconv")
    with snapconv.recording((tmp_path / "store").as_uri(), steps=[0]) as recording:
        train()
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["step-000000.capture"]
    assert snapconv.load(tmp_path / "store" / "step-000000.capture").devices
    assert not recording.captures[0].parent.exists()


def test_a_copy_that_fails_leaves_the_capture_here_with_a_warning(
    train, tmp_path, caplog, monkeypatch
):
    class Full:
        def makedirs(self, *_args, **_named):
            raise OSError("no space in the bucket")

    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (Full(), "run"))
    with snapconv.recording("s3://bucket/run") as recording:
        train()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "no space in the bucket" in warning
    assert str(recording.captures[0]) in warning
    assert snapconv.load(recording.captures[0]).devices


def test_a_store_without_its_package_switches_the_recording_off_and_not_the_job(train, caplog):
    with snapconv.recording("nosuch://bucket/run") as recording:
        train()
    assert recording.captures == []
    assert "nosuch://bucket/run" in caplog.text


# --- memory that runs out in one rank

PROGRAM = textwrap.dedent("""
    import os, sys, time
    import torch
    import snapconv
    from snapconv.recorder import environment
    from snapconv.simulation import SimulationOptions, simulated

    environment._has_driver = lambda: True
    rank, folder = int(os.environ["RANK"]), sys.argv[1]
    if rank:  # rank 0 has no store, and rank 2 no common folder
        torch.distributed.init_process_group("gloo", rank=rank - 1, world_size=2)
    if rank == 2:
        folder = os.path.join(folder, "of rank 2")
    recording = snapconv.recording(folder, on_other_oom=True, steps=[99])
    with simulated(SimulationOptions(capacity_bytes=64 << 20)), recording:
        kept = [torch.empty(1 << 20, device="cuda")]
        print("ready", flush=True)
        if rank == 1:
            sys.stdin.readline()
            kept.append(torch.empty(1 << 30, device="cuda"))
        time.sleep(100)
""")


def test_all_ranks_write_captures_where_one_runs_out_of_memory(tmp_path):
    """One hears of it by the folder, one by the job's store. A launcher ends them by SIGTERM at once."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **job}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "out")],
            env={**environment, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        assert [one.stdout.readline() for one in ranks] == ["ready\n"] * 3, [
            one.communicate() for one in ranks
        ]
        began = time.monotonic()
        assert "OutOfMemoryError" in ranks[1].communicate("go\n", timeout=60)[1]
        for other in (ranks[0], ranks[2]):
            other.send_signal(signal.SIGTERM)
        assert [other.wait(timeout=60) for other in (ranks[0], ranks[2])] == [-signal.SIGTERM] * 2
        assert time.monotonic() - began < 20
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    captures = sorted((tmp_path / "out").rglob("*.capture"), key=lambda path: path.name)
    assert [path.name for path in captures] == [
        "rank0-other-oom-000000.capture",
        "rank1-oom-000000.capture",
        "rank2-other-oom-000000.capture",
    ]
    for path in captures:
        assert snapconv.load(path).devices[0].replay.allocated.peak == 4 << 20
    metadata = pickle.loads((captures[0] / "snapshot.pickle").read_bytes())["snapconv"]
    assert metadata["ended"]["detail"] == "memory ran out in rank 1"


def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_sign_that_an_earlier_job_left_is_not_this_jobs(train, tmp_path):
    (tmp_path / ".memory-ran-out").write_text("rank 7\n")
    with snapconv.recording(tmp_path, steps=[99], on_other_oom=True) as recording:
        train()
        time.sleep(1.5)
    assert recording.captures == []
