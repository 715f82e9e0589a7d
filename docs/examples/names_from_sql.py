"""The names of the largest weights, by SQL from the report."""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import snapconv

with tempfile.TemporaryDirectory() as folder:
    options = snapconv.ConvertOptions(output=Path(folder) / "report.sqlite", extended=True)
    ((report, _),) = snapconv.to_sqlite(sys.argv[1], options).reports
    with closing(sqlite3.connect(report)) as database:
        rows = database.execute(
            "SELECT name, size_bytes FROM weight_entries ORDER BY size_bytes DESC, name LIMIT 5"
        )
        for name, n_bytes in rows:
            print(f"{n_bytes:>14,}  {name}")
