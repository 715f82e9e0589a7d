"""An optimizer as people write their own: no subclass of torch's, and none of its names."""

import torch


class OwnMomentum:
    """Gradient descent with momentum, and with the norm of all gradients bounded."""

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

    @torch.no_grad()
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
