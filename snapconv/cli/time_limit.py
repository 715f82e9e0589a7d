"""A limit for how long a text may be read, asked between its pieces."""

import time
from collections.abc import Callable

from snapconv.errors import InputError

MOST_SECONDS = 20.0


def time_limit(advice: str, *, seconds: float = MOST_SECONDS) -> Callable[[], None]:
    """Return a function that raises InputError, with a remedy, after so many seconds."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise InputError(
                f"the text was not read to its end in {seconds:.0f} s; pass less of it: {advice}"
            )

    return check
