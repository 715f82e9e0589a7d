"""Large snapshots of real programs -> small seeds: windows cut out of them, and parts of two spliced.

    python scripts/fuzzing/real_seeds.py FILES OUT    FILES is a folder with pickles, packed or not

Each seed has all kinds of rows that its file has, so few of each that a change of one is a change
of much.
"""

import gzip
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzzing.file_mutations import MAX_BYTES, from_pickle, to_pickle

Raw = dict[str, Any]
N_WINDOWS, N_EVENTS, N_SEGMENTS, N_ROWS, N_FRAMES = 6, 60, 6, 20, 12


def main() -> int:
    """Write the seeds of a folder's files into another."""
    write_seeds(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


def write_seeds(files: Path, out: Path) -> None:
    """Write the seeds of a folder's files into another, which may have some already."""
    out.mkdir(parents=True, exist_ok=True)
    for seed in seeds_of(files):
        (out / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    print(f"{len(list(out.iterdir()))} seeds of {files}", flush=True)


def seeds_of(files: Path) -> Iterator[bytes]:
    """Yield seeds that the campaigns can take, always the same ones of the same files."""
    random = Random(0)
    windows: list[Raw] = []
    for file in sorted(path for path in files.rglob("*") if path.is_file()):
        windows += _windows_of(file, random)
    spliced = [{**random.choice(windows), **_part(random.choice(windows), random)} for _ in windows]
    for raw in (*windows, *spliced):
        data = to_pickle(raw)
        if len(data) <= MAX_BYTES:
            yield data


def _windows_of(file: Path, random: Random) -> list[Raw]:
    data = file.read_bytes()
    try:
        raw = from_pickle(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        return [_window(raw, random) for _ in range(N_WINDOWS)]
    except Exception:  # noqa: BLE001  # whatever is no snapshot is no seed
        print(f"left out, as it is no pickle of a snapshot: {file}", file=sys.stderr)
        return []


def _window(raw: Raw, random: Random) -> Raw:
    """Cut some neighbouring rows out of every list, and the ends off the stacks."""
    cut = {key: _rows(value, N_ROWS, random) for key, value in raw.items()}
    cut["device_traces"] = [_rows(trace, N_EVENTS, random) for trace in raw["device_traces"]]
    segments = _rows(raw["segments"], N_SEGMENTS, random)
    cut["segments"] = [
        {**one, "blocks": _rows(one.get("blocks"), N_ROWS, random)} for one in segments
    ]
    if isinstance(raw.get("snapconv"), dict):
        cut["snapconv"] = {
            key: _rows(value, N_ROWS, random) for key, value in raw["snapconv"].items()
        }
    for rows in (
        *cut["device_traces"],
        cut["segments"],
        *(one["blocks"] for one in cut["segments"]),
    ):
        rows[:] = [
            {**row, "frames": row["frames"][:N_FRAMES]} if row.get("frames") else row
            for row in rows or ()
        ]
    return cut


def _rows(value: Any, n: int, random: Random) -> Any:
    if not isinstance(value, list):
        return value
    start = random.randrange(max(len(value) - n, 0) + 1)
    return value[start : start + n]


def _part(raw: Raw, random: Random) -> Raw:
    return {key: value for key, value in raw.items() if random.random() < 0.5}


if __name__ == "__main__":
    raise SystemExit(main())
