"""A job read by a real Dask cluster of several worker processes on this machine, some of which are killed."""

import multiprocessing
import os
import signal
from collections import deque
from importlib.util import find_spec

import pytest

from snapconv.errors import InputError
from snapconv.ranks import workers
from snapconv.ranks.job import JobOptions, read_job
from snapconv.version import VERSION
from tests.builders import MIB
from tests.job_builder import write_job

NEEDED = ("distributed", "psutil", "cryptography")
pytestmark = [
    pytest.mark.filterwarnings("default"),  # what its libraries warn of is theirs to mend
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs {NEEDED}"),
]
N_RANKS, N_WORKERS = 64, 3


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job with a rank that leaks, and files that cannot be read."""
    folder = tmp_path_factory.mktemp("job")
    paths = write_job(folder, N_RANKS, leaks={61: 9 * MIB})
    for rank, content in (
        (7, b""),
        (30, b"\x80\x04cos\nsystem\n."),
        (33, paths[33].read_bytes()[:300]),
    ):
        paths[rank].write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def by_processes(job):
    """What plain processes answer."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(workers, "has_dask", lambda: False)
        return read_job([str(job)], JobOptions(workers=2))


def listening():
    """Where this process and its children listen: address and port."""
    import psutil

    this = psutil.Process()
    every = [
        one
        for process in (this, *this.children(recursive=True))
        for one in process.net_connections("inet")
    ]
    return {tuple(one.laddr) for one in every if one.status == psutil.CONN_LISTEN}


def test_workers_that_are_killed_in_mid_run_cost_nothing_and_nobody_else_can_connect(
    job, by_processes
):
    killed, addresses = [], set()
    before = listening()  # servers of other tests

    def kill_some(n_done, *_):
        if n_done == 1:
            addresses.update(ip for ip, _port in listening() - before)
        if n_done in (10, 40):
            worker = next(one for one in multiprocessing.active_children() if one.pid not in killed)
            worker.kill()
            killed.append(worker.pid)

    report = read_job([str(job)], JobOptions(workers=N_WORKERS), progress=kill_some)
    assert len(set(killed)) == 2
    assert addresses == {"127.0.0.1"}
    assert report == by_processes
    assert [file.rank for file in report.files] == list(range(N_RANKS))
    assert {file.rank: file.exit_code for file in report.errors} == {7: 3, 30: 4, 33: 3}
    assert [one.rank for one in report.findings] == [61]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
def test_what_kills_every_worker_is_lost_and_its_neighbours_are_answered():
    """A worker may have less memory than Python itself needs for one file."""
    texts, lost = ["neighbour", "killer", "other"], deque()
    answered = dict(
        workers._run(workers.local_dask_workers(2, 1 << 30), end_or_answer, deque(texts), lost)
    )
    assert "killer" in lost
    assert {*answered, *lost} == {*texts}


def end_or_answer(text):
    """Do what memory that runs out does."""
    if text == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    return text


@pytest.fixture
def tls_cluster(tmp_path, monkeypatch):
    """A cluster that somebody else started, with certificates in files as Dask's configuration names them."""
    import dask
    import distributed
    from distributed.security import Security

    made = Security.temporary()
    files = {}
    for name in (
        "tls_ca_file",
        "tls_client_cert",
        "tls_client_key",
        "tls_worker_cert",
        "tls_worker_key",
    ):
        files[name] = tmp_path / name
        files[name].write_text(getattr(made, name))
    settings = {
        "distributed.comm.tls.ca-file": str(files["tls_ca_file"]),
        "distributed.comm.tls.client.cert": str(files["tls_client_cert"]),
        "distributed.comm.tls.client.key": str(files["tls_client_key"]),
    }
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            security=made,
        ) as cluster,
        dask.config.set(settings),
    ):
        yield cluster


def test_a_scheduler_is_reached_by_tls_as_dask_is_configured(job, by_processes, tls_cluster):
    from distributed import Client

    address = tls_cluster.scheduler_address
    assert address.startswith("tls://")
    assert read_job([str(job)], JobOptions(scheduler=address)) == by_processes
    with Client(tls_cluster, set_as_default=False) as client:
        assert read_job([str(job)], JobOptions(client=client)) == by_processes


def test_a_scheduler_that_is_not_there_is_an_error_with_its_address(job):
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(InputError, match=":9"),
    ):
        read_job([str(job)], JobOptions(scheduler="tcp://127.0.0.1:9"))


def test_a_worker_with_another_snapconv_is_refused(job, monkeypatch):
    monkeypatch.setattr("snapconv.ranks.job.VERSION", "0.0.0")
    monkeypatch.setattr(workers, "has_dask", lambda: False)
    with pytest.raises(InputError, match=f"a worker has snapconv {VERSION}, this is 0.0.0"):
        read_job([str(job)], JobOptions(workers=1))
