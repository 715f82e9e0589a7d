"""Lines of text for ``snapconv advise``."""

from collections import Counter
from collections.abc import Iterator

from snapconv.answers.advice.evidence import FAULT, FREE, TRADE
from snapconv.answers.advice.findings import Advice, Finding
from snapconv.hypotheses.changes import Peak
from snapconv.replay.history_verdict import Verdict
from snapconv.torch_knowledge.backends import backend_of_kind
from snapconv.units import counted, device_kind, device_name, format_bytes, optional
from snapconv.writers.text.size_rows import change_shown, next_line

_N_CATEGORIES = 4
_PASSES = {"forward": "the forward pass", "backward": "the backward pass"}
# Other settings may help where so large a share of the peak is reserved beyond it.
_MUCH_CACHED = 0.05


def advice_lines(advice: Advice, file: str, cached: int, growing: str) -> Iterator[str]:
    """Show what to change.

    ``cached`` are the bytes that torch keeps cached beyond the peak: a goal that follows from a
    capacity is without them. ``growing`` names a line that may grow; empty for none.
    """
    yield _headline(advice)
    if advice.unknown:
        yield f"  {advice.unknown}"
        return
    for number, finding in enumerate(advice.findings, 1):
        yield f"  {number}. {finding.heading}: {finding.what}"
        for title, text in finding_rows(finding, advice):
            yield f"     {title:<10} {text}"
    if len(advice.findings) > 1 and advice.together.n_bytes < advice.peak.n_bytes:
        yield f"  all together  {_together(advice)}"
    yield from _setting_lines(advice)
    if growing:
        yield f"  may be a fault: {growing}"
        yield next_line("growth", file)
    if advice.goal_bytes is not None:
        yield from _goal_lines(advice, advice.goal_bytes, file, cached)
    is_cached = advice.reserved_bytes > advice.peak.n_bytes * (1 + _MUCH_CACHED)
    if is_cached and not (advice.are_settings_tried or advice.is_failed):
        yield f"{next_line('what-if', file)} --search  (whether allocator settings reserve less)"
    if not advice.with_trades:
        quarter = f"{max(advice.peak.n_bytes // 4 >> 20, 1)}MiB"
        yield f"{next_line('advise', file)} --save {quarter}  (changes with a price)"


def _headline(advice: Advice) -> str:
    name = device_name(advice.device)
    if advice.unknown:
        return f"{name}  no advice"
    peak = format_bytes(advice.peak.n_bytes)
    reserved = format_bytes(advice.reserved_bytes)
    # The segments of a file whose trace contradicts them may have less than the peak.
    about = "about " if advice.reserved_bytes < advice.peak.n_bytes else ""
    needs = f"the peak is {about}{peak} allocated"
    if advice.reserved_bytes > advice.peak.n_bytes:
        needs += f", {reserved} reserved"
    if advice.is_failed:
        requested = format_bytes(advice.failed_bytes)
        line = optional(" at {0.place}", advice.failed_line)
        needs = f"memory ran out{line}, requesting {requested}; the program needs {peak}"
    sorts = Counter(finding.sort for finding in advice.findings)
    faults = Counter(fault.heading for fault in advice.faults)
    parts = [counted(number, heading) for heading, number in sorted(faults.items())]
    if not faults:
        parts.append("no fault")
    if sorts[FREE]:
        parts.append(f"{counted(sorts[FREE], 'change')} at no cost")
    if sorts[TRADE] or (advice.with_trades and not advice.findings):
        parts.append(_counted(sorts[TRADE], "trade"))
    return f"{name}  {', '.join(parts)} found; {needs}"


def _counted(number: int, noun: str) -> str:
    return counted(number, noun) if number else f"no {noun}"


def _setting_lines(advice: Advice) -> Iterator[str]:
    """Name the allocator setting that reserves least, and what it changes."""
    if not advice.setting:
        return
    backend = backend_of_kind(device_kind(advice.device))
    before = advice.reserved_bytes
    after = advice.setting.reserved_bytes
    change = f"{change_shown(before, after, like=before)} reserved"
    if advice.is_failed:
        size = format_bytes(after, like=before)
        change = f"the failed request succeeds, with {size} reserved"
    yield f"  setting       {backend.variable}={advice.setting.name}: {change}"
    if backend.caution:
        yield f"                {backend.caution}"


