"""What every rule is worth: what it decides, how much of that is right, and what would be without the rule.

Measured on the programs that no rule was made for. A rule that decides nothing there may still decide
something in other programs, in the fixtures, in the real snapshots beside the checkout, or in a test.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cases import Bare, bare_snapshots
from comparison import analysed, match
from deciding_rules import PATH_VARIABLE, decider_of, named_rules
from entries import GROUP_OF

import snapconv
from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import PipelineRule
from snapconv.classification.rule_order import HOST_PIPELINE, PIPELINE, classify
from snapconv.columns import Int8Column, Int64Column
from snapconv.errors import SnapconvError

RESULTS = Path(__file__).with_name("ablation.json")
# Of these groups no program had a rule made for it when it was written; "libraries" are ordinary programs.
MEASURED_GROUPS = ("heldout", "blind", "second-blind")

_ROOT = Path(__file__).parents[3]
_FILES = {
    "fixtures": _ROOT / "fixtures",
    "real snapshots": _ROOT.parent / "shared" / "snapshots",
}
_SUFFIXES = (".pickle", ".gz", ".json", ".html", ".capture")
_TESTS = ("tests/unit", "tests/golden")


@dataclass(slots=True)
class _Worth:
    """Of one rule: sums over cases of shares of the bytes at the peak, and programs where it decides."""

    decided: float = 0.0
    right: float = 0.0
    right_without: float = 0.0
    wrong_without: float = 0.0
    entries: set[str] = field(default_factory=set)
    better_with: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Peak:
    """The allocations at the peak whose purpose is known: what they truly are, and their shares."""

    features: Features
    rows: Int64Column
    true: Int8Column
    share: np.ndarray[tuple[int], np.dtype[np.float64]]

    def right_and_wrong(self, category: Int8Column) -> tuple[float, float]:
        """The shares that have the right, and that have a wrong category."""
        said = category[self.rows]
        is_right = said == self.true
        return float(self.share[is_right].sum()), float(
            self.share[~is_right & (said != Category.UNKNOWN)].sum()
        )


def ablate(entries: Sequence[str], recordings: Path | None) -> int:
    """Write what every rule is worth into the file beside this one; returns the exit code."""
    worth: dict[str, _Worth] = defaultdict(_Worth)
    seen_in: dict[str, set[str]] = defaultdict(set)
    n_cases = 0
    for bare in bare_snapshots(entries, is_quick=True, recordings=recordings):
        group = GROUP_OF[bare.case.entry]
        features, peak = _at_peak(bare)
        decider = decider_of(features, PIPELINE)
        for number in np.unique(decider[decider >= 0]).tolist():
            seen_in[PIPELINE[number].name].add(group)
        if group in MEASURED_GROUPS:
            n_cases += 1
            _measure(worth, bare.case.entry, peak, decider)
    for place, folder in _FILES.items():
        for name in _deciding_in_files(folder):
            seen_in[name].add(place)
    for name in _deciding_in_tests():
        seen_in[name].add("tests")
    rows = [_row(rule, worth[rule.name], seen_in[rule.name], n_cases) for rule in _all_rules()]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    RESULTS.write_text(f'{{\n "n_cases": {n_cases},\n "rules": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    return 0


def _all_rules() -> Iterator[PipelineRule]:
    yield from PIPELINE
    yield from (rule for rule in HOST_PIPELINE if rule not in PIPELINE)


def _at_peak(bare: Bare) -> tuple[Features, _Peak]:
    found = analysed(bare.path)
    true = bare.truth.category[match(found.allocations, bare.truth.allocations, bare.cut.n_lost)]
    live = found.allocations.live_at(found.peak_event) & (true != Category.UNKNOWN)
    n_bytes = found.allocations.block_bytes[live].astype(np.float64)
    rows = np.flatnonzero(live)
    return found.features, _Peak(found.features, rows, true[rows], n_bytes / max(n_bytes.sum(), 1.0))


def _measure(worth: dict[str, _Worth], entry: str, peak: _Peak, decider: Int64Column) -> None:
    """Add one case to every rule that decides in it."""
    category = classify(peak.features).category
    right, wrong = peak.right_and_wrong(category)
    is_right = category[peak.rows] == peak.true
    for number in np.unique(decider[decider >= 0]).tolist():
        rule, mine = PIPELINE[number], decider[peak.rows] == number
        without = classify(peak.features, (*PIPELINE[:number], *PIPELINE[number + 1 :])).category
        right_without, wrong_without = peak.right_and_wrong(without)
        of_rule = worth[rule.name]
        of_rule.decided += float(peak.share[mine].sum())
        of_rule.right += float(peak.share[mine & is_right].sum())
        of_rule.right_without += right_without - right
        of_rule.wrong_without += wrong_without - wrong
        if mine.any():
            of_rule.entries.add(entry)
        if right_without < right:
            of_rule.better_with.add(entry)


def _row(rule: PipelineRule, worth: _Worth, seen_in: Iterable[str], n_cases: int) -> dict[str, object]:
    """One row of the table; shares are means over all cases."""
    n = n_cases or 1
    return {
        "rule": rule.name,
        "reasons": list(named_rules(rule)),
        "decided": round(worth.decided / n, 6),
        "right": round(worth.right / worth.decided, 4) if worth.decided else None,
        "right_without": round(worth.right_without / n, 6),
        "wrong_without": round(worth.wrong_without / n, 6),
        "n_programs": len(worth.entries),
        "n_better": len(worth.better_with),
        "seen_in": sorted(seen_in),
    }


def _deciding_in_files(folder: Path) -> Iterator[str]:
    """The rules that decide something in the files of a folder that can be read."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*")) if folder.exists() else ():
        if not path.name.endswith(_SUFFIXES) or "truth" in path.name:
            continue
        try:
            devices = snapconv.load(path).devices
        except SnapconvError:
            continue
        for device in devices:
            pipeline = HOST_PIPELINE if device.device.is_host else PIPELINE
            numbers = np.unique(decider_of(device.features, pipeline))
            found.update(pipeline[number].name for number in numbers.tolist() if number >= 0)
    yield from found


def _deciding_in_tests() -> list[str]:
    """The rules that decide something while the tests run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.json"
        here = str(Path(__file__).parent)
        environment = {
            **os.environ,
            PATH_VARIABLE: str(path),
            "PYTHONPATH": os.pathsep.join((str(_ROOT), here, os.environ.get("PYTHONPATH", ""))),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "deciding_rules", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, *_TESTS], cwd=_ROOT, env=environment, check=False, stdout=subprocess.DEVNULL
        )
        found: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return found
