"""Record an entry of fixtures/entries as a capture that is a fixture itself.

    python scripts/record_fixture.py                            fixtures/transformer.capture,
    simulated
    python scripts/record_fixture.py --gpu --folder fixtures/gpu cnn lstm    on a GPU, elsewhere,
    others
    python scripts/record_fixture.py ranks                      fixtures/ranks: eight processes over
    gloo

Run it where torch is installed beside snapconv. The capture is that of ``snapconv record --stop
train.py``; then the folders of the machine that it was recorded on are replaced by such as a user's
would be, and the name of its kernel is taken out. Nothing else is changed. It is another recording
every time: addresses and times differ, so no test compares its bytes.
"""

import argparse
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENTRIES = ROOT / "fixtures" / "entries"
HOME = "/home/user"
SNAPSHOT, TIMING = "snapshot.pickle", "timing.json"
RANKS, N_RANKS = "ranks", 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the entries that were named."""
    parser = argparse.ArgumentParser(
        description="Record an entry of fixtures/entries as a fixture."
    )
    parser.add_argument(
        "entries", nargs="*", default=["transformer"], help="by default transformer"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "fixtures", help="where the captures go"
    )
    parser.add_argument(
        "--gpu", action="store_true", help="record on a GPU, instead of simulating one"
    )
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for entry in options.entries:
        if entry == RANKS:
            make_ranks(options.folder / RANKS)
            continue
        capture = make_capture(entry, options.folder, simulate=not options.gpu)
        n_bytes = sum(file.stat().st_size for file in capture.iterdir())
        print(f"wrote {capture}, {n_bytes / 1024:.0f} KiB")
    return 0


def make_capture(entry: str, folder: Path, *, simulate: bool) -> Path:
    """Record an entry's script and put the capture, made neutral, into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        capture = Path(temporary) / f"{entry}.capture"
        where = ["--simulate"] * simulate + ["--stop", "--quiet", "--output", str(capture)]
        command = [sys.executable, "-m", "snapconv", "record", *where, "train.py", "--steps", "4"]
        # One thread where the processor computes: the times are then its work, and no waiting for
        # each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            command, cwd=ENTRIES / entry, env=environment, stdout=subprocess.DEVNULL, check=True
        )
        _make_neutral(capture, entry)
        final = folder / capture.name
        if final.exists():
            shutil.rmtree(final)
        shutil.copytree(capture, final)
    return final


def make_ranks(folder: Path) -> None:
    """Record every process of the job of fixtures/ranks/train.py, and keep the snapshots."""
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copy(ROOT / "fixtures" / RANKS / "train.py", temporary)
        launch = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(N_RANKS),
            "-m",
            "snapconv",
            "record",
        ]
        options = ["--simulate", "--stacks", "python", "--iterations", "4", "--stop", "--quiet"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, *launch, *options, "train.py"],
            cwd=temporary,
            env=environment,
            check=True,
        )
        for rank in range(N_RANKS):
            capture = Path(temporary) / f"train.rank{rank}.capture"
            _make_snapshot_neutral(capture, {temporary: f"{HOME}/{RANKS}"} | folders_of(RANKS))
            final = folder / f"rank{rank}.capture"
            final.mkdir(parents=True, exist_ok=True)
            shutil.copy(capture / SNAPSHOT, final)


def _make_snapshot_neutral(capture: Path, folders: dict[str, str]) -> None:
    snapshot = pickle.loads((capture / SNAPSHOT).read_bytes())  # our own, a moment ago
    replace_folders(snapshot, folders, seen=set())
    snapshot["snapconv"]["platform"] = platform.system()
    (capture / SNAPSHOT).write_bytes(pickle.dumps(snapshot, protocol=4))


def _make_neutral(capture: Path, entry: str) -> None:
    """Write a capture's two files again with other folders in them."""
    folders = folders_of(entry)
    _make_snapshot_neutral(capture, folders)
    timing = json.loads((capture / TIMING).read_bytes())
    replace_folders(timing, folders, seen=set())
    (capture / TIMING).write_text(json.dumps(timing, separators=(",", ":")), encoding="utf-8")


def folders_of(entry: str) -> dict[str, str]:
    """Say which folder of this machine stands for which of a user's; inner ones first."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = sysconfig.get_paths()
    return {
        str(ENTRIES / entry): f"{HOME}/{entry}",
        paths["purelib"]: f"{HOME}/venv/lib/{version}/site-packages",
        paths["stdlib"]: f"/usr/lib/{version}",
        str(ROOT): f"{HOME}/snapconv",
        sys.prefix: f"{HOME}/venv",
    }


def replace_folders(value: Any, folders: dict[str, str], *, seen: set[int]) -> None:
    """Replace the folders in every text of a container, in place: what was shared stays shared."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return
    seen.add(id(value))
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(item, str):
            value[key] = _neutral(item, folders)
        else:
            replace_folders(item, folders, seen=seen)


def _neutral(text: str, folders: dict[str, str]) -> str:
    for folder, instead in folders.items():
        if text == folder or text.startswith(f"{folder}/"):
            return instead + text.removeprefix(folder)
    return text


if __name__ == "__main__":
    sys.exit(main())
