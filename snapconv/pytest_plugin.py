"""The pytest plugin: limits for the GPU memory of a test, and a fixture that measures it.

    @pytest.mark.gpu_memory(max_peak="2GiB")
    def test_a_step_fits(): ...

    @pytest.mark.limit_growth("0")
    @pytest.mark.no_faults("64MiB")
    def test_five_steps(): ...

    def test_checkpointing_saves(gpu_memory):
        ...
        assert gpu_memory.peak_bytes < 1 << 30

It is loaded into every run of pytest where snapconv is installed: it imports nothing but pytest
until a test uses it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from snapconv.recorder.recording import MeasuredBlock

_NAME = "gpu_memory"
_MARK = (
    f"{_NAME}(max_peak='2GiB', simulate=None): fail the test where it allocates more GPU memory "
    "at once than this, beside what was allocated before it; simulated where there is no GPU; "
    "simulate=True: always."
)
_GROWTH, _FAULTS = "limit_growth", "no_faults"
# Each by its limit of `snapconv check`, which a test that passed so far has to hold too.
_LIMITS = {_GROWTH: "max_growth", _FAULTS: "no_faults_above"}
_LIMIT_MARKS = (
    f"{_GROWTH}(size='0'): fail the test where an iteration adds more GPU memory than this that is "
    "never freed, or where it has too few steps of an optimizer to see that.",
    f"{_FAULTS}(above='1MiB'): fail the test where a fault that `snapconv advise` finds holds more "
    "GPU memory than this at the peak.",
)
_DEFAULTS = {_GROWTH: "0", _FAULTS: "1MiB"}
_WIDER_SCOPES = ("session", "package", "module", "class")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    for mark in (_MARK, *_LIMIT_MARKS):
        config.addinivalue_line("markers", mark)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a marked test measured before its own fixtures begin, and after shared ones did."""
    names = getattr(item, "fixturenames", None)
    is_marked = any(item.get_closest_marker(mark) for mark in (_NAME, *_LIMITS))
    if not is_marked or names is None or _NAME in names:
        return
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]  # nothing public
    n_before = 0
    for name in names:
        if name in fixtures and fixtures[name][-1].scope in _WIDER_SCOPES:
            n_before = max(n_before, names.index(name) + 1)
    names.insert(n_before, _NAME)


@pytest.fixture(name=_NAME)
def measured_test(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[MeasuredBlock]":
    """Measure the GPU memory of the test: ``peak_bytes``, ``peaks`` by device, ``is_simulated``."""
    from snapconv.recorder.recording import MeasuredBlock

    _, simulate = _limits(request.node)
    with MeasuredBlock(tmp_path_factory.mktemp(_NAME), simulate=simulate) as block:
        yield block


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Compare the memory with the limits of the marks, last of all: the test has passed so far."""
    block = getattr(item, "funcargs", {}).get(_NAME)
    if block is None:
        return
    limit, _ = _limits(item)
    if limit is not None and block.peak_bytes > limit:
        _fail(block, limit)
    checked = _checked_limits(item)
    if checked:
        _check(block, checked)


def _checked_limits(item: pytest.Item) -> dict[str, str]:
    """Read the limits of the marks without a peak, by their names in `snapconv check`."""
    limits = {}
    for name, limit in _LIMITS.items():
        mark = item.get_closest_marker(name)
        if mark is None:
            continue
        if len(mark.args) > 1 or mark.kwargs:
            pytest.fail(f"{name} takes one size, such as {name}('1MiB')", pytrace=False)
        limits[limit] = str(mark.args[0]) if mark.args else _DEFAULTS[name]
    return limits


def _check(block: "MeasuredBlock", limits: dict[str, str]) -> None:
    """Fail the test where its capture does not hold the limits."""
    from snapconv.answers.check import Budgets
    from snapconv.session import load
    from snapconv.units import printable
    from snapconv.writers.text.comparisons import check_lines

    try:
        # On a real GPU, memory of earlier tests and of libraries was there before the trace.
        budgets = Budgets.read(**limits, in_trace=True)
    except ValueError as error:
        pytest.fail(f"{', '.join(_LIMITS)}: {error}", pytrace=False)
    block.end()
    if not block.captures:
        return
    session = load(block.captures[-1])
    checks = session.check(budgets)
    if not all(check.holds for check in checks):
        lines = check_lines(str(block.captures[-1]), checks)
        pytest.fail("\n".join(map(printable, lines)), pytrace=False)


def _fail(block: "MeasuredBlock", limit: int) -> None:
    from snapconv.units import format_bytes

    excess = format_bytes(block.peak_bytes - limit)
    simulated = ", simulated" if block.is_simulated else ""
    block.end()
    peak = format_bytes(block.peak_bytes)
    verdict = "\n".join(_verdict_of_peak(block.captures[-1])) if block.captures else ""
    pytest.fail(
        f"the test allocated {peak} of GPU memory at once, {excess} over the limit of "
        f"{format_bytes(limit)}{simulated}\n{verdict}",
        pytrace=False,
    )


def _limits(item: pytest.Item) -> tuple[int | None, bool | None]:
    """Read the arguments of the mark: the limit in bytes, and whether to simulate."""
    from snapconv.units import parse_bytes

    mark = item.get_closest_marker(_NAME)
    if mark is None:
        return None, None
    wrong = [repr(argument) for argument in mark.args]
    wrong += [name for name in mark.kwargs if name not in ("max_peak", "simulate")]
    mistake = ""
    if wrong:
        mistake = f" takes max_peak and simulate by their names, not {', '.join(wrong)}"
    limit = None
    max_peak = mark.kwargs.get("max_peak")
    try:
        limit = None if max_peak is None else parse_bytes(str(max_peak))
    except ValueError as error:
        mistake = f": max_peak: {error}"
    if mistake:
        pytest.fail(_NAME + mistake, pytrace=False)
    return limit, mark.kwargs.get("simulate")


def _verdict_of_peak(capture: Path) -> Iterator[str]:
    from snapconv.answers.verdict import find_verdict
    from snapconv.session import load
    from snapconv.units import printable
    from snapconv.writers.text.moment import verdict_lines

    for device in load(capture).devices:
        yield from map(printable, verdict_lines(find_verdict(device), str(capture)))
