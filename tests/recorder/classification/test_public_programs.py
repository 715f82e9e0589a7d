"""Programs of others are recorded as they are: their iterations, and what they copy to the device."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"

PROGRAM = """
import torch
model = torch.nn.Linear(256, 256).to("cuda")
first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
while True:
    batch = torch.rand(64, 256).cuda()
    for optimizer in (first, second):
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
"""

CALL = """
import json, sys
from pathlib import Path
import entries, public_programs, recording, setups
folder, infers = Path(sys.argv[1]), sys.argv[2] == "infers"
program = public_programs.PublicProgram(folder / "main.py", "main", "group", folder, (), 2, infers, folder)
entries.ENTRIES["main"] = program
recorded = recording.record("main", setups.Setup(n_steps=3))
public_programs._leave_out_our_frames(recorded.raw)
rows = recorded.raw["snapconv"]["inputs"]
named = [row["shape"] for row in rows if row.get("name") == recording.NAMED_BY_ENTRY]
events = recorded.raw["device_traces"][0]
files = {frame["filename"] for event in events for frame in event.get("frames", ())}
print(json.dumps({
    "n_step_ends": len(recorded.step_ends),
    "named": named,
    "has_our_frames": public_programs.__file__ in files,
    "n_weights": len(recorded.raw["snapconv"]["parameters"]),
}))
"""


def of_bench(code, *arguments):
    """What a program prints that finds the benchmark's modules by name."""
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(BENCH)!r})\n{code}"]
    done = subprocess.run([*words, *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout


def test_an_iteration_has_as_many_steps_of_optimizers_as_the_list_says(tmp_path):
    """Six steps of two optimizers are three iterations; a batch that the program copies is told."""
    (tmp_path / "main.py").write_text(PROGRAM)
    printed = of_bench(CALL, tmp_path, "trains").splitlines()[-1]
    assert json.loads(printed) == {
        "n_step_ends": 3,
        "named": [[64, 256]] * 3,
        "has_our_frames": False,
        "n_weights": 2,
    }


INFERENCE = """
import torch
layers = (torch.nn.Linear(256, 256) for _ in range(2))
model = torch.nn.Sequential(*layers, torch.nn.ReLU()).to("cuda")
while True:
    with torch.no_grad():
        model(torch.rand(64, 256).cuda())
"""


def test_an_iteration_of_inference_has_as_many_calls_of_outermost_modules(tmp_path):
    """Six calls of a model are three iterations, however many layers each calls."""
    (tmp_path / "main.py").write_text(INFERENCE)
    printed = of_bench(CALL, tmp_path, "infers").splitlines()[-1]
    assert json.loads(printed) == {
        "n_step_ends": 3,
        "named": [[64, 256]] * 6,
        "has_our_frames": False,
        "n_weights": 4,
    }


def test_data_is_written_where_a_repository_is_and_nowhere_else(tmp_path):
    (tmp_path / "lucidrains+x-transformers").mkdir()
    of_bench(
        "import public_data, pathlib; public_data.write_data(pathlib.Path(sys.argv[1]))", tmp_path
    )
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    with gzip.open(written) as file:
        assert len(file.read()) > 90_000_000


def test_a_lot_draws_other_optimizers_than_the_listed_ones_each_once():
    code = """
import json, itertools, optimizers
listed = {(each.case.package, each.case.name) for each in optimizers.PROGRAMS}
lots = [list(itertools.islice(optimizers.drawn(commit), 12)) for commit in ("a" * 40, "a" * 40, "b" * 40)]
classes = [[(each.case.package, each.case.name) for each in lot] for lot in lots]
print(json.dumps([len(set(classes[0])), classes[0] == classes[1], classes[0] == classes[2],
                  len(listed & set(classes[0]))]))
"""
    assert json.loads(of_bench(code)) == [12, True, False, 0]


def test_a_program_s_row_has_a_cell_for_each_cut():
    code = """
import corpus
row = {"program": "p", "stacks": "all", "certain": (0.5, 0.25), "likely": (0.625, 0.375)}
rows = [{**row, "history": "late"}, {**row, "stacks": "python", "history": "ring"}]
print(corpus.table_of_programs(rows, "all"))
"""
    assert of_bench(code).splitlines() == [
        "| all stacks | late |",
        "|---|---|",
        "| p | 50.0 / 25.0, 62.5 / 37.5 |",
    ]
