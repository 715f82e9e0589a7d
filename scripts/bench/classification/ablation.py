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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cases import Bare
from comparison import match
from deciding_rules import PATH_VARIABLE, decider_of, named_rules
from entries import GROUP_OF

import snapconv
from snapconv.analysis import DeviceAnalysis
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
_TESTS = ("tests/unit/classification",)


@dataclass(slots=True)
class _Worth:
    """Of one rule: sums over cases of shares of the bytes at the peak, and programs where it decides."""

    decided: float = 0.0
    right: float = 0.0
    right_without: float = 0.0
    wrong_without: float = 0.0
    entries: set[str] = field(default_factory=set)
    better_with: set[str] = field(default_factory=set)

    def share_right(self) -> float | None:
        """The share of what it decides that is right."""
        return round(self.right / self.decided, 4) if self.decided else None


@dataclass(frozen=True, slots=True)
class _Peak:
    """The allocations at the peak whose purpose is known: what they truly are, and their shares."""

    features: Features
    category: Int8Column
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


class Ablation:
    """Gathers what every rule is worth, snapshot by snapshot."""

    def __init__(self) -> None:
        self._worth: dict[str, _Worth] = defaultdict(_Worth)
        self._of_libraries: dict[str, _Worth] = defaultdict(_Worth)
        self._seen_in: dict[str, set[str]] = defaultdict(set)
        self._measured: Counter[str] = Counter()
        self._n_of_libraries = 0

    def add(self, bare: Bare, found: DeviceAnalysis) -> None:
        """Leave out one rule after the other, if the snapshot is of a program that no rule was made for."""
        group = GROUP_OF[bare.case.entry]
        decider = decider_of(found.features, PIPELINE)
        for number in np.unique(decider[decider >= 0]).tolist():
            self._seen_in[PIPELINE[number].name].add(group)
        peak = _at_peak(bare, found)
        if group in MEASURED_GROUPS:
            self._measured[bare.case.entry] += 1
            _decided(self._worth, bare.case.entry, peak, decider)
            _without(self._worth, bare.case.entry, peak, decider)
        elif group == "libraries":
            self._n_of_libraries += 1
            _decided(self._of_libraries, bare.case.entry, peak, decider)

    def write(self) -> None:
        """Look for the rules in files and tests, and write everything beside this file."""
        for place, folder in _FILES.items():
            for name in _deciding_in_files(folder):
                self._seen_in[name].add(place)
        for name in _deciding_in_tests():
            self._seen_in[name].add("tests")
        lines = ",\n  ".join(json.dumps(self._row(rule)) for rule in _all_rules())
        counts = f'"n_programs": {len(self._measured)},\n "n_cases": {self._measured.total()}'
        RESULTS.write_text(f'{{\n {counts},\n "rules": [\n  {lines}\n ]\n}}\n', encoding="utf-8")

    def _row(self, rule: PipelineRule) -> dict[str, object]:
        """One row of the table; shares are means over all cases."""
        n, worth = max(self._measured.total(), 1), self._worth[rule.name]
        of_libraries = self._of_libraries[rule.name]
        return {
            "rule": rule.name,
            "reasons": list(named_rules(rule)),
            "decided": round(worth.decided / n, 6),
            "right": worth.share_right(),
            "right_without": round(worth.right_without / n, 6),
            "wrong_without": round(worth.wrong_without / n, 6),
            "programs": sorted(worth.entries),
            "better_with": sorted(worth.better_with),
            "decided_in_libraries": round(of_libraries.decided / max(self._n_of_libraries, 1), 6),
            "right_in_libraries": of_libraries.share_right(),
            "seen_in": sorted(self._seen_in[rule.name]),
        }


def _all_rules() -> Iterator[PipelineRule]:
    yield from PIPELINE
    yield from (rule for rule in HOST_PIPELINE if rule not in PIPELINE)


def _at_peak(bare: Bare, found: DeviceAnalysis) -> _Peak:
    true = bare.truth.category[match(found.allocations, bare.truth.allocations, bare.cut.n_lost)]
    live = found.allocations.live_at(found.peak_event) & (true != Category.UNKNOWN)
    n_bytes = found.allocations.block_bytes[live].astype(np.float64)
    category = found.classification.category
    return _Peak(
        found.features, category, np.flatnonzero(live), true[live], n_bytes / max(n_bytes.sum(), 1.0)
    )


def _decided(worth: dict[str, _Worth], entry: str, peak: _Peak, decider: Int64Column) -> None:
    """Add to every rule what it decides at the peak."""
    is_right, of_peak = peak.category[peak.rows] == peak.true, decider[peak.rows]
    for number in np.unique(of_peak[of_peak >= 0]).tolist():
        of_rule, mine = worth[PIPELINE[number].name], of_peak == number
        of_rule.decided += float(peak.share[mine].sum())
        of_rule.right += float(peak.share[mine & is_right].sum())
        of_rule.entries.add(entry)


def _without(worth: dict[str, _Worth], entry: str, peak: _Peak, decider: Int64Column) -> None:
    """Add to every rule that decides anything what becomes of the peak without it."""
    right, wrong = peak.right_and_wrong(peak.category)
    for number in np.unique(decider[decider >= 0]).tolist():
        without = classify(peak.features, (*PIPELINE[:number], *PIPELINE[number + 1 :])).category
        right_without, wrong_without = peak.right_and_wrong(without)
        of_rule = worth[PIPELINE[number].name]
        of_rule.right_without += right_without - right
        of_rule.wrong_without += wrong_without - wrong
        if right_without < right:
            of_rule.better_with.add(entry)


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
    """The rules that decide something while the tests of the classification run."""
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
