"""Imports without the cyclic collector, which would look for garbage where there is none.

A small file takes 15 % longer with it: importing makes many objects, and leaves none behind.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Switch the collector off for the imports of a command, and on again if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
