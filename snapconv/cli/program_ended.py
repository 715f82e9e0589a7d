"""How a command ends that has run a program of the user."""

import atexit
from contextlib import ExitStack


class ProgramEnded(Exception):
    """The program is over, and ``exit_code`` is to be the exit code of the command line.

    ``until_exit`` is closed when the process ends; whoever lives on after the command closes it before.
    """

    def __init__(self, exit_code: int, until_exit: ExitStack | None = None) -> None:
        super().__init__(exit_code)
        self.exit_code, self._until_exit = exit_code, until_exit

    def close(self) -> None:
        """End what would last until the process does."""
        if self._until_exit is not None:
            atexit.unregister(self._until_exit.close)
            self._until_exit.close()
