"""Record optimizers of public packages as whole programs: a small transformer, trained for three steps.

    optimizers.py FOLDER [NAME...]         record what FOLDER lacks, one process for each program
    optimizers.py FOLDER --lot COMMIT      twelve more of the measured table, drawn by that commit's hash
    corpus.py FOLDER                       classify what was recorded

The environment is that of scripts/measured/requirements.txt.
"""

import argparse
import csv
import hashlib
import multiprocessing
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from corpus import keep
from entries import ENTRIES
from recording import Recording, record
from setups import Iterations, Known, Setup
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.measured.measuring import build_optimizer  # noqa: E402  # the root is on the path only now
from scripts.measured.optimizer_cases import CASES, PACKAGES, Case  # noqa: E402  # as above
from scripts.measured.worker import declare_torchvision  # noqa: E402  # as above

_TABLE = ROOT / "scripts" / "measured" / "optimizers.tsv"
N_DRAWN = 12
# They update weights within backward, and have no step to call.
_WITHOUT_A_STEP = {"Lomo", "AdaLomo", "LOMO", "AdaLOMO"}
VOCABULARY, WIDTH, N_HEADS, N_BLOCKS = 2000, 128, 4, 4
BATCH, LENGTH = 4, 32


@dataclass(frozen=True, slots=True)
class Program:
    """An optimizer, and how the model is trained with it.

    ``n_frozen``: so many blocks are frozen, and the embedding with them. ``rest``: the optimizer of
    what is no matrix of a block. ``has_average``: timm's average of the weights is kept beside.
    """

    name: str
    case: Case
    dtype: torch.dtype = torch.float32
    n_frozen: int = 0
    rest: Case | None = None
    has_average: bool = False
    group: str = "optimizers"


_MODULES = {package.name: package.module for package in PACKAGES}


def _case(package: str, name: str, options: str = "") -> Case:
    """Return a case of the measured table: its row, or an optimizer of weights alone."""
    for case in CASES:
        if (case.package, case.name, case.options) == (package, name, options):
            return case
    return Case(package, _MODULES[package], name, options)


_ADAMW = _case("torch", "AdamW")
# The closure runs a whole pass each time: its 20 iterations by default take minutes.
_LBFGS = replace(_case("torch", "LBFGS"), arguments={"max_iter": 4}, call="closure")
_BF16 = torch.bfloat16
PROGRAMS: tuple[Program, ...] = (
    Program("adam", _case("torch", "Adam")),
    Program("adamw", _ADAMW),
    Program("adamw-amsgrad", _case("torch", "AdamW", "amsgrad=True")),
    Program("adamw-fused-bf16", _case("torch", "AdamW", "fused=True"), dtype=_BF16),
    Program("sgd-momentum", _case("torch", "SGD", "momentum=0.9")),
    Program("rmsprop-centered", _case("torch", "RMSprop", "centered=True")),
    # Its states are there from construction on.
    Program("adagrad-frozen", _case("torch", "Adagrad"), n_frozen=2),
    Program("lbfgs", _LBFGS),
    Program("adafactor-torch", _case("torch", "Adafactor")),
    Program("adafactor-transformers", _case("transformers", "Adafactor")),
    Program("adafactor-timm", _case("timm", "Adafactor")),
    Program("adafactor-pytorch-optimizer", _case("pytorch-optimizer", "AdaFactor")),
    Program("adamw-average", _ADAMW, has_average=True),
    Program("muon-adamw", _case("torch", "Muon"), rest=_ADAMW),
    Program(
        "muon-groups", _case("muon-optimizer", "SingleDeviceMuonWithAuxAdam", "matrices, others")
    ),
    Program("soap", _case("pytorch-optimizer", "SOAP")),
    Program("aggmo", _case("pytorch-optimizer", "AggMo")),
    Program("flash-adamw-bf16", _case("pytorch-optimizer", "FlashAdamW"), dtype=_BF16),
    Program("shampoo", _case("pytorch-optimizer", "Shampoo")),
    Program("sophia", _case("pytorch-optimizer", "SophiaH")),
    Program("adamw-8bit-torchao", _case("torchao", "AdamW8bit")),
    Program("adamw-kahan-bf16", _case("torch-optimi", "AdamW"), dtype=_BF16),
    Program("d-adapt-adan", _case("dadaptation", "DAdaptAdan")),
    Program("ranger21", _case("ranger21", "Ranger21", "num_epochs")),
    Program("galore-adamw", _case("galore-torch", "GaLoreAdamW", "rank=64")),
    Program("apollo-adamw", _case("apollo-torch", "APOLLOAdamW", "rank=64")),
    Program("came", _case("came-pytorch", "CAME", "lr")),
    Program("madgrad", _case("madgrad", "MADGRAD")),
    Program("adamw-adv", _case("adv-optm", "AdamW_adv")),
    Program("soap-heavyball", _case("heavyball", "SOAP")),
    Program("lion-frozen", _case("lion-pytorch", "Lion"), n_frozen=2),
    Program("prodigy", _case("prodigyopt", "Prodigy")),
    Program("adan", _case("adan-pytorch", "Adan")),
    Program("adamw-schedule-free", _case("schedulefree", "AdamWScheduleFree")),
    Program("adamw-8bit-bitsandbytes", _case("bitsandbytes", "AdamW8bit")),
)
# Ways to train that a lot chooses from.
_WAYS: tuple[Callable[[Program], Program], ...] = (
    lambda program: program,
    lambda program: replace(program, name=f"{program.name}-bf16", dtype=_BF16),
    lambda program: replace(program, name=f"{program.name}-frozen", n_frozen=2),
    lambda program: replace(program, name=f"{program.name}-average", has_average=True),
)


