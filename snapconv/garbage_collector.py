"""Python's cyclic collector, switched off where it would look for garbage and find none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch it off, and on again if it was on: while a file is read, and while a command imports.

    It would walk the millions of dictionaries of a file again and again; with it, a small file takes 15 %
    longer, as imports make many objects and leave none behind.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
