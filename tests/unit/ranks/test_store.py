"""A job of 200 captures in an S3 store on this machine, some of them damaged, hostile or huge."""

import gzip
import pickle
import tempfile
from importlib.util import find_spec

import pytest

from snapconv.errors import InputError
from snapconv.ranks import rank_reading, workers
from snapconv.ranks.job import JobOptions, read_job
from snapconv.ranks.job_files import find_inputs
from tests.builders import MIB
from tests.job_builder import rank_trace

NEEDED = ("s3fs", "boto3", "moto")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs {NEEDED}"),
]
N_RANKS = 200
USUAL, LEAKING = (pickle.dumps(rank_trace(leak=leak).snapshot()) for leak in (0, 9 * MIB))
WRONG = {
    3: (USUAL[:300], "breaks off"),
    50: (b"", "empty"),
    77: (b"\x80\x04cos\nsystem\n.", "os.system"),
    110: (gzip.compress(bytes(1 << 28)), "gzip"),  # 260 KB that are 256 MiB
    150: (b"\x80\x04\x8e" + b"\xff" * 8 + b".", ""),  # bytes of 16 EiB
    199: (b"<html>AccessDenied</html>", ""),
}
HUGE = 120
MORE = {HUGE: pickle.dumps(rank_trace().snapshot() | {"user": b"x" * (48 << 20)}), 42: LEAKING}


@pytest.fixture(scope="module")
def store():
    """A client of a bucket that is full; what runs in this process or below it finds the store too."""
    import boto3  # here, as they take seconds, which each process of the tests would spend
    import s3fs
    from moto import server as moto_server

    server = moto_server.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patched.setenv(name, "test")
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()  # it keeps the address of an earlier server
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        for rank in range(N_RANKS):
            content = WRONG[rank][0] if rank in WRONG else MORE.get(rank, USUAL)
            put(client, f"job/rank{rank}.capture/snapshot.pickle", content)
            put(client, f"job/rank{rank}.capture/timing.json", b"{}")
        yield client
    server.stop()


def put(client, key, content):
    client.put_object(Bucket="runs", Key=key, Body=content)


@pytest.fixture
def in_this_process(monkeypatch):
    """Read in threads, whose functions a test may replace."""
    from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

    threads = workers.Workers(lambda _: ThreadPoolExecutor(2), 4, (BrokenExecutor,))
    monkeypatch.setattr(workers, "local_workers", lambda _: threads)


@pytest.fixture
def reads(monkeypatch):
    """The number of files that were read, run by run."""
    real, counts = workers.answers, []

    def counted(at_work, requests, alone):
        counts.append(len(requests))
        return real(at_work, requests, alone)

    monkeypatch.setattr(workers, "answers", counted)
    return counts


def test_a_job_in_a_store_is_read_and_a_second_run_reads_what_is_new(store, reads, tmp_path):
    options = JobOptions(workers=2, cache=tmp_path / "kept")
    report = read_job(["s3://runs/job/"], options)
    assert [file.rank for file in report.files] == list(range(N_RANKS))
    errors = {file.rank: file.error for file in report.errors}
    assert errors.keys() == WRONG.keys()
    for rank, (_, words) in WRONG.items():
        assert words in errors[rank]
        assert f"s3://runs/job/rank{rank}.capture/snapshot.pickle" in errors[rank]
        assert tempfile.gettempdir() not in errors[rank]
    assert [one.sentence for one in report.findings] == [
        "rank 42: +9.00 MiB activation at leak.py:7 (none in its group)"
    ]
    assert not list(tmp_path.glob("snapconv-ranks-*"))

    put(store, "job/rank7.capture/snapshot.pickle", LEAKING)
    put(store, "job/rank3.capture/snapshot.pickle", USUAL)
    again = read_job(["s3://runs/job/"], options)
    assert {one.rank for one in again.findings} == {7, 42}
    assert {file.rank for file in again.errors} == WRONG.keys() - {3}
    assert reads == [N_RANKS, len(WRONG) + 1]


def test_globs_and_single_files_of_a_store_are_found(store):
    found = find_inputs(
        ["s3://runs/job/rank1[0-2].capture/snapshot.pickle", "s3://runs/job/rank0.capture"]
    )
    assert [one.row.rank for one in found] == [10, 11, 12, 0]
    assert all(one.version and one.row.n_bytes == len(USUAL) for one in found)
    with pytest.raises(InputError, match="is not there"):
        find_inputs(["s3://runs/other/"])


def test_a_bucket_that_is_not_there_is_a_row_with_the_stores_own_words(store, tmp_path):
    (one,) = [
        one for one in find_inputs([str(write(tmp_path)), "s3://nowhere/job/"]) if one.row.error
    ]
    assert "s3://nowhere/job/" in one.row.error


def write(folder):
    path = folder / "rank0.pickle"
    path.write_bytes(USUAL)
    return path


def test_a_copy_that_would_fill_the_disk_is_refused(store, in_this_process, monkeypatch, tmp_path):
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # other processes of the tests have files there
    monkeypatch.setattr(rank_reading, "_SPARE_BYTES", 1 << 60)
    (file,) = read_job([f"s3://runs/job/rank{HUGE}.capture/"]).files
    assert "set TMPDIR" in file.error
    assert not list(tmp_path.glob("snapconv-ranks-*"))


def test_reports_go_to_a_store_too(store, in_this_process):
    report = read_job(["s3://runs/job/rank0.capture/"], JobOptions(reports="s3://runs/reports"))
    assert not report.errors
    content = store.get_object(Bucket="runs", Key="reports/rank0.cuda0.memory.sqlite")[
        "Body"
    ].read()
    assert content.startswith(b"SQLite format 3")


@pytest.mark.parametrize("url", ["nosuch://name/job/", "hdfs://name/job/"])
def test_a_store_that_cannot_be_opened_is_an_error_of_one_line(url):
    with pytest.raises(InputError) as refused:
        find_inputs([url])
    assert str(refused.value).startswith(f"{url}: ")
    assert "\n" not in str(refused.value)