def drawn(commit: str) -> Iterator[Program]:
    """Return programs of the measured table's other optimizers, in the order of a lot.

    One of each class is drawn, so that options of one optimizer are not drawn twice.
    """
    lines = [line for line in _TABLE.read_text("utf-8").splitlines() if not line.startswith("#")]
    chosen = {(program.case.package, program.case.name) for program in PROGRAMS}
    rows = {
        (row["package"], row["optimizer"], row["options"])
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if row["state"] != "(failed)" and row["optimizer"] not in _WITHOUT_A_STEP
    }
    for digest, package, name, options in sorted(
        (hashlib.sha256(" ".join((commit, *row)).encode()).digest(), *row) for row in rows
    ):
        if (package, name) in chosen:
            continue
        chosen.add((package, name))
        text = "-".join(re.findall(r"\w+", f"{package} {name} {options}".lower()))
        program = Program(text, _case(package, name, options), group="lot")
        yield _WAYS[digest[0] % len(_WAYS)](program)


class Block(nn.Module):  # type: ignore[misc]  # torch counts as Any
    """A block of the transformer; its attention is written out, so that it can be derived twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.widening, self.narrowing = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (batch, length, width) of the same."""
        projected = self.projection(self.first_norm(hidden))
        query, key, value = (
            part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for part in projected.chunk(3, -1)
        )
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        hidden = hidden + self.output(mixed)
        return hidden + self.narrowing(self.widening(self.second_norm(hidden)).relu())


class Transformer(nn.Module):  # type: ignore[misc]  # as above
    """About 4 MB of float32 weights: an embedding, blocks with biases and norms, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(N_BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of (batch, length, vocabulary); the head's weights are the embedding."""
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden) @ self.embedding.weight.t()


def train(program: Program) -> Iterations:
    """Train as a program says."""
    model = Transformer().cuda().to(program.dtype)
    if program.n_frozen:
        for part in (model.embedding, *model.blocks[: program.n_frozen]):
            part.requires_grad_(False)  # torch's own signature
    optimizers = _optimizers(program, model)
    average = _average(model) if program.has_average else None
    while True:
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1)).cuda()
        gradients = partial(_set_gradients, program, model, tokens)
        if program.case.call == "closure":
            for optimizer in optimizers:
                optimizer.step(gradients)
        else:
            gradients()
            for optimizer in optimizers:
                optimizer.step()
        if average is not None:
            average.update(model)
        copies = tuple(average.ema.parameters()) if average is not None else ()
        yield Known(inputs=(tokens,), states=_states(optimizers, model), weights=copies)


