"""The command as a shell sees it: one process, since torch takes seconds to import."""

import pickle
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import sys
import torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
print(sys.argv[1:])
raise LookupError("theirs")
"""


def test_a_shell_sees_the_scripts_output_traceback_and_exit_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py", "--lr", "-x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "['--lr', '-x']\n")
    lines = done.stderr.splitlines()
    at = lines.index("Traceback (most recent call last):")
    assert lines[at + 1 : at + 4] == [
        f'  File "{tmp_path}/train.py", line 11, in <module>',
        '    raise LookupError("theirs")',
        "LookupError: theirs",
    ]
    assert len(lines) == at + 4  # where Python has it, and people look
    assert lines[at - 1] == "snapconv:     snapconv to-sqlite train.capture", done.stderr
    snapshot = pickle.loads((tmp_path / "train.capture" / "snapshot.pickle").read_bytes())
    assert snapshot["snapconv"]["ended"]["how"] == "exception"
