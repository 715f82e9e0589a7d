"""Workers for the files of a job: Dask's where it is installed or a scheduler is named, else plain processes.

Both are a ``concurrent.futures.Executor``, so one loop drives them. A file whose worker ended before it was
read is read once more, alone in a process of its own: Dask and a pool blame the files beside it too.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import Any

from snapconv.errors import InputError
from snapconv.native.library import core
from snapconv.ranks.rank_reading import read_alone, read_rank
from snapconv.version import VERSION

# Requests that wait at each worker, so that none is idle while the parent is busy.
_WAITING = 3
# Of a scheduler whose workers come and go.
_MOST_WAITING = 1024
# Of the memory that is free: the rest is for the parent, and for what grows meanwhile.
_MEMORY_SHARE = 0.8
# Python, NumPy and snapconv in a worker, and a file: 1.1 times its size by the compiled core, else up to 8.
_WORKER_BYTES, _TIMES_SIZE, _TIMES_IN_PYTHON = 200 << 20, 2, 9
# Of gzip only the packed size is known beforehand; real files shrink 5 to 40 times.
_TIMES_PACKED = 40
_UNKNOWN_BYTES = 1 << 30
# Where a system does not say.
_USUAL_MEMORY = 4 << 30
_SAFE_PATH = "PYTHONSAFEPATH"


@dataclass(frozen=True, slots=True)
class Engine:
    """Where files are read: what makes an executor, how many requests wait there, how many are read alone."""

    make: Callable[[ExitStack], Executor]
    n_waiting: int
    n_alone: Callable[[], int]
    worker_died: tuple[type[Exception], ...]


def needed_bytes(name: str, n_bytes: int | None) -> int:
    """Return the memory that reading a file takes at most as a rule; hostile files take more."""
    if n_bytes is None:
        return _WORKER_BYTES + _UNKNOWN_BYTES
    times = _TIMES_PACKED if name.lower().endswith(".gz") else _TIMES_SIZE if core() else _TIMES_IN_PYTHON
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
    n = os.cpu_count() or 1
    if sys.platform == "linux":
        n = len(os.sched_getaffinity(0))
    return n


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


def answers(engine: Engine, requests: Sequence[str], alone: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every request with its answer as soon as it is there; those that are to be alone come last."""
    with _no_imports_from_here(), ExitStack() as parts:
        workers = _Workers(engine, parts)
        retried = deque(alone)
        yield from workers.run(read_rank, deque(requests), engine.n_waiting, retried)
        # Whoever is lost alone, with the worker that waited for it, has no other way.
        lost: deque[str] = deque()
        yield from workers.run(read_alone, retried, engine.n_alone(), lost)
        yield from ((text, read_alone(text)) for text in lost)


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


class _Workers:
    """The executor of an engine, replaced where it broke."""

    def __init__(self, engine: Engine, parts: ExitStack) -> None:
        self._engine, self._parts = engine, parts
        self._executor: Executor | None = None

    def run(
        self, read: Callable[[str], str], waiting: deque[str], n_waiting: int, lost: deque[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield answers; the requests whose worker died are put into ``lost``."""
        at_work: dict[Any, str] = {}
        while waiting or at_work:
            while waiting and len(at_work) < n_waiting:
                text = waiting.popleft()
                at_work[self._submitted(read, text)] = text
            for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                text = at_work.pop(future)
                answer = self._result(future)
                if answer is None:
                    lost.append(text)
                else:
                    yield text, answer

    def _submitted(self, read: Callable[[str], str], text: str) -> Any:
        if self._executor is None:
            self._executor = self._engine.make(self._parts)
        try:
            return self._executor.submit(read, text)
        except BrokenExecutor:
            self._executor = self._engine.make(self._parts)
            return self._executor.submit(read, text)

    def _result(self, future: Any) -> str | None:
        """Return the answer; None where the worker died. Raises InputError where no worker can work."""
        try:
            return str(future.result())
        except self._engine.worker_died:
            return None
        except CancelledError as error:
            raise InputError(
                "the scheduler went away: what was read is kept, run it again to go on"
            ) from error
        except (ImportError, AttributeError) as error:
            raise InputError(f"a worker cannot run snapconv ({error}): {_INSTALL}") from error


_INSTALL = f"install snapconv[ranks] {VERSION} where the workers run"


# --- this machine, without Dask


def pool_engine(n_workers: int) -> Engine:
    """Return an engine of processes on this machine."""

    def make(parts: ExitStack) -> Executor:
        executor = ProcessPoolExecutor(
            n_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_at_once
        )
        parts.callback(executor.shutdown, wait=True, cancel_futures=True)
        return executor

    return Engine(make, _WAITING * n_workers, lambda: 1, (BrokenExecutor,))


def _end_at_once() -> None:
    """Let Ctrl-C, which a terminal sends to every process, end a worker without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# --- Dask


def has_dask() -> bool:
    """Return whether Dask's engine is installed."""
    try:
        import distributed  # noqa: F401  # only whether it can be
    except ImportError:
        return False
    return True


def require_dask() -> None:
    """Raise InputError where Dask's engine is not installed."""
    if not has_dask():
        raise InputError("a scheduler needs Dask: pip install 'snapconv[ranks]'")


def dask_setup(_worker: object) -> None:
    """Set up a worker of this machine: Dask calls it by this name in every new process."""
    _end_at_once()


_LOCAL = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def local_dask_engine(n_workers: int, memory_bytes: int) -> Engine:
    """Return an engine of Dask's workers on this machine, which nobody else reaches.

    They listen on 127.0.0.1 alone and know each other by certificates that are made for this run, since any
    user of this machine may open a connection there, and a scheduler runs what it is sent.
    """
    from distributed import Client, KilledWorker, LocalCluster
    from distributed.security import Security

    def make(parts: ExitStack) -> Executor:
        parts.enter_context(_dask_settings(_LOCAL))
        cluster = parts.enter_context(
            LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                # Its HTTP server starts all the same: on any free port of that address, and without pages.
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                memory_limit=memory_bytes,
                security=Security.temporary(),
                silence_logs=CRITICAL,
                preload=[__name__],
            )
        )
        executor: Executor = parts.enter_context(Client(cluster)).get_executor(pure=False)
        return executor

    return Engine(make, _WAITING * n_workers, lambda: 1, (KilledWorker,))


def scheduler_engine(address: str) -> Engine:
    """Return an engine of the workers of a running scheduler; TLS is as Dask's own configuration says."""
    require_dask()
    from distributed import Client, KilledWorker
    from distributed.security import Security

    try:
        client = Client(address, security=Security(), set_as_default=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"no scheduler answers at {address}: {error}") from error
    return client_engine(client, KilledWorker)


def client_engine(client: Any, *worker_died: type[Exception]) -> Engine:
    """Return an engine of the workers of a client, such as that of a cluster of dask-jobqueue."""
    if not worker_died:
        from distributed import KilledWorker

        worker_died = (KilledWorker,)

    def n_hosts() -> int:
        return max(1, len({address.rpartition(":")[0] for address in client.nthreads()}))

    return Engine(lambda parts: client.get_executor(pure=False), _MOST_WAITING, n_hosts, worker_died)


@contextmanager
def _dask_settings(values: dict[str, object]) -> Iterator[None]:
    import dask

    with dask.config.set(values):
        yield
