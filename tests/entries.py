"""The entries of fixtures/entries: what they are, and what they do in each step, recorded or not.

A witness notes every parameter and gradient at the end of every step, so that two runs can be
compared bit by bit. Importing this imports no torch.
"""

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "fixtures" / "entries"
# As many steps as a recording needs by default, and in a script one more, which nobody watches.
N_STEPS = {"train": 5, "providers": 4}
KINDS = tuple(N_STEPS)
_OWN_MODULES = ("model", "train", "providers", "snapconv_entry")


class About(NamedTuple):
    """What a reader of an entry's code can say of it.

    ``operations`` are functions that a step calls from the project's lines, in forward. With the
    batches of ``gpu_batch_size`` a GPU is busy, and does not wait for Python.
    """

    model: str
    prefix: str
    optimizer: str
    gpu_batch_size: int
    operations: frozenset[str]


ENTRIES = {
    "cnn": About(
        "ResidualNet",
        "skyline",
        "SGD",
        2048,
        frozenset({"conv2d", "batch_norm", "relu", "max_pool2d", "add", "mean", "linear"}),
    ),
    "transformer": About(
        "Transformer",
        "skyline",
        "AdamW",
        512,
        frozenset(
            {"embedding", "layer_norm", "linear", "scaled_dot_product_attention", "gelu", "add"}
        ),
    ),
    "lstm": About(
        "LanguageModel", "deepview", "Adam", 512, frozenset({"embedding", "lstm", "linear"})
    ),
    "amp_accumulation": About(
        "Perceptron",
        "skyline",
        "AdamW",
        65536,
        frozenset({"flatten", "linear", "layer_norm", "gelu"}),
    ),
    "checkpointing": About(
        "Tower", "skyline", "Adam", 65536, frozenset({"linear", "layer_norm", "gelu", "add"})
    ),
    "tied_frozen": About(
        "FineTuned",
        "skyline",
        "AdamW",
        512,
        frozenset({"embedding", "linear", "gelu", "tanh", "add"}),
    ),
}


class Weight(NamedTuple):
    """A parameter as the model itself has it; the gradient of a frozen one has no bytes."""

    size_bytes: int
    gradient_bytes: int


class Step(NamedTuple):
    """Digests at the end of a step; a gradient that is not there is None."""

    parameters: tuple[str, ...]
    gradients: tuple[str | None, ...]


def file_of(entry: str, kind: str) -> Path:
    """The file that is recorded."""
    return FOLDER / entry / f"{kind}.py"


def build(entry: str) -> Any:
    """Make the entry's model, on the CPU."""
    with imports_from(FOLDER / entry):
        return getattr(importlib.import_module("model"), ENTRIES[entry].model)()


def weights_of(entry: str) -> dict[str, Weight]:
    """The parameters by their first names, counted by hand: a tied one once."""
    return {
        name: Weight(n_bytes, n_bytes if parameter.requires_grad else 0)
        for name, parameter in build(entry).named_parameters()
        for n_bytes in [parameter.numel() * parameter.element_size()]
    }


@contextmanager
def imports_from(folder: Path) -> Iterator[None]:
    """Import an entry's modules from its folder; every entry calls them by the same names."""
    before = sys.path[:]
    sys.path.insert(0, str(folder))
    forget_entry()
    try:
        yield
    finally:
        sys.path[:] = before
        forget_entry()


def forget_entry() -> None:
    """Forget the modules of the last entry."""
    for name in _OWN_MODULES:
        sys.modules.pop(name, None)


@contextmanager
def witness() -> Iterator[list[Step]]:
    """Note what every optimizer's step leaves, as long as the context lasts."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps: list[Step] = []

    def note(optimizer: Any, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            steps.append(
                Step(
                    tuple(_digest(p) for p in parameters),
                    tuple(None if p.grad is None else _digest(p.grad) for p in parameters),
                )
            )

    hook = register_optimizer_step_post_hook(note)
    try:
        yield steps
    finally:
        hook.remove()


def _digest(tensor: Any) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def arguments_of(kind: str, batch_size: int | None) -> list[str]:
    """The arguments of an entry; that of providers is ``snapconv record``'s."""
    steps = ["--steps", str(N_STEPS[kind])] if kind == "train" else []
    return steps + ([] if batch_size is None else ["--batch-size", str(batch_size)])


def run(entry: str, kind: str, *, batch_size: int | None = None) -> tuple[Step, ...]:
    """Run an entry as it is, without snapconv."""
    import torch

    folder = FOLDER / entry
    torch.manual_seed(0)
    with imports_from(folder), witness() as steps, redirect_stdout(StringIO()):
        if kind == "train":
            _run_script(batch_size)
        else:
            _run_providers(ENTRIES[entry].prefix, batch_size)
    return tuple(steps)


def _run_script(batch_size: int | None) -> None:
    argv = sys.argv
    sys.argv = ["train.py", *arguments_of("train", batch_size)]
    try:
        importlib.import_module("train").main()
    finally:
        sys.argv = argv


def _run_providers(prefix: str, batch_size: int | None) -> None:
    module = importlib.import_module("providers")
    model, inputs, iteration = (
        getattr(module, f"{prefix}_{role}_provider") for role in ("model", "input", "iteration")
    )
    step = iteration(model())
    for _ in range(N_STEPS["providers"]):
        step(*(inputs() if batch_size is None else inputs(batch_size)))
