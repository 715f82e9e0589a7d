"""The callbacks for the Trainers of transformers and Lightning, in jobs of their own on a simulated GPU."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import snapconv

ROOT = Path(__file__).parents[2]

GPU = """
import sys, snapconv
from snapconv.simulation import SimulationOptions, simulated

def on_a_gpu(train, mib):
    with simulated(SimulationOptions(capacity_bytes=mib << 20)):
        train()
"""

TRANSFORMERS = f"""{GPU}
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from snapconv.integrations.transformers import MemoryCallback

class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        ids = torch.arange(32) + i
        return {{"input_ids": ids, "labels": ids}}

def train(callback, batch=4):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir="out", max_steps=4, per_device_train_batch_size=batch, save_strategy="no", report_to="none"
    )
    Trainer(model=model, args=arguments, train_dataset=Blocks(), callbacks=[callback]).train()
"""

LIGHTNING = f"""{GPU}
import lightning, torch
from snapconv.integrations.lightning import MemoryCallback

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    def training_step(self, batch, _):
        return self.layers(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

def train(callback, batch=4):
    data = torch.utils.data.DataLoader(torch.rand(4 * batch, 64), batch_size=batch)
    lightning.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[callback],
    ).fit(Net(), data)
"""
# Trainings of one process: with a chosen step; in which nothing happens; one that runs out of
# memory, and its callback once more; one whose error ends the job.
TRAININGS = """
def trainings():
    train(MemoryCallback("chosen", steps=[1]))
    train(MemoryCallback("enough"))
    again = MemoryCallback("again")
    try:
        train(again, batch=200_000)
    except torch.OutOfMemoryError:
        print("ran out once")
    train(again)
    train(MemoryCallback("last"), batch=200_000)
on_a_gpu(trainings, mib=40)
"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TRANSFORMERS, id="transformers"),
        pytest.param(LIGHTNING, id="lightning"),
    ],
)
def folder(request, tmp_path_factory):
    """Where a job has written its captures, and what it said, before it ended as it would alone."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(request.param + TRAININGS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment.pop("RANK", None)
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    said = done.stdout + done.stderr
    assert (done.returncode, "recording is off" in said) == (1, False), said
    assert "ran out once" in done.stdout
    assert "OutOfMemoryError" in done.stderr
    return folder


def captures(folder):
    return sorted(path.name for path in folder.iterdir())


def recorded(capture):
    return pickle.loads((capture / "snapshot.pickle").read_bytes())["snapconv"]


def test_a_chosen_step_is_captured_with_the_names_of_the_weights(folder):
    assert captures(folder / "chosen") == ["step-000001.capture"]
    capture = folder / "chosen" / "step-000001.capture"
    (device,) = snapconv.load(capture).devices
    by_category = {
        category: int(device.allocations.block_bytes[device.rows(category)].sum())
        for category in (snapconv.Category.WEIGHT, snapconv.Category.OPTIMIZER_STATE)
    }
    # Adam keeps two tensors of the size of each weight, and a step of 4 bytes in a block of 512.
    assert (
        0
        < 2 * by_category[snapconv.Category.WEIGHT]
        <= by_category[snapconv.Category.OPTIMIZER_STATE]
    )
    assert recorded(capture)["ended"]["how"] == "complete"


def test_nothing_is_written_where_memory_suffices(folder):
    assert captures(folder / "enough") == []


@pytest.mark.parametrize("name", ["again", "last"])
def test_memory_that_runs_out_is_captured_once(folder, name):
    (capture,) = captures(folder / name)
    assert capture.startswith("oom-00000")
    assert recorded(folder / name / capture)["ended"]["how"] == "oom"
