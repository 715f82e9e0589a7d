"""Figures of captures in the run's own tools: Weights & Biases, MLflow, and writers of TensorBoard.

    from snapconv.integrations.loggers import RunLog

    log = RunLog(writers=[SummaryWriter("runs/first")])
    with snapconv.recording("captures/", steps=[10]) as recording:
        train()
    log.add(recording.captures)

Of every device the peak, its categories, the growth of an iteration and the verdict. A tool is used
where the process has imported it and a run of it is active; nothing imports one. What fails is
logged as a warning and never reaches the job.
"""

import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from snapconv.recorder.recording import Recording

_LOG = logging.getLogger("snapconv")
# A capture is named by its reason and its step, such as step-000010.capture.
_STEP = re.compile(r"-(\d{1,18})(?:-\d{1,9})?\.capture$")
# The names of all figures begin so; Weights & Biases draws them over the step's own.
_PREFIX = "snapconv"


@dataclass(frozen=True, slots=True)
class CaptureFigures:
    """The figures of one capture by their names in the tools, and the verdicts as text."""

    step: int
    numbers: dict[str, float]
    texts: dict[str, str]


def capture_figures(capture: Path) -> CaptureFigures:
    """Return the figures of a capture; raises SnapconvError where it cannot be read."""
    from snapconv.answers.growth import report_growth
    from snapconv.answers.verdict import find_verdict
    from snapconv.session import load

    numbers: dict[str, float] = {}
    texts = {}
    session = load(capture)
    for device, state in zip(session.devices, session.at(), strict=True):
        name = f"{_PREFIX}/device{device.device.device}"
        numbers[f"{name}/peak_bytes"] = state.allocated_bytes
        numbers[f"{name}/reserved_peak_bytes"] = device.replay.reserved.peak
        for row in state.summary_rows:
            if row.n_allocations:
                category = row.category.replace(" ", "_")
                numbers[f"{name}/peak/{category}_bytes"] = row.block_bytes
        growth = report_growth(device)
        if not growth.unknown:
            numbers[f"{name}/growth_bytes_per_iteration"] = growth.bytes_per_iteration
        texts[f"{name}/verdict"] = find_verdict(device).sentence
    step = _STEP.search(capture.name)
    return CaptureFigures(int(step[1]) if step else 0, numbers, texts)


class RunLog:
    """The tools in which a run logs, as they are where this is made.

    ``writers`` are SummaryWriters of TensorBoard, which nobody but the job knows. ``loggers`` are
    those of Lightning: with them, nothing else is used.
    """

    def __init__(
        self, *, writers: Collection[Any] = (), loggers: Collection[Any] = ()
    ) -> None:
        self._writers = writers
        self._loggers = loggers
        self._mlflow_run = None if loggers else _active_mlflow_run()

    def add_recording(self, recording: Recording) -> None:
        """Log the captures of a recording that has ended."""
        self.add(recording.captures)

    def add(self, captures: Collection[Path]) -> None:
        """Log the figures of captures to all tools, each at its step."""
        for capture in captures:
            try:
                figures = capture_figures(capture)
            except Exception as error:  # noqa: BLE001  # the job goes on without them
                _LOG.warning("snapconv: no figures of %s: %s", capture, error)
                continue
            for send in self._tools():
                try:
                    send(figures)
                except Exception as error:  # noqa: BLE001  # the same
                    _LOG.warning("snapconv: figures of %s: %s", capture, error)

    def _tools(self) -> Iterator[Callable[[CaptureFigures], None]]:
        yield from (partial(_send_to_lightning, logger) for logger in self._loggers)
        yield from (partial(_write, writer) for writer in self._writers)
        if self._mlflow_run is not None:
            yield self._send_to_mlflow
        wandb = sys.modules.get("wandb")
        if not self._loggers and getattr(wandb, "run", None) is not None:
            yield _send_to_wandb

    def _send_to_mlflow(self, figures: CaptureFigures) -> None:
        """Log to the run by its id: whoever began it may have ended it."""
        client = sys.modules["mlflow"].MlflowClient()
        for name, number in figures.numbers.items():
            client.log_metric(self._mlflow_run, name, number, step=figures.step)
        for name, text in figures.texts.items():
            client.set_tag(self._mlflow_run, name, text)


def _write(writer: Any, figures: CaptureFigures) -> None:
    for name, number in figures.numbers.items():
        writer.add_scalar(name, number, figures.step)
    for name, text in figures.texts.items():
        writer.add_text(name, text, figures.step)
    writer.flush()


def _send_to_lightning(logger: Any, figures: CaptureFigures) -> None:
    """Log to a logger of any kind; the text to one of TensorBoard."""
    logger.log_metrics(figures.numbers, step=figures.step)
    add_text = getattr(logger.experiment, "add_text", None)
    if add_text is not None:
        for name, text in figures.texts.items():
            add_text(name, text, figures.step)


def _active_mlflow_run() -> str | None:
    find_run = getattr(sys.modules.get("mlflow"), "active_run", None)
    run = None if find_run is None else find_run()
    return None if run is None else str(run.info.run_id)


def _send_to_wandb(figures: CaptureFigures) -> None:
    """Log over a step of our own: the tool's never falls, and the job's is further."""
    run = sys.modules["wandb"].run
    step = f"{_PREFIX}/step"
    run.define_metric(step)
    run.define_metric(f"{_PREFIX}/*", step_metric=step)
    run.log({step: figures.step, **figures.numbers})
    run.summary.update(figures.texts)
