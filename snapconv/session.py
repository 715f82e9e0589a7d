"""A snapshot in a notebook: ``snapconv.load(path)`` has a method for every question."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import Analysis, AnalysisOptions, DeviceAnalysis, analyze_file
from snapconv.classification.categories import Category, Certainty
from snapconv.classification.user_rules import UserRule
from snapconv.columns import columns_of, distinct
from snapconv.files import checked_output, default_output
from snapconv.notebook import Answers
from snapconv.notes import Note, Progress
from snapconv.snapshot.load import Snapshot
from snapconv.units import parse_bytes

if TYPE_CHECKING:
    from snapconv import answer_types
else:

    class _AnswerTypes:
        """Import the types of all answers when a hint is resolved; no command does that."""

        def __getattr__(self, name: str) -> object:
            from snapconv import answer_types

            return getattr(answer_types, name)

    answer_types = _AnswerTypes()


@dataclass(frozen=True, slots=True)
class Session:
    """A file that was read and analysed, with a method for every question.

    ``analysis`` has all that its properties show, and the options of the reading.
    """

    # A method imports what answers its question: a command that asks one loads no more.

    analysis: Analysis

    def __repr__(self) -> str:
        """Return the file and the peak of every device in a line."""
        return f"Session({self.analysis!r})"

    def _repr_html_(self) -> str:
        """Return the verdict on every device for a notebook, as `snapconv FILE` prints it."""
        return f"<pre>{escape(verdict_text(self))}</pre>"

    @property
    def _path(self) -> str:
        return str(self.analysis.path)

    @property
    def snapshot(self) -> Snapshot:
        """The file's own tables: events, segments, blocks, stacks."""
        return self.analysis.snapshot

    @property
    def devices(self) -> tuple[DeviceAnalysis, ...]:
        """One analysis per device: allocations with sizes and categories, curves, iterations."""
        return self.analysis.devices

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of the file and of its devices, each once."""
        from snapconv.answers.notes import file_notes

        return file_notes(self.analysis)

    def explain(
        self, question: str, *, device: int | None = None
    ) -> "answer_types.Explanation":
        """Explain the allocations of an address (``0x7f3c40001000``) or an event (``#1234``).

        Raises ValueError for any other text, InputError if there is no such allocation or device.
        """
        from snapconv.answers.explanation import explain
        from snapconv.printed_answers import PrintedExplanation

        return PrintedExplanation.of(explain(self.analysis.of_device(device), question))

    def of_device(self, device: int | None) -> "Session":
        """Return the same file with one of its devices alone.

        Raises InputError where the file does not have the device.
        """
        return Session(self.analysis.of_device(device))

    def between(self, begin: str | None = None, end: str | None = None) -> "Session":
        """Return a range of the events alone, as every method of it then sees them.

        Bounds are those of ``cut``. Categories and iterations stay as the whole trace shows them,
        what was live before counts as pre-existing. Raises ValueError for another text, InputError
        where a device has no such event.
        """
        from snapconv.answers.analysis_part import analysis_between

        return Session(analysis_between(self.analysis, begin, end))

    def at(
        self, moment: str = "peak", *, device_total: int | None = None
    ) -> "Answers[answer_types.MomentState]":
        """Describe the live memory at a moment.

        Moments are ``peak``, ``end``, ``iteration:3``, an event, and others.
        ``device_total`` is all the memory of a device, where the file does not have it. Raises
        ValueError for a text that is no moment, InputError where a device has no such moment.
        """
        from snapconv.answers.moments import find_moment
        from snapconv.answers.peak import state_at
        from snapconv.writers.text.moment import moment_lines

        states = [
            state_at(device, find_moment(device, moment), device_total=device_total)
            for device in self.devices
        ]
        return Answers.of(states, moment_lines)

    def tree(
        self, moment: str = "peak", *, by: str = "line", all_frames: bool = False
    ) -> "Answers[answer_types.MemoryTree]":
        """Arrange live memory as a tree, by lines or what groups them.

        ``by`` is ``line``, ``module``, ``operation``, ``category``, ``compile-context``,
        ``annotation``, ``pool``, ``stream``, ``thread`` or ``size``, or several with commas such as
        ``module,category``. Raises what ``at`` raises, and ValueError for another text.
        """
        from snapconv.answers.moments import find_moment
        from snapconv.answers.tree import find_tree
        from snapconv.writers.text.moment import tree_lines

        trees = [
            find_tree(device, find_moment(device, moment), by=by, all_frames=all_frames)
            for device in self.devices
        ]
        return Answers.of(trees, tree_lines)

    def annotate(
        self, moment: str = "peak", *, source: str | Path = "."
    ) -> "Answers[answer_types.Annotation]":
        """Sum the memory of every device by source line, with the lines of the files.

        ``source`` is the project's folder on this machine; nothing outside of it is read. Source
        that the file itself has is shown where the folder has none. Raises what ``at`` raises, and
        InputError where ``source`` is no folder.
        """
        from snapconv.answers.annotation import annotate
        from snapconv.answers.moments import find_moment
        from snapconv.stacks.source_files import SourceFolder
        from snapconv.writers.text.annotation import annotation_lines

        folder = SourceFolder.at(source)
        annotations = [
            annotate(device, find_moment(device, moment), folder) for device in self.devices
        ]
        return Answers.of(annotations, annotation_lines)

    def explain_oom(
        self,
        device: int | None = None,
        *,
        device_total: int | None = None,
        replay: bool = True,
        progress: Progress | None = None,
    ) -> "tuple[answer_types.OutOfMemory, answer_types.Remedies | None]":
        """Explain the first failed request of a device, or the peak in a file without one.

        With changes that get past the request, each tried by a replay, unless ``replay`` is False.
        """
        from snapconv.answers.oom.remedies import explain_oom
        from snapconv.writers.text.oom import oom_lines

        analysis = self.analysis.device(device)
        explained = explain_oom(
            analysis, device_total=device_total, replay=replay, progress=progress
        )
        text = partial(oom_lines, *explained, file=self._path)
        answers = Answers.together(explained, text)
        return cast(
            "tuple[answer_types.OutOfMemory, answer_types.Remedies | None]", answers
        )

    def advise(
        self,
        *,
        capacity: str | int | None = None,
        save: str | int | None = None,
        goal_bytes: int | None = None,
        trades: bool = False,
    ) -> "Answers[answer_types.Advice]":
        """Find changes of the program that save memory at the peak of every device.

        Each is tried by a replay. Faults keep memory for nothing. Trades cost time or precision:
        they are found with ``trades``, or where there is a peak to reach. That is ``goal_bytes``,
        or the peak less the bytes to ``save``, or what fits into the ``capacity`` that torch may
        have; where a request failed, the capacity is what torch had then. ``capacity`` and ``save``
        are texts such as ``"38GiB"`` or bytes. Raises ValueError for another text, and for both.
        """
        from snapconv.answers.advice.findings import advise, goal_of, kept_cached
        from snapconv.answers.growth import growing_sentence
        from snapconv.answers.times import forward_times
        from snapconv.writers.text.advice import advice_lines

        if capacity is not None and save is not None:
            raise ValueError("give capacity or save, not both")
        capacity_bytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
        saved_bytes = parse_bytes(save) if isinstance(save, str) else save

        def advice_of(device: DeviceAnalysis) -> "answer_types.Advice":
            goal = goal_bytes
            if goal is None:
                goal = goal_of(device, capacity=capacity_bytes, save=saved_bytes)
            return advise(
                device,
                goal_bytes=goal,
                capacity=capacity_bytes,
                trades=trades,
                forward_ms=forward_times(self.analysis.timing, device.device.device),
            )

        def lines(advice: "answer_types.Advice", device: DeviceAnalysis) -> Iterable[str]:
            cached = 0 if save else kept_cached(device)
            return advice_lines(advice, self._path, cached, growing_sentence(device))

        return Answers.of(map(advice_of, self.devices), lines, self.devices)

    def fragmentation(
        self, moment: str | None = None
    ) -> "Answers[answer_types.Fragmentation]":
        """Describe the reserved memory that is not in use on every device, at a moment.

        By default these are the first failed request, the dump, the peak and the worst moment.
        Raises what ``at`` raises.
        """
        from snapconv.answers.fragmentation import find_fragmentation
        from snapconv.writers.text.moment import fragmentation_lines

        answers = [find_fragmentation(device, moment) for device in self.devices]
        return Answers.of(answers, partial(fragmentation_lines, file=self._path))

    def growth(self) -> "Answers[tuple[answer_types.Growth, ...]]":
        """Return what grows from iteration to iteration on every device, most bytes first."""
        from snapconv.answers.growth import find_growth, report_growth
        from snapconv.writers.text.growth import growth_lines

        def lines(_: object, device: DeviceAnalysis) -> Iterable[str]:
            return growth_lines(report_growth(device), self._path)

        return Answers.of(map(find_growth, self.devices), lines, self.devices)

    def what_if(
        self,
        request: "answer_types.Request | str",
        *,
        batch_scale: float = 1.0,
        progress: Progress | None = None,
    ) -> "Answers[answer_types.SettingTrials | None]":
        """Replay every device's trace under other settings of the allocator, or with less memory.

        A request is ``"expandable_segments:True"``, or
        ``snapconv.Request.read("max_split_size_mb:128", capacity="38GiB")``. ``batch_scale``
        estimates another batch size. The result is None for pinned host memory, which has another
        allocator.
        """
        from snapconv.answers.what_if.setting_trials import Request, try_settings
        from snapconv.writers.text.what_if import what_if_lines

        def lines(trials: "answer_types.SettingTrials | None") -> Iterable[str]:
            return () if trials is None else what_if_lines(trials)

        tried = Request.read(request) if isinstance(request, str) else request
        trials = [
            try_settings(device, tried, scale=batch_scale, progress=progress)
            for device in self.devices
        ]
        return Answers.of(trials, lines)

    def compared_with(self, old: "Session") -> "answer_types.FileDiff":
        """Compare with an older file, device by device."""
        from snapconv.answers.diff import compare_files
        from snapconv.printed_answers import PrintedDiff

        return PrintedDiff.of(compare_files(old.analysis, self.analysis))

    def check(
        self,
        limits: "answer_types.Budgets | str | int",
        *,
        baseline: "Session | None" = None,
    ) -> "Answers[answer_types.Check]":
        """Check limits for the memory of every device: ``"80GiB"`` limits the allocated bytes.

        Others are ``snapconv.Budgets.read(max_reserved="80GiB", max_growth=0)``. Raises InputError
        where no device has memory of a GPU.
        """
        from snapconv.answers.check import Budgets, check_budgets
        from snapconv.writers.text.comparisons import check_lines

        budgets = limits if isinstance(limits, Budgets) else Budgets.read(max_peak=limits)
        old_devices = baseline.devices if baseline else None
        checks = check_budgets(self.devices, budgets, baseline=old_devices)
        return Answers.together(checks, partial(check_lines, self._path, checks))

    def view(
        self,
        output: str | Path | None = None,
        *,
        compared_with: "Session | None" = None,
        source: str | Path | None = None,
        force: bool = False,
    ) -> "answer_types.View":
        """Write the page of ``snapconv view``, to ``output`` or else into a new temporary folder.

        ``session.view().open()`` opens the browser. ``compared_with`` is an older session: both on
        one axis. ``source`` is the project's folder on this machine: the page shows its lines with
        their bytes, as ``annotate`` does, and those that the file itself has. Raises OutputError; a
        page that exists is replaced with ``force`` alone. The temporary folder outlives the
        process, as the browser may read the page after it.
        """
        from snapconv.writers.html.page import page_ending, page_output, write_view

        files = [self.analysis]
        if compared_with is not None:
            files.insert(0, compared_with.analysis)
        inputs = [file.path for file in files]
        if output is None:
            folder = Path(tempfile.mkdtemp(prefix="snapconv-"))
            output = folder / default_output(inputs[-1], page_ending(inputs))
        page = page_output(inputs, output, force=force)
        return write_view(files, page, source=source, force=force)

    def export(
        self,
        output: str | Path | None = None,
        *,
        kineto_trace: str | Path | None = None,
        force: bool = False,
    ) -> Path:
        """Write the trace of ``snapconv export``, which ui.perfetto.dev opens; return its path.

        By default it is in the current folder, named after the file. ``kineto_trace`` is a trace of
        torch.profiler of the same run, to which the memory is added. Raises InputError where it is
        none, or cannot be aligned, and OutputError; a file that exists is replaced with ``force``
        alone.
        """
        from snapconv.writers.perfetto_trace import write_trace

        trace = None if kineto_trace is None else Path(kineto_trace)
        inputs = [self.analysis.path] if trace is None else [trace, self.analysis.path]
        path = checked_output(inputs, output, ".trace.json", force=force)
        write_trace(path, self.analysis, kineto_trace=trace, force=force)
        return path

    def cut(
        self,
        begin: str | None = None,
        end: str | None = None,
        *,
        output: str | Path | None = None,
        force: bool = False,
    ) -> Path:
        """Write a range of the events as a snapshot like PyTorch's; return its path.

        ``begin`` and ``end`` are an event, ``iteration:3``, ``annotation:NAME`` or seconds such as
        ``1.5s``, None for the end of the trace. Segments are those at the end of the range. By
        default it is in the current folder, named after the file. Raises ValueError for another
        text, InputError where a device has no such event, and OutputError; a file that exists is
        replaced with ``force`` alone.
        """
        from snapconv.answers.event_range import find_range
        from snapconv.writers.snapshot_cut import write_cut

        path = checked_output([self.analysis.path], output, ".part.pickle", force=force)
        ranges = [find_range(device, begin, end) for device in self.devices]
        write_cut(path, self.analysis, ranges, force=force)
        return path

    def columns(
        self, device: int | None = None, *, table: str = "allocations"
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of a table of a device, by default the first.

        ``table`` is ``allocations``, ``events``, ``segments`` or ``blocks``. The numbers are the
        session's own columns and no copies: read-only, -1 where there is no value. Names of
        categories, operations, modules, files and functions are texts, empty where there is none.
        ``file``, ``line`` and ``function`` are the project's innermost line; where line is -1,
        ``file`` has the reason. pandas, polars and Arrow take the result. Raises KeyError for
        another table.
        """
        analysis = self.analysis.device(device)
        if table == "allocations":
            return _allocation_columns(analysis)
        if table not in ("events", "segments", "blocks"):
            raise KeyError(table)
        return columns_of(getattr(analysis.device, table))

    def report(self, device: int | None = None) -> "answer_types.MemoryReport":
        """Return the finished figures of a device (default: the first).

        Raises InputError where the file does not have the device.
        """
        from snapconv.answers.memory_report import build_memory_report

        return build_memory_report(self.analysis.device(device))


def verdict_text(session: Session) -> str:
    """Return the verdict on every device as `snapconv FILE` prints it."""
    from snapconv.answers.verdict import find_verdict
    from snapconv.writers.text.moment import verdict_lines

    path = str(session.analysis.path)
    lines: list[str] = []
    for device in session.devices:
        lines += verdict_lines(find_verdict(device), path)
    return "\n".join(lines)


def _allocation_columns(analysis: DeviceAnalysis) -> dict[str, NDArray[Any]]:
    classification = analysis.classification
    category_names = _texts([category.label for category in Category])
    certainty_names = _texts([certainty.label for certainty in Certainty])
    module_names = _texts([*analysis.modules.names, ""])  # -1, no module, is the last
    stack_ids = distinct(analysis.allocations.stack_id)
    lines = [analysis.lines.place_of(stack) for stack in stack_ids.tolist()]
    stacks = np.searchsorted(stack_ids, analysis.allocations.stack_id)
    return columns_of(analysis.allocations) | {
        "iteration": analysis.iteration,
        "category": category_names[classification.category],
        "certainty": certainty_names[classification.certainty],
        "probability": classification.probability,
        "operation": _texts(analysis.operations)[analysis.operation_id],
        "module": module_names[analysis.modules.module_id],
        "file": _texts([line[0] for line in lines])[stacks],
        "line": np.array([line[1] for line in lines], np.int32)[stacks],
        "function": _texts([line[2] for line in lines])[stacks],
        "is_live_at_peak": analysis.live_at_peak,
    }


def _texts(texts: Sequence[str]) -> NDArray[np.object_]:
    return np.array(texts, np.object_)


def load(
    path: str | Path,
    *,
    project_root: str | None = None,
    includes: Sequence[str] = (),
    rules: str | Path | Sequence[UserRule] = (),
    certain: bool = False,
    progress: Progress | None = None,
) -> Session:
    """Read and analyse a snapshot of any era and container; nothing in it is run.

    ``includes`` are packages (``timm.models``) and folders that count as part of the project too.
    ``rules`` are the user's own, or the file that they stand in. ``certain``: what is likely counts
    as unknown. Raises SnapconvError: InputError where the file is damaged or something else,
    UnsafePickleError where it imports code.
    """
    if isinstance(rules, str):
        rules = Path(rules)
    options = AnalysisOptions(
        project_root=project_root, includes=tuple(includes), rules=rules, certain=certain
    )
    return Session(analyze_file(path, options, progress=progress))
