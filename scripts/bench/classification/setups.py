"""How an entry is to be trained, and which of its tensors it names that no hook of torch sees."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from own_optimizer import OwnMomentum

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Setup:
    """Which optimizer trains for how many steps, and whether ``zero_grad`` frees or clears gradients."""

    optimizer: str = "adamw"
    set_to_none: bool = True
    n_steps: int = 3


@dataclass(frozen=True, slots=True)
class Known:
    """What an entry holds at the end of an iteration: its batch, states of its own, what it keeps of forward.

    ``weights`` are those that belong to no model that was built: copies of one. ``gradients`` are those of
    such weights. ``caches`` are keys and values of the tokens so far.
    """

    inputs: Tensors = ()
    states: Tensors = ()
    activations: Tensors = ()
    weights: Tensors = ()
    gradients: Tensors = ()
    caches: Tensors = ()


Iterations = Iterator[Known]
Parameters = Iterable[torch.nn.Parameter]

OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Any]] = {
    "sgd": lambda found: torch.optim.SGD(found, lr=0.01),
    "momentum": lambda found: torch.optim.SGD(found, lr=0.01, momentum=0.9),
    "adam": lambda found: torch.optim.Adam(found, lr=1e-3),
    "adamw": lambda found: torch.optim.AdamW(found, lr=1e-3),
    "adamw-loop": lambda found: torch.optim.AdamW(found, lr=1e-3, foreach=False),
    "adamw-fused": lambda found: torch.optim.AdamW(found, lr=1e-3, fused=True),
    "own": OwnMomentum,
}


def make_optimizer(setup: Setup, parameters: Parameters) -> Any:
    """Build the optimizer for all parameters that are trained."""
    return OPTIMIZERS[setup.optimizer]([parameter for parameter in parameters if parameter.requires_grad])


def states_of(optimizer: Any) -> Tensors:
    """The states that torch's hooks do not see, since the optimizer is none of torch's."""
    return optimizer.moments if isinstance(optimizer, OwnMomentum) else ()


def train(
    model: torch.nn.Module,
    batch: Callable[[], Tensors],
    loss: Callable[..., torch.Tensor],
    setup: Setup,
) -> Iterations:
    """The plain training loop, which most entries share."""
    optimizer = make_optimizer(setup, model.parameters())
    model.train()
    while True:
        tensors = batch()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        value = loss(model, *tensors)
        value.backward()
        optimizer.step()
        yield Known(inputs=tensors, states=states_of(optimizer))
