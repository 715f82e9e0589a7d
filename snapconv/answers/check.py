"""Checks of limits for the memory of a device: peaks, categories, growth, more than a baseline."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.findings import Finding, advise
from snapconv.answers.diff import paired
from snapconv.answers.growth import find_growth, why_unknown
from snapconv.answers.peak import total_of_either, totals_by_category
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn
from snapconv.errors import InputError
from snapconv.replay.history_verdict import Verdict
from snapconv.units import Device, counted, device_name, format_bytes, parse_bytes, shortened

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
        """Read limits as the command line has them: ``Budgets.read(max_peak="38GiB", fail_over="2%")``.

        A size is text or a number of bytes, ``max_category`` a mapping such as ``{"activation":
        "20GiB"}``. Raises ValueError for anything else.
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
    """Read the allowed increase over a baseline, such as ``2%``; raises ValueError for anything else."""
    if not isinstance(value, str) or not (found := _PER_CENT.fullmatch(value.strip())):
        raise ValueError(
            f'expected a part in per cent, such as "2%", got {shortened(str(value), 40)!r}'
        )
    return float(found[1])


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
    by_label = {category.label: category for category in Category}
    found = {}
    for name, size in value.items():
        if (label := str(name).strip()) not in by_label:
            raise ValueError(
                f"there is no category {str(name)!r}; there are: {', '.join(by_label)}"
            )
        try:
            found[by_label[label]] = _read_size(size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class Check:
    """One limit and what there is.

    ``limit_is`` says where the limit comes from, if it was not given as it is. ``unknown`` says why
    the true figure may be larger than ``actual_bytes``, ``most_bytes`` how large at most (None: no
    bound). Where it may be over the limit, the limit does not hold. ``remark`` says more of the
    figure.
    """

    what: str
    device: Device
    limit_bytes: int
    actual_bytes: int
    unknown: str = ""
    limit_is: str = ""
    remark: str = ""
    most_bytes: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the limit is certainly kept."""
        return self.actual_bytes <= self.limit_bytes and not self.is_unknown

    @property
    def is_unknown(self) -> bool:
        """Whether what is not known decides: what is known keeps the limit, and there may be more."""
        may_exceed = self.most_bytes is None or self.most_bytes > self.limit_bytes
        return bool(self.unknown) and may_exceed and self.actual_bytes <= self.limit_bytes

    @property
    def sentence(self) -> str:
        """The outcome in a line."""
        of = f"{self.what} of {device_name(self.device)}"
        actual = format_bytes(self.actual_bytes)
        limit = format_bytes(self.limit_bytes) + (f" ({self.limit_is})" if self.limit_is else "")
        if self.is_unknown:
            known = f"at least {actual}, limit {limit}; " if self.actual_bytes else ""
            return f"{of} is not known: {known}{self.unknown}"
        end = f"; {self.remark}" if self.remark else ""
        if self.holds:
            most = f"between {actual} and {format_bytes(self.most_bytes or 0)}"
            return f"{of}: {most if self.unknown else actual}, limit {limit}{end}"
        more = format_bytes(self.actual_bytes - self.limit_bytes)
        least = "at least " if self.unknown else ""
        return f"{of}: {least}{actual}, {more} over the limit of {limit}{end}"

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "what": self.what,
            "device": self.device,
            "holds": self.holds,
            "limit_bytes": self.limit_bytes,
            "least_bytes": self.actual_bytes,
            "actual_bytes": None if self.unknown else self.actual_bytes,
            "unknown": self.unknown if self.is_unknown else None,
            "remark": self.remark or None,
        }


def outcome(file: str, checks: Sequence[Check]) -> str:
    """Say in a line how many limits of a file held."""
    n_unknown = sum(check.is_unknown for check in checks)
    limits = counted(len(checks), "limit")
    n_exceeded = sum(not check.holds for check in checks) - n_unknown
    counts = ((n_exceeded, "did not hold"), (n_unknown, "could not be checked"))
    found = [f"{n} of {limits} {what}" for n, what in counts if n]
    return f"{file}: {', '.join(found) or f'{limits} held'}"


def check_budgets(
    devices: tuple[DeviceAnalysis, ...],
    budgets: Budgets,
    *,
    baseline: tuple[DeviceAnalysis, ...] | None = None,
) -> tuple[Check, ...]:
    """Check every limit on every device; raises InputError where all is pinned host memory."""
    found = [device for device in devices if not device.device.is_host]
    if not found:
        raise InputError(f"{devices[0].snapshot.path} has no memory of a GPU that could be checked")
    checks = [check for device in found for check in _of_device(device, budgets)]
    if budgets.fail_over is not None and baseline is not None:
        checks += _against(budgets, budgets.fail_over, baseline, devices)
    if budgets.no_faults_above is not None:
        checks += _faults(budgets, baseline or (), found)
    return tuple(checks)


# Why there may have been more before a trace, and what to do, by the verdict on its history.
_BEFORE = {
    Verdict.TRUNCATED: "the oldest events are lost: record with a larger max_entries",
    Verdict.STARTED_LATE: "recording began after the program had allocated: record from its start",
}
# What the failed request was for would have come on top.
_RAN_OUT = "memory ran out before the program was over: record with more memory"


def _of_device(found: DeviceAnalysis, budgets: Budgets) -> Iterator[Check]:
    device = found.device.device
    replay = found.replay
    limits = (
        (_PEAK, budgets.max_peak, "allocated"),
        ("peak reserved", budgets.max_reserved, "reserved"),
    )
    for what, limit, name in limits:
        if limit is not None:
            unknown, remark = _coverage(found, budgets, name)
            yield Check(what, device, limit, getattr(replay, name).peak, unknown, remark=remark)
    live = found.live_at_peak
    for category in budgets.max_category:
        yield _of_category(found, live, category, budgets)
    if budgets.max_growth is not None:
        adds = sum(one.bytes_per_iteration for one in find_growth(found))
        yield Check("growth per iteration", device, budgets.max_growth, adds, why_unknown(found))


def _coverage(found: DeviceAnalysis, budgets: Budgets, curve: str = "allocated") -> tuple[str, str]:
    """Say why the true peak of a curve may be higher, and what a limit for the trace alone leaves out."""
    verdict = found.history.verdict
    if verdict is Verdict.NO_TRACE:
        return "the file has no events, so only the memory at the dump is known", ""
    if curve in found.replay.at_least:
        return "the file does not show all segments: this is a lower bound", ""
    before = _BEFORE.get(verdict, _RAN_OUT if found.phases.ends_in_oom else "")
    if budgets.in_trace and before:
        return "", "in this trace"
    return before and f"{before}, or check this trace alone with --in-trace", ""


def _of_category(
    found: DeviceAnalysis, live: BoolColumn, category: Category, budgets: Budgets
) -> Check:
    """Check what a category certainly has at the peak, and what it may have beside.

    It may have what is unknown, and what is likely of another category; what is likely its own may
    not be. A gradient or an optimizer state is none of the other categories.
    """
    totals = {row.category: row for row in totals_by_category(found, live)}
    own = totals[category.label]
    unknown = totals[Category.UNKNOWN.label].block_bytes
    if category not in (Category.GRADIENT, Category.OPTIMIZER_STATE):
        unknown -= total_of_either(found, live).block_bytes
    likely = sum(row.likely_bytes for row in totals.values()) - own.likely_bytes
    if category is Category.UNKNOWN:
        unknown = likely = 0
    parts = (
        (own.likely_bytes, f"are only likely {category.label}"),
        (unknown, "have no known category"),
        (likely, "are likely another category"),
    )
    more = [f"{format_bytes(n_bytes)} {what}" for n_bytes, what in parts if n_bytes]
    most = own.block_bytes + unknown + likely
    why = f"{', '.join(more)}; --rules FILE gives lines a category" if more else ""
    other_peak, remark = _coverage(found, budgets)
    return Check(
        f"{category.label} at the peak",
        found.device.device,
        budgets.max_category[category],
        own.block_bytes - own.likely_bytes,
        other_peak or why,
        remark=remark,
        most_bytes=None if other_peak else most,
    )


def _against(
    budgets: Budgets,
    per_cent: float,
    baseline: tuple[DeviceAnalysis, ...],
    devices: tuple[DeviceAnalysis, ...],
) -> Iterator[Check]:
    """Check peaks against those of a baseline: each of what its own trace shows."""
    pairs, _, only_new = paired(baseline, devices)
    for old, new in pairs:
        if not new.device.is_host:
            before = old.replay.allocated.peak
            actual = new.replay.allocated.peak
            limit_is = f"{format_bytes(before)} of the baseline, and {per_cent:g} %"
            limit = before + int(before * per_cent / 100)
            is_alike = new.history.verdict is old.history.verdict
            is_alike &= old.phases.ends_in_oom or not new.phases.ends_in_oom
            unknown, remark = _coverage(
                new, replace(budgets, in_trace=budgets.in_trace or is_alike)
            )
            yield Check(_PEAK, new.device.device, limit, actual, unknown, limit_is, remark)
    for found in devices:
        if found.device.device in only_new and not found.device.is_host:
            yield Check(_PEAK, found.device.device, 0, 0, "the baseline has no such device")


def _faults(
    budgets: Budgets, baseline: tuple[DeviceAnalysis, ...], devices: Sequence[DeviceAnalysis]
) -> Iterator[Check]:
    """Check the largest fault of every device that the baseline does not have."""
    known = {
        _fault_key(fault) for found in baseline for fault in advise(found, replays=False).faults
    }
    what = "largest new fault" if baseline else "largest fault"
    for found in devices:
        faults = [
            fault for fault in advise(found, replays=False).faults if _fault_key(fault) not in known
        ]
        largest = max(faults, key=lambda fault: fault.held_bytes, default=None)
        held = largest.held_bytes if largest else 0
        limit = budgets.no_faults_above or 0
        unknown, remark = _coverage(found, budgets)
        remark = largest.what.removesuffix(".") if largest else remark
        if not _shows_frees(found):
            unknown = (
                unknown or "the trace does not record what freed its blocks, which shows faults"
            )
        yield Check(what, found.device.device, limit, held, unknown, remark=remark)


def _shows_frees(found: DeviceAnalysis) -> bool:
    """Return whether frees have stacks of their own, where there are any: faults are found by them."""
    stacks = found.allocations.free_stack_id[found.allocations.freed_event >= 0]
    is_empty = np.append(found.features.roles.is_empty, True)[stacks]
    return found.phases.free_sites_known and not (len(stacks) and bool(is_empty.all()))


def _fault_key(fault: Finding) -> tuple[str, str, str]:
    """Return what stays the same of a fault when lines are added above it."""
    line = fault.where or fault.line
    return fault.kind, line.file_path if line else "", line.function if line else ""
