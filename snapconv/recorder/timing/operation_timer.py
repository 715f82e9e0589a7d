"""The times of a script's operations: one row per outermost torch call, forward and backward.

Nothing is run twice, and nothing is kept: marks are put before and after every call, and into
autograd's graph, and read when the iteration is over. docs/design/timing.md explains the figures.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from snapconv.recorder.function_modes import modes_now
from snapconv.recorder.guard import Guards
from snapconv.recorder.program.own_frames import calls_original
from snapconv.recorder.timing import timing_patches
from snapconv.recorder.timing.timing_iteration import Iteration
from snapconv.recorder.timing.timing_marks import empty_pair_ms, make_clock
from snapconv.recorder.timing.timing_stacks import StackRecorder
from snapconv.recorder.timing.timing_trace import Columns, ModulePath, tile
from snapconv.recorder.torch_surface import Feature
from snapconv.version import VERSION

SCHEMA_VERSION = 1


class Timer:
    """Times the iterations between ``begin`` and ``end``; changes no result and no allocation.

    A context manager, entered before the user's code defines anything and left after it. Between timed
    iterations only a check of one variable runs, in ``Function.apply``, in compiled functions and in the
    hooks of optimizers.
    """

    def __init__(
        self,
        *,
        device: int,
        clock: str,
        project_root: Path,
        module_path: ModulePath,
        guards: Guards | None = None,
    ) -> None:
        self._clock_name, self._guards = clock, guards or Guards()
        self.use_device(device)
        self._project_root = project_root
        self._module_path = module_path
        self._stacks: StackRecorder | None = None
        # Of the iterations that are timed, and of the warm-up, for a program that ends with it.
        self._columns: Columns | None = None
        self._warm_up_columns: Columns | None = None
        self._listening = ExitStack()
        self._run = ExitStack()
        self._modes_outside: list[Any] = []
        self._iteration: Iteration | None = None
        self._number = 0
        self._is_warm_up = False
        self._overflowed = False
        self._empty_pair_ms = 0.0

    def __enter__(self) -> "Timer":
        self._modes_outside = modes_now()
        self._listen(
            self._run, Feature.CUSTOM_FUNCTION_TIMES, timing_patches.patch_function_apply, self._around
        )
        self._listen(
            self._run, Feature.COMPILED_FUNCTION_TIMES, timing_patches.compiled_functions, self._around
        )
        self._listen(
            self._run,
            Feature.OPTIMIZER_TIMES,
            timing_patches.optimizer_hooks,
            lambda *_: self._record_event("optimizer_began"),
            lambda *_: self._record_event("optimizer_ended"),
        )
        return self

    def _listen(
        self, parts: ExitStack, feature: Feature, listen: Callable[..., Any], *arguments: Any
    ) -> None:
        """Let a part of torch be listened to, as long as others are."""
        guard = self._guards.of(feature)
        guard.enter(parts, lambda: listen(*arguments, guard))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._run.close()

    def use_device(self, device: int) -> None:
        """Time this device; before the first iteration that is timed."""
        self._device = device
        self._clock = make_clock(self._clock_name, device)

    def begin(self, iteration: int, warm_up: bool = False) -> None:  # noqa: FBT001, FBT002  # through the guard
        """Begin to time an iteration, on the thread that runs it.

        The times of a warm-up count only where no others come after it: the events are created in it, which
        takes longer than recording them.
        """
        self._stop()
        if self._stacks is None or self._is_warm_up:
            self._warm_up_columns = self._columns
            self._stacks = StackRecorder()
            self._columns = Columns(self._clock, self._stacks, self._module_path)
        self._number, self._is_warm_up = iteration, warm_up
        self._clock.settle()
        self._iteration = Iteration(self._clock, self._stacks, self._guards)
        listening, times = self._listening, self._guards.of(Feature.TIMES)
        times.enter(
            listening, lambda: timing_patches.function_mode(self._around, times, inside=self._modes_outside)
        )
        self._listen(listening, Feature.OPAQUE_MODULE_TIMES, timing_patches.opaque_modules, self._around)
        self._listen(
            listening, Feature.BACKWARD_TIMES, timing_patches.patch_engine, self._iteration.run_backward
        )

    def end(self) -> None:
        """End the iteration and read its times, which waits for the device."""
        ended = self._iteration
        if ended is None or self._columns is None:
            return
        ended.close()
        self._stop()
        self._clock.settle()
        self._overflowed |= ended.overflowed
        tile(ended)
        self._columns.add(self._number, ended)
        self._clock.forget()
        self._empty_pair_ms = empty_pair_ms(self._clock)
        self._clock.forget()

    def trace(self) -> dict[str, Any] | None:
        """Return the content of timing.json, plain values only; None if no iteration was timed."""
        columns, is_warm_up = self._columns, self._is_warm_up
        if columns is not None and not columns.iterations and not is_warm_up:
            columns, is_warm_up = self._warm_up_columns, True
        if columns is None or not columns.iterations:
            return None
        import torch

        return {
            "version": SCHEMA_VERSION,
            "snapconv": VERSION,
            "torch": str(torch.__version__),
            "clock": self._clock_name,
            "simulated": self._clock_name == "cpu",
            "device": self._device,
            "device_name": self._device_name(),
            "warm_up": is_warm_up,
            "project_root": str(self._project_root),
            **columns.values(),
            "launch_bound": columns.launch_bound if self._clock_name == "cuda" else None,
            "empty_pair_ms": self._empty_pair_ms,
            "overflowed": self._overflowed,
        }

    def _device_name(self) -> str:
        import torch

        return str(torch.cuda.get_device_name(self._device)) if self._clock_name == "cuda" else "CPU"

    def _stop(self) -> None:
        """Stop listening, in any state; makes no mark, as the device may have failed."""
        self._listening.close()
        if self._iteration is not None:
            self._iteration.unhook()
            self._iteration = None

    @calls_original
    def _around(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: Any = None,
    ) -> Any:
        if self._iteration is None:
            return function(*args, **kwargs)
        return self._iteration.call(name, function, args, kwargs, module)

    def _record_event(self, what: str) -> None:
        if self._iteration is not None:
            getattr(self._iteration, what)()
