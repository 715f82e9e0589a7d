"""Small files that repeat large things: what every command may take for them, and how much it may write.

Each file is tried in a process with little memory and time. The bounds for a file of N bytes: 768 MiB, 20 s,
and outputs of 20 N + 1 MiB for every report, far below what the same content would be without repetition.
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.timing_builder import small_trace

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the memory of a process as Linux does"
)

MEMORY_BYTES = 768 << 20
SECONDS = 20
PROJECT = "/home/me/proj/"
CHILD = """
import resource, signal, sys
from snapconv.cli.app import main

with open("/proc/self/statm") as file:
    in_use = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[1]),) * 2)
signal.alarm(int(sys.argv[2]))
sys.exit(main(sys.argv[3:]))
"""
COMMANDS = {
    "to-sqlite": ("to-sqlite", "{file}", "-o", "{folder}/out.sqlite"),
    "to-sqlite --extended --json": (
        *("to-sqlite", "{file}", "--extended", "--json"),
        *("-o", "{folder}/out.sqlite"),
    ),
    "info": ("info", "{file}"),
    "info --json": ("info", "{file}", "--json"),
    "summary --json": ("summary", "{file}", "--json"),
    "tree --all-frames --json": ("tree", "{file}", "--all-frames", "--by", "category", "--json"),
    "fragmentation --json": ("fragmentation", "{file}", "--json"),
    "oom": ("oom", "{file}", "--json"),
    "verdict": ("{file}", "--json"),
    "growth --json": ("growth", "{file}", "--json"),
    "what-if --search": ("what-if", "{file}", "--search", "--json"),
    "view": ("view", "{file}", "-o", "{folder}/out.html"),
    "export --format snapshot": (
        *("export", "{file}", "--format", "snapshot", "--device", "0"),
        *("-o", "{folder}/out.sqlite"),
    ),
    "explain": ("explain", "{file}", "0x10000", "--device", "0", "--json"),
}  # fmt: skip

LINEAR = {"name": "__init__", "filename": "/x/site-packages/torch/nn/modules/linear.py", "line": 9}


def dump(segments: list, *traces: list) -> bytes:
    return pickle.dumps({"segments": segments, "device_traces": list(traces)}, 4)


def alloc(frames: list) -> dict:
    return {"action": "alloc", "addr": 65536, "size": 512, "frames": frames}


def frames(n: int, filename: str = f"{PROJECT}t.py", **fields) -> list[dict]:
    return [{"name": "f", "filename": filename, "line": i + 1, **fields} for i in range(n)]


def blocks_of_one_stack(n: int, stack: list[dict]) -> bytes:
    block = {"size": 512, "requested_size": 512, "state": "active_allocated", "frames": stack}
    blocks = [{**block, "address": 65536 + 512 * i} for i in range(n)]
    return dump([{"address": 65536, "total_size": 512 * n, "blocks": blocks}], [])


def names_of_4000_characters() -> bytes:
    names = [f"{i}" + "n" * 4000 for i in range(50)]
    stack = [{"name": names[i % 50], "filename": f"{PROJECT}t.py", "line": i + 1} for i in range(20_000)]
    return dump([], [alloc(stack)])


FILES: dict[str, Callable[[], bytes]] = {
    "one deep recursion with a long path in 50 blocks": lambda: blocks_of_one_stack(
        50, [LINEAR, *[{"name": "f", "filename": PROJECT + "a" * 4000 + ".py", "line": 3}] * 20_000]
    ),
    "one stack of 100,000 frames in 10,000 blocks": lambda: blocks_of_one_stack(
        10_000, [LINEAR, *[{"name": "f", "filename": f"{PROJECT}b.py", "line": 3}] * 100_000]
    ),
    "10,000 frames traced from the same 2,900 lines": lambda: dump(
        [], [alloc(frames(10_000, fx_original_trace='File "a", line 1, in a\n' * 2900))]
    ),
    "20,000 frames in a file with a name of 4,000 characters": lambda: dump(
        [], [alloc(frames(20_000, "./" * 2044 + "x.py"))]
    ),
    "20,000 frames with 50 names of 4,000 characters": names_of_4000_characters,
    "a stack of 20,000 frames on 1 of 128 devices": lambda: dump(
        [], [alloc(frames(20_000))], *([alloc([])] for _ in range(127))
    ),
}


def run(folder: Path, file: Path, command: tuple[str, ...]) -> tuple[int, str]:
    arguments = [part.format(file=file, folder=folder) for part in command]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(MEMORY_BYTES), str(SECONDS), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check(tmp_path: Path, file: Path, n_bytes: int, command: str, *, n_reports: int = 1) -> None:
    code, text = run(tmp_path, file, COMMANDS[command])
    assert code in (0, 3), text[-2000:]
    assert len(text) <= 20 * n_bytes + (1 << 20)
    written = sum(path.stat().st_size for path in tmp_path.glob("out*"))
    assert written <= 20 * n_bytes + n_reports * (1 << 20)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_repeated_costs_no_more_than_its_file_allows(tmp_path, name, command):
    content = FILES[name]()
    assert len(content) < 1 << 20
    file = tmp_path / "x.pickle"
    file.write_bytes(content)
    check(tmp_path, file, len(content), command, n_reports=128 if "128 devices" in name else 1)


def test_a_stack_of_all_timed_calls_costs_no_more_than_its_file_allows(tmp_path):
    """50,000 frames, and 1,000 calls from there."""
    trace = small_trace()
    stack = [[f"/home/me/project/{'a' * 50}.py", 3, "f", False]] * 50_000
    trace["stacks"] = [stack]
    trace["calls"] = {key: column[:1] * 1000 for key, column in trace["calls"].items()} | {
        "stack": [0] * 1000
    }
    capture = tmp_path / "x.capture"
    capture.mkdir()
    (capture / "snapshot.pickle").write_bytes(dump([], [alloc([])]))
    (capture / "timing.json").write_text(json.dumps(trace))
    n_bytes = (capture / "timing.json").stat().st_size
    check(tmp_path, capture, n_bytes, "to-sqlite --extended --json", n_reports=2)
