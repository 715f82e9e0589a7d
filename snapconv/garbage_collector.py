"""Python's cyclic collector, switched off where it would look for garbage and find none."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch it off, and back as it was: while a file is read, and while a command runs.

    It would walk the millions of dictionaries of a file again and again; and a small file takes a sixth
    longer with it, as imports make many objects and leave none behind.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def collector_on() -> Iterator[None]:
    """Switch it on, and back as it was: while a program runs that knows nothing of us."""
    was_on = gc.isenabled()
    gc.enable()
    try:
        yield
    finally:
        if not was_on:
            gc.disable()
