"""The figures of results.json -> tables in Markdown.

Imports nothing of the others, so that the docs can be made without torch.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import fsum
from statistics import fmean
from typing import Any

Figures = dict[str, Any]

_COLUMNS = tuple(
    (stacks, history)
    for stacks in ("all", "python")
    for history in ("complete", "late", "ring", "ring-short")
)
_HEADS = tuple(f"`{stacks}`, {history}" for stacks, history in _COLUMNS)
_USUAL = ("adamw", "to none")
# The groups of scripts in folders of their own. Each was written while the rules were changed for the one
# before it, or later: from the third on by authors who had seen no rule, and committed before any rule ran
# on them.
BLIND_GROUPS = tuple(
    f"{number}-blind"
    for number in (
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
        "nineteenth",
        "twentieth",
    )
)
# Those around more libraries than tests/ecosystem has: libraries.txt has them.
WITH_MORE_LIBRARIES = BLIND_GROUPS[-7:]

_GROUPS = {
    "seen": "seen",
    "unseen": "unseen",
    "heldout": "held out",
    "blind": "blind",
    **{group: group.replace("-", " ") for group in BLIND_GROUPS},
    "libraries": "libraries",
}


def markdown(found: Figures) -> str:
    """All tables, with a line of explanation before each."""
    cases = found["cases"]
    return "\n\n".join(
        (
            "The means of the groups at the peak in percent, as right / wrong / unknown:",
            _by_group(cases, by_bytes=False),
            "The same by bytes, so that a large program counts more than a small one:",
            _by_group([case for case in cases if "counted_bytes" in case], by_bytes=True),
            "Bytes at the peak with the right category in percent, by entry:",
            _by_entry(cases),
            "Rings cut at nine places of one of the last two steps, as right / wrong, the means of these "
            "groups. Cut in the last step, there is nothing but its rest:",
            _by_cut(found["cuts"]),
            "All cases, by the kind of recording. All but the last three columns are of the peak; a name "
            "is right where the operation is, by bytes of its activations:",
            _summary(cases),
            "Other optimizers, and gradients that are cleared instead of dropped:",
            _by_optimizer(cases),
            "What each category's bytes at the peak were taken for, in percent of all bytes:",
            _confusion(found["categories"]),
            "What each kind of evidence decided of the bytes at the peak, and how much of that is right:",
            _calibration("evidence", found["evidence"]),
            _calibration("rule", found["rules"]),
        )
    )


def _usual(cases: Sequence[Figures]) -> list[Figures]:
    """Every entry as it is trained usually, for more than a step."""
    return [
        case for case in cases if (case["optimizer"], case["zero_grad"]) == _USUAL and case["n_steps"] > 1
    ]


def _by_entry(cases: Sequence[Figures]) -> str:
    rows: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for case in _usual(cases):
        entry = f"`{case['entry']}`", _GROUPS[case["group"]]
        rows.setdefault(entry, {})[case["stacks"], case["history"]] = case["peak"]["right"]
    return _table(
        ("entry", "group", *_HEADS),
        ([*entry, *(_percent(row.get(column)) for column in _COLUMNS)] for entry, row in rows.items()),
    )


def _by_group(cases: Sequence[Figures], *, by_bytes: bool) -> str:
    def means(group: str, column: tuple[str, str]) -> str:
        mine = [
            case
            for case in _usual(cases)
            if case["group"] == group and (case["stacks"], case["history"]) == column
        ]
        words = ("right", "wrong", "unknown") if mine else ()
        weights = [case["counted_bytes"] if by_bytes else 1 for case in mine]
        sums = (fsum(case["peak"][word] * n for case, n in zip(mine, weights, strict=True)) for word in words)
        return " / ".join(_percent(found / (fsum(weights) or 1)) for found in sums)

    measured = {case["group"] for case in cases}
    return _table(
        ("group", *_HEADS),
        (
            [name, *(means(group, column) for column in _COLUMNS)]
            for group, name in _GROUPS.items()
            if group in measured
        ),
    )


def _by_cut(cuts: Sequence[Figures]) -> str:
    def row(group: str, stacks: str, step: str) -> list[str]:
        mine = [cut for cut in cuts if (cut["group"], cut["stacks"], cut["step"]) == (group, stacks, step)]
        places = zip(*(zip(cut["right"], cut["wrong"], strict=True) for cut in mine), strict=True)
        means = (tuple(map(_mean, zip(*place, strict=True))) for place in places)
        return [
            f"`{stacks}`, {step} step, {_GROUPS[group]}",
            *(" / ".join(map(_percent, pair)) for pair in means),
        ]

    wanted = product(("all", "python"), ("last but one", "last"), _GROUPS)
    kinds = {(cut["group"], cut["stacks"], cut["step"]) for cut in cuts}
    return _table(
        ("recording", *(f"after {tenth}/10" for tenth in range(1, 10))),
        (row(group, stacks, step) for stacks, step, group in wanted if (group, stacks, step) in kinds),
    )


def _summary(cases: Sequence[Figures]) -> str:
    def row(stacks: str, history: str) -> list[str]:
        mine = [case for case in cases if (case["stacks"], case["history"]) == (stacks, history)]
        if not mine:
            return [f"`{stacks}`, {history}", "0", *[""] * 10]
        return [
            f"`{stacks}`, {history}",
            str(len(mine)),
            _percent(_mean(case["peak"]["right"] for case in mine)),
            _percent(min(case["peak"]["right"] for case in mine)),
            *(
                _percent(_mean(case["peak"][word] for case in mine))
                for word in ("in_sum", "wrong", "unknown", "recorded", "not_counted")
            ),
            _percent(_mean(case["activations"]["right"] for case in mine)),
            _percent(_named(mine, "names")),
        ]

    heads = (
        "recording",
        "cases",
        "right",
        "worst",
        "right in sum",
        "wrong",
        "unknown",
        "recorded",
        "not counted",
    )
    names = ("right at activations", "named right")
    return _table((*heads, *names), (row(*column) for column in _COLUMNS))


def _named(cases: Sequence[Figures], names: str) -> float | None:
    shares = [case[names] for case in cases if case.get(names) is not None]
    return _mean(shares) if shares else None


def _by_optimizer(cases: Sequence[Figures]) -> str:
    rows: dict[tuple[str, str, str], dict[tuple[str, str], float]] = {}
    varied = {case["entry"] for case in cases if case["optimizer"] != _USUAL[0]}
    for case in cases:
        if case["entry"] in varied and case["n_steps"] > 1:
            key = case["entry"], case["optimizer"], case["zero_grad"]
            rows.setdefault(key, {})[case["stacks"], case["history"]] = case["peak"]["right"]
    columns = [column for column in _COLUMNS if column[1] in ("complete", "late")]
    return _table(
        ("entry", "optimizer", "`zero_grad`", *(f"`{stacks}`, {history}" for stacks, history in columns)),
        (
            [f"`{entry}`", optimizer, zero_grad, *(_percent(row.get(column)) for column in columns)]
            for (entry, optimizer, zero_grad), row in rows.items()
        ),
    )


def _confusion(categories: Figures) -> str:
    words = [*categories, *({said for row in categories.values() for said in row} - set(categories))]
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


def ablation(found: Figures) -> str:
    """The page about what every rule is worth."""
    rules = found["rules"]
    measured = sorted((row for row in rules if row["decided"]), key=lambda row: -row["decided"])
    elsewhere = [row for row in rules if not row["decided"]]
    return f"""# What every rule is worth

