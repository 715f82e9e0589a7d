"""Random numbers on simulated devices: a generator for each, beside the CPU's, as on a GPU.

The numbers are those that the CPU's algorithm draws, with a state of their own: what a program
draws on the CPU does not depend on what its devices draw.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches


class DeviceGenerators:
    """The default generators of all devices."""

    def __init__(self, n_devices: int) -> None:
        # torch seeds devices later by a seed that the program gave before CUDA started.
        seed = torch.initial_seed()
        self.generators = tuple(
            torch.Generator().manual_seed(seed) for _ in range(n_devices)
        )

    @contextmanager
    def drawing_from(self, device: int) -> Iterator[None]:
        """Let operations that name no generator draw from a device's, and not from the CPU's."""
        # An operation may not take a generator: so the states change places.
        default = torch.default_generator
        state_of_cpu = default.get_state()
        default.set_state(self.generators[device].get_state())
        try:
            yield
        finally:
            self.generators[device].set_state(default.get_state())
            default.set_state(state_of_cpu)


def patch_generators(
    machine: Machine, device_generators: DeviceGenerators, patches: Patches
) -> None:
    """Replace torch.Generator, and what torch.cuda seeds, saves and restores."""
    patches.set(torch, "Generator", _generator_class(machine))
    patches.set(torch.cuda, "default_generators", device_generators.generators)


def _generator_class(machine: Machine) -> type:
    """Make a torch.Generator that takes a CUDA device, and computes as the CPU's does."""
    real = torch.Generator

    class OfAnyKind(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            # torch.default_generator is older than this class.
            return (
                isinstance(value, real)
                if cls is Generator
                else super().__instancecheck__(value)
            )

    class Generator(real, metaclass=OfAnyKind):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            generator = super().__new__(cls, device="cpu")
            generator._named_device = torch.device(device)
            return generator

        @property
        def device(self) -> Any:
            index = machine.ordinal(self._named_device)
            return self._named_device if index is None else torch.device("cuda", index)

    return Generator
