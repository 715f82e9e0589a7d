"""How an entry is to be trained, and which of its tensors it names that no hook of torch sees."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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

    ``weights`` are those that belong to no model that was built: copies of one. ``gradients`` are
    those of such weights. ``caches`` are keys and values of the tokens so far.
    """

    inputs: Tensors = ()
    states: Tensors = ()
    activations: Tensors = ()
    weights: Tensors = ()
    gradients: Tensors = ()
    caches: Tensors = ()


Iterations = Iterator[Known]
Parameters = Iterable[torch.nn.Parameter]


class OwnMomentum:
    """An optimizer as people write their own: no subclass of torch's, and none of its names."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.moments: list[torch.Tensor] = []

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Drop or clear the gradients."""
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch counts as Any
    def step(self) -> None:
        """Move every parameter."""
        if not self.moments:
            self.moments = [torch.zeros_like(parameter) for parameter in self.parameters]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        for parameter, moment in zip(self.parameters, self.moments, strict=True):
            if parameter.grad is not None:
                moment.mul_(0.9).add_(parameter.grad * scale)
                parameter.add_(moment * -0.01)


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
    return OPTIMIZERS[setup.optimizer](
        [parameter for parameter in parameters if parameter.requires_grad]
    )


def states_of(optimizer: Any) -> Tensors:
    """Return the states that torch's hooks do not see, since the optimizer is none of torch's."""
    return optimizer.moments if isinstance(optimizer, OwnMomentum) else ()


def train(
    model: torch.nn.Module,
    batch: Callable[[], Tensors],
    loss: Callable[..., torch.Tensor],
    setup: Setup,
) -> Iterations:
    """Run the plain training loop, which most entries share."""
    optimizer = make_optimizer(setup, model.parameters())
    model.train()
    while True:
        tensors = batch()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        value = loss(model, *tensors)
        value.backward()
        optimizer.step()
        yield Known(inputs=tensors, states=states_of(optimizer))
