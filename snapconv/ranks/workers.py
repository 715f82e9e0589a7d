"""Workers for the files of a job: Dask's, here or on a cluster, or processes for a small job.

Both are a ``concurrent.futures.Executor``, so one loop drives them. A file whose worker ended
before it was read is read once more, alone in a process of its own: a pool and Dask blame the files
beside it too.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from logging import CRITICAL
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from snapconv.errors import InputError
from snapconv.native.library import core
from snapconv.ranks.rank_reading import read_alone, read_rank
from snapconv.stop_signals import let_ctrl_c_in, signals_wait
from snapconv.version import VERSION

# Requests that wait at each worker, so that none is idle while the parent is busy.
_WAITING = 3
# A request costs Dask a third of the time of a small file, so that one has several such files.
_MAX_BATCH, _MAX_BATCH_BYTES = 16, 32 << 20
# Requests that wait at a scheduler, whose workers come and go.
_MAX_WAITING = 1024
# The share of the free memory that workers may use; the parent and other programs use some too.
_MEMORY_SHARE = 0.8
# Python, NumPy and snapconv in a worker, before it reads anything.
_WORKER_BYTES = 200 << 20
# A file takes 1.1 times its size by the compiled core, else up to 8 times; these are larger, since
# files differ.
_TIMES_SIZE, _TIMES_IN_PYTHON = 2, 9
# A gzip file shows only its packed size beforehand; real files shrink 5 to 40 times.
_TIMES_PACKED = 40
_UNKNOWN_BYTES = 1 << 30
# The free memory of a system that does not show it.
_USUAL_MEMORY = 4 << 30
_SAFE_PATH = "PYTHONSAFEPATH"
_INSTALL = f"install snapconv[ranks] {VERSION} where the workers run"


@dataclass(frozen=True, slots=True)
class Workers:
    """A way to read files: ``make`` builds an executor, at which ``n_waiting`` requests may wait.

    ``worker_died`` are the errors for a worker's death. ``is_elsewhere``: this process need not see
    the files.
    """

    make: Callable[[ExitStack], Executor]
    n_waiting: int
    worker_died: tuple[type[Exception], ...]
    is_elsewhere: bool = False


def needed_bytes(name: str, n_bytes: int | None) -> int:
    """Return the memory that reading a file takes at most as a rule; hostile files take more."""
    if n_bytes is None:
        return _WORKER_BYTES + _UNKNOWN_BYTES
    if name.lower().endswith(".gz"):
        times = _TIMES_PACKED
    else:
        times = _TIMES_SIZE if core() else _TIMES_IN_PYTHON
    return _WORKER_BYTES + n_bytes * times


def n_local_workers(
    file_bytes: Sequence[int], *, max_workers: int | None = None
) -> tuple[int, int]:
    """Return how many workers fit into this machine's memory, and the bytes of each.

    ``file_bytes`` are the memory that each file takes. There are as many workers as processors, if
    nine of ten files fit; larger files are read alone.
    """
    free = int(_MEMORY_SHARE * free_memory())
    usual = sorted(file_bytes)[len(file_bytes) * 9 // 10] if file_bytes else _WORKER_BYTES
    n_workers = min(max_workers or n_processors(), len(file_bytes), free // usual)
    n_workers = max(n_workers, 1)
    return n_workers, free // n_workers


def n_processors() -> int:
    """Return how many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # mypy finds a line below it unreachable
        return os.cpu_count() or 1


def free_memory() -> int:
    """Return the memory that is available here, within a container's limit."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) << 10)
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        current = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        limits.append(limit - current)
    if sys.platform != "win32" and not limits:
        # macOS shows only how much memory there is: half of it may be in use.
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(min(limits, default=_USUAL_MEMORY), 0)


# --- the loop


def answers(
    workers: Workers, requests: Mapping[str, int | None], alone: Collection[str] = ()
) -> Generator[tuple[str, str], None, None]:
    """Yield every request with its answer as soon as it is there; those ``alone`` come last.

    ``requests`` have the sizes of their files. The files of ``alone`` are read one at a time, and
    so are those whose worker died.
    """
    sizes = {text: n_bytes for text, n_bytes in requests.items() if text not in alone}
    with _safe_imports():
        died: deque[str] = deque()
        batches = deque(_batches(sizes, workers.n_waiting))
        yield from _run(workers, read_rank, batches, died)
        if workers.is_elsewhere:  # perhaps only the workers see the files
            retries = died
            died = deque()
            yield from _run(replace(workers, n_waiting=1), read_alone, retries, died)
        for text in (*(text for text in requests if text in alone), *died):
            yield text, read_alone(text)


def _batches(requests: Mapping[str, int | None], n_waiting: int) -> Iterator[str]:
    """Join requests of small files, one a line; a file of unknown size may be large.

    A batch has at most its share of the requests that remain, of which ``n_waiting`` batches are
    made. So batches are smaller towards the end, and all workers end together.
    """
    remaining_bytes = _MAX_BATCH_BYTES
    lines: list[str] = []
    for number, (text, n_bytes) in enumerate(requests.items()):
        size = _MAX_BATCH_BYTES if n_bytes is None else n_bytes
        n_batched = number - len(lines)
        n_remaining = len(requests) - n_batched
        max_lines = min(_MAX_BATCH, n_remaining // n_waiting)
        if lines and (size > remaining_bytes or len(lines) >= max_lines):
            yield "\n".join(lines)
            lines = []
            remaining_bytes = _MAX_BATCH_BYTES
        lines.append(text)
        remaining_bytes -= size
    if lines:
        yield "\n".join(lines)


@contextmanager
def _safe_imports() -> Iterator[None]:
    """Keep new processes from importing the current folder, perhaps that of a stranger's files.

    Python up to 3.10 has no such switch for the processes of ``multiprocessing``.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _run(
    workers: Workers,
    read: Callable[[str], str],
    waiting: deque[str],
    died: deque[str],
) -> Iterator[tuple[str, str]]:
    """Yield answers, and replace a broken executor.

    Requests whose worker died are put into ``died``.
    """
    submitted: dict[Any, str] = {}
    with ExitStack() as parts:
        executor: Executor | None = None
        while waiting or submitted:
            while waiting and len(submitted) < workers.n_waiting:
                executor = executor or workers.make(parts)
                try:
                    # A pool starts its processes as they are needed: none that still imports its
                    # modules may get Ctrl-C.
                    with signals_wait():
                        future = executor.submit(read, waiting[0])
                except BrokenExecutor:
                    executor = None
                    continue
                submitted[future] = waiting.popleft()
            for future in wait(submitted, return_when=FIRST_COMPLETED).done:
                texts = submitted.pop(future).split("\n")
                answer = _result(future, workers.worker_died)
                if answer is None:
                    died.extend(texts)
                else:
                    yield from zip(texts, answer.split("\n"), strict=True)


