"""A callback for the Trainer of transformers: captures of an OOM, and of chosen steps.

from snapconv.integrations.transformers import MemoryCallback

Trainer(..., callbacks=[MemoryCallback("captures/")])
"""

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from snapconv.integrations.loggers import RunLog
from snapconv.recorder.options import NO_STEP
from snapconv.recorder.recording import Recording


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # without the library it is Any
    """Writes a capture where memory runs out in training, and at the end of each of ``steps``.

    ``output`` is the folder for captures; steps are those of the optimizer, counted from 0 where
    training begins. ``options`` are those of ``snapconv.recording``. The recording begins with
    ``train()``, when the model is on the device already. ``logs``: when training ends, the figures
    of the captures go to the tools of ``report_to``.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        steps: Collection[int] = NO_STEP,
        logs: bool = False,
        **options: Any,
    ) -> None:
        self._logs = logs
        self._output = output
        self._steps = steps
        self._options = {"on_request": True} | options
        self._parts = ExitStack()

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        model: Any = None,
        optimizer: Any = None,
        **_kwargs: Any,
    ) -> None:
        """Begin to record; a training before this one that raised has not ended its own."""
        self._parts.close()
        recording = Recording(
            self._output,
            model=model,
            optimizer=optimizer,
            steps=self._steps,
            **self._options,
        )
        if self._logs:
            log = RunLog(writers=list(_writers(args, self._parts)))
            self._parts.callback(log.add_recording, recording)
        self._parts.enter_context(recording)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """End the recording."""
        self._parts.close()


def _writers(args: Any, parts: ExitStack) -> Iterator[Any]:
    """Yield a writer beside that of the Trainer, which it does not show to a callback."""
    if "tensorboard" in args.report_to:
        from torch.utils.tensorboard import SummaryWriter

        runs = os.environ.get("TENSORBOARD_LOGGING_DIR") or f"{args.output_dir}/runs"
        writer = SummaryWriter(f"{runs}/snapconv")
        parts.callback(writer.close)
        yield writer
