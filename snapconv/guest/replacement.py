"""An attribute of a module or class, replaced for a context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def replaced(
    holder: Any, name: str, replacement: Any, *, even_if_wrapped: bool = False
) -> Iterator[None]:
    """Replace an attribute for a context.

    Wrappers that others put around the replacement stay, unless ``even_if_wrapped``.
    """
    # vars() and not getattr: a class must lose again what it only inherited.
    original = vars(holder).get(name, _ABSENT)
    setattr(holder, name, replacement)
    try:
        yield
    finally:
        if even_if_wrapped or getattr(holder, name) is replacement:
            if original is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, original)
