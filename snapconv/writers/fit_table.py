"""The combinations of ``snapconv fit`` as a CSV file."""

import csv
import io
from pathlib import Path

from snapconv.answers.fit import FitReport
from snapconv.files import new_files


def write_fit_table(path: Path, report: FitReport, *, force: bool) -> None:
    """Write a row for each combination that ran: its size, its arguments, and the figures.

    An argument with the name of another column, such as ``rank``, is ``--rank``.
    """
    table = io.StringIO()
    rows = []
    for row in report.rows:
        figures = {"world_size": row.combination.world_size} | row.values()
        arguments = {
            f"--{name}" if name in figures else name: value
            for name, value in row.combination.arguments
        }
        rows.append({"world_size": row.combination.world_size, **arguments, **figures})
    writer = csv.DictWriter(table, rows[0] if rows else ["world_size"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with new_files([path], force=force) as (temporary,):
        temporary.write_text(table.getvalue(), encoding="utf-8", newline="")
