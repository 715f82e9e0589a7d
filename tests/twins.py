"""The two ways to read and replay a file: in the compiled core, and in Python. Both must say the same."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snapconv.errors import SnapconvError
from snapconv.native.library import VARIABLE, core
from snapconv.replay.device_replay import Curve, replay
from snapconv.snapshot import load
from snapconv.snapshot.readers.compiled_pickle import OddFile

needs_core = pytest.mark.skipif(core() is None, reason="this installation has no compiled core")


@contextmanager
def twin(mode: str) -> Iterator[None]:
    """Choose one of the two for a while: "no" or "require"."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = mode
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def plain(value: Any) -> Any:
    """Tables as values that == compares, with the types of their columns."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, Curve):
        return (value.start, plain(value.after), value.peak_event)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return value


def outcome(path: Path, mode: str) -> Any:
    """All tables and curves of a file, or its error."""
    with twin(mode):
        try:
            snapshot = load.load_snapshot(path)
        except SnapconvError as error:
            return f"{type(error).__name__}: {error}"
        return plain(snapshot), [plain(replay(snapshot, device)) for device in snapshot.devices]


def goes_through_core(path: Path) -> bool:
    """Whether the core reads a file itself, and does not leave it to the twin."""
    try:
        return bool(load._load(path, None, core()))
    except (OddFile, SnapconvError):
        return False


def assert_twins_agree(path: Path) -> Any:
    """Compare everything, and return what both say."""
    compiled, python = outcome(path, "require"), outcome(path, "no")
    # repr distinguishes what == does not: a NaN is itself, and True is not 1.
    assert repr(compiled) == repr(python)
    return python
