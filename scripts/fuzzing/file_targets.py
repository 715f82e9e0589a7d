"""What the campaign of ``scripts/fuzz`` tries: kinds of inputs, their seeds, and the commands that read them.

An input is the content of one file as a person would give it. Which commands are tried with it
follows from its content, so that the same input always does the same.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from zipfile import ZipFile

from fuzzing.file_mutations import MAX_BYTES, from_pickle, mutated, to_pickle

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
# What earlier campaigns found: folders of targets, files named after their content.
KEPT = Path(__file__).parent / "kept_files.zip"
# The variable that names the folder of the seeds of real files.
REAL_SEEDS = "SNAPCONV_FUZZ_SEEDS"
# The one that names the folder of the files themselves, which are inputs as a whole up to this
# size.
REAL_FILES = "SNAPCONV_FUZZ_FILES"
_MOST_WHOLE_BYTES = 4 << 20
# How protocols from 2 on begin.
_PICKLE = b"\x80"
Command = list[str]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of input.

    ``arrange`` puts an input into a folder and returns the commands to try; none where it cannot be
    one. ``codec`` is how its values are read and written, to be changed; None where only bytes are.
    An input has at most ``most_bytes``.
    """

    name: str
    codec: str | None
    seeds: Callable[[], list[bytes]]
    arrange: Callable[[Path, bytes], list[Command]]
    most_bytes: int = MAX_BYTES

    def inputs(self) -> list[bytes]:
        """Return the seeds, and what earlier campaigns kept."""
        real = _real_seeds() if self.arrange in (_with_snapshot, _among_ranks, _with_server) else []
        inputs = self.seeds() + real + kept_inputs(self.name)
        return [data for data in inputs if len(data) <= self.most_bytes]

    def changed_input(self, random: Random) -> bytes:
        """Return an input that is changed by chance."""
        inputs = self.inputs()
        data, other = random.choice(inputs), random.choice(inputs)
        return mutated(data, self.codec, random, other, most_bytes=self.most_bytes)


def kept_inputs(target: str) -> list[bytes]:
    """Find what earlier campaigns kept for a target."""
    if not KEPT.exists():
        return []
    with ZipFile(KEPT) as kept:
        return [
            kept.read(name) for name in sorted(kept.namelist()) if name.startswith(f"{target}/")
        ]


def _real_seeds() -> list[bytes]:
    """Read what ``scripts/fuzz --seeds`` has made of real files."""
    folder = os.environ.get(REAL_SEEDS)
    return [file.read_bytes() for file in sorted(Path(folder).iterdir())] if folder else []


# --- commands


def every_answer(file: str) -> list[Command]:
    """Every question that a snapshot can answer; one that is not named here is asked without options."""
    import snapconv.cli.questions  # noqa: F401  # it fills the table
    from snapconv.cli.answers import QUESTIONS

    named = [
        ["summary", file, "--at", "worst", "--json"],
        ["summary", file, "--at", "end"],
        ["summary", file, "--at", "oom"],
        ["summary", file, "--at", "iteration:1", "--json"],
        ["info", file],
        ["info", file, "--json"],
        ["tree", file, "--all-frames", "--json"],
        ["tree", file, "--by", "module"],
        ["annotate", file],
        ["annotate", file, "--source", str(FIXTURES / "ranks"), "--json"],
        ["advise", file, "--save", "1GiB", "--json"],
        ["advise", file],
        ["advise", file, "--capacity", "1GiB"],
        ["fragmentation", file, "--json"],
        ["fragmentation", file],
        ["oom", file],
        ["oom", file, "--device-total", "80GiB", "--json"],
        ["verdict", file],
        ["growth", file, "--json"],
        ["growth", file],
        ["what-if", file, "--search", "--capacity", "1GiB"],
        ["what-if", file, "--setting", "max_split_size_mb:64", "--batch-scale", "2", "--json"],
        ["what-if", file, "--card", "H100", "--one-stream"],
        ["explain", file, "#1"],
        ["explain", file, "0x7f0000000200", "--json"],
        ["check", file, "--max-peak", "1GiB", "--max-growth", "0", "--format", "github"],
        ["check", file, "--max-category", "activation=1MiB", "--format", "github"],
        [
            "check",
            file,
            "--baseline",
            file,
            "--fail-over",
            "1%",
            "--no-faults-above",
            "1MiB",
            "--json",
        ],
        ["diff", file, str(FIXTURES / "torch_2_13.pickle"), "--json"],
        ["diff", str(FIXTURES / "torch_2_13.pickle"), file],
    ]
    return named + [
        [name, file] for name in QUESTIONS if name not in {command[0] for command in named}
    ]


