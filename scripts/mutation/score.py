"""Outcomes of changes -> a record in this folder -> a table of scores.

The record has only what survived. Reasons why some of it may are written by hand, in reasons.json.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.mutation.trial import Outcome

_HERE = Path(__file__).parent
_RECORD, _REASONS = _HERE / "results.json", _HERE / "reasons.json"
_Z_95 = 1.959964


def recorded() -> dict[str, Any]:
    """Read what was found in all packages."""
    return _read(_RECORD)


def reasons() -> dict[str, str]:
    """Read why some of it may survive, by the change."""
    return _read(_REASONS)


def load(package: str) -> dict[str, Any]:
    """Read what the last run found in a package."""
    record: dict[str, Any] = recorded().get(package, {})
    return record


def without_reason(record: dict[str, Any]) -> list[dict[str, str]]:
    """Find what survived though nobody said why it may."""
    why = reasons()
    return [survivor for survivor in record.get("survivors", []) if survivor["id"] not in why]


def save(package: str, outcomes: "list[Outcome]", *, seed: int, is_again: bool) -> None:
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
| package | changes | noticed | of them by time | score | interval (95 %) | with newer tests | with a reason |
|---|---:|---:|---:|---:|---:|---:|---:|
"""
# How the reason of a survivor begins that the tests of today notice.
_NOTICED = "noticed"


def summary() -> str:
    """Return the scores of all packages as a table, and every survivor without a reason."""
    record = recorded()
    lines = [_row(package, one) for package, one in record.items()]
    open_ones = [survivor["id"] for one in record.values() for survivor in without_reason(one)]
    return _HEAD + "\n".join([*lines, *(f"no reason in reasons.json: {one}" for one in open_ones)])


def _row(package: str, one: dict[str, Any]) -> str:
    n, survivors, why = one["changes"], one["survivors"], reasons()
    given = [why[survivor["id"]] for survivor in survivors if survivor["id"] in why]
    noticed, n_since = n - len(survivors), sum(reason.startswith(_NOTICED) for reason in given)
    low, high = wilson(noticed, n)
    counts = f"{n} | {noticed} | {one['timeouts']}"
    shares = f"{noticed / n:.1%} | {low:.1%} to {high:.1%} | {(noticed + n_since) / n:.1%}"
    return f"| {package} | {counts} | {shares} | {len(given)} of {len(survivors)} |"


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return values


def _survivor(outcome: "Outcome") -> dict[str, str]:
    mutant = outcome.mutant
    changed = {"before": mutant.source.strip(), "after": mutant.changed.strip()}
    return {
        "id": mutant.id,
        "path": mutant.path,
        "line": str(mutant.line),
        **changed,
        "verdict": outcome.verdict,
    }
