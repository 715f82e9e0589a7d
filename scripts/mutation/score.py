"""Outcomes of changes -> a record in this folder -> the part of docs/reference/tests.md about them.

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
    return [survivor for survivor in record.get("survivors", []) if not _reason(survivor, why)]


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
## Changes that they notice

`scripts/mutate` changes one operator, number or keyword at a time, and runs tests that run its line, those
of its module and the quickest first, for some seconds; a change that none of these notices survives, so the
score is a lower bound. A seeded sample of each package; the interval is Wilson's, 95 %.

All are later samples, drawn with a seed of their own after tests were written for what survived in earlier
ones, and each was tried for 3 seconds: classification and replay with their own tests alone, allocator with
those of replay, too. What was noticed with more time, or by tests written since and so for this very sample,
counts as survived; the last column but one has it, too. Many changes are known from earlier samples; of the
others were noticed 139 of 149 in replay (93.3%), 118 of 131 in allocator (90.1%), 168 of 191 in
classification (88.0%).

| package | changes | noticed | of them by time | score | interval | with newer tests | with a reason |
|---|---:|---:|---:|---:|---:|---:|---:|
"""
# How the reason of a survivor begins that the tests of today notice.
_NOTICED = "noticed"
# A decorator's arguments: there is a test that reads them, which is younger than some samples.
_DECORATOR = "noticed by a newer test, which reads decorators"


def part() -> str:
    """Return the part of the page, out of the record and the reasons."""
    record, why = recorded(), reasons()
    lines = [_summary(package, one, why) for package, one in record.items()]
    for package, one in record.items():
        lines += ["", f"### What survived in {package}", ""]
        lines += ["| where | before | after | why |", "|---|---|---|---|"]
        lines += [_row(survivor, why) for survivor in one["survivors"]]
    return _HEAD + "\n".join(lines) + "\n"


def _summary(package: str, one: dict[str, Any], why: dict[str, str]) -> str:
    n, survivors = one["changes"], one["survivors"]
    noticed = n - len(survivors)
    low, high = wilson(noticed, n)
    n_explained = sum(bool(_reason(survivor, why)) for survivor in survivors)
    explained = f"{n_explained} of {len(survivors)}"
    n_since = sum(_reason(survivor, why).startswith(_NOTICED) for survivor in survivors)
    score, interval = f"{noticed / n:.1%}", f"{low:.1%} to {high:.1%}"
    cells = (
        package,
        n,
        noticed,
        one["timeouts"],
        score,
        interval,
        f"{(noticed + n_since) / n:.1%}",
        explained,
    )
    return "| " + " | ".join(map(str, cells)) + " |"


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


def _reason(survivor: dict[str, str], why: dict[str, str]) -> str:
    return _DECORATOR if survivor["before"].startswith("@dataclass") else why.get(survivor["id"], "")


def _row(survivor: dict[str, str], why: dict[str, str]) -> str:
    path = survivor["path"].removeprefix("snapconv/").split("/", 1)[-1]
    cells = (path, f"`{survivor['before']}`", f"`{survivor['after']}`", _reason(survivor, why))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
