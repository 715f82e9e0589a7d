"""K-FAC by hand: hooks of every linear layer average its inputs and gradients, and step by their inverses."""

import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional

torch.manual_seed(55)


class Kfac:
    def __init__(self, model, lr=0.05, decay=0.95, damping=1e-2, every=2):
        self.lr, self.decay, self.damping, self.every, self.n_steps = lr, decay, damping, every, 0
        self.layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        self.inputs, self.outputs, self.inverses = {}, {}, {}
        for layer in self.layers:
            layer.register_forward_pre_hook(self._see_inputs)
            layer.register_full_backward_hook(self._see_gradients)

    @torch.no_grad()
    def _see_inputs(self, layer, args):
        rows = functional.pad(args[0].flatten(0, -2), (0, 1), value=1.0)
        self._average(self.inputs, layer, rows.t() @ rows / len(rows))

    @torch.no_grad()
    def _see_gradients(self, layer, _, outputs):
        rows = outputs[0].flatten(0, -2)
        self._average(self.outputs, layer, rows.t() @ rows * len(rows))

    def _average(self, found, layer, new):
        if layer in found:
            found[layer].mul_(self.decay).add_(new, alpha=1 - self.decay)
        else:
            found[layer] = new

    @torch.no_grad()
    def step(self):
        for layer in self.layers:
            if self.n_steps % self.every == 0:
                self.inverses[layer] = tuple(
                    torch.linalg.inv(m + self.damping * torch.eye(len(m), device=m.device))
                    for m in (self.outputs[layer], self.inputs[layer])
                )
            left, right = self.inverses[layer]
            both = left @ torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1) @ right
            layer.weight.add_(both[:, :-1], alpha=-self.lr)
            layer.bias.add_(both[:, -1], alpha=-self.lr)
        self.n_steps += 1

    def states(self):
        pairs = [matrix for pair in self.inverses.values() for matrix in pair]
        return [*self.inputs.values(), *self.outputs.values(), *pairs]


model = nn.Sequential(
    nn.Linear(160, 320),
    nn.ReLU(),
    nn.Linear(320, 288),
    nn.ReLU(),
    nn.Linear(288, 256),
    nn.ReLU(),
    nn.Linear(256, 20),
).cuda()
optimizer = Kfac(model)
for _ in range(4):
    x, y = torch.randn(256, 160).cuda(), torch.randint(0, 20, (256,)).cuda()
    loss = functional.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[x, y], activations=[loss], states=optimizer.states())
