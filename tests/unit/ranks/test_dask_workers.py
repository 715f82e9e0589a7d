"""A job read by the workers of a real Dask cluster on this machine, some of which are killed."""

import os
import signal
from collections import deque

import pytest

from snapconv.errors import InputError
from snapconv.ranks import workers
from snapconv.ranks.job import JobOptions, read_job
from snapconv.version import VERSION
from tests.builders import MIB
from tests.job_builder import write_job

distributed = pytest.importorskip("distributed")
pytest.importorskip("cryptography")

# What its libraries warn of is theirs to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.xdist_group("dask")]
N_RANKS = 64


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job with a rank that leaks, and files that cannot be read."""
    folder = tmp_path_factory.mktemp("job")
    paths = write_job(folder, N_RANKS, leaks={61: 9 * MIB})
    for rank, content in ((7, b""), (30, b"\x80\x04cos\nsystem\n."), (33, paths[33].read_bytes()[:300])):
        paths[rank].write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def by_processes(job):
    """What processes of this machine answer."""
    return read_job([str(job)], JobOptions(workers=2))


@pytest.fixture
def cluster(tmp_path):
    """A cluster that somebody else started, whose connections need certificates."""
    import dask
    from distributed.security import Security

    made = Security.temporary()
    files = {}
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        files[name] = tmp_path / name
        files[name].write_text(getattr(made, name))
    settings = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.comm.timeouts.connect": "5s",
        "distributed.comm.tls.ca-file": str(files["tls_ca_file"]),
        "distributed.comm.tls.client.cert": str(files["tls_client_cert"]),
        "distributed.comm.tls.client.key": str(files["tls_client_key"]),
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, security=made
        ) as cluster,
    ):
        yield cluster


def test_a_scheduler_is_reached_by_tls_and_workers_that_are_killed_cost_nothing(job, by_processes, cluster):
    killed = []

    def kill_some(n_done, *_):
        if n_done in (10, 40):
            worker = next(iter(cluster.workers.values()))
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGTERM)

    address = cluster.scheduler_address
    assert address.startswith("tls://")
    report = read_job([str(job)], JobOptions(scheduler=address), progress=kill_some)
    assert killed
    assert report == by_processes
    assert [file.rank for file in report.files] == list(range(N_RANKS))
    assert {file.rank: file.exit_code for file in report.errors} == {7: 3, 30: 4, 33: 3}
    assert [one.rank for one in report.findings] == [61]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
def test_what_kills_every_worker_is_lost_and_its_neighbours_are_answered(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        found, lost = workers.client_workers(client), deque()
        answered = dict(workers._run(found, end_or_answer, deque(["neighbour", "killer", "other"]), lost))
        assert "killer" in lost
        assert set(answered) | set(lost) == {"neighbour", "killer", "other"}


def end_or_answer(text):
    """Do what memory that runs out does."""
    if text == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    return text


def test_a_scheduler_that_is_not_there_is_an_error_with_its_address(job):
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(InputError, match=":9"):
        read_job([str(job)], JobOptions(scheduler="tcp://127.0.0.1:9"))


def test_a_worker_with_another_snapconv_is_refused(job, monkeypatch):
    monkeypatch.setattr("snapconv.ranks.job.VERSION", "0.0.0")
    with pytest.raises(InputError, match=f"a worker has snapconv {VERSION}, this is 0.0.0"):
        read_job([str(job)], JobOptions(workers=1))
