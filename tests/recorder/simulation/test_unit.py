"""Parts of the simulation alone."""

from contextlib import suppress

import pytest

pytest.importorskip("torch")

from snapconv.recorder.guard import Guard
from snapconv.recorder.torch_surface import Feature
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
