"""Checks of limits for the memory of a device: peaks, categories, growth, more than a baseline."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.findings import Finding, advise
from snapconv.answers.diff import paired
from snapconv.answers.growth import bytes_per_iteration, find_growth, why_unknown
from snapconv.answers.peak import (
    NOTHING,
    CategoryTotal,
    total_of_either,
    totals_by_category,
)
from snapconv.classification.categories import Category
from snapconv.columns import rows_of
from snapconv.errors import InputError
from snapconv.json_text import picked
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.stacks.stack_roles import marked_stacks
from snapconv.units import (
    HOST,
    Device,
    counted,
    device_name,
    format_bytes,
    optional,
    parse_bytes,
    shortened,
)

_PEAK = "peak allocated"
# More digits of a number in per cent are refused.
_PER_CENT = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*%")


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits for every device, in bytes; None and missing categories are without a limit.

    ``max_category`` is for what a category has at the peak of allocated bytes, ``max_growth`` for
    what an iteration adds, ``no_faults_above`` for what a fault holds at the peak, with a baseline
    a new one. ``fail_over`` is for the peak of allocated bytes, against that of a baseline: the
    allowed increase in per cent, 2 for 2 %. ``in_trace``: limits are for what the trace shows,
    whatever was before it.
    """

    max_peak: int | None = None
    max_reserved: int | None = None
    max_category: Mapping[Category, int] = field(default_factory=dict)
    max_growth: int | None = None
    no_faults_above: int | None = None
    fail_over: float | None = None
    in_trace: bool = False

    @classmethod
    def read(cls, **limits: object) -> "Budgets":
        """Read limits as the command line has them.

        Such as ``Budgets.read(max_peak="38GiB", fail_over="2%")``. A size is text or a number of
        bytes, ``max_category`` a mapping such as ``{"activation": "20GiB"}``. Raises ValueError for
        anything else.
        """
        return cls(**{name: read_limit(name, value) for name, value in limits.items()})


def read_limit(name: str, value: object) -> Any:
    """Read one of the limits of ``Budgets``; raises ValueError, also for a name that is none."""
    names = [field.name for field in fields(Budgets)]
    if name not in names:
        raise ValueError(f"there is no limit {name!r}; there are: {', '.join(names)}")
    if name == "in_trace":
        return value is True
    if name == "max_category":
        return _read_categories(value)
    return parse_allowance(value) if name == "fail_over" else _read_size(value)


def parse_allowance(value: object) -> float:
    """Read the allowed increase over a baseline, such as ``2%``; raises ValueError for others."""
    match = _PER_CENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        text = shortened(str(value), 40)
        raise ValueError(f'expected a part in per cent, such as "2%", got {text!r}')
    return float(match[1])


