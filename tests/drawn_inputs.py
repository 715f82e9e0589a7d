"""How many inputs a test draws by chance, and of which seed."""

import os

# Draws other cases than those of every run.
SEED = os.environ.get("SNAPCONV_SEED", "")


def drawn(n: int) -> int:
    """How many inputs a test draws: ``n`` of a seed of its own, as in scripts/test --all, else a third.

    Without one they are always the same, and a run that finds nothing in them finds nothing again.
    """
    return n if SEED or os.environ.get("SNAPCONV_ALL_INPUTS") else n // 3
