"""Which storages lie on a simulated device, and where.

Every storage of the simulation is an ordinary CPU storage; lying on a device is a note about it here,
which lasts as long as the storage does.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from snapconv.recorder.observe.tensors import Location


@dataclass(slots=True, eq=False)
class Placement:
    """One storage: its device (None for the CPU), its address there, and whether its values are computed.

    ``is_own_memory`` is False for one without memory, whose zeros are shared by all such storages.
    """

    device: int | None
    addr: int
    n_bytes: int
    has_values: bool
    is_own_memory: bool = True
    reference: Any = None


class Placements:
    """The placed storages, found by the identity of the storage that a tensor views."""

    def __init__(self, when_freed: Callable[[Placement], None]) -> None:
        from torch import _C

        self._storage_id = getattr(_C, "_storage_id", _storage_id)
        self._sparse, self._values = _sparse_layout()
        functorch = getattr(_C, "_functorch", None)
        self._is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", lambda _: False)
        self._unwrapped = getattr(functorch, "get_unwrapped", lambda tensor: tensor)
        self._when_freed = when_freed
        self._by_id: dict[int, Placement] = {}
        self._is_open = True

    def of(self, tensor: Any) -> Placement | None:
        """Return a tensor's placement; None for a plain CPU tensor, or one without a storage."""
        try:
            return self._by_id.get(self._storage_id(tensor))
        except RuntimeError:  # wrappers have no storage of their own, and sparse tensors those of their parts
            if self._is_wrapped(tensor):  # by torch.func, as vmap does
                return self.of(self._unwrapped(tensor))
            return self.of(self._values(tensor)) if tensor.layout is self._sparse else None

    def key(self, tensor: Any) -> int | None:
        """Return what all views of the same memory have in common; None for a tensor without a storage."""
        try:
            return int(self._storage_id(tensor))
        except RuntimeError:
            return None

    def of_storage(self, storage: Any) -> Placement | None:
        """Return a storage's placement; None for one on the CPU."""
        placement = self._by_id.get(storage._cdata)
        return None if placement is None or placement.device is None else placement

    def add(self, storage: Any, placement: Placement) -> None:
        """Note a storage's placement, until the storage dies."""
        key = storage._cdata
        self._by_id[key] = placement

        def forget(_: object) -> None:
            if self._is_open and self._by_id.get(key) is placement:
                del self._by_id[key]
                self._when_freed(placement)

        # torch keeps a storage's Python object for as long as its memory lives, so that this is called
        # when the memory is freed (checked with 2.13).
        placement.reference = weakref.ref(storage, forget)

    def close(self) -> None:
        """Forget everything; tensors that are still alive count as CPU tensors from here on."""
        self._is_open = False
        self._by_id.clear()

    def locate(self, tensor: Any) -> Location | None:
        """Answer ``snapconv.recorder.observe.tensors.locate`` for the simulated devices."""
        placement = self.of(tensor)
        if placement is None or placement.device is None:
            return None
        return Location(placement.device, placement.addr, placement.n_bytes)


def _storage_id(tensor: Any) -> int:
    """Return what torch._C._storage_id does, where there is none."""
    return int(tensor.untyped_storage()._cdata)


def _sparse_layout() -> tuple[Any, Callable[[Any], Any]]:
    """Return torch's sparse layout, and a function for the values of such a tensor, unseen by modes."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def values(tensor: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return tensor._values()

    return torch.sparse_coo, values


def tensors_in(values: Iterable[Any], tensor_type: type) -> Iterator[Any]:
    """List the tensors among arguments, also those in lists, tuples and dicts."""
    for value in values:
        if isinstance(value, tensor_type):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value, tensor_type)
        elif isinstance(value, dict):
            yield from tensors_in(value.values(), tensor_type)
