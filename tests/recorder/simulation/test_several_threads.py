"""What a simulated job does on several threads: no allocation is made twice, or never."""

import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions
from snapconv.simulation.blas_workspaces import BlasWorkspaces
from snapconv.simulation.machine import Machine
from snapconv.simulation.placements import Placement
from snapconv.simulation.transfers import Transfers

SCATTER = SimpleNamespace(name="index_put")


class CountingMachine:
    """Gives addresses, and fails where it is told to."""

    def __init__(self):
        self.n_made, self.fails = 0, False

    def frames(self):
        return None

    def malloc(self, _device, _n_bytes, _frames):
        if self.fails:
            raise RuntimeError("full")
        self.n_made += 1
        return 4096


@pytest.fixture
def machine():
    return CountingMachine()


@pytest.fixture
def transfers(machine):
    """Every operand is its own placement, and a backward is running."""
    transfers = Transfers(machine, SimpleNamespace(of=lambda operand: operand))
    transfers._graph_task, transfers._is_grad_enabled = lambda: 0, lambda: False
    return transfers


def placed(addr=0):
    return Placement(0, addr, 512, has_values=False)


def deferred(transfers, operand):
    result = placed()
    assert transfers.defer_allocation(SCATTER, [operand], result)
    return result


def on_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("is_other", [False, True])
def test_an_operation_of_the_same_thread_decides_and_of_another_not(transfers, machine, is_other):
    operand = placed(512)
    result = deferred(transfers, operand)
    on_another_thread(transfers.allocate_deferred) if is_other else transfers.allocate_deferred()
    assert transfers.take_over(operand) == is_other
    assert (result.addr, machine.n_made) == ((512, 0) if is_other else (4096, 1))


def test_what_another_thread_uses_is_allocated(transfers, machine):
    result, unused = deferred(transfers, placed(512)), placed(512)
    transfers.allocate_if_deferred([result])
    assert machine.n_made == 0
    on_another_thread(lambda: transfers.allocate_if_deferred([unused, None]))
    assert machine.n_made == 0
    on_another_thread(lambda: transfers.allocate_if_deferred([result, unused]))
    assert (result.addr, machine.n_made) == (4096, 1)


def test_a_failure_is_raised_in_the_thread_that_deferred(transfers, machine):
    deferred(transfers, placed(512))
    machine.fails = True
    raised = []

    def settle():
        transfers._machine.allocate_all_deferred()
        try:
            transfers.raise_deferred_error()
        except RuntimeError as error:
            raised.append(error)

    on_another_thread(settle)
    assert not raised
    with pytest.raises(RuntimeError, match="full"):
        transfers.raise_deferred_error()
    transfers.raise_deferred_error()  # once


def test_of_many_threads_one_allocates(transfers, machine):
    n_deferred, before = 300, sys.getswitchinterval()

    def work():
        for _ in range(n_deferred):
            deferred(transfers, placed(512))
            transfers._machine.allocate_all_deferred()

    threads = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert machine.n_made == 4 * n_deferred


def test_a_snapshot_is_taken_while_another_thread_enters_ranges():
    machine, is_over = Machine(SimulationOptions()), threading.Event()
    machine.history.switch("all", "all", "python", 10_000)
    for _ in range(5_000):
        machine.annotate("range", "START")

    def enter_ranges():
        while not is_over.is_set():
            machine.annotate("range", "START")

    thread, before = threading.Thread(target=enter_ranges), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(20):
            assert len(machine.snapshot()["external_annotations"]) >= 5_000
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        thread.join()


def test_every_thread_has_a_workspace_and_all_backwards_of_a_device_share_one():
    machine = Machine(SimulationOptions())
    workspaces = BlasWorkspaces(machine)

    def n_made():
        return machine.memory_stats(0)["allocation"]["all"]["current"]

    def multiply():
        for in_backward in (False, True, False, True):
            workspaces._graph_task = lambda now=in_backward: 0 if now else -1
            workspaces.note("mm", 0)

    multiply()
    assert n_made() == 2
    on_another_thread(multiply)
    assert n_made() == 3
