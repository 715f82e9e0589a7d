"""Event rings of the simulated allocators: what is recorded of them, as torch's traces have it."""

from collections import deque
from collections.abc import Collection
from threading import get_ident
from typing import Any

from snapconv.allocator.allocator_trace import RecordedEvent
from snapconv.guest.own_frames import for_program

_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


def current_thread() -> int:
    """Return the number of the thread that would run this beside a GPU; -1: autograd's."""
    import torch

    return -1 if torch._C._current_graph_task_id() >= 0 else get_ident()


class EventRings:
    """What is recorded of all devices, from ``_record_memory_history`` on."""

    def __init__(self, n_devices: int) -> None:
        self.is_on = False
        self.has_cpp = False
        # What each thread has set. Autograd's thread, where there is a GPU, has the key -1: here
        # backward runs in the thread that called it.
        self._user_metadata: dict[int, str] = {}
        self._context = 0
        self._skipped: Collection[str] = ()
        # Each event with the metadata that the user had set, and whether its frames are kept.
        self._rings: list[deque[tuple[RecordedEvent, str, bool]]] = [
            deque() for _ in range(n_devices)
        ]
        self._annotations: deque[dict[str, object]] = deque()

    def wants(self, context: str) -> bool:
        """Return whether stacks are captured at this context level."""
        return self.is_on and self._context >= _CONTEXTS[context]

    def switch(  # torch's signature
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,  # noqa: FBT001, FBT002
        compile_context: bool = False,  # noqa: FBT001, FBT002
        global_record_annotations: bool = False,  # noqa: FBT001, FBT002
        skip_actions: Collection[str] = (),
        record_pinned_host_memory: bool = False,  # noqa: FBT001, FBT002
        record_cuda: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Turn recording on or off: off forgets the trace, "state" keeps a ring of one entry.

        As torch/csrc/cuda/memory_snapshot.cpp does. Refuses the history of pinned host memory
        (torch 2.14), which has no model.
        """
        if record_pinned_host_memory:
            message = "record_pinned_host_memory is not modelled by the simulated device"
            raise for_program(NotImplementedError(message))
        if not record_cuda:
            enabled = None
        takes_enabled = enabled in (None, "state", "all")
        takes_stacks = stacks in ("python", "all")
        if not (takes_enabled and takes_stacks and context in _CONTEXTS):
            message = (
                "expected enabled to be 'state', 'all' or None, context 'state', "
                "'alloc', 'all' or None"
            )
            raise for_program(RuntimeError(f"{message}, and stacks 'python' or 'all'"))
        self.is_on = enabled is not None
        self.has_cpp = stacks == "all"
        self._context = _CONTEXTS[context] if self.is_on else 0
        self._skipped = frozenset(skip_actions)
        # sys.maxsize, torch's default, is more than a deque takes on some platforms.
        size = max(min(max_entries, 1 << 31), 1) if enabled == "all" else 1
        self._rings = [deque(ring, maxlen=size) for ring in self._rings]
        self._annotations = deque(self._annotations, maxlen=size)
        if enabled is None or clear_history:
            self._annotations.clear()
            for ring in self._rings:
                ring.clear()

    def listen(self, device: int, event: RecordedEvent) -> None:
        """Keep one event if recording is on."""
        if self.is_on and event.action not in self._skipped:
            has_frames = self._context >= _CONTEXTS["alloc"]
            self._rings[device].append((event, self.user_metadata(), has_frames))

    def user_metadata(self) -> str:
        """Return the text that the current thread has set for its events."""
        # No thread is asked for where no text was ever set: most programs set none.
        return self._user_metadata.get(current_thread(), "") if self._user_metadata else ""

    def set_user_metadata(self, text: str) -> None:
        """Set the text of the current thread's events from here on."""
        self._user_metadata[current_thread()] = text

    def annotate_block(self, device: int, event: RecordedEvent, text: str) -> None:
        """Keep an annotation of a block that exists, with the annotation's own text."""
        if self.is_on and event.action not in self._skipped:
            has_frames = self._context >= _CONTEXTS["alloc"]
            self._rings[device].append((event, text, has_frames))

    def annotate(self, name: str, stage: str, *, device: int, time_us: int) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        if self.is_on:
            self._annotations.append(
                {"name": name, "stage": stage, "device": device, "time_us": time_us}
            )

    def traces(self) -> list[list[dict[str, object]]]:
        """List every device's events as torch's trace entries, oldest first."""
        traces: list[list[dict[str, object]]] = [[] for _ in self._rings]
        for trace, ring in zip(traces, self._rings, strict=True):
            for event, user_metadata, has_frames in ring:
                trace.append(event.as_entry() | {"user_metadata": user_metadata})
                if not has_frames:
                    trace[-1].pop("frames", None)
        return traces

    def annotations(self) -> list[dict[str, Any]]:
        """List the begins and ends of the ranges, oldest first."""
        return [dict(annotation) for annotation in list(self._annotations)]
