"""Attributes replaced for a while, and put back as they were: also those that were not there."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

_ABSENT = object()


class Patches:
    """A pile of replaced attributes; leaving the context undoes them, last one first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Patches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute, or add one that the owner itself (not its bases) does not have."""
        # vars() and not getattr: a class must lose again what it only inherited.
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute that this torch has; do nothing where it has none of that name."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute by ``make(attribute)``; do nothing where there is none."""
        if hasattr(owner, name):
            self.set(owner, name, make(getattr(owner, name)))