Measured on the {found["n_programs"]} programs of the benchmark that were written apart from the rules, those
held out, blind and second blind in [how often categories are right](accuracy.md), in {found["n_cases"]}
recordings of them: from the start, begun late and cut in twenty places, each with and without C++ frames.
*Decided* is the mean share of the bytes at the peak, in percent, that the rule decides; *without it* is how
the mean shares change if the rule is left out and those after it decide instead. Of rules that count copies
of equal sizes, which block of a size has which category is arbitrary: what is wrong there may be right in
sum. The last two columns are of ordinary programs around libraries.
Made by `scripts/bench/classification/run.py --ablate`.

{_table(_ABLATED, (_ablated(row) for row in measured))}

## Rules that decide nothing at these peaks

They decide in the places that are named: at other moments, in other programs, in files, or in tests of the
classification.

{_table(("rule", "reason", "decides something in"), (_elsewhere(row) for row in elsewhere))}
"""


_ABLATED = (
    *("rule", "reason", "decided", "right", "programs", "without it: right", "wrong"),
    *("decided in libraries", "right"),
)


def _ablated(row: Figures) -> list[str]:
    reasons = ", ".join(f"`{reason}`" for reason in row["reasons"])
    without = (f"{100 * row[key]:+.3f}" for key in ("right_without", "wrong_without"))
    decided = f"{100 * row['decided']:.3f}"
    in_libraries = _percent(row["decided_in_libraries"] or None), _percent(row["right_in_libraries"])
    n_programs = str(len(row["programs"]))
    name = f"`{row['rule']}`"
    return [name, reasons, decided, _percent(row["right"]), n_programs, *without, *in_libraries]


def _elsewhere(row: Figures) -> list[str]:
    reasons = ", ".join(f"`{reason}`" for reason in row["reasons"])
    return [f"`{row['rule']}`", reasons, ", ".join(row["seen_in"]) or "nothing"]


def _mean(values: Iterable[float]) -> float:
    # Exact, so that every Python rounds to the same figure.
    return fmean(values)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ["-"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
