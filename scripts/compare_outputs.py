"""Compare what two versions of snapconv print and write for the same files: a check for rebuilding the code.

    python scripts/compare_outputs.py dump OUT FILE_OR_FOLDER...   # what this checkout makes of the files
    python scripts/compare_outputs.py diff OLD NEW [--words FILE]  # empty, but for what FILE says was renamed

``dump`` writes one text file per input: the text and JSON of every command, and every table of every report,
row by row. ``--words`` names a JSON object {old text: new text}. It is applied to the old dump before the
comparison; a key that is found nowhere in the old dump is an error, so that the list stays true.
"""

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from snapconv.cli.app import main

# Explained are the largest live allocations and some events spread over the trace.
_EXPLAINED = ("#0", "#1", "#10", "#100", "#400", "#900", "#2000")


def dump(out: Path, inputs: list[Path]) -> None:
    """Write one text file per input."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(set(_files(inputs)))
    for number, file in enumerate(files):
        print(f"{number + 1}/{len(files)} {file}", file=sys.stderr)
        name = re.sub(r"[^\w.-]+", "_", str(file)).lstrip("._")
        (out / f"{name}.txt").write_text("\n".join(_of_file(file)) + "\n", encoding="utf-8")


def _files(inputs: list[Path]) -> Iterator[Path]:
    for path in inputs:
        if path.is_file() or path.suffix == ".capture":
            yield path
            continue
        for found in path.rglob("*"):
            inside = any(parent.suffix == ".capture" for parent in found.parents)
            if found.suffix == ".capture" or (found.is_file() and not inside and found.name not in _NO_INPUT):
                yield found


_NO_INPUT = {"README.md", "expected.json", "truth.json"}


def _of_file(file: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.memory.sqlite"
        for options in ([], ["--extended"], ["--json", "--extended"]):
            yield from _run(["to-sqlite", str(file), "-o", str(output), "--force", *options], folder)
        for report in sorted(Path(folder).rglob("*.sqlite")):
            yield f"== {report.name}"
            yield from _rows(report)
    for command in ("info", "info --json"):
        yield from _run([*command.split(), str(file)], folder)
    for question in _EXPLAINED:
        yield from _run(["explain", "--stack", str(file), question], folder)
        yield from _run(["explain", "--json", str(file), question], folder)


def _run(argv: list[str], folder: str) -> Iterator[str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    yield f"== {' '.join(argv)}: {code}".replace(folder, "TMP")
    yield from (out.getvalue() + err.getvalue()).replace(folder, "TMP").splitlines()


def _rows(report: Path) -> Iterator[str]:
    connection = sqlite3.connect(report)
    with contextlib.closing(connection):
        schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name, sql in schema:
            yield f"-- {name}: {sql}"
        for name, sql in schema:
            if not (sql or "").startswith("CREATE TABLE"):
                continue
            digest, n_rows, shown = hashlib.sha256(), 0, []
            for row in connection.execute(f'SELECT * FROM "{name}"'):
                text = repr(row)
                digest.update(text.encode())
                n_rows += 1
                if n_rows <= _SHOWN_ROWS:
                    shown.append(f"{name}: {text}")
            yield f"{name}: {n_rows} rows"
            # A digest holds no words that may be renamed: it stands for long tables only.
            yield from shown
            if n_rows > _SHOWN_ROWS:
                yield f"{name}: sha256 of all rows {digest.hexdigest()}"


# Rows are shown, and so can be compared after renaming, up to this many of a table.
_SHOWN_ROWS = 100_000


def diff(old: Path, new: Path, words: Path | None) -> int:
    """Print what differs; return how many files do."""
    renamed: dict[str, str] = json.loads(words.read_text(encoding="utf-8")) if words else {}
    unused = set(renamed)
    pattern = re.compile("|".join(re.escape(word) for word in sorted(renamed, key=len, reverse=True)))
    n_different = 0
    names = sorted({path.name for path in (*old.glob("*.txt"), *new.glob("*.txt"))})
    for name in names:
        before, after = _lines(old / name), _lines(new / name)
        if renamed:
            text = "\n".join(before)
            unused -= set(pattern.findall(text))
            before = pattern.sub(lambda found: renamed[found[0]], text).split("\n")
        if before == after:
            continue
        n_different += 1
        changes = difflib.unified_diff(before, after, f"old/{name}", f"new/{name}", n=0, lineterm="")
        for number, line in enumerate(changes):
            if number > _SHOWN_CHANGES:
                break
            print(line[:400])
    print(f"{len(names)} inputs compared, {n_different} differ", file=sys.stderr)
    for word in sorted(unused):
        print(f"renamed, but found nowhere: {word}", file=sys.stderr)
    return n_different + len(unused)


_SHOWN_CHANGES = 60


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n") if path.exists() else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    dumping = commands.add_parser("dump")
    dumping.add_argument("out", type=Path)
    dumping.add_argument("inputs", type=Path, nargs="+")
    comparing = commands.add_parser("diff")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--words", type=Path)
    given = parser.parse_args()
    os.environ["NO_COLOR"] = "1"
    if given.command == "dump":
        dump(given.out, given.inputs)
    else:
        sys.exit(1 if diff(given.old, given.new, given.words) else 0)
