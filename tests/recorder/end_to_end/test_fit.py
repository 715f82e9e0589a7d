"""``snapconv fit`` on a linear model whose memory follows from its shapes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

MIB = 1 << 20
# A square weight of 4 MiB, trained by SGD with momentum; a row of the input has 4 KiB.
SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
parser.add_argument("--odd", type=int)
options = parser.parse_args()
if options.rows == options.odd:
    raise ValueError("an odd number\\nof rows")
model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
while True:
    rows = torch.randn(options.rows, 1024, device="cuda")
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LINE = 1 + SCRIPT.splitlines().index('    rows = torch.randn(options.rows, 1024, device="cuda")')
# The scalars of a step: the loss and its gradient.
SCALARS = 4 * 512


def command(folder, *options):
    (folder / "train.py").write_text(SCRIPT)
    return [sys.executable, "-m", "snapconv", "fit", "train.py", *options]


def test_every_combination_is_a_row_and_the_first_line_is_the_answer(tmp_path):
    line = command(tmp_path, "--capacity", "64MiB", "--arg", "rows=512,16384,7")
    line += ["--json", "--csv", "fit.csv", "--keep", "kept", "--", "--odd", "7"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 6, done.stderr
    report = json.loads(done.stdout)
    fits, large, odd = report["combinations"]
    assert [row["verdict"] for row in (fits, large, odd)] == ["fits", "does not fit", "failed"]

    # The weight, its gradient, its momentum, and an input of 512 rows.
    held = 3 * 4 * MIB + 2 * MIB
    assert held <= fits["peak_bytes"] <= held + SCALARS
    # A segment of 20 MiB for all of them, and one of 2 MiB for the scalars.
    assert fits["reserved_bytes"] == 22 * MIB
    assert fits["left_bytes"] == (64 - 22) * MIB
    # 16,384 rows have 64 MiB, and the weight is there already.
    assert large["short_bytes"] == (4 + 64 - 64) * MIB
    assert (large["file"], large["line"]) == ("train.py", LINE)
    assert odd["reason"] == "ValueError: an odd number"
    assert report["answer"].startswith(
        "fits on 1 card with rows 512: 22.00 MiB reserved of 64.00 MiB, 42.00 MiB left; "
        "1 combination failed"
    )

    with (tmp_path / "fit.csv").open(newline="") as file:
        assert [row["rows"] for row in csv.DictReader(file)] == ["512", "16384", "7"]
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["world-size=1.rows=16384.capture", "world-size=1.rows=512.capture"]
    assert fits["capture"] == "kept/world-size=1.rows=512.capture"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_prints_what_is_known_and_leaves_no_process_and_no_folder(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    waits = "import os, sys, time\nopen('pid' + sys.argv[2], 'w').write(str(os.getpid()))\n"
    waits += "if sys.argv[2] == '2': time.sleep(600)\nraise LookupError('done')\n"
    line = command(tmp_path, "--capacity", "64MiB", "--arg", "rows=1,2,3", "--workers", "2")
    (tmp_path / "train.py").write_text(waits)
    process = subprocess.Popen(
        line,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The third has begun beside the second: the first has ended.
    while not all((tmp_path / f"pid{number}").exists() for number in "23"):
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "failed: LookupError: done" in out
    assert "did not run" in out.splitlines()[0]
    assert "stopped: " in err
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid2").read_text()), 0)


def test_a_wrong_line_is_refused_once_before_anything_runs(tmp_path):
    for options, part in (
        ((), "give one of --card and --capacity"),
        (("--card", "H100", "--ranks", "5"), "has rank 5"),
        (("--card", "H100", "--world-size", "2,4", "--ranks", "0,4"), "has rank 4"),
        (("--card", "A100"), "several sizes"),
        (("--card", "H100", "--arg", "rows"), "expected NAME=V,V"),
        (("--card", "H100", "--arg", "world-size=1,2"), "give it as --world-size"),
        (("--card", "H100", "--world-size", "8-16"), "expected numbers of ranks"),
        (("--card", "H100", "--", "--nnodes", "2"), "the line of a launcher has one"),
    ):
        line = command(tmp_path, *options)
        if "--" in options:
            line[line.index("train.py")] = "torchrun"
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.count(part) == 1


PARALLEL = """
import os
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("nccl")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
# Stages that differ: the last rank has the most layers.
n_layers = 2 if rank == size - 1 else 1
layers = [torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(n_layers)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
while True:
    model(torch.randn(512, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_ranks_that_differ_the_largest_decides_and_is_named(tmp_path):
    line = command(tmp_path, "--capacity", "64MiB", "--world-size", "4", "--ranks", "0,3", "--json")
    (tmp_path / "train.py").write_text(PARALLEL)
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["combinations"]
    # Twice a weight, its gradient and its momentum.
    assert (row["rank"], row["world_size"], row["reason"]) == (3, 4, "")
    assert row["peak_bytes"] >= 2 * 3 * 4 * MIB
