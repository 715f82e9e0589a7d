"""Folders of labelled recordings -> how much of their peaks is classified rightly, for every cut.

A recording is ``NAME.GROUP.pickle.xz``: the fields of ``Recording`` as a dictionary. Nothing is
recorded without ``--record``, so that all programs take some minutes.

    corpus.py FOLDER... [--cuts late,forward] [--stacks python] [--groups blind,seen] [--every 3]
    [--programs] [--cache FOLDER] [--json OUT]
    corpus.py FOLDER --record cnn,gan    record programs of the tree into the folder first
"""

import argparse
import hashlib
import json
import lzma
import os
import pickle
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from comparison import match
from cutting import ENDED_EARLY, HISTORIES, STACKS, cut
from entries import GROUP_OF
from recording import Recording, recorded_once
from setups import Setup
from truth import truth_of

from snapconv.classification.categories import Category
from snapconv.classification.classify import classify
from snapconv.classification.decisions import Classification
from snapconv.classification.features import Features, find_features
from snapconv.columns import BoolColumn, Int8Column, Int64Column
from snapconv.phases.trace_phases import find_phases
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import Snapshot, load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts

_ROOT, _LIBRARIES = Path(__file__).resolve().parents[3], Path(torch.__file__).parents[2]
CUTS = (*HISTORIES, *ENDED_EARLY)
# The bounds of the bins in which stated probabilities are compared with what was right.
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01)


@dataclass(frozen=True, slots=True)
class Labelled:
    """One cut of one recording: its features, the truth of every row, and the bytes at the peak."""

    program: str
    group: str
    history: str
    stacks: str
    features: Features
    truth: Int8Column
    is_live: BoolColumn
    block_bytes: Int64Column


@dataclass(frozen=True, slots=True)
class Loaded:
    """One cut of one recording as it was read, and the truth of every row of its replay."""

    history: str
    stacks: str
    snapshot: Snapshot
    truth: Int8Column


def labelled(
    path: Path, cuts: Sequence[str], stacks: Sequence[str], kept_in: Path | None = None
) -> Iterator[Labelled]:
    """Make every cut of a recording; ``kept_in`` keeps what was read of it."""
    program, group = path.name.removesuffix(".pickle.xz").rsplit(".", 1)
    for part in _loaded(path, cuts, stacks, kept_in):
        (device,) = part.snapshot.devices
        found = replay(part.snapshot, device)
        roles = StackFacts(part.snapshot.stacks, find_project(part.snapshot.stacks)).roles
        allocations = found.allocations
        features = find_features(
            found, find_phases(part.snapshot, device, allocations, roles), roles
        )
        live = allocations.live_at(found.allocated.peak_event)
        yield Labelled(
            program,
            group,
            part.history,
            part.stacks,
            features,
            part.truth,
            live,
            allocations.block_bytes,
        )


def _loaded(
    path: Path, cuts: Sequence[str], stacks: Sequence[str], kept_in: Path | None
) -> Sequence[Loaded]:
    """Read every cut, or take it from the cache; reading is nine tenths of the time."""
    if kept_in is None:
        return list(_load(path, cuts, stacks))
    about = hashlib.sha256(path.read_bytes() + repr((cuts, stacks)).encode() + _reading_code())
    kept = kept_in / f"{path.name.removesuffix('.pickle.xz')}.{about.hexdigest()[:16]}.pickle"
    if not kept.exists():
        kept_in.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(list(_load(path, cuts, stacks)), protocol=5))
        part.replace(kept)
    loaded: Sequence[Loaded] = pickle.loads(kept.read_bytes())
    return loaded


@cache
def _reading_code() -> bytes:
    """Return a digest of the code that a cut and its truth depend on: all but the classification."""
    digest = hashlib.sha256()
    folders = [_ROOT / "snapconv" / name for name in ("snapshot", "replay", "phases", "allocator")]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    here = [Path(__file__).with_name(name) for name in ("truth.py", "cutting.py", "corpus.py")]
    for file in (*files, *here):
        digest.update(file.read_bytes())
    return digest.digest()


def _load(path: Path, cuts: Sequence[str], stacks: Sequence[str]) -> Iterator[Loaded]:
    recorded = Recording(**pickle.loads(lzma.decompress(path.read_bytes())))
    with tempfile.TemporaryDirectory() as name:
        truth = truth_of(recorded, Path(name))
        for history, of_stacks in product(cuts, stacks):
            bare = cut(recorded, history, of_stacks)
            if bare is None:
                continue
            file = Path(name) / "bare.pickle"
            file.write_bytes(pickle.dumps(bare.raw))
            snapshot = load_snapshot(file)
            (device,) = snapshot.devices
            allocations = replay(snapshot, device).allocations
            true = truth.category[match(allocations, truth.allocations, bare)]
            yield Loaded(history, of_stacks, snapshot, true)


def record_into(folder: Path, programs: Iterable[str]) -> None:
    """Record programs of the tree as labelled recordings."""
    for name in programs:
        keep(folder, name, GROUP_OF[name], recorded_once(name, Setup(), None))


