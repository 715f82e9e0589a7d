"""What a file is that is no snapshot of an allocator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """What was written, and what it ``lacks``, which a reader of its answers should know.

    ``kinds`` are those of its devices, in the order of its traces: one that the file does not name
    is called ``device``. ``n_before``: so many of its tensors were there before its first event.
    """

    title: str
    lacks: str
    writer: str = "torch.profiler"
    kinds: tuple[str, ...] = ("device",)
    n_before: int = 0