def _read_size(value: object) -> int:
    """Read a size; 0 needs no unit."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str):
        raise ValueError(f'expected text, such as "38GiB", got {value!r}')
    return 0 if value.strip() == "0" else parse_bytes(value)


def _read_categories(value: object) -> dict[Category, int]:
    """Read sizes by category, also as the texts ``CATEGORY=SIZE`` of the command line."""
    if isinstance(value, list):
        if wrong := [text for text in value if "=" not in text]:
            raise ValueError(f"expected CATEGORY=SIZE, got {wrong[0]!r}")
        value = dict(text.split("=", 1) for text in value)
    if not isinstance(value, Mapping):
        raise ValueError('expected a table, such as {activation = "20GiB"}')
    categories = {category.label: category for category in Category}
    sizes = {}
    for name, size in value.items():
        category = categories.get(str(name).strip())
        if category is None:
            labels = ", ".join(categories)
            raise ValueError(f"there is no category {str(name)!r}; there are: {labels}")
        try:
            sizes[category] = _read_size(size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return sizes


@dataclass(frozen=True, slots=True)
class Check:
    """A limit and the figure that it is for.

    ``what`` names the figure. ``limit_is`` says where the limit comes from, if it was not given as
    it is. ``unknown`` says why the true figure may be larger than ``actual_bytes``, ``most_bytes``
    how large at most (None: no bound). Where it may be over the limit, the limit does not hold.
    ``remark`` says more of the figure, ``line`` has most of it.
    """

    what: str
    device: Device
    limit_bytes: int
    actual_bytes: int
    unknown: str = ""
    limit_is: str = ""
    remark: str = ""
    most_bytes: int | None = None
    line: SourceLine | None = None

    @property
    def holds(self) -> bool:
        """Whether the limit is certainly kept."""
        return self.actual_bytes <= self.limit_bytes and not self.is_unknown

    @property
    def is_unknown(self) -> bool:
        """Whether unknown memory decides: known memory keeps the limit, and there may be more."""
        may_exceed = self.most_bytes is None or self.most_bytes > self.limit_bytes
        return bool(self.unknown) and may_exceed and self.actual_bytes <= self.limit_bytes

    @property
    def sentence(self) -> str:
        """The outcome in a line."""
        name = f"{self.what} of {device_name(self.device)}"
        actual = format_bytes(self.actual_bytes)
        limit = format_bytes(self.limit_bytes)
        if self.limit_is:
            limit += f" ({self.limit_is})"
        if self.is_unknown:
            lower_bound = f"at least {actual}, limit {limit}; " if self.actual_bytes else ""
            return f"{name} is not known: {lower_bound}{self.unknown}"
        remark = optional("; {}", self.remark)
        if self.holds:
            if self.unknown:
                actual = f"between {actual} and {format_bytes(self.most_bytes or 0)}"
            return f"{name}: {actual}, limit {limit}{remark}"
        excess = format_bytes(self.actual_bytes - self.limit_bytes)
        bound = "at least " if self.unknown else ""
        return f"{name}: {bound}{actual}, {excess} over the limit of {limit}{remark}"

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            **picked(self, ("what", "device", "holds", "limit_bytes")),
            "least_bytes": self.actual_bytes,
            "actual_bytes": None if self.unknown else self.actual_bytes,
            "unknown": self.unknown if self.is_unknown else None,
            "remark": self.remark or None,
            **line_values(self.line),
        }


def outcome(file: str, checks: Sequence[Check]) -> str:
    """Say in a line how many limits of a file held."""
    n_unknown = sum(check.is_unknown for check in checks)
    limits = counted(len(checks), "limit")
    n_exceeded = sum(not check.holds for check in checks) - n_unknown
    counts = []
    if n_exceeded:
        counts.append(f"{n_exceeded} of {limits} did not hold")
    if n_unknown:
        counts.append(f"{n_unknown} of {limits} could not be checked")
    return f"{file}: {', '.join(counts) or f'{limits} held'}"


def check_budgets(
    devices: tuple[DeviceAnalysis, ...],
    budgets: Budgets,
    *,
    baseline: tuple[DeviceAnalysis, ...] | None = None,
) -> tuple[Check, ...]:
    """Check every limit on every device; raises InputError where all is pinned host memory."""
    gpus = [analysis for analysis in devices if not analysis.device.is_host]
    if not gpus:
        raise InputError(
            f"{devices[0].snapshot.path} has no memory of a GPU that could be checked"
        )
    checks: list[Check] = []
    for analysis in gpus:
        checks += _device_checks(analysis, budgets)
    if budgets.fail_over is not None and baseline is not None:
        checks += _baseline_checks(budgets, budgets.fail_over, baseline, devices)
    if budgets.no_faults_above is not None:
        checks += _fault_checks(budgets, baseline or (), gpus)
    return tuple(checks)


# Why there may have been more before a trace, and what to do, by the verdict on its history.
_BEFORE = {
    Verdict.TRUNCATED: "the oldest events are lost: record with a larger max_entries",
    Verdict.STARTED_LATE: "recording began after the program had allocated: record from its start",
}
# The memory of the failed request would have come on top.
_RAN_OUT = "memory ran out before the program was over: record with more memory"


def _device_checks(analysis: DeviceAnalysis, budgets: Budgets) -> Iterator[Check]:
    device = analysis.device.device
    peaks = (
        ("allocated", analysis.replay.allocated.peak, budgets.max_peak),
        ("reserved", analysis.replay.reserved.peak, budgets.max_reserved),
    )
    for curve, peak, limit in peaks:
        if limit is not None:
            unknown, remark = _coverage(analysis, budgets, curve)
            line = _main_line(analysis)
            yield Check(
                f"peak {curve}", device, limit, peak, unknown, remark=remark, line=line
            )
    for category in budgets.max_category:
        yield _category_check(analysis, category, budgets)
    if budgets.max_growth is not None:
        growing = find_growth(analysis)
        growth = bytes_per_iteration(growing)
        unknown = why_unknown(analysis)
        line = growing[0].line if growing else None
        yield Check(
            "growth per iteration", device, budgets.max_growth, growth, unknown, line=line
        )


def _main_line(analysis: DeviceAnalysis) -> SourceLine | None:
    """Return the line with most memory at the peak."""
    return analysis.main_line(rows_of(analysis.live_at_peak))


def _category_line(analysis: DeviceAnalysis, category: Category) -> SourceLine | None:
    """Return the line with most memory of a category at the peak."""
    rows = analysis.rows(category)
    return analysis.main_line(rows[analysis.live_at_peak[rows]])


def _coverage(
    analysis: DeviceAnalysis, budgets: Budgets, curve: str = "allocated"
) -> tuple[str, str]:
    """Say why the true peak of a curve may be higher, or that the limit is for the trace alone."""
    verdict = analysis.history.verdict
    if verdict is Verdict.NO_TRACE:
        return "the file has no events, so only the memory at the dump is known", ""
    if curve in analysis.replay.lower_bounds:
        return "the file does not show all segments: this is a lower bound", ""
    reason = _BEFORE.get(verdict, _RAN_OUT if analysis.phases.ends_in_oom else "")
    if not reason:
        return "", ""
    if budgets.in_trace:
        return "", "in this trace"
    return f"{reason}, or check this trace alone with --in-trace", ""


def _category_check(
    analysis: DeviceAnalysis, category: Category, budgets: Budgets
) -> Check:
    """Check the certain memory of a category at the peak, and the memory that it may have beside.

    Unknown memory may be of the category, and memory that is likely of another one; memory that is
    likely of this category may not be. A gradient or an optimizer state is none of the other
    categories.
    """
    live = analysis.live_at_peak
    totals = {row.category: row for row in totals_by_category(analysis, live)}
    total = totals.get(category.label) or CategoryTotal(category.label, *NOTHING)
    unknown = totals[Category.UNKNOWN.label].block_bytes
    if category not in (Category.GRADIENT, Category.OPTIMIZER_STATE):
        unknown -= total_of_either(analysis, live).block_bytes
    likely = sum(row.likely_bytes for row in totals.values()) - total.likely_bytes
    if category is Category.UNKNOWN:
        unknown = 0
        likely = 0
    doubts = (
        (total.likely_bytes, f"are only likely {category.label}"),
        (unknown, "have no known category"),
        (likely, "are likely another category"),
    )
    doubt = ", ".join(
        f"{format_bytes(n_bytes)} {text}" for n_bytes, text in doubts if n_bytes
    )
    if doubt:
        doubt += "; --rules FILE gives lines a category"
    other_peak, remark = _coverage(analysis, budgets)
    most_bytes = total.block_bytes + unknown + likely
    return Check(
        f"{category.label} at the peak",
        analysis.device.device,
        budgets.max_category[category],
        total.block_bytes - total.likely_bytes,
        other_peak or doubt,
        remark=remark,
        most_bytes=None if other_peak else most_bytes,
        line=_category_line(analysis, category),
    )


def _baseline_checks(
    budgets: Budgets,
    per_cent: float,
    baseline: tuple[DeviceAnalysis, ...],
    devices: tuple[DeviceAnalysis, ...],
) -> Iterator[Check]:
    """Check peaks against those of a baseline: each of what its own trace shows."""
    pairs, _, only_new = paired(baseline, devices)
    for old, new in pairs:
        if not new.device.is_host:
            old_peak = old.replay.allocated.peak
            limit_is = f"{format_bytes(old_peak)} of the baseline, and {per_cent:g} %"
            limit = old_peak + int(old_peak * per_cent / 100)
            is_alike = new.history.verdict is old.history.verdict
            is_alike &= old.phases.ends_in_oom or not new.phases.ends_in_oom
            in_trace = budgets.in_trace or is_alike
            unknown, remark = _coverage(new, replace(budgets, in_trace=in_trace))
            peak = new.replay.allocated.peak
            yield Check(
                _PEAK,
                new.device.device,
                limit,
                peak,
                unknown,
                limit_is,
                remark,
                line=_main_line(new),
            )
    for device in only_new:
        if device != HOST:
            yield Check(_PEAK, device, 0, 0, "the baseline has no such device")


def _fault_checks(
    budgets: Budgets,
    baseline: tuple[DeviceAnalysis, ...],
    devices: Sequence[DeviceAnalysis],
) -> Iterator[Check]:
    """Check the largest fault of every device that the baseline does not have."""
    old_keys: set[tuple[str, str, str]] = set()
    for analysis in baseline:
        old_keys.update(map(_fault_key, advise(analysis, replays=False).faults))
    name = "largest new fault" if baseline else "largest fault"
    limit = budgets.no_faults_above or 0
    for analysis in devices:
        faults = advise(analysis, replays=False).faults
        new_faults = [fault for fault in faults if _fault_key(fault) not in old_keys]
        largest = max(new_faults, key=attrgetter("held_bytes"), default=None)
        unknown, remark = _coverage(analysis, budgets)
        n_held = 0
        line = None
        if largest:
            n_held = largest.held_bytes
            line = largest.where or largest.line
            remark = largest.what.removesuffix(".")
        if not unknown and not _shows_frees(analysis):
            unknown = "the trace does not record what freed its blocks, which shows faults"
        device = analysis.device.device
        yield Check(name, device, limit, n_held, unknown, remark=remark, line=line)


def _shows_frees(analysis: DeviceAnalysis) -> bool:
    """Return whether frees have stacks of their own, if there are any: faults are found by them."""
    allocations = analysis.allocations
    stacks = allocations.free_stack_id[allocations.freed_event >= 0]
    has_frames = marked_stacks(~analysis.features.roles.is_empty, stacks)
    has_stacks = not len(stacks) or bool(has_frames.any())
    return analysis.phases.free_sites_known and has_stacks


def _fault_key(fault: Finding) -> tuple[str, str, str]:
    """Return what stays the same of a fault when lines are added above it."""
    line = fault.where or fault.line
    return fault.kind, line.file_path if line else "", line.function if line else ""