def _set_gradients(program: Program, model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Run forward and backward, and return the loss."""
    model.zero_grad()
    scores = model(tokens[:, :-1]).float()
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward(create_graph=program.case.call == "graph")
    return loss


def _optimizers(program: Program, model: Transformer) -> list[Any]:
    """Build the optimizer, and a second one for what is no matrix of a block."""
    matrices = [
        weight for weight in model.blocks.parameters() if weight.requires_grad and weight.ndim == 2
    ]
    if program.rest is None:
        optimizers = [build_optimizer(program.case, model, matrices)]
    else:
        others = nn.Module()
        identities = set(map(id, matrices))
        of_blocks = nn.ParameterList(matrices)
        others.weights = nn.ParameterList(
            weight for weight in model.parameters() if id(weight) not in identities
        )
        optimizers = [
            build_optimizer(program.case, of_blocks, matrices),
            build_optimizer(program.rest, others, []),
        ]
    for optimizer in optimizers:
        if hasattr(optimizer, "train"):
            optimizer.train()  # as schedulefree demands
    return optimizers


def _average(model: nn.Module) -> Any:
    declare_torchvision()
    from timm.utils import ModelEma

    return ModelEma(model)


def _states(optimizers: Sequence[Any], model: nn.Module) -> tuple[torch.Tensor, ...]:
    """Return the tensors that the optimizers hold, besides weights and gradients."""
    storages = set()
    for weight in model.parameters():
        storages.add(_storage(weight))
        if weight.grad is not None:
            storages.add(_storage(weight.grad))
    return tuple(
        tensor
        for optimizer in optimizers
        for tensor in _tensors_below(optimizer, set())
        if _storage(tensor) not in storages
    )


def _storage(tensor: torch.Tensor) -> object:
    """Return the identity of a tensor's memory; a tensor of several parts has none of its own."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def _tensors_below(value: Any, visited: set[int]) -> Iterator[torch.Tensor]:
    """Walk containers and attributes, but no modules and no functions."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda and value.numel():
            yield value
        return
    is_leaf = isinstance(value, (str, bytes, type, nn.Module)) or callable(value)
    if is_leaf or id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, Mapping):
        parts = [*value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        parts = [*value]
    else:
        parts = [*getattr(value, "__dict__", {}).values()]
    for part in parts:
        yield from _tensors_below(part, visited)


def main(argv: Sequence[str]) -> int:
    """Record the chosen programs; 1 where one of those that are listed fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="by default all that are listed")
    parser.add_argument("--lot", metavar="COMMIT", help="draw others by this commit's full hash")
    options = parser.parse_args(argv)
    if options.lot:
        n_recorded = 0
        for program in drawn(options.lot):
            n_recorded += _is_recorded(program, options.folder)
            if n_recorded == N_DRAWN:
                break
        return 0
    programs = [each for each in PROGRAMS if each.name in options.names or not options.names]
    are_recorded = [_is_recorded(program, options.folder) for program in programs]
    return int(not all(are_recorded))


def _is_recorded(program: Program, folder: Path) -> bool:
    """Record a program that the folder lacks, in a process of its own: packages patch torch for good."""
    path = folder / f"{program.name}.{program.group}.pickle.xz"
    if not path.exists():
        process = multiprocessing.get_context("fork").Process(
            target=_record, args=(program, folder)
        )
        process.start()
        process.join()
    print(f"{program.name}: {'recorded' if path.exists() else 'failed'}", flush=True)
    return path.exists()


def _record(program: Program, folder: Path) -> None:
    if program.case.package == "timm":
        declare_torchvision()

    def entry(setup: Setup) -> Iterations:
        return train(program)

    ENTRIES[program.name] = entry
    try:
        recorded: Recording = record(program.name, Setup())
    except Exception:  # noqa: BLE001  # whatever other people's code raises
        traceback.print_exc()
        return
    keep(folder, program.name, program.group, recorded)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
