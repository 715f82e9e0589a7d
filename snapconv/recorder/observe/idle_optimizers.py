"""Whether a program updates the parameters of its optimizers itself, and never steps these."""

import weakref
from typing import Any

# Sharpness-aware minimisation writes parameters between two passes once, and steps an optimizer after these.
_ENOUGH = 2


class IdleOptimizers:
    """Optimizers of which none has stepped, and what becomes of their parameters between backward passes.

    Several passes before the first step are no sign alone: gradients may be accumulated, which leaves
    parameters as they are. A write through ``.data`` is not seen: torch counts no version for it.
    """

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []
        self._versions: dict[int, int] | None = None
        self._n_updates = 0

    def add(self, optimizer: Any) -> None:
        """Watch one more; what was seen of the others counts no longer."""
        self._optimizers.append(weakref.ref(optimizer))
        self._versions, self._n_updates = None, 0

    def clear(self) -> None:
        """Watch none of them any more: one steps."""
        self._optimizers.clear()

    def are_bypassed(self) -> bool:
        """Whether two updates were made without them, or none exists any more; once before each backward."""
        if not self._optimizers:
            return False
        try:
            before, self._versions = self._versions, _versions_of(self._optimizers)
        except Exception:  # noqa: BLE001  # not ours to report: groups may hold anything, a lazy parameter too
            self.clear()
            return False
        if before is not None:
            none_exists = all(reference() is None for reference in self._optimizers)
            written = (before.get(number, now) != now for number, now in self._versions.items())
            self._n_updates += none_exists or any(written)
        return self._n_updates >= _ENOUGH


def _versions_of(optimizers: "list[weakref.ref[Any]]") -> dict[int, int]:
    """How often each parameter was written, by its identity; inference tensors count nothing."""
    return {
        id(tensor): tensor._version
        for reference in optimizers
        for group in getattr(reference(), "param_groups", ())
        for tensor in group["params"]
        if not tensor.is_inference()
    }
