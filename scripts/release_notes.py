"""Print the changelog's part of a release; fails where tag, package and changelog do not agree.

python scripts/release_notes.py 0.1.0
"""

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print the part of the release that the command line names."""
    version = sys.argv[1]
    of_package = runpy.run_path(str(ROOT / "snapconv" / "version.py"))["VERSION"]
    if version != of_package:
        sys.exit(
            f"the tag is of {version}, the package is {of_package}: change snapconv/version.py, "
            f"or the tag"
        )
    print(notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version))


def notes_of(changelog: str, version: str) -> str:
    """Return what stands below the heading of a version; SystemExit where there is none."""
    parts = re.split(r"^## \[([^\]]+)\].*\n", changelog, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True)).get(version, "").strip()
    if not found:
        sys.exit(
            f"CHANGELOG.md has nothing below `## [{version}]`: name the unreleased part so, with "
            f"the date"
        )
    return found


if __name__ == "__main__":
    main()
