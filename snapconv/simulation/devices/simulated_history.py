"""Allocator events -> the rings that ``torch.cuda.memory._snapshot()`` shows, under the user's settings.

Knows the arguments of ``_record_memory_history`` in both its signatures, and what each keeps.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from snapconv.allocator.allocator_trace import RecordedEvent
from snapconv.recorder.program.own_frames import for_program

_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


@dataclass(frozen=True, slots=True)
class _Kept:
    event: RecordedEvent
    user_metadata: str
    has_frames: bool

    def as_entry(self) -> dict[str, object]:
        entry = self.event.as_entry()
        entry["user_metadata"] = self.user_metadata
        if not self.has_frames:
            entry.pop("frames", None)
        return entry


class History:
    """What is recorded of all devices, from ``_record_memory_history`` on."""

    def __init__(self, n_devices: int) -> None:
        self.is_on = False
        self.has_cpp = False
        self.user_metadata = ""
        self._context = 0
        self._skipped: Collection[str] = ()
        self._rings: list[deque[_Kept]] = [deque() for _ in range(n_devices)]
        self._annotations: deque[dict[str, object]] = deque()

    @property
    def wants_allocation_frames(self) -> bool:
        """Whether an allocation's stack is kept, be it with the block only."""
        return self.is_on and self._context >= _CONTEXTS["state"]

    @property
    def wants_free_frames(self) -> bool:
        """Whether the stack of a free is kept."""
        return self.is_on and self._context >= _CONTEXTS["all"]

    def switch(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        *,
        clear_history: bool = False,
        skip_actions: Collection[str] = (),
    ) -> None:
        """Turn recording on or off, as torch 2.1 and later do.

        Off forgets the trace; "state" keeps a ring of one entry (torch/csrc/cuda/memory_snapshot.cpp).
        """
        if enabled not in (None, "state", "all"):
            raise for_program(RuntimeError("expected state to be 'state', 'all', or None"))
        if context not in _CONTEXTS:
            raise for_program(RuntimeError("expected context to be 'state', 'alloc', 'all', or None"))
        if stacks not in ("python", "all"):
            raise for_program(RuntimeError("expected stacks to be 'python', or 'all'"))
        self._start(
            is_on=enabled is not None,
            context=_CONTEXTS[context],
            has_cpp=stacks == "all",
            max_entries=max_entries if enabled == "all" else 1,
        )
        self._skipped = frozenset(skip_actions)
        if enabled is None or clear_history:
            self.clear()

    def switch_legacy(
        self,
        enabled: bool,  # noqa: FBT001  # torch's own positional signature
        record_context: bool,  # noqa: FBT001
        max_entries: int,
        trace_context: bool,  # noqa: FBT001
        has_cpp: bool,  # noqa: FBT001
    ) -> None:
        """Turn recording on or off with the arguments of torch 2.0, which are still accepted."""
        context = 0
        if record_context:
            context = _CONTEXTS["alloc"] if trace_context else _CONTEXTS["state"]
        self._start(is_on=bool(enabled), context=context, has_cpp=has_cpp, max_entries=max_entries)
        if not enabled:
            self.clear()

    def _start(self, *, is_on: bool, context: int, has_cpp: bool, max_entries: int) -> None:
        self.is_on, self.has_cpp = is_on, has_cpp
        self._context = context if is_on else 0
        size = max(min(max_entries, _LONGEST_RING), 1)
        self._rings = [deque(ring, maxlen=size) for ring in self._rings]
        self._annotations = deque(self._annotations, maxlen=size)

    def clear(self) -> None:
        """Forget every event and annotation."""
        for ring in self._rings:
            ring.clear()
        self._annotations.clear()

    def listen(self, device: int, event: RecordedEvent) -> None:
        """Keep one event if recording is on."""
        if self.is_on and event.action not in self._skipped:
            has_frames = self._context >= _CONTEXTS["alloc"]
            self._rings[device].append(_Kept(event, self.user_metadata, has_frames))

    def annotate(self, name: str, stage: str, *, device: int, time_us: int) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        if self.is_on:
            self._annotations.append({"name": name, "stage": stage, "device": device, "time_us": time_us})

    def traces(self) -> list[list[dict[str, object]]]:
        """List every device's events as torch's trace entries, oldest first."""
        return [[kept.as_entry() for kept in ring] for ring in self._rings]

    def annotations(self) -> list[dict[str, Any]]:
        """List the begins and ends of the ranges, oldest first."""
        return [dict(annotation) for annotation in self._annotations]


# sys.maxsize, torch's default, is more than a deque takes on some platforms.
_LONGEST_RING = 1 << 31
