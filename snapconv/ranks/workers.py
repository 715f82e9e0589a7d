"""Workers for the files of a job: those of Dask, here or on a cluster, or plain processes for a small job.

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
# Small files are read several in a request, which costs Dask a third of what such a file does.
_MOST_TOGETHER, _MOST_BYTES_TOGETHER = 16, 32 << 20
# Of a scheduler whose workers come and go.
_MOST_WAITING = 1024
# Of the memory that is free: the rest is for the parent, and for what grows meanwhile.
_MEMORY_SHARE = 0.8
# Python, NumPy and snapconv in a worker, and a file: 1.1 times its size by the compiled core, else
# up to 8.
_WORKER_BYTES, _TIMES_SIZE, _TIMES_IN_PYTHON = 200 << 20, 2, 9
# Of gzip only the packed size is known beforehand; real files shrink 5 to 40 times.
_TIMES_PACKED = 40
_UNKNOWN_BYTES = 1 << 30
# Where a system does not say.
_USUAL_MEMORY = 4 << 30
_SAFE_PATH = "PYTHONSAFEPATH"
_INSTALL = f"install snapconv[ranks] {VERSION} where the workers run"


@dataclass(frozen=True, slots=True)
class Workers:
    """Where files are read: what makes an executor, and how many requests may wait there.

    ``worker_died`` are the errors that say so. ``is_elsewhere``: this process need not see the
    files.
    """

    make: Callable[[ExitStack], Executor]
    n_waiting: int
    worker_died: tuple[type[Exception], ...]
    is_elsewhere: bool = False


def needed_bytes(name: str, n_bytes: int | None) -> int:
    """Return the memory that reading a file takes at most as a rule; hostile files take more."""
    if n_bytes is None:
        return _WORKER_BYTES + _UNKNOWN_BYTES
    times = (
        _TIMES_PACKED
        if name.lower().endswith(".gz")
        else _TIMES_SIZE
        if core()
        else _TIMES_IN_PYTHON
    )
    return _WORKER_BYTES + n_bytes * times


def n_local_workers(needed: Sequence[int], *, at_most: int | None = None) -> tuple[int, int]:
    """Return how many workers fit into this machine's memory, and how much each has.

    As many as there are processors, if nine of ten files fit; larger ones are read alone.
    """
    free = int(_MEMORY_SHARE * free_memory())
    usual = sorted(needed)[len(needed) * 9 // 10] if needed else _WORKER_BYTES
    n = max(1, min(at_most or n_processors(), len(needed), free // usual))
    return n, free // n


def n_processors() -> int:
    """Return how many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # mypy finds a line below it unreachable
        return os.cpu_count() or 1


def free_memory() -> int:
    """Return the memory that is available here, within a container's limit."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        found.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii")))
    if sys.platform != "win32" and not found:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    return max(min(found, default=_USUAL_MEMORY), 0)


# --- the loop


def answers(
    workers: Workers, requests: Mapping[str, int | None], alone: Collection[str] = ()
) -> Generator[tuple[str, str], None, None]:
    """Yield every request with its answer as soon as it is there; those to be read ``alone`` come last.

    ``requests`` have the sizes of their files.
    """
    lost = deque(text for text in requests if text in alone)
    beside = {text: n_bytes for text, n_bytes in requests.items() if text not in alone}
    with _no_imports_from_here():
        yield from _run(workers, read_rank, deque(_together(beside, workers.n_waiting)), lost)
        if workers.is_elsewhere:
            again = lost
            lost = deque()
            yield from _run(replace(workers, n_waiting=1), read_alone, again, lost)
        # Whoever is lost alone, with the worker that waited for it, has no other way.
        yield from ((text, read_alone(text)) for text in lost)


def _together(requests: Mapping[str, int | None], n_waiting: int) -> Iterator[str]:
    """Join requests of small files, one a line: fewer towards the end, so that all workers end together."""
    room = _MOST_BYTES_TOGETHER
    lines: list[str] = []
    for number, (text, n_bytes) in enumerate(requests.items()):
        needed = _MOST_BYTES_TOGETHER if n_bytes is None else n_bytes
        n_lines = min(_MOST_TOGETHER, (len(requests) - number + len(lines)) // n_waiting)
        if lines and (needed > room or len(lines) >= n_lines):
            yield "\n".join(lines)
            lines = []
            room = _MOST_BYTES_TOGETHER
        lines.append(text)
        room -= needed
    if lines:
        yield "\n".join(lines)


@contextmanager
def _no_imports_from_here() -> Iterator[None]:
    """Keep new processes from importing what is in the current folder, perhaps that of a stranger's files.

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
    workers: Workers, read: Callable[[str], str], waiting: deque[str], lost: deque[str]
) -> Iterator[tuple[str, str]]:
    """Yield answers; requests whose worker died are put into ``lost``, and a broken executor is replaced."""
    at_work: dict[Any, str] = {}
    with ExitStack() as parts:
        executor: Executor | None = None
        while waiting or at_work:
            while waiting and len(at_work) < workers.n_waiting:
                executor = executor or workers.make(parts)
                try:
                    with signals_wait():  # a pool starts its processes as they are needed
                        future = executor.submit(read, waiting[0])
                except BrokenExecutor:
                    executor = None
                    continue
                at_work[future] = waiting.popleft()
            for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                text = at_work.pop(future)
                answer = _result(future, workers.worker_died)
                if answer is None:
                    lost.extend(text.split("\n"))
                else:
                    yield from zip(text.split("\n"), answer.split("\n"), strict=True)


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
            n_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_worker
        )
        # Interrupted, the pool would forget its processes, and Python wait for them for ever.
        parts.callback(signals_wait()(executor.shutdown), cancel_futures=True)
        return executor

    return Workers(make, _WAITING * n_workers, (BrokenExecutor,))


def _begin_worker() -> None:
    _end_at_once()
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


def _end_at_once() -> None:
    """Let Ctrl-C, which a terminal sends to every process, end a worker without a word."""
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
    _end_at_once()


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
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1},
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
            resource_tracker.ensure_running()  # begun by Dask's thread, it lets signals in there
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

    return Workers(make, _MOST_WAITING, (KilledWorker,), is_elsewhere=True)


def client_workers(client: Any) -> Workers:
    """Return the workers of a client, such as that of a cluster of dask-jobqueue."""
    from distributed import KilledWorker

    return Workers(
        lambda parts: client.get_executor(pure=False),
        _MOST_WAITING,
        (KilledWorker,),
        is_elsewhere=True,
    )
