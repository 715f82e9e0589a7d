"""Kernels of our own in torch's dispatcher, for as long as a simulation runs.

The dispatcher and not Python: so they hold for C++ callers too, and in every thread.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

MakeKernel = Callable[[Any, Any], Callable[..., Any]]


class Kernels:
    """Kernels added to torch's own operations; leaving the context takes them out again."""

    def __enter__(self) -> "Kernels":
        import torch

        self._torch = torch
        self._library = torch.library.Library("aten", "IMPL")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        destroy = getattr(self._library, "_destroy", None)
        if destroy is not None:
            destroy()
        del self._library  # where there is no _destroy, this does it

    def add(self, name: str, key: str, make: MakeKernel) -> None:
        """Register ``make(operation, torch)`` unless this torch has a kernel there, or no such operation."""
        packet_name, _, overload = name.partition(".")
        packet = getattr(self._torch.ops.aten, packet_name, None)
        operation = getattr(packet, overload or "default", None)
        if operation is None:
            return
        if self._torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
            return
        self._library.impl(name, make(operation, self._torch), key)
