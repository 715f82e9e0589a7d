"""A curve in one line of a terminal: the most of every part of it, so that no spike is lost."""

import numpy as np

from snapconv.columns import Int64Column, distinct

_LEVELS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Int64Column, *, width: int = 60) -> str:
    """Draw values from 0 to their greatest in at most so many characters; empty where there are none."""
    if not len(values):
        return ""
    starts = distinct(np.linspace(0, len(values), min(width, len(values)), endpoint=False).astype(np.int64))
    most = np.maximum.reduceat(values, starts)
    greatest = int(most.max())
    if greatest <= 0:
        return ""
    # Only nothing looks like nothing.
    levels = np.ceil(np.clip(most, 0, None) / greatest * (len(_LEVELS) - 1)).astype(np.int64)
    return "".join(_LEVELS[level] for level in levels.tolist())
