"""``python -m snapconv`` and the console script."""

import gc
import os
import signal
import sys


def run() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:2] not in (
        ["record"],
        ["watch"],
    ):  # a program that runs here finds all as without us
        # Nothing of ours multiplies matrices, and every thread that NumPy would start for it takes
        # 8 MiB.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from snapconv.cli.app import main

        exit_code = main()
    except KeyboardInterrupt:  # before the command line hears of it
        exit_code = 130
    if "snapconv.recorder" not in sys.modules:  # a program that ran here ends as it does without us
        # else the interpreter looks for garbage in all that is there before it frees it
        gc.freeze()
        if (
            exit_code > 128
        ):  # stopped: who presses Ctrl-C twice needs no traceback of the interpreter's end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)


if __name__ == "__main__":
    run()
