"""How long work reports its progress. Imports nothing from snapconv."""

from collections.abc import Callable

# What is being done, how much of it is done, and how much there is: ("reading", 3, 10).
Progress = Callable[[str, int, int], None]
