"""Our own work inside somebody else's program: it must neither break theirs nor run twice."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Guard:
    """Runs our work: in the process that made it only, and with our failures kept, not thrown.

    ``failure`` is the first of them. After it nothing more is run: what it left is not to be trusted.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.failure: Exception | None = None

    @property
    def is_child(self) -> bool:
        """Whether this is a forked child of the process that records."""
        return os.getpid() != self._pid

    def run(self, work: Callable[..., _Result], /, *arguments: Any) -> _Result | None:
        """Do a piece of work; None where it failed, or may not run.

        Only Exceptions are kept: Ctrl-C and the like are meant for the program.
        """
        if self.failure is not None or self.is_child:
            return None
        try:
            return work(*arguments)
        except Exception as failure:  # noqa: BLE001  # whatever it is, it is not theirs
            self.failure = failure
            return None
