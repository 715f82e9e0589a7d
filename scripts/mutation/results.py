"""Outcomes of changes -> a record in this folder, and docs/mutation.md: scores, and what survived.

The record has only what survived. Reasons why some of it may are written by hand, in reasons.json.
"""

import json
import math
from pathlib import Path
from typing import Any

from scripts.mutation.trial import Outcome

_HERE = Path(__file__).parent
_RECORD, _REASONS = _HERE / "results.json", _HERE / "reasons.json"
PAGE = Path("docs", "mutation.md")
_Z_95 = 1.959964


def load(package: str) -> dict[str, Any]:
    """Read what the last run found in a package."""
    record: dict[str, Any] = _read(_RECORD).get(package, {})
    return record


def save(package: str, outcomes: list[Outcome], *, seed: int, is_again: bool) -> None:
    """Keep what a run found; a run of what survived changes only the verdicts of that."""
    record = _read(_RECORD)
    survivors = [_survivor(outcome) for outcome in outcomes if not outcome.is_noticed]
    if is_again:
        tried = {outcome.mutant.id for outcome in outcomes}
        left = [one for one in record[package]["survivors"] if one["id"] not in tried]
        record[package]["survivors"] = [*left, *survivors]
    else:
        timeouts = sum(outcome.verdict == "timeout" for outcome in outcomes)
        record[package] = {
            "seed": seed, "changes": len(outcomes), "timeouts": timeouts, "survivors": survivors,
        }  # fmt: skip
    _RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the interval of Wilson, 95 %, for a share that was seen ``hits`` times in ``n``."""
    if not n:
        return 0.0, 1.0
    share, z2 = hits / n, _Z_95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


_HEAD = """\
# Mutation score

`scripts/mutate` changes one operator, number or keyword at a time, and runs the tests that run its line; a
change that none of them notices survives. A seeded sample of each package; the interval is Wilson's, 95 %.

| package | changes | noticed | of them by time | score | interval | survived with a reason |
|---|---:|---:|---:|---:|---:|---:|
"""


def page() -> str:
    """Return the page's text, out of the record and the reasons."""
    record, reasons = _read(_RECORD), _read(_REASONS)
    lines = [_summary(package, one, reasons) for package, one in record.items()]
    for package, one in record.items():
        lines += ["", f"## What survived in {package}", ""]
        lines += ["| where | before | after | why |", "|---|---|---|---|"]
        lines += [_row(survivor, reasons) for survivor in one["survivors"]]
    return _HEAD + "\n".join(lines) + "\n"


def _summary(package: str, one: dict[str, Any], reasons: dict[str, str]) -> str:
    n, survivors = one["changes"], one["survivors"]
    noticed = n - len(survivors)
    low, high = wilson(noticed, n)
    explained = f"{sum(survivor['id'] in reasons for survivor in survivors)} of {len(survivors)}"
    score, interval = f"{noticed / n:.1%}", f"{low:.1%} to {high:.1%}"
    return f"| {package} | {n} | {noticed} | {one['timeouts']} | {score} | {interval} | {explained} |"


def write_page(root: Path) -> None:
    """Write the page."""
    (root / PAGE).write_text(page(), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return values


def _survivor(outcome: Outcome) -> dict[str, str]:
    mutant = outcome.mutant
    changed = {"before": mutant.source.strip(), "after": mutant.changed.strip()}
    return {
        "id": mutant.id,
        "path": mutant.path,
        "line": str(mutant.line),
        **changed,
        "verdict": outcome.verdict,
    }


def _row(survivor: dict[str, str], reasons: dict[str, str]) -> str:
    path = survivor["path"].removeprefix("snapconv/").split("/", 1)[-1]
    cells = (path, f"`{survivor['before']}`", f"`{survivor['after']}`", reasons.get(survivor["id"], ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
