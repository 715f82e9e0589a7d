"""The command as a shell sees it: one process, since torch takes seconds to import."""

import pickle
import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.smoke("recording")

SCRIPT = """
import gc, sys
import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
print(sys.argv[1:], gc.isenabled())
raise LookupError("theirs")
"""


def test_a_shell_sees_the_scripts_output_traceback_and_exit_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py", "--lr", "-x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "['--lr', '-x'] True\n")
    lines = done.stderr.splitlines()
    at = lines.index("Traceback (most recent call last):")
    assert lines[at + 1 : at + 4] == [
        f'  File "{tmp_path}/train.py", line 11, in <module>',
        '    raise LookupError("theirs")',
        "LookupError: theirs",
    ]
    assert len(lines) == at + 4  # where Python has it, and people look
    assert lines[at - 1] == "snapconv:     snapconv train.capture", done.stderr
    snapshot = pickle.loads((tmp_path / "train.capture" / "snapshot.pickle").read_bytes())
    assert snapshot["snapconv"]["ended"]["how"] == "exception"


# A stand-in for a build with CUDA: nothing is refused before the script runs.
AS_WITH_CUDA = """
import sys
from snapconv.cli.app import main
from snapconv.recorder import environment

environment.refuse_without_cuda = environment.require_history = lambda **_: None
sys.exit(main(sys.argv[1:]))
"""

SETS_THREADS = """
import os, sys
assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.get_num_threads(), hasattr(torch.autograd.backward, "__wrapped__"))
raise LookupError("theirs")
"""


def test_torch_is_imported_with_the_script_and_reads_what_it_has_set(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "train.py").write_text(SETS_THREADS)
    (tmp_path / "as_with_cuda.py").write_text(AS_WITH_CUDA)
    command = [sys.executable, "as_with_cuda.py", "record", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # What the observer has put around backward is there from the import on.
    assert (done.returncode, done.stdout) == (1, "1 True\n")
    assert "note:" not in done.stderr
    assert done.stderr.splitlines()[-1] == "LookupError: theirs"


def test_a_script_without_torch_is_recorded_as_one_without_a_gpu(tmp_path):
    (tmp_path / "train.py").write_text("import sys; print('torch' in sys.modules)")
    (tmp_path / "as_with_cuda.py").write_text(AS_WITH_CUDA)
    command = [sys.executable, "as_with_cuda.py", "record", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (6, "False\n")
    assert "nothing was allocated on a CUDA device" in done.stderr
