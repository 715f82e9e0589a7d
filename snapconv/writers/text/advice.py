"""Lines of text for ``snapconv advise``."""

from collections.abc import Iterator

from snapconv.answers.advice.changes import Peak
from snapconv.answers.advice.evidence import TRADE
from snapconv.answers.advice.findings import Advice, Finding
from snapconv.units import counted, device_name, format_bytes


def advice_lines(advice: Advice, file: str) -> Iterator[str]:
    """Show what to change, the largest saving first."""
    yield _headline(advice)
    if advice.unknown:
        yield f"  {advice.unknown}"
        return
    for number, finding in enumerate(advice.findings, 1):
        yield from _finding_lines(number, finding, advice)
    if len(advice.findings) > 1:
        yield f"  together      {_peaks(advice.peak, advice.together)}"
    if advice.goal_bytes is not None:
        yield f"  goal          {_goal(advice)}"
    elif not advice.with_trades:
        save = "1GiB" if advice.peak.n_bytes > 4 << 30 else f"{max(advice.peak.n_bytes >> 22, 1)}MiB"
        yield f"  next: snapconv advise {file} --save {save}  (savings that cost time or precision)"


def _headline(advice: Advice) -> str:
    name, peak = device_name(advice.device), format_bytes(advice.peak.n_bytes)
    if advice.unknown:
        return f"{name}  no advice"
    needs = "the program needs" if advice.is_failed else "the peak is"
    if not advice.findings:
        trades = " or trade" if advice.with_trades else ""
        return f"{name}  no fault{trades} found; {needs} {peak}"
    n_faults, n_trades = len(advice.faults), len(advice.findings) - len(advice.faults)
    parts = [counted(n, noun) for n, noun in ((n_faults, "fault"), (n_trades, "trade")) if n]
    return f"{name}  {' and '.join(parts)} found; {needs} {peak}"


def _finding_lines(number: int, finding: Finding, advice: Advice) -> Iterator[str]:
    yield f"  {number}. {finding.sort}: {finding.what}"
    held, saved = format_bytes(finding.held_bytes), format_bytes(finding.saved_bytes)
    if finding.saved_bytes < finding.held_bytes / 2:
        yield _row("holds", f"{held} at the peak; another moment needs nearly as much memory")
    about = " (estimated)" if finding.estimated else ""
    yield _row("saves", f"{saved}{about}: {_peaks(advice.peak, finding.peak)}")
    for title, line in zip(("how", *[""] * len(finding.how)), finding.how, strict=False):
        yield _row(title, line)
    if finding.sort == TRADE:
        yield _row("costs", finding.costs)
    yield _row("sure", f"{'certain' if finding.is_certain else 'likely'}, unless {finding.wrong_if}")
    if finding.estimated:
        yield _row("estimated", finding.estimated)


def _row(title: str, text: str) -> str:
    return f"     {title:<10} {text}"


def _peaks(before: Peak, after: Peak) -> str:
    unit = before.n_bytes
    then = f", then limited by {after.phase}" if after.phase else ""
    return f"{format_bytes(before.n_bytes, like=unit)} → {format_bytes(after.n_bytes, like=unit)}{then}"


def _goal(advice: Advice) -> str:
    goal, left = advice.goal_bytes or 0, advice.together.n_bytes
    if not goal:
        return "impossible: it leaves no memory for the program"
    if left <= goal:
        return f"reached: {format_bytes(left)} of at most {format_bytes(goal)}"
    return f"{format_bytes(goal)}, missed by {format_bytes(left - goal)}"