def keep(folder: Path, name: str, group: str, recorded: Recording) -> None:
    """Write a labelled recording."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {field: getattr(recorded, field) for field in Recording.__slots__}
    packed = lzma.compress(pickle.dumps(_elsewhere(fields)), preset=1)
    (folder / f"{name}.{group}.pickle.xz").write_bytes(packed)


def _elsewhere(value: Any) -> Any:
    """Replace the folders of this machine in all texts."""
    if isinstance(value, str):
        for folder, other in ((str(_ROOT), "/w/snapconv"), (str(_LIBRARIES), "/usr/lib/python3")):
            value = value.replace(folder, other)
        return value
    if isinstance(value, dict):
        return {key: _elsewhere(each) for key, each in value.items()}
    return [_elsewhere(each) for each in value] if isinstance(value, list) else value


def shares(case: Labelled, found: Classification) -> dict[str, Any]:
    """Shares of the bytes at the peak: of what is certain, and of what is likely too; and by probability."""
    counted = case.is_live & (case.truth != Category.UNKNOWN)
    n_bytes = case.block_bytes * counted
    total = max(1, int(n_bytes.sum()))
    is_right = found.category == case.truth
    known = found.category != Category.UNKNOWN
    certain = known & found.is_certain

    def share(rows: BoolColumn) -> float:
        return float(n_bytes[rows].sum() / total)

    solved = known & ~found.is_certain
    bins = []
    for low, high in pairwise(BINS):
        rows = solved & (found.probability >= low) & (found.probability < high)
        bins.append(
            (
                share(rows),
                share(rows & is_right),
                float((n_bytes * found.probability)[rows].sum() / total),
            )
        )
    return {
        "certain": (share(certain & is_right), share(certain & ~is_right)),
        "likely": (share(known & is_right), share(known & ~is_right)),
        "bins": bins,
    }


def measure(
    path: Path, cuts: Sequence[str], stacks: Sequence[str], kept_in: Path | None = None
) -> list[dict[str, Any]]:
    """Classify every cut of a recording."""
    found = []
    for case in labelled(path, cuts, stacks, kept_in):
        about = {
            "program": case.program,
            "group": case.group,
            "history": case.history,
            "stacks": case.stacks,
        }
        found.append({**about, **shares(case, classify(case.features))})
    return found


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Means over programs: right / wrong / unknown, of what is certain and with what is likely."""
    by_cut = defaultdict(list)
    for row in rows:
        by_cut[row["history"], row["stacks"]].append(row)
    lines = ["| cut | stacks | n | certain | with likely |", "|---|---|---|---|---|"]
    for history, stacks in product(CUTS, STACKS):
        mine = by_cut.get((history, stacks), [])
        if not mine:
            continue
        cells = []
        for word in ("certain", "likely"):
            right, wrong = (100 * fmean(row[word][i] for row in mine) for i in (0, 1))
            cells.append(f"{right:.2f} / {wrong:.2f} / {100 - right - wrong:.2f}")
        lines.append(f"| {history} | {stacks} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_programs(rows: Iterable[dict[str, Any]], stacks: str) -> str:
    """Return for every program and cut what is right / wrong: certain, then with what is likely."""
    by_program: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["stacks"] == stacks:
            cell = ", ".join(
                " / ".join(f"{100 * share:.1f}" for share in row[word])
                for word in ("certain", "likely")
            )
            by_program[row["program"]][row["history"]] = cell
    cuts = [cut for cut in CUTS if any(cut in cells for cells in by_program.values())]
    lines = [f"| {stacks} stacks | {' | '.join(cuts)} |", "|---" * (len(cuts) + 1) + "|"]
    for program, cells in sorted(by_program.items()):
        lines.append(f"| {program} | {' | '.join(cells.get(cut, '') for cut in cuts)} |")
    return "\n".join(lines)


def calibration(rows: Sequence[dict[str, Any]]) -> str:
    """Compare what was stated as a probability below that of certainty with how much of it is right."""
    lines = ["| stated | share of peaks | mean stated | right |", "|---|---|---|---|"]
    for number, low in enumerate(BINS[:-1]):
        decided, right, stated = (sum(row["bins"][number][i] for row in rows) for i in range(3))
        if decided:
            lines.append(
                f"| {low:.2f} and more | {100 * decided / len(rows):.2f} | {stated / decided:.2f} "
                f"| {right / decided:.2f} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    """Measure the recordings of folders and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cuts", default=",".join(CUTS))
    parser.add_argument("--stacks", default=",".join(STACKS))
    parser.add_argument("--groups", default="")
    parser.add_argument(
        "--every", type=int, default=1, help="of the files in order of names, every so many"
    )
    parser.add_argument("--programs", action="store_true", help="show each program, too")
    parser.add_argument("--cache", type=Path, help="keep here what was read of recordings")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--record", default="", metavar="NAMES", help="programs of the tree to record first"
    )
    chosen = parser.parse_args(argv)
    record_into(chosen.folders[0], [name for name in chosen.record.split(",") if name])
    paths = sorted(path for folder in chosen.folders for path in folder.glob("*.pickle.xz"))[
        :: chosen.every
    ]
    groups = chosen.groups.split(",") if chosen.groups else None
    paths = [path for path in paths if groups is None or path.name.split(".")[-3] in groups]
    one = partial(
        measure,
        cuts=chosen.cuts.split(","),
        stacks=chosen.stacks.split(","),
        kept_in=chosen.cache,
    )
    with ProcessPoolExecutor(2) as pool:
        rows = [row for found in pool.map(one, paths) for row in found]
    print(table(rows))
    print()
    print(calibration(rows))
    if chosen.programs:
        for of_stacks in chosen.stacks.split(","):
            print()
            print(table_of_programs(rows, of_stacks))
    if chosen.json:
        chosen.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
