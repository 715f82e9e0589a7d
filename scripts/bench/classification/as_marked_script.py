"""The same as ``as_script.py``, for a program whose iterations nothing shows: its text marks their ends."""

from as_script import run

import snapconv

run(on_end=snapconv.step)
