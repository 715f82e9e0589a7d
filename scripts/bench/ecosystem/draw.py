"""Draw programs of candidates.tsv by a commit's hash, so that nobody chooses which are recorded.

    python scripts/bench/ecosystem/draw.py COMMIT [N]

The list was made before the commit, from what can be read without running a program: single files
that train on a CUDA device, which neither the page on programs nor the classification's tables had.
"""

import csv
import hashlib
import sys
from pathlib import Path

CANDIDATES = Path(__file__).with_name("candidates.tsv")


def drawn(commit: str, number: int) -> list[dict[str, str]]:
    """Return the programs whose hash, with the commit's, is smallest."""
    with CANDIDATES.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t"))
    return sorted(
        rows,
        key=lambda row: hashlib.sha256(
            f"{commit} {row['repository']} {row['file']}".encode()
        ).hexdigest(),
    )[:number]


def main() -> None:
    """Print the programs that a commit draws."""
    commit, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    for row in drawn(commit, number):
        print("\t".join(row.values()))


if __name__ == "__main__":
    main()
