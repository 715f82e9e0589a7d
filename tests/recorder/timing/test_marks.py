"""Marks on a GPU's clock: events that are used again, and whether the device waited for the host.

There is no GPU here: events and streams are stood in for, and the device's time is set by hand.
"""

import os

import pytest

torch = pytest.importorskip("torch")

from snapconv.recorder.timing.marks import CpuClock, CudaClock  # noqa: E402
from snapconv.recorder.timing.timer import Timer  # noqa: E402  # only where torch is
from tests.recorder.timing.timed import HERE  # noqa: E402


class Device:
    """A GPU that reaches an event when a test says so; every event is a millisecond after the one before."""

    def __init__(self):
        self.n_created = 0
        self.n_recorded = 0
        self.n_reached = 0
        self.lags = False
        self.streams = []

    def event(self, *, enable_timing):
        assert enable_timing
        self.n_created += 1
        return Event(self)

    def synchronize(self, device):
        assert device == 3
        self.n_reached = self.n_recorded


class Event:
    def __init__(self, device):
        self.device = device
        self.number = None

    def record(self, stream):
        self.device.streams.append(stream)
        self.device.n_recorded += 1
        self.number = self.device.n_recorded
        if not self.device.lags:
            self.device.n_reached = self.number

    def query(self):
        return self.number <= self.device.n_reached

    def elapsed_time(self, other):
        assert other.query(), "read before the device was there"
        return float(other.number - self.number)


@pytest.fixture
def device(monkeypatch):
    fake = Device()
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    monkeypatch.setattr(torch.cuda, "synchronize", fake.synchronize)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    return fake


W = torch.ones(4, requires_grad=True)


def timed(n):
    timer = Timer(device=3, clock="cuda", project_root=HERE, module_path=lambda module: None)
    with timer:
        for number in range(n):
            timer.begin(number)
            (W * 2).sum().backward()
            timer.end()
    return timer.trace()


def test_the_processors_marks_are_milliseconds_apart():
    clock = CpuClock()
    assert clock.ms(1_000_000, 3_500_000) == 2.5
    assert 0 <= clock.ms(clock.mark(), clock.mark()) < 1000


def test_events_are_recorded_on_the_devices_current_stream(device):
    timed(1)
    assert set(device.streams) == {"stream of 3"}


def test_events_are_used_again_in_the_next_iteration(device):
    timed(1)
    n_for_one = device.n_created
    device.n_created = 0
    timed(5)
    assert device.n_created == n_for_one


def test_marks_are_read_after_the_device_has_come_past_them(device):
    device.lags = True  # reading an event too early fails, see Event
    trace = timed(2)
    assert all(ms > 0 for ms in trace["calls"]["forward_ms"])
    assert (trace["clock"], trace["simulated"], trace["device_name"]) == ("cuda", False, "GPU 3")


@pytest.mark.parametrize(("lags", "n_waited_for"), [(False, 2), (True, 0)])
def test_a_call_was_waited_for_if_the_device_came_to_it_before_it_was_all_queued(
    device, lags, n_waited_for
):
    device.lags = lags
    launch_bound = timed(1)["launch_bound"]
    assert launch_bound["forward"]["n"] == 2
    assert launch_bound["forward"]["n_waited_for"] == n_waited_for
    # Of two nodes, only what comes after the first shows whether that was all queued.
    assert launch_bound["backward"]["n"] == 2
    assert launch_bound["backward"]["n_waited_for"] == n_waited_for // 2


def test_the_processors_clock_knows_nothing_of_launches():
    timer = Timer(device=0, clock="cpu", project_root=HERE, module_path=lambda module: None)
    with timer:
        timer.begin(0)
        (W * 2).sum().backward()
        timer.end()
    trace = timer.trace()
    assert trace["launch_bound"] is None
    assert trace["simulated"]


@pytest.mark.parametrize("what", ["a forked child", "a CUDA graph is captured"])
def test_where_cuda_refuses_it_nothing_is_marked(device, monkeypatch, what):
    timer = Timer(device=3, clock="cuda", project_root=HERE, module_path=lambda module: None)
    pid = os.getpid()
    with timer:
        timer.begin(0)
        n_recorded = device.n_recorded
        with monkeypatch.context() as patch:
            if what == "a forked child":
                patch.setattr(os, "getpid", lambda: pid + 1)
            else:
                patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            (W * 2).sum().backward()
            torch.optim.SGD([W]).step()
        assert device.n_recorded == n_recorded
        W.exp()
        timer.end()
    assert timer.trace()["calls"]["name"] == ["exp"]


def test_threads_of_the_engine_may_take_the_last_event_from_each_other(device):
    class Taken(list):
        """Between the look and the taking another thread came."""

        def __bool__(self):
            return True

    clock = CudaClock(3)
    clock._free = Taken()
    assert clock.mark() is not None
