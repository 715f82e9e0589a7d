"""Lines of text for ``snapconv advise``."""

from collections.abc import Iterator

from snapconv.answers.advice.changes import Peak
from snapconv.answers.advice.evidence import TRADE
from snapconv.answers.advice.findings import Advice, Finding
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.size_rows import next_line

_N_CATEGORIES = 4
_PASSES = {"forward": "the forward pass", "backward": "the backward pass"}


def advice_lines(advice: Advice, file: str, cached: int, growing: str) -> Iterator[str]:
    """Show what to change; ``cached`` is in no goal, ``growing`` names a line that may grow."""
    yield _headline(advice)
    if advice.unknown:
        yield f"  {advice.unknown}"
        return
    for number, finding in enumerate(advice.findings, 1):
        yield from _finding_lines(number, finding, advice)
    if len(advice.findings) > 1:
        yield f"  together      {_peaks(advice.peak, advice.together)}"
    if growing:
        yield f"  not certain, as the trace has no iterations: {growing}"
        yield next_line("growth", file)
    if advice.goal_bytes is not None:
        if not advice.findings or advice.together.n_bytes > advice.goal_bytes:
            yield f"  at the peak   {_contents(advice)}"
        yield f"  goal          {_goal(advice, cached)}"
        if len(advice.findings) > 1 and all(one.peak.n_bytes <= advice.goal_bytes for one in advice.findings):
            yield "                each of these alone reaches it"
        if _is_cut_up(advice):
            yield f"{next_line('oom', file)}  (why this memory could not be used)"
    elif not advice.with_trades:
        quarter = min(max(advice.peak.n_bytes >> 22, 1), 1024)
        size = "1GiB" if quarter == 1024 else f"{quarter}MiB"
        yield f"{next_line('advise', file)} --save {size}  (savings that cost time or precision)"


def _contents(advice: Advice) -> str:
    """List the largest categories at the peak; with no finding they say why there is none."""
    largest = [
        f"{format_bytes(n_bytes)} {name}" for name, n_bytes in [*advice.contents.items()][:_N_CATEGORIES]
    ]
    return ", ".join(largest) + (
        "" if advice.findings else ": no change that advise knows makes these smaller"
    )


def _is_cut_up(advice: Advice) -> bool:
    """Whether a request failed although there were enough bytes, in other pools or in pieces."""
    return advice.is_failed and advice.peak.n_bytes <= (advice.goal_bytes or 0)


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
    for title, text in finding_rows(finding, advice.peak):
        yield f"     {title:<10} {text}"


def finding_rows(finding: Finding, peak: Peak) -> Iterator[tuple[str, str]]:
    """Yield what is known of a finding: titles and texts; the title of a further line is empty."""
    held, saved = format_bytes(finding.held_bytes), format_bytes(finding.saved_bytes)
    if other := finding.needs_another_moment:
        yield "holds", f"{held} at the peak; {other}"
    about, alone = " (estimated)" if finding.estimated else "", peak.n_bytes - finding.peak.n_bytes
    if alone:
        yield "saves", f"{format_bytes(alone)}{about}: {_peaks(peak, finding.peak)}"
    if alone < finding.saved_bytes:
        beside = f"{saved} beside the others{about}"
        yield "" if alone else "saves", beside if alone else f"nothing alone; {beside}"
    yield from zip(("how", *[""] * len(finding.how)), finding.how, strict=False)
    if finding.sort == TRADE:
        yield "costs", finding.costs
    yield "sure", f"{'certain' if finding.is_certain else 'likely'}; wrong only if {finding.wrong_if}"
    if finding.estimated:
        yield "estimated", finding.estimated


def _peaks(before: Peak, after: Peak) -> str:
    unit = min(before.n_bytes, after.n_bytes) or before.n_bytes
    then = f"; the new peak is in {_PASSES.get(after.phase, after.phase)}" if after.phase else ""
    return f"{format_bytes(before.n_bytes, like=unit)} → {format_bytes(after.n_bytes, like=unit)}{then}"


def _goal(advice: Advice, cached: int) -> str:
    goal, left = advice.goal_bytes or 0, advice.together.n_bytes
    most = f"the most that can be saved is {format_bytes(advice.peak.n_bytes - left)}"
    if not goal:
        return f"impossible: it leaves no memory for the program; {most}"
    capacity, of_it = format_bytes(goal + cached), format_bytes(cached)
    limit = f" ({capacity} less {of_it} that PyTorch keeps cached)" if capacity != format_bytes(goal) else ""
    if _is_cut_up(advice):
        needed = f"{format_bytes(advice.peak.n_bytes)} of {format_bytes(goal)}{limit}"
        return f"met already: {needed}; the failed request could not use the free memory"
    if left <= goal:
        return f"reached: {format_bytes(left)} of at most {format_bytes(goal)}{limit}"
    return f"{format_bytes(goal)}{limit}, missed by {format_bytes(left - goal)}; {most}"
