"""Record three programs of tests/ecosystem, and write what the terminal shows into docs/guide/ecosystem.md.

    python scripts/record_sessions.py          needs the libraries of
    tests/ecosystem/requirements.txt
    python scripts/record_sessions.py --check  changes nothing; ends with 1 where the page says
    something else

No GPU is needed. Of what a program and snapconv print while it runs, the page has what snapconv
says. Folders of this machine are replaced by such as a user's would be. Times and the size of a
capture differ every time, all else must not: --check does not compare them.
"""

import argparse
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.ecosystem.catalogue import PROGRAMS, Program  # noqa: E402  # the root is on the path only now
from tests.ecosystem.recorded_program import OFFLINE, copy_program  # noqa: E402

PAGE = ROOT / "docs" / "guide" / "ecosystem.md"
HOME = "/home/user"
# What differs between two recordings of a program: the run time's part of a summary, and a
# capture's size.
_TIMES = re.compile(r"^\S+  forward [\s\S]*?(?=^  written: )", re.MULTILINE)
_SIZE = re.compile(r"\([\d.]+ [KM]iB\)")


@dataclass(frozen=True, slots=True)
class Session:
    """A program that is recorded, and a question to its memory report."""

    program: str
    question: str
    query: str


SESSIONS = (
    Session(
        "nanogpt",
        "Which operations keep the most memory from forward to backward?",
        """\
SELECT operation_name, count(*) AS n, sum(size_bytes) AS bytes
FROM activation_entries GROUP BY operation_name ORDER BY bytes DESC LIMIT 5;""",
    ),
    Session(
        "gpt2-trainer",
        "Which are the largest weights, and how large are their gradients?",
        """\
SELECT name, size_bytes, grad_size_bytes FROM weight_entries ORDER BY size_bytes DESC, id LIMIT 5;""",
    ),
    Session(
        "lightning",
        "What was live at the peak, and how is it known?",
        """\
SELECT category, evidence, count(*) AS n, sum(block_bytes) AS bytes
FROM snapconv_peak_allocations GROUP BY category, evidence ORDER BY bytes DESC, category;""",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the sessions anew, or compare them."""
    parser = argparse.ArgumentParser(description="Write the sessions of docs/guide/ecosystem.md.")
    parser.add_argument("--check", action="store_true", help="compare them with the page instead")
    options = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = before
    for session in SESSIONS:
        print(session.program, file=sys.stderr, flush=True)
        after = with_part(after, session.program, shown(session))
    if options.check:
        return int(what_stays(before) != what_stays(after))
    PAGE.write_text(after, encoding="utf-8")
    return 0


def with_part(page: str, name: str, text: str) -> str:
    """Return a page with one of its marked parts replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{PAGE}: no part between {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def what_stays(page: str) -> str:
    """Return a page without what differs every time."""
    return _SIZE.sub("(…)", _TIMES.sub("", page))


def shown(session: Session) -> str:
    """Record and convert a program, and return the commands with what they say."""
    program = next(program for program in PROGRAMS if program.name == session.program)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve() / program.name
        copy_program(program, folder)
        recorded = _snapconv(program, folder, "record", "--simulate", program.path.name)
        return shown_of(session, program, recorded, folder)


def shown_of(session: Session, program: Program, recorded: str, folder: Path) -> str:
    """Return the commands of a session with what they say: what recording said, and the folder it was in."""
    recorded = recorded.replace(str(folder.parent), HOME)
    ours = [
        line[line.index("snapconv: ") :] for line in recorded.splitlines() if "snapconv: " in line
    ]
    capture = f"{program.path.stem}.capture"
    converted = _snapconv(program, folder, "to-sqlite", capture, "--extended")
    answer = _answered(folder / f"{program.path.stem}.memory.sqlite", session.query)
    lines = (
        "```console",
        f"$ snapconv record --simulate {program.path.name}",
        *ours,
        f"$ snapconv to-sqlite {capture} --extended",
        converted.replace(str(folder.parent), HOME).rstrip(),
        "```",
        "",
        session.question,
        "",
        "```sql",
        session.query,
        "```",
        "```text",
        *answer,
        "```",
    )
    return "\n".join(lines)


def _snapconv(program: Program, folder: Path, *arguments: str) -> str:
    """Run a command of snapconv in a folder, and return what a terminal would show."""
    done = subprocess.run(
        [sys.executable, "-m", "snapconv", *arguments],
        cwd=folder,
        env={**os.environ, **OFFLINE, **program.environment, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"snapconv {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
        )
    return done.stdout


def _answered(report: Path, query: str) -> list[str]:
    with closing(sqlite3.connect(report)) as connection:
        cursor = connection.execute(query)
        rows = [
            [column[0] for column in cursor.description],
            *([str(v) for v in row] for row in cursor),
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
