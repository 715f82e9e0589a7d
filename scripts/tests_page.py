"""What tests were last seen to do -> docs/reference/tests.md: coverage, and the changes that they notice.

    scripts/test --coverage                    measures, and holds the total to the gate in pyproject.toml
    scripts/test --recorder-coverage           the same for the recorder: tests/recorder/coverage.toml
    python scripts/tests_page.py --coverage    keeps what .coverage has, and writes the page
    python scripts/tests_page.py --recorder-coverage FILE    the same for the recorder
    python scripts/tests_page.py               only writes the page, as scripts/mutate does at its end

A test compares the page with what this makes of the records in scripts/mutation/.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.mutation import score  # noqa: E402 # the root is on the path only now

PAGE = ROOT / "docs" / "reference" / "tests.md"
OFFLINE, RECORDER = (
    ROOT / "scripts" / "mutation" / name for name in ("coverage.json", "recorder_coverage.json")
)
OFFLINE_RULES, RECORDER_RULES = ROOT / "pyproject.toml", ROOT / "tests" / "recorder" / "coverage.toml"
COUNTED = {
    "statements": ("num_statements", "covered_lines"),
    "branches": ("num_branches", "covered_branches"),
}
HEAD = """\
# What the tests see

## Coverage

Statements and branches that the tests without torch take, in their own process: what they start as another,
such as `python -m snapconv`, is not counted. `scripts/test --coverage` measures it; below {gate} % it fails.

"""
RECORDER_HEAD = """
Of the recorder, what the tests of `tests/recorder` take, also in the processes that they start, which most
recordings are. Left out are those with the mark `alone`, which measure time, and three with `untraced`, which
coverage itself breaks. `scripts/test --recorder-coverage` measures it; below {gate} % it fails.

"""
COLUMNS = """\
| package | statements | branches | of these taken |
|---|---:|---:|---:|
"""


def main() -> None:
    """Write the page, and first what was measured if that is requested."""
    parser = argparse.ArgumentParser(description="Write docs/reference/tests.md.")
    parser.add_argument("--coverage", action="store_true", help="keep what .coverage has")
    parser.add_argument("--recorder-coverage", metavar="FILE", help="keep what this has of the recorder")
    given = parser.parse_args()
    if given.coverage:
        keep(OFFLINE, measured(ROOT / ".coverage", rules=OFFLINE_RULES, depth=1))
    if given.recorder_coverage:
        keep(RECORDER, measured(Path(given.recorder_coverage), rules=RECORDER_RULES, depth=2))
    PAGE.write_text(page(), encoding="utf-8")


def keep(record: Path, counts: dict[str, dict[str, int]]) -> None:
    """Write what was measured to its record."""
    record.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


def measured(file: Path, *, rules: Path, depth: int) -> dict[str, dict[str, int]]:
    """Sum what a file of coverage has by package: by the folder at a depth below the checkout."""
    import coverage

    found = coverage.Coverage(data_file=str(file), config_file=str(rules))
    found.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        found.json_report(outfile=str(report))
        files: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["files"]
    packages: dict[str, Counter[str]] = {}
    for path, values in files.items():
        parts = Path(path).parts
        package = parts[depth] if len(parts) > depth + 1 else "modules of no package"
        counts = packages.setdefault(package, Counter())
        for names in COUNTED.values():
            counts.update({name: values["summary"][name] for name in names})
    return {package: dict(packages[package]) for package in sorted(packages)}


def page() -> str:
    """Return the page's text."""
    return f"{coverage_part()}\n{score.part()}"


def coverage_part() -> str:
    """Return the part about coverage."""
    offline = HEAD.format(gate=gate(OFFLINE_RULES)) + table(OFFLINE)
    return offline + RECORDER_HEAD.format(gate=gate(RECORDER_RULES)) + table(RECORDER)


def table(record: Path) -> str:
    """Return the rows of a record and their sum."""
    packages: dict[str, dict[str, int]] = json.loads(record.read_text(encoding="utf-8"))
    total: Counter[str] = Counter()
    for counts in packages.values():
        total.update(counts)
    rows = [coverage_row(package, counts) for package, counts in packages.items()]
    return COLUMNS + "".join([*rows, coverage_row("all", total)])


def coverage_row(package: str, counts: dict[str, int]) -> str:
    """Return the row of a package."""
    n, taken = (sum(counts[names[which]] for names in COUNTED.values()) for which in (0, 1))
    sizes = " | ".join(f"{counts[names[0]]:,}" for names in COUNTED.values())
    return f"| {package} | {sizes} | {taken / n:.1%} |\n" if n else ""


def gate(rules: Path) -> str:
    """Return the least percentage that a file allows."""
    text = rules.read_text(encoding="utf-8")
    return text.partition("\nfail_under = ")[2].partition("\n")[0]


if __name__ == "__main__":
    main()