def _result(future: Any, worker_died: tuple[type[Exception], ...]) -> str | None:
    """Return the answer; None where the worker died. Raises InputError where no worker can work."""
    try:
        return str(future.result())
    except worker_died:
        return None
    except CancelledError as error:
        raise InputError(
            "the scheduler went away: what was read is kept, run it again to go on"
        ) from error
    except (ImportError, AttributeError) as error:
        raise InputError(f"a worker cannot run snapconv ({error}): {_INSTALL}") from error


# --- executors


def local_workers(n_workers: int) -> Workers:
    """Return processes on this machine."""

    def make(parts: ExitStack) -> Executor:
        executor = ProcessPoolExecutor(
            n_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
        )

        def shut_down() -> None:
            # Interrupted, the pool would forget its processes, and Python wait for them for ever.
            with signals_wait():
                executor.shutdown(cancel_futures=True)

        parts.callback(shut_down)
        return executor

    return Workers(make, _WAITING * n_workers, (BrokenExecutor,))


def _begin_worker() -> None:
    _let_ctrl_c_end_worker()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the command is killed.

    A pool's process alone would wait for ever: it holds both ends of the pipe that its work comes
    by.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _let_ctrl_c_end_worker() -> None:
    """Let Ctrl-C, which a terminal sends to every process, end a worker without a traceback.

    It was held back until the worker had started.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    let_ctrl_c_in(is_wanted=True)


def has_dask() -> bool:
    """Return whether Dask is installed."""
    try:
        import distributed  # noqa: F401  # only whether it can be
    except ImportError:
        return False
    return True


def dask_setup(_worker: object) -> None:
    """Set up a worker of this machine: Dask calls it by this name in every new process."""
    _let_ctrl_c_end_worker()


_LOCAL = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    # Its statistics of itself are looked at by nobody, and took 6 % of a processor.
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    # Without Dask's MALLOC_TRIM_THRESHOLD_, by which every large column is new memory of the
    # system's: files of 76 MiB took 40 % longer.
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    },
}


def local_dask_workers(n_workers: int, memory_bytes: int) -> Workers:
    """Return Dask's workers on this machine, which nobody else reaches.

    They listen on 127.0.0.1 alone and know each other by certificates that are made for this run,
    since any user of this machine may open a connection there, and a scheduler runs what it is
    sent.
    """
    import dask
    from distributed import Client, KilledWorker, LocalCluster
    from distributed.security import Security

    def make(parts: ExitStack) -> Executor:
        parts.enter_context(dask.config.set(_LOCAL))
        if sys.platform != "win32":
            # Its start lets Ctrl-C into the thread that starts it: in Dask's, which starts the
            # workers, they would get it.
            resource_tracker.ensure_running()
        with signals_wait():
            cluster = parts.enter_context(
                LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address=None,
                    # Its HTTP server starts all the same: on a free port of that address, and
                    # without pages.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    memory_limit=memory_bytes,
                    security=Security.temporary(),
                    silence_logs=CRITICAL,
                    preload=[__name__],
                )
            )
        executor: Executor = parts.enter_context(Client(cluster)).get_executor(pure=False)
        return executor

    return Workers(make, _WAITING * n_workers, (KilledWorker,))


def scheduler_workers(address: str) -> Workers:
    """Return the workers of a running scheduler; TLS is as Dask's own configuration says."""
    try:
        from distributed import Client, KilledWorker
        from distributed.security import Security
    except ImportError as error:
        raise InputError("a scheduler needs Dask: pip install 'snapconv[ranks]'") from error

    def make(parts: ExitStack) -> Executor:
        try:
            client = Client(address, security=Security(), set_as_default=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"no scheduler answers at {address}: {error}") from error
        # Left open, it would go on calling a scheduler that has ended.
        executor: Executor = parts.enter_context(client).get_executor(pure=False)
        return executor

    return Workers(make, _MAX_WAITING, (KilledWorker,), is_elsewhere=True)


def client_workers(client: Any) -> Workers:
    """Return the workers of a client, such as that of a cluster of dask-jobqueue."""
    from distributed import KilledWorker

    def make(_parts: ExitStack) -> Executor:
        executor: Executor = client.get_executor(pure=False)
        return executor

    return Workers(make, _MAX_WAITING, (KilledWorker,), is_elsewhere=True)
