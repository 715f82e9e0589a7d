"""Programs that ran out of memory, run again as `oom` advises: each fits."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402
from snapconv.cli.app import main  # noqa: E402
from snapconv.writers.text.oom import oom_lines  # noqa: E402
from tests.builders import MIB  # noqa: E402

pytestmark = [
    pytest.mark.skipif(
        not hasattr(os, "fork"), reason="every run is a fork, which need not import torch anew"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PROGRAM = """
import os
import torch
from torch import nn

kind, batch, width = os.environ["KIND"], int(os.environ["BATCH"]), 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(width, 1000))
if kind == "bits":
    model.to(torch.bfloat16)
if kind == "frozen":
    model[:3].requires_grad_(False)
model.to("cuda")
trained = [one for one in model.parameters() if one.requires_grad]
half = len(trained) // 2 if kind == "several" else len(trained)
optimizers = [torch.optim.AdamW(trained[:half], fused=True if kind == "fused" else None)]
if kind == "several":
    optimizers.append(torch.optim.SGD(trained[half:], lr=0.1, momentum=0.9))
for step in range(3):
    for optimizer in optimizers:
        optimizer.zero_grad()
    n = batch * 4 if kind == "longer" and step == 2 else batch
    for _ in range(2 if kind == "accumulate" else 1):
        x = torch.randn(n, width, device="cuda", dtype=torch.bfloat16 if kind == "bits" else None)
        labels = torch.randint(0, 1000, (n,), device="cuda")
        nn.functional.cross_entropy(model(x), labels).backward()
    for optimizer in optimizers:
        optimizer.step()
if kind == "eval":
    kept = [model(torch.randn(8 * batch, width, device="cuda")) for _ in range(3)]
"""


@pytest.fixture
def recorded(tmp_path):
    """Record the program in a fork, with a capacity in MiB; return the file."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def record(kind, batch, capacity):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.capture"
        arguments = ["record", "--simulate", "--no-compute", "--iterations", "20", "-o", str(out)]
        arguments += ["--capacity", f"{capacity}MiB", str(program)]
        if (child := os.fork()) == 0:
            log = os.open(tmp_path / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= {"KIND": kind, "BATCH": str(batch)}
            sys.argv = ["snapconv", *arguments]
            try:
                main(arguments)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return snapconv.load(out)

    return record


def batches(remedies, batch):
    """The batches of those remedies that are one, by whether they are enough."""
    shares = {
        one.is_enough: float(one.name.split("×")[1].split()[0])
        for one in remedies.tried
        if "×" in one.name
    }
    return {is_enough: int(batch * share + 0.5) for is_enough, share in shares.items()}


# The kind of program, its batch, and a capacity at which memory runs out in the phase that is
# named.
@pytest.mark.parametrize(
    ("kind", "batch", "capacity", "phase", "is_batch_enough"),
    [
        ("plain", 64, 600, "optimizer", False),
        ("plain", 8192, 1530, "backward", True),
        ("frozen", 4096, 425, "forward of a later step", True),
        # No earlier step is as large: what the rest of this one needs is not known.
        ("longer", 1024, 900, "forward of a later step", False),
        ("several", 2048, 700, "backward of a later step", True),
    ],
)
def test_a_program_fits_once_the_advice_is_followed(
    recorded, kind, batch, capacity, phase, is_batch_enough
):
    failed = recorded(kind, batch, capacity)
    found, remedies = failed.explain_oom()
    analysis = failed.devices[0]
    shown = ("", "forward", "backward", "optimizer", "")[analysis.phases.phase[found.request.event]]
    later = " of a later step" if analysis.phases.iteration[found.request.event] else ""
    assert f"{shown}{later}".startswith(phase)
    enough = batches(remedies, batch).get(True)
    assert (enough is not None) is is_batch_enough
    assert (remedies.card_bytes is None) is (kind == "longer")
    if remedies.card_bytes:
        assert not recorded(kind, batch, -(-remedies.card_bytes // MIB)).devices[0].ran_out
    if enough:
        assert not recorded(kind, enough, capacity).devices[0].ran_out
    if any(one.kind == "foreach" and one.is_enough for one in remedies.tried):
        assert not recorded("fused", batch, capacity).devices[0].ran_out


@pytest.mark.parametrize(("kind", "capacity"), [("plain", 350), ("eval", 1200)])
def test_the_rest_of_a_first_forward_is_not_known_so_that_no_remedy_is_called_enough(
    recorded, kind, capacity
):
    _, remedies = recorded(kind, 2048 if kind == "plain" else 1024, capacity).explain_oom()
    assert {one.is_enough for one in remedies.tried} == {None, False}
    assert remedies.card_bytes is None
    assert all(
        "is not known from this trace" in one.detail for one in remedies.tried if one.is_served
    )


def test_no_batch_helps_while_weights_are_moved_and_fewer_bits_do(recorded):
    failed = recorded("plain", 64, 100)
    found, remedies = failed.explain_oom()
    weights = remedies.model_bytes
    assert remedies.is_setup
    assert weights > found.state.allocated_bytes
    assert not any(one.is_served for one in remedies.tried)
    text = "\n".join(oom_lines(found, remedies, file="x"))
    assert "a smaller batch does not help while the model is put on the device" in text
    assert "yes" not in text
    assert recorded("plain", 64, 5 * weights // MIB + 40).devices[0].ran_out is False
