"""What tests were last seen to do -> docs/reference/tests.md: coverage, and the changes that they notice.

    scripts/test --coverage                    measures, and holds the total to the gate in pyproject.toml
    python scripts/tests_page.py --coverage    keeps what .coverage has, and writes the page
    python scripts/tests_page.py               only writes the page, as scripts/mutate does at its end

A test compares the page with what this makes of results.json and coverage.json in scripts/mutation/.
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
RECORD = ROOT / "scripts" / "mutation" / "coverage.json"
COUNTED = {
    "statements": ("num_statements", "covered_lines"),
    "branches": ("num_branches", "covered_branches"),
}
HEAD = """\
# What the tests see

## Coverage

Statements and branches that the tests without torch take, in their own process: what they start as another,
such as `python -m snapconv`, is not counted. `scripts/test --coverage` measures it; below {gate} % it fails.

| package | statements | branches | of these taken |
|---|---:|---:|---:|
"""


def main() -> None:
    """Write the page, and first what was measured if that is requested."""
    parser = argparse.ArgumentParser(description="Write docs/reference/tests.md.")
    parser.add_argument("--coverage", action="store_true", help="keep what .coverage has")
    if parser.parse_args().coverage:
        RECORD.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def measured() -> dict[str, dict[str, int]]:
    """Sum what .coverage has by package."""
    import coverage

    found = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    found.load()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "coverage.json")
        found.json_report(outfile=str(file))
        files: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["files"]
    packages: dict[str, Counter[str]] = {}
    for path, values in files.items():
        parts = Path(path).parts
        package = parts[1] if len(parts) > 2 else "modules of no package"
        counts = packages.setdefault(package, Counter())
        for names in COUNTED.values():
            counts.update({name: values["summary"][name] for name in names})
    return {package: dict(packages[package]) for package in sorted(packages)}


def page() -> str:
    """Return the page's text."""
    return f"{coverage_part()}\n{score.part()}"


def coverage_part() -> str:
    """Return the part about coverage."""
    record: dict[str, dict[str, int]] = json.loads(RECORD.read_text(encoding="utf-8"))
    total: Counter[str] = Counter()
    for counts in record.values():
        total.update(counts)
    rows = [coverage_row(package, counts) for package, counts in record.items()]
    return HEAD.format(gate=gate()) + "".join([*rows, coverage_row("all", total)])


def coverage_row(package: str, counts: dict[str, int]) -> str:
    """Return the row of a package."""
    n, taken = (sum(counts[names[which]] for names in COUNTED.values()) for which in (0, 1))
    sizes = " | ".join(f"{counts[names[0]]:,}" for names in COUNTED.values())
    return f"| {package} | {sizes} | {taken / n:.1%} |\n" if n else ""


def gate() -> str:
    """Return the least percentage, of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return text.partition("\nfail_under = ")[2].partition("\n")[0]


if __name__ == "__main__":
    main()
