"""The end of a program of the user, which runs in the process of its command."""

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class ProgramEnded(Exception):
    """The program is over, and ``exit_code`` is to be the exit code of the command line.

    ``lifetime`` is closed when the process ends; whoever lives on after the command closes it
    before.
    """

    def __init__(self, exit_code: int, lifetime: ExitStack | None = None) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self._lifetime = lifetime

    def close(self) -> None:
        """End what would last until the process does."""
        if self._lifetime is not None:
            atexit.unregister(self._lifetime.close)
            self._lifetime.close()


@contextmanager
def lasting_until_exit() -> Iterator[ExitStack]:
    """Yield a stack that is closed after the program's own functions of ``atexit``.

    The function that is registered first is called last. An error closes the stack at once.
    """
    lifetime = ExitStack()
    atexit.register(lifetime.close)
    try:
        yield lifetime
    except BaseException:
        lifetime.close()
        raise
