"""What every allocation of the benchmark was for follows from the program's source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"

# The program calls the function of a layer itself, and replaces a weight before any iteration ends.
PROGRAM = """
import torch

class Scaled(torch.nn.Linear):
    relu = torch.nn.ReLU()

    def forward(self, x):
        scaled = x[:, :192] / (x.norm(dim=1, keepdim=True) + 1e-4)
        return self.relu(scaled @ self.weight.T)

trained, frozen = Scaled(192, 128).to("cuda"), torch.nn.Linear(256, 50).to("cuda")
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
while True:
    batch = torch.rand(64, 256).cuda()
    with torch.no_grad():
        frozen(batch)
    frozen.weight.data = frozen.weight.data * 0.5
    optimizer.zero_grad()
    trained.forward(batch).square().mean().backward()
    optimizer.step()
"""
SCALED_BYTES, FROZEN_BYTES, BATCH_BYTES = 64 * 192 * 4, 256 * 50 * 4, 64 * 256 * 4

CALL = """
import json, sys
from pathlib import Path
import entries, public_programs, recording, setups, truth
from snapconv.classification.categories import Category
folder = Path(sys.argv[1])
entries.ENTRIES["main"] = public_programs.PublicProgram(
    folder / "main.py", "main", "group", folder, (), 1, False, folder
)
recorded = recording.record("main", setups.Setup(n_steps=3))
found = truth.truth_of(recorded, folder)
rows = zip(found.allocations.requested_bytes.tolist(), found.category.tolist())
print(json.dumps([[n_bytes, Category(code).label] for n_bytes, code in rows]))
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    (folder / "main.py").write_text(PROGRAM)
    code = f"import sys; sys.path.insert(0, {str(BENCH)!r})\n{CALL}"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def categories(rows, size):
    return [label for n_bytes, label in rows if n_bytes == size]


def test_a_function_forward_that_the_program_calls_makes_activations(rows):
    assert categories(rows, SCALED_BYTES) == ["activation"] * 3
    assert categories(rows, BATCH_BYTES)[0] == "input"


def test_what_a_module_put_on_the_device_was_a_weight_before_it_was_replaced(rows):
    assert categories(rows, FROZEN_BYTES)[0] == "weight"
