"""How many inputs a test draws by chance, and of which seed."""

import os
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import pytest

Row = TypeVar("Row")

# Draws other cases than those of every run.
SEED = os.environ.get("SNAPCONV_SEED", "")
# scripts/test --all tries what is otherwise drawn, or proved in another way.
ALL_INPUTS = bool(os.environ.get("SNAPCONV_ALL_INPUTS"))


def drawn(n: int) -> int:
    """How many inputs a test draws: ``n`` of a seed of its own, as in scripts/test --all, else a third.

    Without one they are always the same, and a run that finds nothing in them finds nothing again.
    """
    return n if SEED or ALL_INPUTS else n // 3


def sample(rows: Sequence[Row], n: int, *, n_with_all: int | None = None) -> list[Row]:
    """Draw ``n`` of many rows for a test that repeats on each what another shows of all.

    scripts/test --all takes every row, or ``n_with_all`` where all of them would take an hour.
    """
    if ALL_INPUTS:
        n = n_with_all or len(rows)
    return random.Random(f"{SEED} of {len(rows)} rows").sample(rows, min(n, len(rows)))


def named(rows: Mapping[str, tuple[Any, ...]], *, always: Collection[str]) -> list[Any]:
    """Return a test's parameters by their names; only those of ``always`` are no long tests."""
    return [
        pytest.param(*row, id=name, marks=() if name in always else pytest.mark.long)
        for name, row in rows.items()
    ]
