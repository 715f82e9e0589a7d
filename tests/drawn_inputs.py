"""How many inputs a test draws by chance, and of which seed."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

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


def sample(rows: Sequence[Row], n: int) -> list[Row]:
    """Draw ``n`` of many rows for a test that repeats on each what another shows of all.

    scripts/test --all takes every row.
    """
    if ALL_INPUTS:
        return list(rows)
    return random.Random(f"{SEED} of {len(rows)} rows").sample(rows, min(n, len(rows)))