def every_output(file: str, folder: Path) -> list[Command]:
    """Every output that a snapshot can become."""
    return [
        ["to-sqlite", file, "-o", str(folder / "out.sqlite")],
        ["to-sqlite", file, "--extended", "--json", "-o", str(folder / "out.sqlite")],
        ["view", file, "-o", str(folder / "out.html")],
        ["view", file, str(FIXTURES / "torch_2_13.pickle"), "-o", str(folder / "out.html")],
        ["export", file, "-o", str(folder / "out.json")],
        ["cut", file, "--from", "1", "--to", "5", "-o", str(folder / "out.pickle")],
    ]


def _some(data: bytes, commands: list[Command], n: int) -> list[Command]:
    return Random(zlib.crc32(data)).sample(commands, n)


# --- inputs


def _small_snapshots() -> list[bytes]:
    files = sorted(FIXTURES.rglob("*.pickle"))
    return [file.read_bytes() for file in files if file.stat().st_size <= 24 << 10]


def _whole_snapshots() -> list[bytes]:
    folder = os.environ.get(REAL_FILES)
    real = sorted(path for path in Path(folder).rglob("*") if path.is_file()) if folder else []
    files = [data for file in real if (data := file.read_bytes()).startswith(_PICKLE)]
    return [
        (FIXTURES / f"{name}.pickle").read_bytes() for name in ("training_step", "full_ring")
    ] + files


def _any_containers() -> list[bytes]:
    files = [
        file
        for ending in ("gz", "json", "html", "pt")
        for file in sorted(FIXTURES.rglob(f"*.{ending}"))
    ]
    return _small_snapshots() + [
        file.read_bytes() for file in files if file.stat().st_size <= MAX_BYTES
    ]


def _with_snapshot(folder: Path, data: bytes) -> list[Command]:
    file = folder / "x.pickle"
    file.write_bytes(data)
    return _some(data, every_answer(str(file)), 4) + _some(data, every_output(str(file), folder), 2)


def _with_whole_snapshot(folder: Path, data: bytes) -> list[Command]:
    """Return few of the commands: each takes as long as all do for a small input."""
    file = folder / "x.pickle"
    file.write_bytes(data)
    return _some(data, every_answer(str(file)) + every_output(str(file), folder), 2)


# Calls of an agent, of the tool and its arguments beside the file.
CALLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("files", {}),
    ("verdict", {}),
    ("summary", {"at": "worst"}),
    ("tree", {"by": "module"}),
    ("oom", {"device_total": "80GiB"}),
    ("fragmentation", {"top": 3}),
    ("growth", {}),
    ("advise", {"save": "1GiB"}),
    ("what_if", {"search": True, "capacity": "1GiB"}),
    ("explain", {"question": "#1"}),
    ("info", {}),
    ("check", {"max_peak": "1GiB", "max_growth": "0"}),
)


def _with_server(folder: Path, data: bytes) -> list[Command]:
    """Return calls of the tools of the server for agents, which is no command line: see `limited_try`."""
    (folder / "x.pickle").write_bytes(data)
    calls = [
        [
            "mcp",
            str(folder),
            tool,
            json.dumps(given if tool == "files" else {"snapshot": "x.pickle", **given}),
        ]
        for tool, given in CALLS
    ]
    return _some(data, calls, 4)


def _among_ranks(folder: Path, data: bytes) -> list[Command]:
    """Return the file among those of other ranks of a job."""
    job = folder / "job"
    job.mkdir()
    for rank, name in enumerate(("torch_2_12", "torch_2_13")):
        (job / f"rank{rank}.pickle").write_bytes((FIXTURES / f"{name}.pickle").read_bytes())
    (job / "rank2.pickle").write_bytes(data)
    compare = ["ranks", str(job), "--no-cache", "--quiet"]
    outputs = [
        [*compare, "-o", str(folder / "out.sqlite")],
        [*compare, "-o", str(folder / "out.html")],
        [*compare, "--reports", str(folder / "reports")],
    ]
    return [[*compare[:-1]], [*compare, "--json"], *_some(data, outputs, 1)]


def _timelines() -> list[bytes]:
    """Return what torch.profiler's export_memory_timeline and export_chrome_trace write, and a part of it."""
    whole = [
        gzip.decompress(file.read_bytes()) for file in sorted((FIXTURES / "profiles").glob("*.gz"))
    ]
    return [*whole, b"[[-1,1,512,0],[5000,2,64,4],[6000,3,-64,4],[6000,3,64,5],[7000,4,-64,5]]"]


# What trace_plot of torch 2.0 embeds in its page.
_ALLOC_DATA = (
    b'{"actions": [0, 1, 1], "elements": [{"size": 512, "info": 2}, {"size": 64, "info": 3}], '
    b'"suffix_table": [[0, null], [1, 0], [2, 1], [3, 0]], "string_table": ["a.py:2:main", '
    b'"a.py(3): f", '
    b'"512B allocation", "64B allocation (gradient)"], "initially_allocated": []}'
)


