"""Small files that repeat large things: what every command may take for them, and how much it may write.

The bounds for a file of N bytes: 384 MiB of memory and 5 s of processor time, 20 N + 1 MiB of text,
and as much for every report, far below what the same content would be without repetition. A plain
run gives each file to a fifth of the commands, in turn, as each of them reads it, which is most of
their work; scripts/test --all and one with a seed give it to all.
"""

import gzip
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.drawn_inputs import drawn
from tests.fuzz.limited_process import limited_process
from tests.metadata_builder import memory_row, metadata, parameter, phase
from tests.timing_builder import small_trace

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the memory of a process as Linux does"
)

Run = Callable[[Sequence[str], Path], int]
MEMORY_BYTES = 384 << 20
SECONDS = 5
PROJECT = "/home/me/proj/"
FILE, OUT = "FILE", "OUT"
QUESTIONS = {
    "info": ("info", FILE),
    "info --json": ("info", FILE, "--json"),
    "summary": ("summary", FILE),
    "summary --json": ("summary", FILE, "--at", "worst", "--json"),
    "tree --all-frames --json": ("tree", FILE, "--all-frames", "--by", "category", "--json"),
    "tree by module --json": ("tree", FILE, "--by", "module", "--json"),
    "tree by operation --json": ("tree", FILE, "--by", "operation", "--json"),
    "tree": ("tree", FILE),
    "annotate": ("annotate", FILE, "--top", "1000"),
    "annotate --json": ("annotate", FILE, "--json"),
    "fragmentation --json": ("fragmentation", FILE, "--json"),
    "advise --save": ("advise", FILE, "--save", "1GiB"),
    "oom": ("oom", FILE),
    "oom --json": ("oom", FILE, "--json"),
    "verdict": (FILE,),
    "verdict --json": (FILE, "--json"),
    "growth": ("growth", FILE),
    "growth --json": ("growth", FILE, "--json"),
    "what-if --search": ("what-if", FILE, "--search", "--json"),
    "what-if --batch-scale": ("what-if", FILE, "--batch-scale", "2", "--json"),
    "explain": ("explain", FILE, "0x10000", "--device", "0", "--json"),
    "check": ("check", FILE, "--max-peak", "1GiB", "--max-growth", "0", "--format", "github"),
    "check --baseline": ("check", FILE, "--baseline", FILE, "--fail-over", "1%", "--json"),
    "diff": ("diff", FILE, FILE, "--json"),
}
REPORTS = {
    "to-sqlite": ("to-sqlite", FILE),
    "to-sqlite --extended --json": ("to-sqlite", FILE, "--extended", "--json"),
    "view": ("view", FILE),
    "view of two": ("view", FILE, FILE),
    "export": ("export", FILE),
    "cut": ("cut", FILE, "--from", "0", "--to", "0"),
}
COMMANDS = QUESTIONS | {name: (*command, "-o", OUT) for name, command in REPORTS.items()}

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
    names = [f"{i}" + "n" * 4000 for i in range(25)]
    stack = [
        {"name": names[i % 25], "filename": f"{PROJECT}t.py", "line": i + 1} for i in range(5_000)
    ]
    return dump([], [alloc(stack)])


def annotations(names: list[str], *traces: list) -> bytes:
    """Ranges one after the other."""
    marks = [
        {"name": name, "stage": stage, "device": 0, "time_us": 2 * i + (stage == "END")}
        for i, name in enumerate(names)
        for stage in ("START", "END")
    ]
    raw = {"segments": [], "device_traces": list(traces), "external_annotations": marks}
    return pickle.dumps(raw, 4)


def own_lines_above_long_names(n: int) -> bytes:
    shared = [
        {"name": f"{i}" + "n" * 2000, "filename": f"{PROJECT}{'a' * 1900}.py", "line": 3}
        for i in range(20)
    ]
    stacks = [
        [{"name": "g", "filename": f"{PROJECT}b.py", "line": i + 1}, *shared] for i in range(n)
    ]
    return dump([], [{**alloc(stack), "addr": 65536 + 512 * i} for i, stack in enumerate(stacks)])


