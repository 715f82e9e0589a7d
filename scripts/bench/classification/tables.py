"""Results and their figures -> what a person reads: tables in Markdown, and lines with what is wrong."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from comparison import Bytes, Result
from cutting import HISTORIES, STACKS, SWEPT_STEPS, TENTHS

Figures = dict[str, Any]

_COLUMNS = tuple(product(STACKS, HISTORIES))
_HEADS = tuple(f"`{stacks}`, {history}" for stacks, history in _COLUMNS)
_USUAL = ("adamw", "to none")
# Faults of less than a thousandth of a case are left out.
_LEAST_SHARE = 0.001


def markdown(found: Figures) -> str:
    """Return all tables, with a line of explanation before each."""
    cases = found["cases"]
    return "\n\n".join(
        (
            "The means of the groups at the peak in percent, as right / wrong / unknown:",
            _by_group(cases),
            "Bytes at the peak with the right category in percent, by entry:",
            _by_entry(cases),
            "Rings cut at nine places of one of the last two steps, as right / wrong:",
            _by_cut(found["cuts"]),
            "All cases, by the kind of recording:",
            _summary(cases),
            "What each category's bytes at the peak were taken for, in percent of all bytes:",
            _confusion(found["categories"]),
            (
                "What each kind of evidence decided of the bytes at the peak, and how much of that is "
                "right:"
            ),
            _calibration("evidence", found["evidence"]),
            _calibration("rule", found["rules"]),
        )
    )


def faults_of(results: Iterable[Result]) -> str:
    """Return a line per case and moment that has faults: truth, what was said, by which rule, its share."""
    return "\n".join(line for result in results for line in _faulty_lines(result))


def _faulty_lines(result: Result) -> Iterator[str]:
    case = result.case
    setup = (
        f"{case.setup.optimizer}{'' if case.setup.set_to_none else ' to zero'} {case.setup.n_steps}"
    )
    for moment, n_bytes in (("peak", result.at_peak), ("activations", result.at_activations)):
        found = list(_faults(n_bytes))
        if found:
            right = n_bytes.right / (n_bytes.counted or 1)
            head = f"{case.entry} {setup} {case.stacks} {case.history} {moment}: {right:.2%} right"
            yield f"{head}; {', '.join(found)}"


def _faults(n_bytes: Bytes) -> Iterator[str]:
    for (true, said, rule), size in n_bytes.by_rule.most_common():
        share = size / (n_bytes.counted or 1)
        if true != said and share >= _LEAST_SHARE:
            yield f"{true} -> {said} {share:.2%} ({rule})"


def _usual(cases: Sequence[Figures]) -> list[Figures]:
    """Every entry as it is trained usually, for more than a step."""
    return [
        case
        for case in cases
        if (case["optimizer"], case["zero_grad"]) == _USUAL and case["n_steps"] > 1
    ]


def _by_entry(cases: Sequence[Figures]) -> str:
    rows: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for case in _usual(cases):
        entry = f"`{case['entry']}`", case["group"]
        rows.setdefault(entry, {})[case["stacks"], case["history"]] = case["peak"]["right"]
    return _table(
        ("entry", "group", *_HEADS),
        (
            [*entry, *(_percent(row.get(column)) for column in _COLUMNS)]
            for entry, row in rows.items()
        ),
    )


def _by_group(cases: Sequence[Figures]) -> str:
    def means(group: str, column: tuple[str, str]) -> str:
        mine = [
            case["peak"]
            for case in _usual(cases)
            if case["group"] == group and (case["stacks"], case["history"]) == column
        ]
        return _shares(
            [fmean(peak[word] for peak in mine) for word in ("right", "wrong", "unknown") if mine]
        )

    groups = dict.fromkeys(case["group"] for case in cases)
    return _table(
        ("group", *_HEADS),
        ([group, *(means(group, column) for column in _COLUMNS)] for group in groups),
    )


def _by_cut(cuts: Sequence[Figures]) -> str:
    def row(group: str, stacks: str, step: str) -> list[str]:
        mine = [
            cut
            for cut in cuts
            if (cut["group"], cut["stacks"], cut["step"]) == (group, stacks, step)
        ]
        places = zip(*(zip(cut["right"], cut["wrong"], strict=True) for cut in mine), strict=True)
        means = ([fmean(shares) for shares in zip(*place, strict=True)] for place in places)
        return [f"`{stacks}`, {step} step, {group}", *map(_shares, means)]

    groups = dict.fromkeys(cut["group"] for cut in cuts)
    kinds = {(cut["group"], cut["stacks"], cut["step"]) for cut in cuts}
    return _table(
        ("recording", *(f"after {tenth}/10" for tenth in TENTHS)),
        (
            row(group, stacks, step)
            for stacks, step, group in product(STACKS, SWEPT_STEPS, groups)
            if (group, stacks, step) in kinds
        ),
    )


def _summary(cases: Sequence[Figures]) -> str:
    def row(stacks: str, history: str) -> list[str]:
        mine = [case for case in cases if (case["stacks"], case["history"]) == (stacks, history)]
        shares = [fmean(case["peak"][word] for case in mine) for word in words if mine]
        least = [min(case["peak"]["right"] for case in mine)] if mine else []
        at_activations = [fmean(case["activations"]["right"] for case in mine)] if mine else []
        found = map(_percent, [*shares, *least, *at_activations, _named(mine)])
        return [f"`{stacks}`, {history}", str(len(mine)), *found]

    words = ("right", "wrong", "unknown", "in_sum", "recorded", "not_counted")
    heads = ("recording", "cases", *(word.replace("_", " ") for word in words), "worst")
    return _table(
        (*heads, "right at activations", "named right"), (row(*column) for column in _COLUMNS)
    )


def _named(cases: Sequence[Figures]) -> float | None:
    shares = [case["names"] for case in cases if case.get("names") is not None]
    return fmean(shares) if shares else None


def _confusion(categories: Figures) -> str:
    words = [
        *categories,
        *({said for row in categories.values() for said in row} - set(categories)),
    ]
    said = sorted(words, key=lambda word: (word == "unknown", words.index(word)))
    return _table(
        ("it is", *(f"said {word}" for word in said)),
        ([true, *(_percent(row.get(word)) for word in said)] for true, row in categories.items()),
    )


def _calibration(head: str, rows: Sequence[Figures]) -> str:
    return _table(
        (head, "decided", "right"),
        ([f"`{row['name']}`", _percent(row["decided"]), _percent(row["right"])] for row in rows),
    )


def _shares(shares: Iterable[float]) -> str:
    return " / ".join(map(_percent, shares))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ["-"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
