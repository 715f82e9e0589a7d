"""The same as ``as_script.py``, with the end of every iteration marked, where it cannot be seen."""

import sys

from as_script import run

import snapconv

run(sys.argv[1], int(sys.argv[2]), on_end=snapconv.step)