def _with_page(folder: Path, data: bytes) -> list[Command]:
    """Return the data inside a page of the first viewer."""
    return _with_snapshot(
        folder, b"<html><script>\nlet alloc_data = " + data + b"\n</script></html>"
    )


def _metadata_seeds() -> list[bytes]:
    whole = from_pickle((FIXTURES / "transformer.capture/snapshot.pickle").read_bytes())["snapconv"]
    few = {key: value[:12] if isinstance(value, list) else value for key, value in whole.items()}
    return [to_pickle(few)]


def _with_metadata(folder: Path, data: bytes) -> list[Command]:
    """Return the metadata inside a snapshot of the same program."""
    try:
        metadata = from_pickle(data)
    except Exception:  # noqa: BLE001  # what is no pickle cannot be inside one
        return []
    raw = from_pickle((FIXTURES / "perceptron.pickle").read_bytes())
    return _with_snapshot(folder, to_pickle({**raw, "snapconv": metadata}))


def _times(folder: Path, data: bytes) -> list[Command]:
    capture = folder / "x.capture"
    capture.mkdir()
    (capture / "snapshot.pickle").write_bytes((FIXTURES / "several_devices.pickle").read_bytes())
    (capture / "timing.json").write_bytes(data)
    outputs = [
        ["to-sqlite", str(capture), "-o", str(folder / "out.sqlite")],
        ["to-sqlite", str(capture), "--extended", "--json", "-o", str(folder / "out.sqlite")],
        ["export", str(capture), "-o", str(folder / "out.json")],
    ]
    return [["info", str(capture), "--json"], *_some(data, outputs, 2)]


def _rules_seeds() -> list[bytes]:
    return [
        b'kv_cache = ["f*", "*x.py"]\nweight = ["a/b.py:step?", "*a*a*[ab]*"]\n',
        b"input = []\n",
    ]


def _with_rules(folder: Path, data: bytes) -> list[Command]:
    file = folder / "rules.toml"
    file.write_bytes(data)
    snapshot = str(FIXTURES / "perceptron.pickle")
    return [
        ["explain", snapshot, "#1", "--rules", str(file), "--json"],
        ["summary", snapshot, "--rules", str(file)],
    ]


_MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of "
    "79.10 GiB of which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.84 "
    "GiB memory in "
    "use. Of the allocated memory 70.11 GiB is allocated by PyTorch, with 512.00 MiB allocated in "
    "private "
    "pools (e.g., CUDA Graphs), and 5.00 GiB is reserved by PyTorch but unallocated."
)


def _with_message(folder: Path, data: bytes) -> list[Command]:
    file = folder / "log.txt"
    file.write_bytes(data)
    return [["oom", "--message", str(file), "--json"], ["oom", "--message", str(file)]]


_WORDS = (
    "peak",
    "worst",
    "oom:2",
    "iteration:0",
    "annotation:x",
    "0x7f00",
    "#12",
    "38GiB",
    "2%",
    "host",
    "0",
    "1..5",
    "a=b",
    "activation=1GiB",
    "max_split_size_mb:64",
)


def _with_words(_folder: Path, data: bytes) -> list[Command]:
    """Texts of a command line: a line for each option."""
    lines = data.decode("utf-8", "replace").replace("\0", "").splitlines()
    first, second, *_ = [line[:2000] for line in (*lines, "", "")]
    snapshot = str(FIXTURES / "perceptron.pickle")
    return [
        ["summary", snapshot, f"--at={first}", f"--device-total={second}"],
        ["explain", snapshot, "--", first],
        ["what-if", snapshot, f"--setting={first}", f"--capacity={second}", "--json"],
        ["check", snapshot, f"--max-peak={first}", f"--max-category={second}"],
        ["tree", snapshot, f"--at={first}"],
        ["verdict", snapshot, f"--include={second}", f"--project-root={first}"],
        ["oom", snapshot, f"--device={first}"],
    ]


TARGETS = {
    target.name: target
    for target in (
        Target("snapshot", "pickle", _small_snapshots, _with_snapshot),
        Target("whole", "pickle", _whole_snapshots, _with_whole_snapshot, _MOST_WHOLE_BYTES),
        Target("ranks", "pickle", _small_snapshots, _among_ranks),
        Target("server", "pickle", _small_snapshots, _with_server),
        Target("container", None, _any_containers, _with_snapshot),
        Target("timeline", "json", _timelines, _with_snapshot),
        Target("page", "json", lambda: [_ALLOC_DATA], _with_page),
        Target("metadata", "pickle", _metadata_seeds, _with_metadata),
        Target(
            "timing",
            "json",
            lambda: [(FIXTURES / "transformer.capture/timing.json").read_bytes()],
            _times,
        ),
        Target("rules", "json", _rules_seeds, _with_rules),
        Target("message", None, lambda: [_MESSAGE.encode()], _with_message),
        Target("words", None, lambda: [f"{word}\n{word}".encode() for word in _WORDS], _with_words),
    )
}
