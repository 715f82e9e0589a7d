"""``python -m snapconv`` and the console script."""

import gc
import os
import signal
import sys
from types import TracebackType

# Shells add it to the number of the signal that ended a program.
_BY_SIGNAL = 128


def run() -> None:
    """Run the command line and leave with its exit code."""
    # A program of the user finds all as without us.
    if sys.argv[1:2] not in (["record"], ["watch"]):
        # Nothing of ours multiplies matrices, and every thread that NumPy would start for it takes
        # 8 MiB.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        sys.excepthook = _print_all_but_interrupts
    try:
        from snapconv.cli.app import main

        exit_code = main()
    except KeyboardInterrupt:  # before the command line hears of it
        exit_code = _BY_SIGNAL + signal.SIGINT
    # A program that ran here ends as it does without us.
    if "snapconv.recorder" not in sys.modules:
        # else the interpreter looks for garbage in all that is there before it frees it
        gc.freeze()
        # Who presses Ctrl-C twice needs no traceback of the interpreter's end.
        if exit_code > _BY_SIGNAL:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)


def _print_all_but_interrupts(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Print an exception that nothing caught, unless it is a Ctrl-C while this process ends."""
    if not isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if __name__ == "__main__":
    run()
