"""Optimizers and quantized training of public packages: the capture has their states, to the byte.

The reference is the program's own sum over the storages of its tensors. Seen with torch 2.13,
torchao 0.18, bitsandbytes 0.50.2, pytorch-optimizer 4.1 and muon-optimizer 0.1; what is not
installed is skipped.
"""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from tests.recordings import convert  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SETUP = """
import json

from torch import nn

# Both sides are at least 4096 elements, from which states are quantized.
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256))
model = model.to("cuda", DTYPE)


def parts(value):
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from parts(getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts(item)
    elif hasattr(value, "__dict__") and not callable(value):  # ScalableShampoo's preconditioners
        yield from parts(vars(value))


def total(value):
    storages = (t.untyped_storage() for t in parts(value) if t.is_cuda and t.numel())
    sizes = {storage._cdata: storage.nbytes() for storage in storages}
    return [len(sizes), sum(sizes.values())]
"""
TRAINING = """
for step in range(4):
    x = torch.randn(32, 256, device="cuda", dtype=DTYPE)
    loss = (model(x) - x).float().square().mean()
    loss.backward()
    optimizer.step()
    parameters = list(model.parameters())
    # Prodigy keeps its distances in the groups.
    groups = [[v for k, v in g.items() if k != "params"] for g in optimizer.param_groups]
    count = {
        "states": total([dict(optimizer.state), groups]),
        "weights": total(parameters)[1],
        "gradients": total([parameter.grad for parameter in parameters])[1],
        "peak": torch.cuda.max_memory_allocated(),
    }
    print(json.dumps({"count": count}), flush=True)
    optimizer.zero_grad()
    del loss
"""
ADAPTERS = """
class Adapted(nn.Module):
    def __init__(self, base, n_in, n_out):
        super().__init__()
        self.base = base
        self.adapter = nn.Sequential(nn.Linear(n_in, 8, bias=False), nn.Linear(8, n_out, bias=False))

    def forward(self, x):
        return self.base(x) + self.adapter(x)

import bitsandbytes

kind, options = {kind}
sides = (256, 512), (512, 256)
model = nn.Sequential(*(Adapted(kind(*side, **options), *side) for side in sides))
model = model.to(torch.bfloat16).to("cuda")
for name, parameter in model.named_parameters():
    parameter.requires_grad = "adapter" in name
optimizer = bitsandbytes.optim.AdamW8bit([p for p in model.parameters() if p.requires_grad])
"""
ADAMW = "optimizer = torch.optim.AdamW(model.parameters())"
MUON = """
import muon

groups = [
    {"params": [p for p in model.parameters() if p.ndim > 1], "use_muon": True},
    {"params": [p for p in model.parameters() if p.ndim < 2], "use_muon": False},
]
optimizer = muon.SingleDeviceMuonWithAuxAdam(groups)
"""
# By name: the package, and what makes ``optimizer`` and changes ``model``.
PREPARATIONS = {
    "Muon with Adam beside it": ("muon", MUON),
    "8 bits trained": (
        "torchao",
        """
from torchao.optim import AdamW8bit
from torchao.prototype.quantized_training import int8_weight_only_quantized_training
from torchao.quantization import quantize_

quantize_(model, int8_weight_only_quantized_training())
optimizer = AdamW8bit(model.parameters())
""",
    ),
    "8 bits in products": (
        "torchao",
        """
from torchao.prototype.quantized_training import int8_mixed_precision_training
from torchao.quantization import quantize_

quantize_(model, int8_mixed_precision_training())
"""
        + ADAMW,
    ),
    **{
        f"fp8 {name}": (
            "torchao",
            f"""
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

convert_to_float8_training(model, config=Float8LinearConfig(emulate={emulate}))
"""
            + ADAMW,
        )
        for name, emulate in {"emulated": True, "scaled": False}.items()
    },
    **{
        f"adapters on {kind}": ("bitsandbytes", ADAPTERS.format(kind=f"bitsandbytes.nn.{given}"))
        for kind, given in {
            "8 bits": "Linear8bitLt, dict(has_fp16_weights=False)",
            "4 bits": "Linear4bit, dict(compute_dtype=torch.bfloat16, quant_type='nf4')",
        }.items()
    },
}
CLASSES = {
    "torchao.optim": ("AdamW8bit", "AdamW4bit", "AdamWFp8"),
    "bitsandbytes.optim": ("AdamW", "AdamW8bit", "Lion8bit", "AdEMAMix8bit", "LAMB8bit"),
    "pytorch_optimizer": (
        "Shampoo",
        "ScalableShampoo",
        "SOAP",
        "GaLore",
        "APOLLO",
        "CAME",
        "SPlus",
    ),
}
PREPARATIONS |= {
    f"{module}.{name}": (
        module.partition(".")[0],
        f"import {module}\noptimizer = {module}.{name}(model.parameters())",
    )
    for module, names in CLASSES.items()
    for name in names
}
IN_HALF = {"8 bits trained", "8 bits in products", "fp8 emulated", "fp8 scaled"} | {
    "adapters on 8 bits",
    "adapters on 4 bits",
}


if hasattr(torch.optim, "Muon"):  # since torch 2.9
    MATRICES = "[p for p in model.parameters() if p.ndim > 1]"
    PREPARATIONS["Muon of torch"] = "torch", f"optimizer = torch.optim.Muon({MATRICES})"


def program(name):
    _, preparation = PREPARATIONS[name]
    dtype = "bfloat16" if name in IN_HALF else "float32"
    choices = f"DTYPE = torch.{dtype}"
    return "\n".join(("import torch", choices, SETUP, preparation, TRAINING))


def figures(capture):
    """Return the same figures of a report as the program counts of itself."""
    reports = convert(capture)
    (report,) = reports.values["reports"]
    states = report["categories_at_peak"]["optimizer_state"]
    sql = "SELECT sum(size_bytes), sum(grad_size_bytes) FROM weight_entries"
    ((weights, gradients),) = reports.rows(sql)
    return {
        "states": [states["n_allocations"], states["requested_bytes"]],
        "weights": weights,
        "gradients": gradients,
        "peak": report["peak_usage_bytes"],
    }


def record(folder, capture, options):
    """Record in a process of its own: packages keep tensors, and their first use is the one to see."""
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", *options]
    return subprocess.run(
        [*command, "-o", capture, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("name", PREPARATIONS)
@pytest.mark.long
def test_states_weights_and_gradients_are_those_that_the_program_counts(name, tmp_path):
    package, _ = PREPARATIONS[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "train.py").write_text(program(name), encoding="utf-8")
    computed = record(tmp_path, "computed.capture", ())
    assert computed.returncode == 0, computed.stderr[-2000:]
    shapes = record(tmp_path, "shapes.capture", ("--no-compute",))
    assert shapes.returncode == 0, shapes.stderr[-2000:]
    lines = computed.stdout.splitlines()
    counts = [json.loads(line)["count"] for line in lines if line.startswith('{"count"')]
    # The second step is the one that is recorded.
    assert figures(tmp_path / "computed.capture") == counts[1]
    assert figures(tmp_path / "shapes.capture") == counts[1]
