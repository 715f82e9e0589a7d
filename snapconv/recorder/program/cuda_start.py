"""The moment in which torch starts CUDA: what waits for it is done then, and never before.

A program sets up its own environment first: ``CUDA_VISIBLE_DEVICES`` and the allocator's settings are read
when CUDA starts. So nothing here starts it.
"""

from collections.abc import Callable

from snapconv.recorder.guard import Guard


class CudaStart:
    """A piece of work that is done once, as soon as torch has started CUDA in this process.

    torch calls it before the first allocation: whatever needs the device goes through
    ``torch.cuda._lazy_init``, which runs what was queued (torch 2.1 to 2.15). What goes wrong in there would
    become the program's ``DeferredCudaCallError``, and a forked child inherits the queue; the guard keeps
    failures and does nothing in a child. Whoever starts CUDA again after a failure of somebody else's call
    runs the queue again from its beginning, hence the "once".
    """

    def __init__(self, guard: Guard, work: Callable[[], None]) -> None:
        self._guard = guard
        self._work: Callable[[], None] | None = work
        self.is_done = False

    def wait(self) -> None:
        """Do the work when CUDA starts, or now where it has started already."""
        import torch

        if torch.cuda.is_initialized():
            self._run()
        else:
            torch.cuda._lazy_call(self._run)  # it keeps this object for as long as the process lives

    def cancel(self) -> None:
        """Do nothing any more when CUDA starts."""
        self._work = None

    def _run(self) -> None:
        if self._work is not None and not self.is_done:
            self._guard.run(self._do, self._work)

    def _do(self, work: Callable[[], None]) -> None:
        work()
        self.is_done = True