def failures(n: int) -> bytes:
    stack = frames(2000)
    failed = {"action": "oom", "device_free": 0, "size": 1 << 30, "stream": 0, "frames": stack}
    return dump([], [alloc(stack), *[failed] * n])


def parameters(n: int) -> bytes:
    """One parameter, listed so many times."""
    named = parameter("w" * 1900, 65536, 512, 1)
    block = {
        "size": 512,
        "requested_size": 512,
        "address": 65536,
        "state": "active_allocated",
        "frames": [],
    }
    segment = {"address": 65536, "total_size": 512, "blocks": [block]}
    raw = {
        "segments": [segment],
        "device_traces": [timed(1)],
        "snapconv": metadata(parameters=[named] * n),
    }
    return pickle.dumps(raw, 4)


def phases(n: int) -> bytes:
    """So many phases of three to an iteration, and a gradient and a state in each."""
    marks = [phase(("forward", "backward", "optimizer")[i % 3], i, i + 1, i // 3) for i in range(n)]
    steps = [
        {"iteration": i, "kind": "memory", "began_us": 3 * i, "ended_us": 3 * i + 3}
        for i in range(n // 3)
    ]
    rows = [memory_row(65536 + 512 * i, 512, 3 * i + 2, parameter=0) for i in range(n // 3)]
    recorded = metadata(
        parameters=[parameter("layer.w", 65536, 512, 1)],
        gradients=[{**row, "iteration": i} for i, row in enumerate(rows)],
        optimizer_states=[{**row, "state": "exp_avg"} for row in rows],
        phases=marks,
        iterations=steps,
    )
    return pickle.dumps({"segments": [], "device_traces": [timed(n // 2)], "snapconv": recorded}, 4)


def timed(n: int) -> list:
    return [{**alloc([]), "addr": 65536 + 512 * i, "time_us": 2 * i} for i in range(n)]


def long_native_names(n: int) -> bytes:
    """C++ names of 15,000 characters in the stacks of an alloc and its free, nearly those of operations."""
    names = [
        f"{i}{head}{'a' * 15_000}"
        for i in range(n // 3)
        for head in ("", "THPVariable_", "Backward0")
    ]
    stack = [{"name": name, "filename": "??", "line": 0} for name in names]
    free = {**alloc(stack[::-1]), "action": "free_completed"}
    return dump([], [alloc(stack), free])


def devices_of_many_stacks(n_devices: int, n_stacks: int) -> bytes:
    """So many stacks on the first device; each of the others has one of them."""
    rows = [
        {**alloc(frames(3 + i % 7, f"{PROJECT}{i}.py")), "addr": 65536 + 512 * i}
        for i in range(n_stacks)
    ]
    return dump([], rows, *([rows[i % n_stacks]] for i in range(n_devices)))


def pools_of_one_block(n: int) -> bytes:
    """So many private pools, each with a segment of its own."""
    rows = [
        {
            **alloc([]),
            "action": action,
            "addr": 65536 + (2 << 20) * i,
            "size": size,
            "pool_id": (0, i),
        }
        for i in range(n)
        for action, size in (
            ("segment_alloc", 2 << 20),
            ("alloc", 512),
            ("free_requested", 512),
            ("free_completed", 512),
        )
    ]
    return dump([], rows)


FILES: dict[str, Callable[[], bytes]] = {
    "one deep recursion with a long path in 50 blocks": lambda: blocks_of_one_stack(
        50, [LINEAR, *[{"name": "f", "filename": PROJECT + "a" * 4000 + ".py", "line": 3}] * 20_000]
    ),
    "one stack of 15,000 frames in 1,500 blocks": lambda: blocks_of_one_stack(
        1_500, [LINEAR, *[{"name": "f", "filename": f"{PROJECT}b.py", "line": 3}] * 15_000]
    ),
    "5,000 frames in a file with a name of 4,000 characters": lambda: dump(
        [], [alloc(frames(5_000, "./" * 2044 + "x.py"))]
    ),
    "5,000 frames with 25 names of 4,000 characters": names_of_4000_characters,
    "1,000 stacks that share 20 long names": lambda: own_lines_above_long_names(1000),
    "2,000 ranges of one name of 50,000 characters": lambda: annotations(
        ["A" * 50_000] * 2000, timed(2000)
    ),
    "1,000 ranges on 1 of 32 devices": lambda: annotations(
        [f"a{i}" for i in range(1000)], *[timed(2)] * 32
    ),
    "4,000 failed requests of one deep stack": lambda: failures(4000),
    "one parameter 20,000 times": lambda: parameters(20_000),
    "1,500 phases, gradients and states": lambda: phases(1500),
    "60 C++ names of 15,000 characters": lambda: long_native_names(60),
    "20,000 distinct names": lambda: dump(
        [],
        [
            alloc(
                [
                    {"name": f"f{i}", "filename": f"{PROJECT}{i}.py", "line": 1}
                    for i in range(20_000)
                ]
            )
        ],
    ),
    "800 stacks of a file with 120 devices": lambda: devices_of_many_stacks(120, 800),
    "3,000 pools of a block each": lambda: pools_of_one_block(3000),
    "a stack of 10,000 frames on 1 of 16 devices": lambda: dump(
        [], [alloc(frames(10_000))], *([alloc([])] for _ in range(15))
    ),
}


def with_paths(command: tuple[str, ...], file: Path, out: Path) -> list[str]:
    return [{FILE: str(file), OUT: str(out)}.get(part, part) for part in command]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("small")
    small = folder / "x.pickle"
    small.write_bytes(dump([], [alloc(frames(1))]))
    first = [
        with_paths(command, small, folder / f"out{i}")
        for i, command in enumerate(COMMANDS.values())
    ]
    with limited_process(first, memory_bytes=MEMORY_BYTES, seconds=SECONDS) as run:
        yield run


def check(run: Run, tmp_path: Path, file: Path, n_bytes: int, *, number: int) -> None:
    """Hold commands to the bounds of a file of so many bytes; its number chooses them, where not all run."""
    most = 20 * n_bytes + (1 << 20)
    wrong = {}
    step = 5 if drawn(3) == 1 else 1
    for name, command in list(COMMANDS.items())[number % step :: step]:
        folder = tmp_path / "outputs"
        folder.mkdir()
        said = tmp_path / "said"
        code = run(with_paths(command, file, folder / "out"), said)
        n_printed = said.stat().st_size
        end = said.read_bytes()[-1000:].decode("utf-8", "replace")
        sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        if (
            code not in (0, 3, 7)
            or "memory does not suffice" in end
            or n_printed > most
            # A file for each device or table may have some bytes for itself.
            or sum(sizes.values()) > most + (1 << 20) * max(len(sizes) - 1, 0)
        ):
            wrong[name] = (code, n_printed, sizes, end)
        said.unlink()
        shutil.rmtree(folder)
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_what_is_repeated_costs_no_more_than_its_file_allows(run, tmp_path, name):
    content = FILES[name]()
    assert len(content) < 5 << 18
    file = tmp_path / "x.pickle"
    file.write_bytes(content)
    check(run, tmp_path, file, len(content), number=list(FILES).index(name))


def test_a_stack_of_all_timed_calls_costs_no_more_than_its_file_allows(run, tmp_path):
    """20,000 frames, and 1,000 calls from there."""
    trace = small_trace()
    stack = [[f"/home/me/project/{'a' * 50}.py", 3, "f", False]] * 20_000
    trace["stacks"] = [stack]
    trace["calls"] = {key: column[:1] * 1000 for key, column in trace["calls"].items()} | {
        "stack": [0] * 1000
    }
    capture = tmp_path / "x.capture"
    capture.mkdir()
    (capture / "snapshot.pickle").write_bytes(dump([], [alloc([])]))
    (capture / "timing.json").write_text(json.dumps(trace))
    n_bytes = sum(file.stat().st_size for file in capture.iterdir())
    check(run, tmp_path, capture, n_bytes, number=len(FILES))


def test_a_packed_file_costs_no_more_than_what_it_contains_allows(run, tmp_path):
    content = json.dumps({"segments": [], "device_traces": [[alloc(frames(1))] * 3000]}).encode()
    file = tmp_path / "x.json.gz"
    file.write_bytes(gzip.compress(content))
    assert file.stat().st_size < len(content) // 50
    check(run, tmp_path, file, len(content), number=len(FILES) + 1)
