"""Traces of small jobs that keep memory for nothing, and of jobs whose lifetimes only look like it."""

from collections.abc import Callable, Iterable, Sequence

from tests.builders import MIB, Raw, TraceBuilder, frame

Stack = list[Raw]

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
PLACEMENT = frame("convert", f"{TORCH}/nn/modules/module.py", 1369)
BACKWARD = [
    frame("backward", f"{TORCH}/autograd/__init__.py", 388),
    frame("backward", f"{TORCH}/_tensor.py"),
]
STEP = [frame("_single_tensor_sgd", f"{TORCH}/optim/sgd.py")]
# With Python frames alone, what the engine allocates and frees has no frame.
ENGINE: Stack = []


def at(line: int, *inner: Raw, name: str = "main") -> Stack:
    """A stack of the script's line, with what it calls, the innermost last."""
    return [*reversed(inner), frame(name, "/home/me/project/train.py", line)]


def layer(number: int) -> Stack:
    return [CALL, frame(f"layer{number}", "/home/me/project/model.py", number)]


class Job:
    """A trace that is written by its script's lines."""

    def __init__(self, trace: TraceBuilder | None = None) -> None:
        self.trace = trace or TraceBuilder().segment(1 << 30)

    def alloc(self, size: int, stack: Stack) -> int:
        self.trace.alloc(size, frames=stack)
        return int(self.trace.events[-1]["addr"])

    def free(self, addrs: Iterable[int], stack: Stack) -> None:
        for addr in addrs:
            self.trace.free(addr, frames=stack)

    def forward(
        self, line: int, sizes: Sequence[int], stack_of: Callable[[int], Stack] = layer
    ) -> list[int]:
        return [self.alloc(size, at(line, *stack_of(i))) for i, size in enumerate(sizes)]


GRAPH = [MIB * (1 + i) for i in range(8)]


def graph_of_before_the_trace(
    *,
    old: Sequence[int] = GRAPH,
    entries: int = 1,
    deletes: bool = False,
    freed_at: Stack | None = None,
    stack_of: Callable[[int], Stack] = layer,
) -> Job:
    """Line 20 calls the model, and line 21 makes the loss, whose old value keeps a graph of before the trace.

    ``entries``: as many such graphs were there. ``freed_at``: the stack that frees the oldest.
    ``deletes``: the script deletes the old loss before.
    """
    trace = TraceBuilder().segment(1 << 30, traced=False).alloc(20 * MIB, traced=False)
    before: list[int] = []
    for _ in range(entries):
        for size in old:
            trace.alloc(size, traced=False)
            before.append([*trace._live][-1])
    job = Job(trace)
    if deletes:
        job.free(before[: len(old)], at(19))
    job.forward(20, GRAPH, stack_of)
    job.alloc(512, at(21))
    if not deletes:
        job.free(before[: len(old)], at(21) if freed_at is None else freed_at)
    return job


# Where a collection may free memory: in backward, as backward begins, in zero_grad, at a line of
# the script.
COLLECTIONS = [ENGINE, at(15, *reversed(BACKWARD)), at(18)]
COLLECTOR = frame("gc_collect_main", "/usr/local/src/Python-3.12/Modules/gcmodule.c")


def steps_that_collect(
    collections: Sequence[Stack] = COLLECTIONS,
    *,
    every: int = 3,
    n: int = 11,
    frees: int | None = None,
) -> Job:
    """Steps whose line 7 makes 4 MiB each; ``every`` few steps what they left is freed at the next place.

    ``frees``: only the oldest of it. The last steps leave theirs.
    """
    job, waiting, places = Job(), list[int](), list(collections)
    job.alloc(MIB, at(8, PLACEMENT))
    for step in range(n):
        waiting.append(job.alloc(4 * MIB, at(12, frame("extra", "/home/me/project/state.py", 7))))
        loss = [*job.forward(13, [MIB // 2] * 2), job.alloc(512, at(13))]
        if places and step % every == every - 1:
            freed, waiting = waiting[:frees], waiting[len(waiting[:frees]) :]
            job.free(freed, places.pop(0))
        job.free(loss, ENGINE)
        job.trace.alloc(MIB, frames=ENGINE).free(frames=ENGINE)
        job.trace.alloc(MIB, frames=STEP).free(frames=STEP)
    return job
