"""Profile two steps of a small model on the CPU, and write what torch makes of the profile into a folder.

    python scripts/record_profiles.py fixtures/profiles

Needs torch (2.13 made the files that are there). ``expected.json`` gets the profiler's own peak, in
bytes by category, and the trace's totals, computed here and by none of snapconv's code.
"""

import gzip
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.cuda._memory_viz import profile_plot
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX, MemoryProfileTimeline

N_STEPS, BATCH, WIDTH = 2, 128, 64


class Perceptron(torch.nn.Module):  # type: ignore[misc]  # torch may be absent where this is checked
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of both."""
        return self.down(torch.relu(self.up(x)))


def train(model: Perceptron, optimizer: torch.optim.Optimizer) -> None:
    """Train for a few steps."""
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()


def peak_of(profiled: Any) -> dict[str, int]:
    """Return the bytes of every category at the moment with most bytes, as the profiler counts them."""
    _, sums = MemoryProfileTimeline(profiled._memory_profile())._coalesce_timeline("cpu")
    names = ["unknown" if one is None else one.name.lower() for one in _CATEGORY_TO_INDEX]
    return dict(zip(names, max(sums, key=sum)[1:], strict=True))


def write_trace(profiled: Any, path: Path) -> int:
    """Write the Chrome trace without the machine's names; return the largest of its totals."""
    profiled.export_chrome_trace(str(path))
    trace = json.loads(path.read_bytes())
    for key in ("host_name", "traceName", "trace_id"):
        trace.pop(key, None)
    path.unlink()
    packed = gzip.compress(json.dumps(trace).encode(), mtime=0)
    path.with_name(f"{path.name}.gz").write_bytes(packed)
    memory = [event["args"] for event in trace["traceEvents"] if event["name"] == "[memory]"]
    return max(int(args["Total Allocated"]) for args in memory)


def main(folder: Path) -> None:
    """Write every file that torch makes of one profile."""
    warnings.simplefilter("ignore", FutureWarning)
    torch.manual_seed(0)
    model = Perceptron()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    options = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with profile(activities=[ProfilerActivity.CPU], **options) as profiled:
        train(model, optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile_plot.html").write_text(profile_plot(profiled), encoding="utf-8")
    profiled.export_memory_timeline(str(folder / "timeline.raw.json.gz"), device="cpu")
    figures = {
        "torch": torch.__version__,
        "peak": peak_of(profiled),
        "trace_peak": write_trace(profiled, folder / "trace.json"),
    }
    expected = json.dumps(figures, indent=2)
    (folder / "expected.json").write_text(f"{expected}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
