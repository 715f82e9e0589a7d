"""A callback for Lightning's Trainer: captures of an OOM, and of chosen steps.

from snapconv.integrations.lightning import MemoryCallback

Trainer(..., callbacks=[MemoryCallback("captures/")])
"""

import os
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from snapconv.integrations.loggers import RunLog
from snapconv.recorder.options import NO_STEP
from snapconv.recorder.recording import Recording

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # under its older name
    from pytorch_lightning import Callback


class MemoryCallback(Callback):  # type: ignore[misc]  # without the library it is Any
    """Writes a capture where memory runs out in ``fit``, and at the end of each of ``steps``.

    ``output`` is the folder for captures; steps are those of the optimizer, counted from 0 where
    ``fit`` begins. ``options`` are those of ``snapconv.recording``. The recording begins before the
    model goes to the device. ``logs``: when it ends, the figures of the captures go to the
    Trainer's loggers.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        steps: Collection[int] = NO_STEP,
        logs: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self._logs = logs
        self._output = output
        self._steps = steps
        self._options = {"on_request": True} | options
        self._parts = ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record, for ``fit`` alone."""
        if stage == "fit":
            self._parts.close()
            recording = Recording(
                self._output, model=pl_module, steps=self._steps, **self._options
            )
            if self._logs and trainer.loggers:
                log = RunLog(loggers=trainer.loggers)
                self._parts.callback(log.add_recording, recording)
            self._parts.enter_context(recording)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the recording."""
        self._parts.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording where training raised, for which there is no teardown."""
        self._parts.__exit__(type(exception), exception, None)
