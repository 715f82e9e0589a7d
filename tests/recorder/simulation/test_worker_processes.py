"""Processes that a program starts by torch.multiprocessing: the ranks among them are recorded here."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import RankOfJob, SimulationOptions, simulated  # noqa: E402

mp = torch.multiprocessing

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
]


def fail():
    raise SystemExit(3)


def test_one_worker_runs_in_this_process_and_on_its_device():
    rows = []
    with simulated() as simulation:
        mp.spawn(lambda rank, size: rows.append((rank, size, torch.ones(4, device=rank))), (1,), 1)
        [(rank, size, tensor)] = rows
        assert (rank, size, str(tensor.device)) == (0, 1, "cuda:0")
        assert torch.cuda.memory_allocated() == 512
        assert simulation.faults() == ()


def test_of_a_jobs_workers_the_one_that_is_recorded_runs_here():
    indices = []
    # Rank 5 of two nodes with four each is the second of its node.
    job = RankOfJob.create(5, 8, 4)
    with simulated(SimulationOptions(n_devices=4, job=job)):
        context = mp.start_processes(indices.append, nprocs=4, join=False, start_method="fork")
        assert context.join() is True
        with pytest.raises(RecorderError, match=r"test_worker.*starts 8 .*give --world-size 8"):
            mp.spawn(indices.append, nprocs=8)
    assert indices == [1]


def test_several_workers_are_refused_with_the_option_that_records_them():
    with simulated(), pytest.raises(RecorderError, match="--world-size 3 to record each as a rank"):
        mp.spawn(print, nprocs=3)


def test_a_process_that_failed_is_noted_and_one_that_ended_well_is_not():
    context = mp.get_context("fork")
    with simulated() as simulation:
        process = context.Process(target=int)
        process.start()
        process.join()
        assert simulation.late_notes() == ()
        process = context.Process(target=fail)
        process.start()
        process.join()
        [note] = simulation.late_notes()
    assert note.slug == "processes-not-simulated"
    assert "test_worker_processes.py" in note.message


WORKERS = """
import os, torch
def train(rank, size):
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    torch.distributed.init_process_group("nccl", rank=rank, world_size=size)
    layer = torch.nn.Linear(256, 256).to(rank)
    model = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(8, 256, device=rank)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (2,), 2)
"""


def test_record_writes_the_capture_of_a_spawned_rank(tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    options = "record --simulate --no-compute --world-size 2 --ranks 1 -o rank1.capture workers.py"
    run = subprocess.run(
        [sys.executable, "-m", "snapconv", *options.split()],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    assert "this is rank 1 of 2" in run.stderr
    assert "Traceback" not in run.stderr
    assert (tmp_path / "rank1.capture" / "snapshot.pickle").is_file()
