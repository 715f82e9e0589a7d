"""Results -> figures: shares, rounded, in plain values; those of cases and cuts are kept in results.json."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from comparison import Bytes, Confusion, Result
from cutting import HISTORIES
from entries import GROUP_OF

Figures = dict[str, Any]
# Of what is measured, a hundredth of a percent.
_DIGITS = 4
_SWEPT = ("right", "wrong", "unknown")
_NAMES = {"names": "named right"}


def figures(results: Sequence[Result]) -> Figures:
    """Gather all results; every case counts the same, however large it is."""
    swept = [result for result in results if result.case.history not in HISTORIES]
    results = [result for result in results if result.case.history in HISTORIES]
    return {
        "cases": [_case(result) for result in results],
        "cuts": _cuts(swept),
        "categories": _categories(results),
        "evidence": _calibration(results, lambda evidence, _: evidence),
        "rules": _calibration(results, lambda evidence, rule: f"{evidence}: {rule}"),
    }


def merged(before: Figures, now: Figures) -> Figures:
    """Return what results.json keeps: the cases and cuts of now, and of before those that now has not.

    A quick run measures no names: they stay as they were.
    """
    cases = {_name(case): case for case in before["cases"]}
    for case in now["cases"]:
        was = cases.get(_name(case), {})
        kept = {key: was.get(key) if case[key] is None else case[key] for key in _NAMES}
        cases[_name(case)] = {**case, **kept}
    cuts = {_cut_name(row): row for row in (*before["cuts"], *now["cuts"])}
    return {
        "cases": [case for case in cases.values() if case["entry"] in GROUP_OF],
        "cuts": [row for row in cuts.values() if row["entry"] in GROUP_OF],
    }


def as_text(found: Figures) -> str:
    """Return JSON with one case or cut per line, so that a difference shows what has changed."""
    parts = (f'"{key}": [\n  {_lines(rows)}\n ]' for key, rows in found.items())
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _lines(rows: Sequence[Figures]) -> str:
    return ",\n  ".join(json.dumps(row) for row in rows)


def _case(result: Result) -> Figures:
    case = result.case
    return {
        "entry": case.entry,
        "group": GROUP_OF[case.entry],
        "optimizer": case.setup.optimizer,
        "zero_grad": "to none" if case.setup.set_to_none else "to zero",
        "n_steps": case.setup.n_steps,
        "stacks": case.stacks,
        "history": case.history,
        "peak": _shares(result.at_peak),
        "activations": _shares(result.at_activations),
        "names": result.named_right,
    }


def _cuts(swept: Iterable[Result]) -> list[Figures]:
    """One row per entry, stacks and step that was cut; in it one share per place of the cut, in order."""
    rows: dict[tuple[str, str, str], Figures] = {}
    for result in swept:
        case = result.case
        step = case.history.rpartition(" ")[0]
        about = {
            "entry": case.entry,
            "group": GROUP_OF[case.entry],
            "stacks": case.stacks,
            "step": step,
        }
        row = rows.setdefault(
            (case.entry, case.stacks, step), {**about, **{word: [] for word in _SWEPT}}
        )
        for word, share in _shares(result.at_peak).items():
            if word in _SWEPT:
                row[word].append(share)
    return list(rows.values())


def _shares(n_bytes: Bytes) -> Figures:
    total, everything = n_bytes.counted or 1, n_bytes.counted + n_bytes.not_counted or 1
    return {
        "right": _share(n_bytes.right, total),
        "in_sum": _share(n_bytes.in_sum, total),
        "wrong": _share(n_bytes.wrong, total),
        "unknown": _share(n_bytes.unknown, total),
        "recorded": _share(n_bytes.recorded, total),
        "not_counted": _share(n_bytes.not_counted, everything),
    }


def _categories(results: Sequence[Result]) -> Figures:
    """Return the confusion at the peak: of the mean case's bytes, by what they are and what was said."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for result in results:
        confusion: Confusion = result.at_peak.confusion
        for pair, n_bytes in confusion.items():
            total[pair] += n_bytes / (result.at_peak.counted or 1) / len(results)
    found: Figures = {}
    for (true, said), part in sorted(total.items(), key=lambda item: -item[1]):
        found.setdefault(true, {})[said] = round(part, _DIGITS + 2)
    return found


def _calibration(results: Iterable[Result], key: Callable[[str, str], str]) -> list[Figures]:
    """How much each kind of evidence decides at the peak, and how much of that is right."""
    decided: dict[str, float] = defaultdict(float)
    right: dict[str, float] = defaultdict(float)
    results = list(results)
    for result in results:
        for (evidence, rule), (n_bytes, n_right) in result.decided.items():
            decided[key(evidence, rule)] += n_bytes / (result.at_peak.counted or 1)
            right[key(evidence, rule)] += n_right / (result.at_peak.counted or 1)
    return [
        {
            "name": name,
            "decided": _share(part, len(results)),
            # What is left open is neither right nor wrong.
            "right": None if name.startswith("none") else _share(right[name], part),
        }
        for name, part in sorted(decided.items(), key=lambda item: -item[1])
    ]


def _share(part: float, whole: float) -> float:
    return round(part / whole, _DIGITS)


def worse_than(before: Figures, now: Figures, tolerance: float = 0.001) -> list[str]:
    """Say which cases of now have less right, or more wrong, than the same cases had before."""
    known = {_name(case): case for case in before["cases"]}
    faults = []
    for case in now["cases"]:
        old = known.get(_name(case))
        if old is None:
            continue
        for moment in ("peak", "activations"):
            for word, sign in (("right", -1), ("wrong", 1)):
                change = sign * (case[moment][word] - old[moment][word])
                if change > tolerance:
                    faults.append(
                        f"{_name(case)}: {word} at {moment}: {case[moment][word]:.2%}, "
                        f"was {old[moment][word]:.2%}"
                    )
        for names, words in _NAMES.items():
            # Figures of before may not have all of them.
            was, is_now = old.get(names), case[names]
            if was is not None and is_now is not None and was - is_now > tolerance:
                faults.append(f"{_name(case)}: {words}: {is_now:.2%}, was {was:.2%}")
    return faults + _worse_cuts(before.get("cuts", []), now.get("cuts", []), tolerance)


def _worse_cuts(before: Sequence[Figures], now: Sequence[Figures], tolerance: float) -> list[str]:
    known = {_cut_name(row): row for row in before}
    return [
        f"{_cut_name(row)}, cut after {tenth} tenths: {word}: {share:.2%}, was {was:.2%}"
        for row in now
        if _cut_name(row) in known
        for word, sign in (("right", -1), ("wrong", 1))
        for tenth, (share, was) in enumerate(
            zip(row[word], known[_cut_name(row)][word], strict=True), 1
        )
        if sign * (share - was) > tolerance
    ]


def _cut_name(row: Figures) -> str:
    return f"{row['entry']} {row['stacks']} {row['step']} step"


def _name(case: Figures) -> str:
    return " ".join(
        str(case[key])
        for key in ("entry", "optimizer", "zero_grad", "n_steps", "stacks", "history")
    )