def finding_rows(finding: Finding, advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield what is known of a finding: titles and texts; the title of a further line is empty."""
    yield from _saving_rows(finding, advice)
    title = "how"
    for line in finding.how:
        yield title, line
        title = ""
    if finding.sort != FAULT:
        yield "costs", finding.costs
    doubt = f"likely; wrong if {finding.wrong_if}"
    yield "certainty", "certain" if finding.is_certain else doubt
    if finding.estimated:
        yield "estimated", finding.estimated


def _saving_rows(finding: Finding, advice: Advice) -> Iterator[tuple[str, str]]:
    """Yield what a finding saves of what is reserved, or alone and beside the others."""
    saved = format_bytes(finding.saved_bytes)
    about = " (estimated)" if finding.estimated else ""
    if finding.reserved_bytes is not None:
        after = finding.reserved_bytes
        change = change_shown(after + finding.saved_bytes, after)
        yield "saves", f"{saved} of reserved memory{about}: {change}"
        return
    peak = finding.peak
    alone = advice.peak.n_bytes - peak.n_bytes
    passed = _PASSES.get(peak.phase, peak.phase or "the program")
    next_peak = f"{passed} {finding.next_place} needs {format_bytes(peak.n_bytes)}"
    if finding.needs_another_moment:
        yield "holds", f"{format_bytes(finding.held_bytes)} at the peak; {next_peak}"
    if alone:
        peaks = _peaks(advice, peak, finding.next_place)
        yield "saves", f"{format_bytes(alone)}{about}: {peaks}"
    if alone < finding.saved_bytes:
        beside = f"{saved} with the other changes{about}"
        reason = "" if finding.needs_another_moment else f" ({next_peak})"
        yield ("", beside) if alone else ("saves", f"nothing alone{reason}; {beside}")


def _together(advice: Advice) -> str:
    """Say what all changes save, and which of them saves as much alone."""
    peaks = [finding.peak.n_bytes for finding in advice.findings]
    alone = ""
    if advice.together.n_bytes in peaks:
        alone = f", as with {peaks.index(advice.together.n_bytes) + 1} alone"
    return f"{_peaks(advice, advice.together)}{alone}"


def _peaks(advice: Advice, after: Peak, location: str = "") -> str:
    """Say how the peak changes, and in which phase the new one is, or else where."""
    phase = optional("in {}", _PASSES.get(after.phase, after.phase))
    moment = optional("; the new peak is {}", phase or location)
    before = advice.peak.n_bytes
    return f"{change_shown(before, after.n_bytes, like=before)}{moment}"


def _goal_lines(advice: Advice, goal: int, file: str, cached: int) -> Iterator[str]:
    if not advice.findings or advice.together.n_bytes > goal:
        yield f"  at the peak   {_contents(advice, goal)}"
    yield f"  goal          {_goal(advice, goal, cached)}"
    if cached and goal and not advice.fits_already:
        yield f"  capacity      {_cached(advice, goal, cached)}"
    if not advice.fits_already:
        yield from _enough_line(advice)
    if advice.is_failed:
        yield f"{next_line('oom', file)}  (remedies for the failed request)"


def _enough_line(advice: Advice) -> Iterator[str]:
    """List the findings, by their numbers, that reach the goal alone or together."""
    choices = []
    if advice.setting and advice.setting.is_enough:
        choices.append("the setting alone")
    for numbers in advice.enough:
        alone = "" if len(numbers) > 1 else " alone"
        choices.append(f"{' + '.join(map(str, numbers))}{alone}")
    if choices:
        yield f"  enough        {'; or '.join(choices)}"


def _contents(advice: Advice, goal: int) -> str:
    """List the largest categories at the peak; with no finding they say why there is none."""
    largest = list(advice.contents.items())[:_N_CATEGORIES]
    text = ", ".join(f"{format_bytes(n_bytes)} {name}" for name, n_bytes in largest)
    if not advice.findings and advice.peak.n_bytes > goal:
        text += ": no change that advise knows makes these smaller"
    return text


def _goal(advice: Advice, goal: int, cached: int) -> str:
    remaining_bytes = advice.together.n_bytes
    peak = format_bytes(advice.peak.n_bytes)
    saved = format_bytes(advice.peak.n_bytes - remaining_bytes)
    if not goal:
        reason = f"no memory would remain for the peak of {peak}"
        return f"impossible: {reason}; the most that can be saved is {saved}"
    if advice.fits_already:
        capacity = format_bytes(goal + cached)
        return (
            f"met already: a replay in {capacity} fits, as PyTorch returns cached "
            "memory before it fails"
        )
    scope = "" if advice.history_verdict == Verdict.COMPLETE.value else " in this trace"
    result = (
        f"missed by {format_bytes(remaining_bytes - goal)}; the most that can be saved is "
        f"{saved}"
    )
    if advice.peak.n_bytes <= goal:
        result = f"met already{scope}"
        if advice.is_failed:
            result += "; the failed request could not use the free memory"
    elif remaining_bytes <= goal:
        result = f"reached{scope}"
    return f"a peak of at most {format_bytes(goal, like=advice.peak.n_bytes)}: {result}"


def _cached(advice: Advice, goal: int, cached: int) -> str:
    """Show the part of the capacity that PyTorch keeps cached."""
    capacity = format_bytes(goal + cached)
    text = f"{capacity}, of which PyTorch keeps {format_bytes(cached)} cached"
    if advice.setting and not advice.is_failed:
        cached_then = max(advice.setting.reserved_bytes - advice.peak.n_bytes, 0)
        text += f" ({format_bytes(cached_then)} with the setting)"
    return text
