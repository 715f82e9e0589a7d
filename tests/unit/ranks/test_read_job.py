"""A job read by plain processes: errors are rows, what is killed is tried again, results are kept."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from snapconv.analysis import AnalysisOptions
from snapconv.answers.ranks.rank_file import RankFile
from snapconv.cli.app import main
from snapconv.errors import InputError, OutputWriteError
from snapconv.files import new_files
from snapconv.ranks import rank_reading, workers
from snapconv.ranks.job import JobOptions, JobStopped, default_cache, read_job
from snapconv.ranks.job_files import find_inputs
from snapconv.ranks.rank_reading import RankRequest, read_alone, read_rank
from tests.builders import MIB
from tests.job_builder import write_job, write_rank

ROOT = Path(__file__).parents[3]
UNSAFE = b"\x80\x04cos\nsystem\nX\x04\x00\x00\x00true\x85R."


@pytest.fixture(autouse=True)
def kept_here(monkeypatch, tmp_path):
    """Keep nothing outside the test's folder."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "caches"))


def errors_of(report):
    return {file.rank: file.error for file in report.files if file.error is not None}


def test_a_job_is_read_whatever_is_wrong_with_some_of_its_files(tmp_path):
    paths = write_job(tmp_path, 8, leaks={5: 9 * MIB})
    paths[2].write_bytes(paths[2].read_bytes()[:200])
    paths[3].write_bytes(UNSAFE)
    paths[6].write_bytes(b"")
    report = read_job([str(tmp_path), str(tmp_path / "rank8.pickle")], JobOptions(workers=2))
    assert [file.rank for file in report.files] == list(range(9))
    errors = errors_of(report)
    assert errors.keys() == {2, 3, 6, 8}
    for text, rank in (("breaks off", 2), ("os.system", 3), ("empty", 6), ("not there", 8)):
        assert text in errors[rank]
    assert {file.rank: file.exit_code for file in report.errors} == {2: 3, 3: 4, 6: 3, 8: 3}
    assert [one.sentence for one in report.findings] == [
        "rank 5: +9.00 MiB activation at leak.py:7 (none in its group)"
    ]


def test_a_worker_that_is_killed_costs_no_file(tmp_path):
    write_job(tmp_path, 20)
    killed = []

    def kill_one(n_done, *_):
        if n_done == 5:
            worker = multiprocessing.active_children()[0]
            killed.append(worker.pid)
            worker.kill()

    report = read_job([str(tmp_path)], JobOptions(workers=2), progress=kill_one)
    assert killed
    assert [file.rank for file in report.files] == list(range(20))
    assert errors_of(report) == {}


def test_a_rank_that_no_file_is_of_is_a_row_with_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    paths = write_job(tmp_path, 8)
    paths[5].unlink()
    paths[7].unlink()  # that it is missing shows in what the others recorded
    for rank in range(7):
        if rank != 5:
            write_rank(paths[rank], snapconv={"version": 1, "rank": rank, "world_size": 8})
    assert main(["ranks", str(tmp_path), "--no-cache"]) == 3
    said = capsys.readouterr()
    assert "6 ranks in 6 files; 2 ranks without a file" in said.out
    assert "rank 5: no file of this rank was found" in said.out
    assert "\n  0-4, 6  cuda:0 " in said.out  # equal ranks are a line
    assert errors_of(read_job([str(tmp_path)])).keys() == {5, 7}
    assert errors_of(read_job([str(path) for path in paths[:3]])) == {}  # chosen ones


def test_a_file_that_no_worker_answers_for_is_a_row_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    paths = write_job(tmp_path, 4)
    real = workers.answers
    monkeypatch.setattr(
        workers, "answers", lambda *given: (one for one in real(*given) if "rank3" not in one[0])
    )
    errors = errors_of(read_job([str(tmp_path)]))
    assert errors == {3: f"{paths[3]}: no worker answered; type the command again"}


@pytest.mark.skipif(sys.platform == "win32", reason="its Python is a script of sh")
def test_a_file_that_kills_its_process_alone_too_is_a_row_with_an_error(tmp_path, monkeypatch):
    (path,) = write_job(tmp_path, 1)
    (one,) = find_inputs([str(path)])
    text = RankRequest.text(one.row, JobOptions().analysis)
    assert read_alone(text) == read_rank(text)
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    answer = read_alone(text)
    assert "signal 9" in answer
    assert str(path) in answer


