"""Skyline reports as text: one line per row, sorted, so that a difference shows in a review.

    python -m tests.golden.dumps        writes the golden files anew

Look at every difference before it is kept: a golden file is right because somebody compared it with
the fixture's own figures, not because we wrote it.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from snapconv.convert import ConvertOptions, to_sqlite

FOLDER = Path(__file__).parent
FIXTURES = FOLDER.parents[1] / "fixtures"
# perceptron: its numbers stand in perceptron.truth.json and follow from the shapes in
# scripts/fixtures/models.py, its lines are those of scripts/fixtures/training.py and models.py.
# several_devices: nothing is trained, so there are no entries; the peaks are in expected.json.
GOLDEN = ("perceptron.pickle", "several_devices.pickle")


def dumps(fixture: str) -> dict[str, str]:
    """Convert a fixture; return the text of each of its reports by the name of its golden file."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / f"{Path(fixture).stem}.sqlite"
        done = to_sqlite(FIXTURES / fixture, ConvertOptions(output=output))
        return {f"{path.stem}.sql": dump(path) for path, _ in done.reports}


def dump(path: Path) -> str:
    """Write a database as SQL statements, sorted within each table."""
    with closing(sqlite3.connect(path)) as connection:
        objects = connection.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL"
        ).fetchall()
        lines = [f"{sql};" for _, _, sql in objects]
        for name, kind, _ in objects:
            if kind == "table":
                lines += sorted(
                    f"INSERT INTO {name} VALUES{row};"
                    for row in connection.execute(f"SELECT * FROM {name}")
                )
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return "\n".join([*lines, f"PRAGMA user_version={version};", ""])


def main() -> None:
    """Write every golden file."""
    for fixture in GOLDEN:
        for name, text in dumps(fixture).items():
            (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
