"""Runs of ``snapconv record --simulate`` in this process: the unmodified CUDA script, without a GPU."""

import os
import pickle
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from snapconv.cli.app import main

# Three weights and their biases; Adam, so that there are states. Says when it is done.
TRAINING = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())

def step():
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

def train(n):
    for _ in range(n):
        step()
"""


@dataclass
class Run:
    """A run that is over: its exit code, what it said, and where."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def snapshot(self):
        return pickle.loads((self.folder / "train.capture" / "snapshot.pickle").read_bytes())

    @property
    def metadata(self):
        return self.snapshot["snapconv"]

    @property
    def names(self):
        """What lies in the folder, hidden files too, but not the script."""
        return sorted({path.name for path in self.folder.iterdir()} - {"train.py", "__pycache__"})


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Write a script and record it; ``{TRAINING}`` stands before it by default."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)

    def run(script, *argv, before=TRAINING, options=(), simulate="--simulate"):
        (tmp_path / "train.py").write_text(before + textwrap.dedent(script))
        capfd.readouterr()
        pid = os.getpid()
        code = main(["record", *([simulate] if simulate else []), *options, "train.py", *argv])
        if os.getpid() != pid:
            os._exit(code)  # a child that the script forked, where the command line would end
        said = capfd.readouterr()
        return Run(code, said.out, said.err, tmp_path)

    known = set(sys.modules)
    yield run
    for name in {"train", "package", "package.job"} & (set(sys.modules) - known):
        del sys.modules[name]
