"""Compare what two checkouts of snapconv print and write for the same files: a check for rebuilding the code.

    python scripts/compare_outputs.py dump OUT FILE_OR_FOLDER... [--only oom,tree] [--jobs 2]
    python scripts/compare_outputs.py record OUT ENTRY...    # captures of training scripts, without
    a GPU python scripts/compare_outputs.py diff OLD NEW [--words FILE] [--only oom,tree]

``dump`` runs every command, as text and as JSON, and every export on every input, by the code of
the checkout that the script stands in, and writes one JSON file per input: exit code, output,
errors, and the rows, values or bytes of every file written. ``record`` writes the same of ``record
--simulate``, computing and not, with times masked. ``diff`` prints what differs and ends with 1 if
anything does: JSON and tables are compared as values, all else as text. ``--words`` names a JSON
object {old text: new text}, applied to the old texts; a key that is found nowhere is an error, so
that the list stays true.
"""

import argparse
import base64
import contextlib
import difflib
import gzip
import hashlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

# What is run on every input; FILE is its path, OUT a new file or folder, OTHER a file to compare
# with. A question that is not named here is run without options.
_MOMENTS = ("peak", "start", "end", "worst", "oom", "iteration:1", "10")
_ANSWERS = (
    "FILE",
    "summary FILE --include torch",
    "summary FILE --project-root /home",
    "info FILE",
    "growth FILE",
    "fragmentation FILE",
    "oom FILE",
    "oom --no-replay --device-total 80GiB FILE",
    "what-if FILE --setting expandable_segments:True --setting max_split_size_mb:128",
    "what-if FILE --capacity 8GiB --batch-scale 1.5",
    "what-if FILE --card 24GiB",
    "advise FILE",
    "advise FILE --capacity 1GiB",
    "diff FILE FILE",
    "diff FILE OTHER",
    *(f"summary FILE --at {moment}" for moment in _MOMENTS),
    *(f"tree FILE --by {by}" for by in ("line", "module", "operation")),
    *(
        f"explain {stack}FILE {row}"
        for row in ("#0", "#1", "#10", "#100", "#900")
        for stack in ("", "--stack ")
    ),
)
_LIMITS = (
    "check FILE --max-peak 1GiB --max-reserved 1TiB --max-category activation=1MiB --max-growth 0"
)
_OTHERS = (
    *(f"{_LIMITS} {option}" for option in ("--format text", "--json", "--format github")),
    "check FILE --baseline OTHER --fail-over 5%",
)
_WRITERS = (
    "to-sqlite FILE -o OUT.sqlite",
    "to-sqlite FILE -o OUT.sqlite --extended",
    "to-sqlite FILE -o OUT.sqlite --extended --json",
    "view FILE -o OUT.html",
    "export FILE -o OUT",
)
# torch frees gradients in the order of a set of their addresses: what names single events is not
# comparable.
_OF_CAPTURES = (
    "FILE",
    "summary FILE --json",
    "tree FILE --by module --json",
    "to-sqlite FILE -o OUT.sqlite --quiet",
)
# A search replays the whole trace dozens of times: of small files only.
_SEARCHED_BYTES = 300_000
_SEARCH = "what-if FILE --search"
_OTHER = _ROOT / "fixtures/training_step.pickle"
_NO_INPUT = {"README.md", "expected.json", "truth.json", "expected-categories.json"}


