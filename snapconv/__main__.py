"""``python -m snapconv`` and the console script."""

import sys

from snapconv.cli.app import main


def run() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
