"""Make the snapshots of fixtures/ anew, with what a reader must find in them.

    python scripts/make_fixtures.py                     write fixtures/
    python scripts/make_fixtures.py --folder ELSEWHERE  write another folder
    python scripts/make_fixtures.py --check             write nothing; say what differs, and end
    with 1

The same bytes come out every time, on every Python from 3.10 on. Only gzip may differ, from one
zlib to another: of ``.gz`` files the unpacked content counts. Nothing is measured: the figures in
expected.json are the counters of the allocator model that made the events, never the answer of
snapconv's reader.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.fixtures import (  # noqa: E402 # the root is on the path only now
    backends,
    eras,
    memory,
    oddities,
    pinned,
    refused,
    runs,
    wrappings,
)
from scripts.fixtures.entries import captures_page, entries_page, is_of_people  # noqa: E402
from scripts.fixtures.fixture import BadFile, Fixture  # noqa: E402

COMMAND = "python scripts/make_fixtures.py"
README = f"""\
# Fixtures

Small snapshots of every kind that the format has, training scripts to record, and a capture of one of them.

Nobody recorded the snapshots: a model of torch's allocator and a training loop on paper made them, so that
every figure is known. All of them, `expected.json` and this page are made by one command, and a test fails
when they differ from what it would make now:

```
{COMMAND}
```

`expected.json` has what a reader must find in each: for each device and curve the bytes at the start, the
peak and its event, the end, and the start of a hash of all values; the verdict on the history, the notes, the
releases of torch that write such a file. All that comes from the model's own counters, not from snapconv.
`NAME.truth.json` has, for every allocation of a training run, what it was for.
torch itself made [profiles](profiles/README.md), by `scripts/record_profiles.py`.

"""

_GOOD: tuple[ModuleType, ...] = (runs, eras, wrappings, memory, pinned, backends, oddities)
_BAD: tuple[ModuleType, ...] = (refused,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or compare them with what is there."""
    parser = argparse.ArgumentParser(description="Make the snapshots of fixtures/ anew.")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "fixtures", help="where they are or go"
    )
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    options = parser.parse_args(arguments)
    files = contents()
    if options.check:
        return _check(options.folder, files)
    for name, content in files.items():
        path = options.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(
        f"wrote {len(files)} files, {sum(map(len, files.values())) / (1 << 20):.1f} MiB, "
        f"{options.folder}"
    )
    return 0


def contents() -> dict[str, bytes]:
    """Make every file of the folder, by its name in it."""
    good, bad = list(good_files()), list(bad_files())
    files = {fixture.name: fixture.content for fixture in good}
    files |= {
        f"{Path(fixture.name).stem}.truth.json": fixture.truth.encode()
        for fixture in good
        if fixture.truth
    }
    files |= {f"bad/{file.name}": file.content for file in bad}
    assert len(files) == len(good) + len(bad) + sum(fixture.truth is not None for fixture in good)
    expected = {
        "good": {fixture.name: fixture.expected() for fixture in good},
        "bad": {file.name: file.expected() for file in bad},
    }
    files["expected.json"] = (json.dumps(expected, indent=1) + "\n").encode()
    files["README.md"] = _readme(good, bad).encode()
    return files


def _readme(good: Sequence[Fixture], bad: Sequence[BadFile]) -> str:
    """Describe every file; the command is the same for all of them, so the column names its module."""
    rows = [_row(one.name, one.made_by, f"{one.about} {one.special}") for one in good]
    bad_rows = [_row(f"bad/{one.name}", one.made_by, f"{one.about} `{one.error}`.") for one in bad]
    head = f"| file | made by `{COMMAND}`, in | what it shows |\n| - | - | - |\n"
    return (
        f"{README}## Snapshots\n\n{head}{''.join(rows)}\n## Files that must be refused\n\n"
        f"Each with the error that it must lead to.\n\n{head}{''.join(bad_rows)}"
        f"\n{entries_page(ROOT / 'fixtures')}\n{captures_page(ROOT / 'fixtures')}"
    )


def _row(name: str, made_by: str, words: str) -> str:
    return f"| `{name}` | `scripts/fixtures/{made_by}.py` | {words.strip()} |\n"


def _check(folder: Path, files: dict[str, bytes]) -> int:
    """Print what is missing, different or too many."""
    found = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    there = {name: path for name, path in found.items() if not is_of_people(name)}
    problems = [f"missing: {name}" for name in files if name not in there]
    problems += [f"nobody makes it: {name}" for name in sorted(there) if name not in files]
    problems += [
        f"differs: {name}"
        for name, path in sorted(there.items())
        if name in files and _comparable(name, path.read_bytes()) != _comparable(name, files[name])
    ]
    for problem in problems:
        print(problem)
    if problems:
        print(f"run: {COMMAND}")
    return 1 if problems else 0


def _comparable(name: str, content: bytes) -> bytes:
    """Unpack gzip, whose bytes depend on the release of zlib; as far as it goes where it breaks off."""
    if not name.endswith(".gz"):
        return content
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content)


def good_files() -> Iterator[Fixture]:
    """Make the snapshots that can be read, in the order of the table."""
    for module in _GOOD:
        for fixture in module.fixtures():
            yield replace(fixture, made_by=_name(module))


def bad_files() -> Iterator[BadFile]:
    """Make the files that must be refused."""
    for module in _BAD:
        for file in module.bad_files():
            yield replace(file, made_by=_name(module))


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
