"""A callback for the Trainer of transformers: captures of an OOM, and of chosen steps.

from snapconv.integrations.transformers import MemoryCallback

Trainer(..., callbacks=[MemoryCallback("captures/")])
"""

import os
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from snapconv.recorder.options import NO_STEP
from snapconv.recorder.recording import Recording


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # without the library it is Any
    """Writes a capture where memory runs out in training, and at the end of each of ``steps``.

    ``output`` is the folder for captures; steps are those of the optimizer, counted from 0 where
    training begins. ``options`` are those of ``snapconv.recording``. The recording begins with
    ``train()``, when the model is on the device already.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        steps: Collection[int] = NO_STEP,
        **options: Any,
    ) -> None:
        self._output = output
        self._steps = steps
        self._options = options
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
        self._parts.enter_context(recording)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """End the recording."""
        self._parts.close()
