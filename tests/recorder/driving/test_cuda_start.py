"""What waits for CUDA, against a stand-in for torch's queue."""

import os
import sys
from types import SimpleNamespace

import pytest

from snapconv.recorder.guard import Guard
from snapconv.recorder.interception import CudaStart


class Cuda(SimpleNamespace):
    """torch.cuda with a queue, which ``start`` runs as torch 2.13 does."""

    def __init__(self):
        self.queue, self.has_started = [], False
        super().__init__(is_initialized=lambda: self.has_started, _lazy_call=self.queue.append)

    def start(self):
        for call in self.queue:
            call()
        self.has_started = True


@pytest.fixture
def cuda(monkeypatch):
    torch = type(sys)("torch")
    torch.cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch.cuda


def test_the_work_is_done_when_cuda_starts_and_not_before(cuda):
    done = []
    start = CudaStart(Guard(), lambda: done.append("work"))
    start.wait()
    assert (done, start.is_done) == ([], False)
    cuda.start()
    assert (done, start.is_done) == (["work"], True)


def test_where_cuda_has_started_the_work_is_done_at_once(cuda):
    cuda.has_started = True
    start = CudaStart(Guard(), lambda: None)
    start.wait()
    assert start.is_done


def test_a_queue_that_runs_again_does_no_work_twice(cuda):
    done = []
    CudaStart(Guard(), lambda: done.append("work")).wait()
    cuda.start()
    cuda.start()  # torch does, where a call of somebody else's failed
    assert done == ["work"]


def test_a_failure_is_kept_and_does_not_reach_the_program(cuda):
    guard = Guard()
    start = CudaStart(guard, lambda: 1 / 0)
    start.wait()
    cuda.start()
    assert isinstance(guard.failure, ZeroDivisionError)
    assert not start.is_done


def test_what_was_interrupted_is_done_when_the_queue_runs_again(cuda):
    interrupts, done = [KeyboardInterrupt], []

    def work():
        if interrupts:
            raise interrupts.pop()
        done.append("work")

    CudaStart(Guard(), work).wait()
    with pytest.raises(KeyboardInterrupt):
        cuda.start()
    cuda.start()
    assert done == ["work"]


def test_a_forked_child_does_nothing_when_it_starts_cuda(cuda):
    start = CudaStart(Guard(), lambda: None)
    start.wait()
    pid = os.fork()
    if pid == 0:
        cuda.start()
        os._exit(1 if start.is_done else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_is_cancelled_is_not_done(cuda):
    start = CudaStart(Guard(), lambda: None)
    start.wait()
    start.cancel()
    cuda.start()
    assert not start.is_done
