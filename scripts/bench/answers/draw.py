"""Draw snapshots of public_files.tsv by a commit's hash, so that nobody chooses them, to check answers.

    python scripts/bench/answers/draw.py COMMIT [N]

The list was made before the commit. A file is fetched from its repository by its blob; none is
here.
"""

import csv
import hashlib
import sys
from pathlib import Path

FILES = Path(__file__).with_name("public_files.tsv")


def drawn(commit: str, number: int) -> list[dict[str, str]]:
    """Return the files whose hash, with the commit's, is smallest."""
    with FILES.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t"))
    order = {
        row["blob"]: hashlib.sha256(f"{commit} {row['blob']}".encode()).hexdigest() for row in rows
    }
    return sorted(rows, key=lambda row: order[row["blob"]])[:number]


def main() -> None:
    """Print the files that a commit draws."""
    commit, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    for row in drawn(commit, number):
        print(f"{row['repository']}  {row['path']}  {row['blob']}")


if __name__ == "__main__":
    main()