def dump(out: Path, inputs: Sequence[Path], only: Sequence[str], n_jobs: int) -> None:
    """Write one JSON file per input."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(set(_files(inputs)))
    with ProcessPoolExecutor(n_jobs) as jobs:
        for file, found in zip(
            files, jobs.map(_outputs_of, files, [tuple(only)] * len(files)), strict=True
        ):
            print(file, file=sys.stderr)
            (out / f"{_name(file)}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _files(inputs: Sequence[Path]) -> Iterator[Path]:
    for path in inputs:
        if path.is_file() or path.suffix == ".capture":
            yield path
            continue
        for found in path.rglob("*"):
            inside = any(parent.suffix == ".capture" for parent in found.parents)
            is_input = found.suffix not in (".py", ".md") and found.name not in _NO_INPUT
            if found.suffix == ".capture" or (found.is_file() and not inside and is_input):
                yield found


def _name(path: Path) -> str:
    """Return a name that does not depend on where the checkout stands."""
    whole = path.resolve()
    parts = whole.relative_to(_ROOT).parts if whole.is_relative_to(_ROOT) else whole.parts[-3:]
    return re.sub(r"[^\w.-]+", "_", "_".join(parts)).lstrip("._")


def _outputs_of(file: Path, only: Sequence[str]) -> dict[str, Any]:
    from snapconv.cli.answers import QUESTIONS
    from snapconv.cli.app import COMMANDS

    os.environ["NO_COLOR"], os.environ["COLUMNS"] = "1", "100"
    named = {line.split()[0] for line in (*_ANSWERS, *_OTHERS)} | {"verdict"}  # it is FILE alone
    others = [f"{name} FILE" for name in COMMANDS if name in QUESTIONS and name not in named]
    answers = (*_ANSWERS, *others)
    lines = [*answers, *(f"{line} --json" for line in answers), *_OTHERS, *_WRITERS]
    if file.is_dir() or file.stat().st_size < _SEARCHED_BYTES:
        lines += [_SEARCH, f"{_SEARCH} --json"]
    return {line: _run(line, file) for line in lines if not only or line.split()[0] in only}


def _run(line: str, file: Path) -> dict[str, Any]:
    from snapconv.cli.app import main

    with tempfile.TemporaryDirectory() as folder:
        words = {"FILE": str(file), "OTHER": str(_OTHER)}
        argv = [words.get(word, word.replace("OUT", f"{folder}/out")) for word in line.split()]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: object = main(argv)
            except Exception as error:  # noqa: BLE001  # a bug of ours is an output too
                code = repr(error)
        written = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): _content(path) for path in written}
        return {
            "code": code,
            "out": _values(_masked(out.getvalue(), file, folder)),
            "err": _masked(err.getvalue(), file, folder),
            "files": files,
        }


def _masked(text: str, file: Path, folder: str) -> str:
    """Return the same text without the places of this machine."""
    return text.replace(folder, "TMP").replace(str(file), "FILE").replace(str(_ROOT), "ROOT")


def _values(text: str) -> Any:
    """Return the values of a JSON document, or the lines of a text."""
    with contextlib.suppress(ValueError):
        if text.startswith(("{", "[")):
            return json.loads(text)
    return text.split("\n")


def _content(path: Path) -> Any:
    if path.suffix == ".sqlite":
        return _tables(path)
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if path.suffix == ".html":
        return _page(content)
    with contextlib.suppress(ValueError):
        text = content.decode()
        values = _values(text)
        if isinstance(values, list) and text.startswith("{") and "\n{" in text:
            return [_values(line) for line in text.split("\n")]
        return values
    return hashlib.sha256(content).hexdigest()


def _tables(report: Path) -> dict[str, Any]:
    """Return the schema and every row of a report; of long tables a digest of their rows."""
    found: dict[str, Any] = {}
    with contextlib.closing(sqlite3.connect(report)) as connection:
        schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name, sql in schema:
            found[f"schema of {name}"] = sql
            if (sql or "").startswith("CREATE TABLE"):
                found[name] = _short(map(repr, connection.execute(f'SELECT * FROM "{name}"')))
    return found


def _short(rows: Iterator[str]) -> list[str]:
    found = list(rows)
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    return (
        found
        if len(found) <= _SHOWN_ROWS
        else [*found[:_SHOWN_ROWS], f"{len(found)} rows: {digest}"]
    )


_SHOWN_ROWS = 300


def _page(content: bytes) -> dict[str, Any]:
    """Return the data of a page: its plain values, and a digest of every column."""
    found: dict[str, Any] = {}
    for name, encoded in re.findall(
        rb'<script type="application/octet-stream" id="([^"]*)">([^<]*)<', content
    ):
        packed = zlib.decompress(base64.b64decode(encoded))
        is_plain = name == b"page" or name.endswith(b".detail")
        found[name.decode()] = (
            json.loads(packed) if is_plain else hashlib.sha256(packed).hexdigest()
        )
    return found


def record(out: Path, entries: Sequence[Path]) -> None:
    """Record every entry without a GPU, computing and not, and write what the captures contain."""
    out.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        for options in (("--simulate",), ("--simulate", "--no-compute")):
            print(entry, *options, file=sys.stderr)
            name = f"{_name(entry)}{''.join(options)}"
            (out / f"{name}.json").write_text(
                json.dumps(_capture(entry, options), indent=1), encoding="utf-8"
            )


def _capture(entry: Path, options: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "run.capture"
        command = [
            sys.executable,
            "-m",
            "snapconv",
            "record",
            *options,
            "-o",
            str(capture),
            str(entry.resolve()),
        ]
        place = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONHASHSEED": "0"}
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=place)
        found: dict[str, Any] = {
            "record": [ended.returncode, ended.stdout.split("\n"), ended.stderr.split("\n")]
        }
        if ended.returncode == 0:
            found |= {line: _run(line, capture) for line in _OF_CAPTURES}
            found |= {file.name: json.loads(file.read_text()) for file in capture.glob("*.json")}
        return {line: _without_times(value, capture, folder) for line, value in found.items()}


def _without_times(value: Any, capture: Path, folder: str) -> Any:
    """Return the same values without what differs from run to run: times, and the places of this machine."""
    if isinstance(value, dict):
        return {key: _without_times(inner, capture, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_times(inner, capture, folder) for inner in value]
    if isinstance(value, str):
        return _TIMES.sub("TIME", _masked(value, capture, folder))
    is_time = isinstance(value, float) or (isinstance(value, int) and value in _CLOCK_US)
    return "TIME" if is_time else value


# Microseconds since 1970, of this decade and the next; addresses are larger or smaller.
_CLOCK_US = range(1_600_000_000_000_000, 2_200_000_000_000_000)
_TIMES = re.compile(
    r"\d+(\.\d+)?(e-\d+)?(?= (s|ms|us|min)\b)|\d+\.\d+(e-\d+)?(?! ?[KMG]iB)|\b1[67]\d{8,14}\b"
)


def diff(old: Path, new: Path, words: Path | None, only: Sequence[str]) -> int:
    """Print what differs; return how many outputs do."""
    renamed: dict[str, str] = json.loads(words.read_text(encoding="utf-8")) if words else {}
    unused, added, n_different, n_compared = set(renamed), set[str](), 0, 0
    for name in sorted({path.name for path in (*old.glob("*.json"), *new.glob("*.json"))}):
        before, after = _read(old / name), _read(new / name)
        for word in renamed:
            if word in before:
                unused.discard(word)
                before = before.replace(word, renamed[word])
        outputs, others = json.loads(before), json.loads(after)
        for line in sorted({*outputs, *others}):
            if only and line.split()[0] not in only:
                continue
            n_compared += 1
            if line not in outputs and outputs:
                added.add(line)
            elif outputs.get(line) != others.get(line):
                n_different += 1
                _show(f"{name}: {line}", outputs.get(line), others.get(line))
    print(f"{n_compared} outputs compared, {n_different} differ", file=sys.stderr)
    for line in sorted(added):
        print(f"only in the new dump: {line}", file=sys.stderr)
    for word in sorted(unused):
        print(f"renamed, but found nowhere: {word}", file=sys.stderr)
    return n_different + len(unused)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else "{}"


def _show(title: str, old: Any, new: Any) -> None:
    before, after = (json.dumps(value, indent=0).split("\n") for value in (old, new))
    changes = list(difflib.unified_diff(before, after, "old", "new", n=1, lineterm=""))
    print(f"==== {title}")
    for line in changes[2 : 2 + _SHOWN_CHANGES]:
        print(line[:300])


_SHOWN_CHANGES = 25


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    dumping, recording = commands.add_parser("dump"), commands.add_parser("record")
    for one in (dumping, recording):
        one.add_argument("out", type=Path)
        one.add_argument("inputs", type=Path, nargs="+")
    dumping.add_argument("--jobs", type=int, default=2)
    comparing = commands.add_parser("diff")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--words", type=Path)
    for one in (dumping, comparing):
        one.add_argument("--only", default="", help="the first words of command lines, with commas")
    return parser


if __name__ == "__main__":
    given = _parser().parse_args()
    if given.command == "record":
        record(given.out, given.inputs)
        sys.exit()
    only = [word for word in given.only.split(",") if word]
    if given.command == "dump":
        dump(given.out, given.inputs, only, given.jobs)
    else:
        sys.exit(1 if diff(given.old, given.new, given.words, only) else 0)
