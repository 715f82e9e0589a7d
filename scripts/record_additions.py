"""Record a small job with torch-snapkit and with stormlog, as fixtures.

    pip install torch-snapkit==0.1.4 stormlog==0.4.3
    python scripts/record_additions.py

Run it where torch is installed beside snapconv, which simulates the device. Folders of the machine
are replaced as scripts/record_fixture.py does; addresses and times differ every time.
"""

import json
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.record_fixture import HOME, folders_of, replace_folders  # noqa: E402
from snapconv.simulation import simulated  # noqa: E402

FOLDER = ROOT / "fixtures" / "additions"
SNAPKIT = "snapkit.pickle"
STORMLOG = ("cuda_allocator_snapshot.pickle", "cuda_tensor_attribution.json")


def main() -> int:
    """Record the job twice, and keep the files that snapconv reads."""
    with tempfile.TemporaryDirectory() as temporary, simulated():
        folder = Path(temporary).resolve()
        shutil.copy(FOLDER / "train.py", folder)
        sys.path.insert(0, str(folder))
        record(folder)
        folders = {str(folder): f"{HOME}/additions"} | folders_of("additions")
        for name in (SNAPKIT, STORMLOG[0]):
            write_neutral(folder / name, FOLDER / name, folders)
        shutil.copy(folder / STORMLOG[1], FOLDER)
    return 0


def record(folder: Path) -> None:
    """Let both packages record the job, the one after the other, on the simulated device."""
    import torch
    from stormlog.cuda_native_debug import capture_cuda_snapshot_artifacts
    from torch_snapkit import memory_snapshot
    from train import train  # type: ignore[import-not-found]  # the copy

    with memory_snapshot("job", save_path=folder / SNAPKIT, log_shapes=True, source_root=folder):
        kept = train()
    del kept
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = train()
    capture_cuda_snapshot_artifacts(folder, device=0, history_recorded=True)
    del kept


def write_neutral(source: Path, target: Path, folders: dict[str, str]) -> None:
    """Write a snapshot again with other folders in it, in the names of files too."""
    snapshot: dict[str, Any] = pickle.loads(source.read_bytes())  # our own, a moment ago
    texts = [*snapshot.get("source_code", {}).items()]
    if texts:
        names = [name for name, _ in texts]
        replace_folders(names, folders, seen=set())
        snapshot["source_code"] = dict(zip(names, dict(texts).values(), strict=True))
    replace_folders(snapshot, folders, seen=set())
    target.write_bytes(pickle.dumps(snapshot, protocol=4))
    print(f"wrote {target}, {json.dumps(sorted(snapshot))}")


if __name__ == "__main__":
    sys.exit(main())