def test_no_process_imports_what_lies_beside_the_files(tmp_path):
    """The current folder is the one of a stranger's files; Python's -c and -m import from it first."""
    folder, program, proof = (
        tmp_path / "download",
        tmp_path / "elsewhere" / "run.py",
        tmp_path / "proof",
    )
    write_job(folder, 3)
    for name in ("multiprocessing", "numpy", "snapconv"):
        (folder / f"{name}.py").write_text(f"open({str(proof)!r}, 'a').write('{name} ')\n")
    program.parent.mkdir()
    program.write_text(
        "from snapconv.ranks import workers\n"
        "from snapconv.cli.app import main\n"
        "workers.needed_bytes = lambda name, n: 1 << 60 if '2' in name else 1  # read in a "
        "process alone\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit(main(['ranks', '.', '--workers', '1', '--no-cache']))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    if sys.version_info < (
        3,
        11,
    ):  # has no switch for its pools: what is read alone is safe there too
        (folder / "multiprocessing.py").unlink()
    done = subprocess.run(
        [sys.executable, program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not proof.exists(), proof.read_text()
    assert (done.returncode, done.stdout.split(";")[0]) == (0, "3 ranks in 3 files"), done.stderr


@pytest.mark.parametrize(("output", "advice"), [("-", "name a file"), ("new/", "new/NAME")])
def test_a_stream_or_a_folder_is_no_database(tmp_path, monkeypatch, capsys, output, advice):
    monkeypatch.chdir(tmp_path)
    assert main(["ranks", "missing", "-o", output]) == 5
    assert advice in capsys.readouterr().err


def test_a_rank_that_lies_about_its_place_costs_the_job_no_database(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    write_job(tmp_path / "job", 2)
    huge = "9" * 25
    recorded = {"version": 1, "rank": huge, "coordinates": f"dp={huge},tp=1"}
    write_rank(tmp_path / "job" / "rank2.pickle", snapconv=recorded)
    output = tmp_path / "job.sqlite"
    assert main(["ranks", str(tmp_path / "job"), "-o", str(output), "--quiet", "--no-cache"]) == 0
    with closing(sqlite3.connect(output)) as connection:
        assert connection.execute("SELECT rank FROM job_files ORDER BY id").fetchall() == [
            (0,),
            (1,),
            (2,),
        ]


@pytest.mark.parametrize("n_bytes", [1000, None])
def test_small_files_are_read_together_and_each_alone_where_their_worker_dies(n_bytes, monkeypatch):
    from concurrent.futures import BrokenExecutor

    taken, alone = [], []

    def read(text):
        taken.append(text.split("\n"))
        if "file 1" in taken[-1]:
            raise BrokenExecutor
        return text.upper()

    monkeypatch.setattr(workers, "read_rank", read)
    monkeypatch.setattr(workers, "read_alone", lambda text: alone.append(text) or text.upper())
    requests = {f"file {number}": n_bytes for number in range(12)}
    found = dict(workers.answers(in_threads(1), requests))
    assert found == {text: text.upper() for text in requests}
    # Four requests wait at a time, the last of few files; files of unknown size may be large.
    assert sorted(map(len, taken)) == ([*[1] * 7, 2, 3] if n_bytes else [1] * 12)
    assert alone == (["file 0", "file 1", "file 2"] if n_bytes else ["file 1"])


def test_files_that_may_not_fit_are_read_alone(tmp_path, monkeypatch):
    paths = write_job(tmp_path, 3)
    alone = []
    monkeypatch.setattr(workers, "read_alone", lambda text: alone.append(text) or read_rank(text))
    large = str(paths[1])
    monkeypatch.setattr(workers, "needed_bytes", lambda path, _: 1 << 60 if path == large else 1)
    monkeypatch.setattr(workers, "local_workers", in_threads)
    report = read_job([str(tmp_path)])
    assert errors_of(report) == {}
    assert [large in text for text in alone] == [True]


def in_threads(n_workers):
    """Workers whose functions a test may replace."""
    from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

    return workers.Workers(lambda _: ThreadPoolExecutor(n_workers), 4, (BrokenExecutor,))


def test_what_was_done_before_an_interrupt_is_kept_and_a_second_run_reads_the_rest(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    paths = write_job(tmp_path, 12)
    options = JobOptions(cache=tmp_path / "kept", workers=1)

    def stop(n_done, *_):
        if n_done == 4:
            raise KeyboardInterrupt

    with pytest.raises(JobStopped) as stopped:
        read_job([str(tmp_path)], options, progress=stop)
    assert len(stopped.value.report.files) == 4
    assert stopped.value.n_left == 8
    done = {file.file for file in stopped.value.report.files}
    for path in paths:  # what is read again now has errors
        status = path.stat()
        path.write_bytes(b"x" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = read_job([str(tmp_path)], options)
    assert {file.file for file in report.files if file.error is None} == done
    os.utime(paths[0])
    assert 0 in errors_of(read_job([str(tmp_path)], options))


def test_a_damaged_row_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    write_job(tmp_path / "job", 2)
    options = JobOptions(cache=tmp_path / "kept")
    before = read_job([str(tmp_path / "job")], options)
    for kept, text in zip(sorted((tmp_path / "kept").rglob("*.json")), ("[]", "{"), strict=True):
        kept.write_text(text)
    assert read_job([str(tmp_path / "job")], options) == before


def test_a_rank_outside_the_mesh_is_refused_before_anything_is_read(tmp_path):
    write_job(tmp_path, 3)
    with pytest.raises(InputError, match="rank 2, and --mesh has 2 ranks"):
        read_job([str(tmp_path)], JobOptions(mesh="dp=2"))


def test_reports_that_cannot_be_written_and_names_without_a_rank_for_a_mesh_are_refused(tmp_path):
    path = write_rank(tmp_path / "snapshot.pickle")
    with pytest.raises(OutputWriteError, match=r"cannot write .*snapshot\.pickle: File exists"):
        read_job([str(path)], JobOptions(reports=str(path)))
    with pytest.raises(InputError, match="no name has one"):
        read_job([str(path)], JobOptions(mesh="dp=2"))


def test_as_many_workers_run_as_fit_into_the_memory(monkeypatch):
    monkeypatch.setattr(workers, "free_memory", lambda: 10_000)
    monkeypatch.setattr(workers, "n_processors", lambda: 64)
    assert workers.n_local_workers([1_000] * 100) == (8, 1_000)
    assert workers.n_local_workers([1_000] * 3) == (3, 2_666)
    assert workers.n_local_workers([1_000] * 99 + [9_000]) == (8, 1_000)
    assert workers.n_local_workers([50_000] * 4) == (1, 8_000)


# --- the command


def test_a_folder_is_a_job_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    write_job(tmp_path / "job", 4, leaks={2: 9 * MIB})
    assert main([str(tmp_path / "job")]) == 0
    said = capsys.readouterr()
    assert f"snapconv ranks {tmp_path / 'job'}" in said.err
    assert "rank 2: +9.00 MiB activation at leak.py:7 (none in its group)" in said.out
    assert f"next: snapconv tree {tmp_path / 'job' / 'rank2.pickle'}" in said.out
    assert sorted(default_cache().rglob("*.json"))


def test_several_files_get_the_name_of_the_command(tmp_path, capsys):
    first, second = map(str, write_job(tmp_path, 2))
    assert main([first, second]) == 2
    assert f"snapconv ranks {first} {second}" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "code"), [(b"", 3), (UNSAFE, 4)])
def test_the_exit_code_says_that_a_file_was_not_read(tmp_path, capsys, monkeypatch, content, code):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    paths = write_job(tmp_path, 4)
    paths[1].write_bytes(content)
    output = tmp_path / "job.sqlite"
    assert main(["ranks", str(tmp_path), "-o", str(output), "--no-cache"]) == code
    said = capsys.readouterr()
    assert "1 file not read" in said.err
    assert f"{paths[2].name}: {paths[2]}" not in said.out  # the error names the file too
    assert "rank 1:" in said.out
    with closing(sqlite3.connect(output)) as connection:
        rows = connection.execute(
            "SELECT rank, error IS NULL FROM job_files ORDER BY id"
        ).fetchall()
    assert rows == [(0, 1), (1, 0), (2, 1), (3, 1)]


def test_every_rank_gets_its_memory_report(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    write_job(tmp_path / "job", 2)
    reports = tmp_path / "reports"
    assert main(["ranks", str(tmp_path / "job"), "--reports", str(reports), "--quiet"]) == 0
    assert [path.name for path in sorted(reports.iterdir())] == [
        "rank0.cuda0.memory.sqlite",
        "rank1.cuda0.memory.sqlite",
    ]
    with closing(sqlite3.connect(reports / "rank1.cuda0.memory.sqlite")) as connection:
        (peak,) = connection.execute(
            "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'"
        ).fetchone()
    assert peak == 14 * MIB


def test_two_files_of_one_rank_do_not_replace_each_others_report(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    for run in ("before", "after"):
        write_job(tmp_path / run, 1)
    reports = tmp_path / "reports"
    folders = [str(tmp_path / run) for run in ("before", "after")]
    assert main(["ranks", *folders, "--reports", str(reports), "--quiet"]) == 0
    names = sorted(path.name for path in reports.iterdir())
    assert len(names) == 2
    assert all(name.startswith("rank0-") for name in names)


def test_a_file_without_a_rank_that_was_not_read_is_named_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(workers, "local_workers", in_threads)
    (tmp_path / "notes.pickle").write_bytes(b"")
    write_job(tmp_path, 2)
    assert main(["ranks", str(tmp_path), "--no-cache"]) == 3
    assert capsys.readouterr().out.count("notes.pickle") == 1


def test_a_folder_for_reports_that_may_not_be_written_to_is_refused_before_anything_is_read(
    tmp_path, monkeypatch
):
    write_job(tmp_path / "job", 1)
    (tmp_path / "reports").mkdir()
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "reports" and access(path, mode)
    )
    monkeypatch.setattr(workers, "local_workers", None)
    with pytest.raises(
        OutputWriteError, match=r"its folder .*reports cannot be written to; choose another"
    ):
        read_job([str(tmp_path / "job")], JobOptions(reports=str(tmp_path / "reports")))


# --- what killed processes leave

KILLED = """
import multiprocessing, sys, time
from snapconv.ranks.workers import local_workers
from contextlib import ExitStack

if __name__ == "__main__":
    with ExitStack() as parts:
        executor = local_workers(2).make(parts)
        works = [executor.submit(time.sleep, 0.2) for _ in range(2)]
        [work.result() for work in works]
        print(*[child.pid for child in multiprocessing.active_children()], flush=True)
        time.sleep(60)
"""


def is_alive(pid):
    """Return whether a process runs; one that nobody waits for stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    (tmp_path / "job.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, tmp_path / "job.py"], stdout=subprocess.PIPE, env=environment, cwd=tmp_path
    ) as command:
        workers_of_it = command.stdout.readline().split()
        command.kill()
    assert len(workers_of_it) >= 1
    until = time.monotonic() + 20  # two seconds on a machine that is not busy
    while any(is_alive(int(pid)) for pid in workers_of_it):
        assert time.monotonic() < until
        time.sleep(0.05)


IMPORTING = """
import sys, time
if __name__ == "__mp_main__":
    print("importing", flush=True)
    time.sleep(1)
if __name__ == "__main__":
    from snapconv import stop_signals
    from snapconv.cli.app import main
    stop_signals._AT_ONCE_S = float(sys.argv[1])
    sys.exit(main(["ranks", "job", "--workers", "1"]))
"""


@contextmanager
def importing(tmp_path, at_once_s=2.0):
    """A command whose worker is importing its modules by now."""
    write_job(tmp_path / "job", 2)
    (tmp_path / "job.py").write_text(IMPORTING)
    with subprocess.Popen(
        [sys.executable, tmp_path / "job.py", str(at_once_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        start_new_session=True,
        text=True,
    ) as command:
        assert command.stdout.readline() == "importing\n"
        yield command


@pytest.mark.skipif(os.name != "posix", reason="sends a signal as a terminal does")
def test_ctrl_c_in_a_terminal_is_no_traceback_of_a_worker_that_is_starting(tmp_path):
    with importing(tmp_path) as command:
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert said.splitlines() == [
        "stopped: 2 files not read; type it again to read only these",
        "stopped: no unfinished file is left behind",
    ]


@pytest.mark.skipif(os.name != "posix", reason="sends signals of Unix")
@pytest.mark.parametrize("at_once_s", [0, 2])
def test_a_second_signal_while_the_workers_end_does_not_wait_for_ever(tmp_path, at_once_s):
    with importing(tmp_path, at_once_s) as command:
        for _ in range(3):
            command.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        try:
            _, said = command.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(command.pid, signal.SIGKILL)
            raise
    assert (command.returncode, said) == (143, "stopped: no unfinished file is left behind\n")


def test_half_reports_of_killed_workers_are_removed_and_no_other_hidden_file(tmp_path, monkeypatch):
    write_rank(tmp_path / "job/rank0.pickle")
    (tmp_path / "reports").mkdir()
    other = tmp_path / "reports/.rank0.cuda0.memory.sqlite.0123456789abcdef.partial"
    other.write_bytes(b"another command's")
    killed = []

    def killed_workers(_, requests, __):
        for text in requests:
            output = tmp_path / "reports/rank0.cuda0.memory.sqlite"
            with new_files([output], force=True, token=RankRequest.parse(text).job) as (partial,):
                content = partial.read_bytes()
            partial.write_bytes(content)  # as a process leaves it that ends here
            killed.append(partial)
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "answers", killed_workers)
    with pytest.raises(JobStopped):
        read_job([str(tmp_path / "job")], JobOptions(reports=str(tmp_path / "reports")))
    assert not killed[0].exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("option", "what_next"),
    [
        ((), "; type it again to read only these"),
        (("--no-cache",), ""),
        (("--reports", "reports"), ""),
    ],
)
def test_a_second_run_is_promised_to_read_less_only_where_results_are_kept(
    tmp_path, monkeypatch, capsys, option, what_next
):
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "job", 2)

    def interrupted(*_):
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "answers", interrupted)
    assert main(["ranks", "job", *option]) == 130
    assert f"stopped: 2 files not read{what_next}\n" in capsys.readouterr().err


# --- files of a store that killed processes left


def copied_folder(path, *, mark=rank_reading._MARK):
    """Make a folder as of a worker that was killed while it read a copy, yesterday."""
    path.mkdir()
    write_rank(path / "snapshot.pickle")
    if mark is not None:
        (path / rank_reading._MARK_NAME).write_text(mark)
    yesterday = time.time() - 24 * 3600
    os.utime(path, (yesterday, yesterday))
    return path


def read_by_url(tmp_path, monkeypatch):
    """Read a file as of a store, in this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_rank(tmp_path / "job/rank0.pickle")
    row = RankFile(f"file://{tmp_path}/job/rank0.pickle", rank=0)
    answer = read_rank(RankRequest.text(row, AnalysisOptions(), job="0" * 16))
    assert '"error":null' in answer


def test_copies_of_killed_workers_are_removed(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    left = copied_folder(tmp_path / "snapconv-ranks-left")
    living = copied_folder(tmp_path / "snapconv-ranks-living")
    os.utime(living)
    read_by_url(tmp_path, monkeypatch)
    assert not left.exists()
    assert living.exists()


def test_a_folder_that_another_worker_removes_meanwhile_costs_no_file(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setattr(rank_reading, "_own_folders", lambda *_: [tmp_path / "snapconv-ranks-gone"])
    read_by_url(tmp_path, monkeypatch)


def test_folders_of_others_stay_whatever_their_names(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    capture = copied_folder(tmp_path / "snapconv-ranks-mine.capture", mark=None)
    marked_otherwise = copied_folder(
        tmp_path / "snapconv-ranks-other", mark=rank_reading._MARK + "x"
    )
    with_notes = copied_folder(tmp_path / "snapconv-ranks-notes")
    (with_notes / "notes.txt").write_text("mine")
    yesterday = time.time() - 24 * 3600
    os.utime(with_notes, (yesterday, yesterday))
    (tmp_path / "snapconv-ranks-link").symlink_to(copied_folder(tmp_path / "elsewhere"))
    before = sorted(tmp_path.rglob("*"))
    read_by_url(tmp_path, monkeypatch)
    assert set(before) <= set(tmp_path.rglob("*"))
    assert capture.exists()
    assert marked_otherwise.exists()
    assert len(list(with_notes.iterdir())) == 3
