"""Every command on one file, in this process, and what in its outputs cannot be.

A command may refuse a file with an error of its own; what must not come is a traceback, a negative
amount of memory, or a share above 100 %: in text, JSON, the tables of a report, and the facts of a
page.
"""

import io
import sqlite3
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

from snapconv import session
from snapconv.cli.app import main
from snapconv.errors import SnapconvError
from snapconv.writers.html.view_device import view_device

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))

from fuzzing.amounts import (  # type: ignore[import-not-found]  # noqa: E402
    SIGNED,
    impossible_json,
    impossible_text,
    impossible_values,
)
from fuzzing.file_targets import (  # type: ignore[import-not-found]  # noqa: E402
    every_answer,
    every_output,
)
from fuzzing.limited_try import EXPECTED_CODES  # type: ignore[import-not-found]  # noqa: E402


def problems(file: Path, folder: Path) -> Iterator[str]:
    """Yield what is wrong with any output that a file can become; reports go into an empty folder."""
    answers = every_answer(str(file))
    in_json = [[*command, "--json"] for command in answers if "--json" not in command]
    for command in [*answers, *in_json, *every_output(str(file), folder)]:
        yield from (f"{' '.join(command)}: {problem}" for problem in _problems_of(command))
        for path in list(folder.iterdir()):
            if path.suffix == ".sqlite":
                yield from (f"{path.name}: {problem}" for problem in _problems_of_report(path))
            path.unlink()
    try:
        devices = session.load(file).devices
    except SnapconvError:
        return
    for device in devices:
        yield from (f"page{place}" for place in impossible_values(view_device(device).facts))


def _problems_of(command: list[str]) -> Iterator[str]:
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(command)
    except Exception:  # noqa: BLE001  # which is what is looked for
        yield traceback.format_exc()
        return
    if code not in EXPECTED_CODES:
        yield f"code {code}: {err.getvalue()}"
    elif "--json" in command and code in (0, 7):
        yield from impossible_json(out.getvalue())
    elif command[0] not in SIGNED:
        yield from impossible_text(out.getvalue() + err.getvalue())


def _problems_of_report(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as report:
        names = report.execute("select name from sqlite_master where type = 'table'").fetchall()
        for (table,) in names:
            rows = report.execute(f'select * from "{table}"')
            columns = [column[0] for column in rows.description]
            for row in rows:
                places = impossible_values(dict(zip(columns, row, strict=True)))
                yield from (f"{table}{place}" for place in places)
