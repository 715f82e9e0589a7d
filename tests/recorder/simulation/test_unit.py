"""Parts of the simulation alone."""

import time
from contextlib import suppress

import pytest

pytest.importorskip("torch")

from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.recorder.guard import Guard
from snapconv.recorder.torch_surface import Feature
from snapconv.simulation.machine import Clock, out_of_memory_message
from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import workspace_bytes

MIB = 1 << 20


class Owner:
    there = 1


class Derived(Owner):
    pass


def test_patches_put_back_what_was_there_and_take_away_what_was_not():
    with suppress(KeyError), Patches(Guard(Feature.SIMULATION)) as patches:
        patches.set(Owner, "there", 2)
        patches.set(Owner, "there", 3)
        patches.set(Owner, "added", 4)
        patches.set(Derived, "there", 5)
        assert (Owner.there, Owner.added, Derived.there) == (3, 4, 5)
        raise KeyError

    assert Owner.there == 1
    assert not hasattr(Owner, "added")
    assert "there" not in vars(Derived)


def test_what_is_not_there_is_not_wrapped():
    with Patches(Guard(Feature.SIMULATION)) as patches:
        patches.wrap(Owner, "absent", lambda real: real)
        patches.set_existing(Owner, "absent", 1)
        assert not hasattr(Owner, "absent")


@pytest.mark.parametrize(
    ("config", "n_bytes"),
    [
        ("", 32 * MIB),
        (":4096:2:16:8", (2 * 4096 + 8 * 16) * 1024),
        (":16:8", 128 * 1024),
        ("nonsense", 32 * MIB),
    ],
)
def test_the_workspace_is_the_sum_of_its_chunks(config, n_bytes):
    assert workspace_bytes(config) == n_bytes


def test_the_clock_is_the_epochs_and_never_goes_back():
    clock = Clock()
    readings = [clock() for _ in range(1000)]

    assert readings == sorted(readings)
    assert abs(readings[-1] - time.time_ns() // 1000) < 1_000_000


def test_the_message_writes_sizes_as_torch_does():
    error = ModelOutOfMemory(
        segment_bytes=20 * MIB,
        capacity=80 << 30,
        free_bytes=512,
        allocated_bytes=79 << 30,
        reserved_bytes=(80 << 30) - 512,
    )
    message = out_of_memory_message(error, device=3)

    assert (
        "Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 80.00 GiB of which 512 bytes is free"
        in message
    )
    assert (
        "79.00 GiB is allocated by PyTorch, and 1024.00 MiB is reserved by PyTorch but unallocated" in message
    )
