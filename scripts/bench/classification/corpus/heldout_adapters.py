"""An entry that was written without a look at any rule: thin adapters beside packed weights.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from heldout_pretraining import Decoder
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda"


# --- adapters on a base in four bits


class Lion(torch.optim.Optimizer):
    """Every step has the same size; only its sign follows the gradients."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                grad, state = p.grad, self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                beta1, beta2 = group["betas"]
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
        return loss


class _MatMul4Bit(torch.autograd.Function):
    """Multiply with weights that are unpacked for the moment, and once more in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: "Linear4Bit", bias: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return functional.linear(x, layer.unpacked(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad @ ctx.layer.unpacked(grad.dtype), None, None


class Linear4Bit(nn.Module):
    """A frozen linear map: two weights in a byte, and one scale for each 64 of them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.shape = linear.weight.shape
        weight = linear.weight.data.to(DEVICE, torch.bfloat16)
        blocks = weight.view(-1, 64)
        absmax = blocks.abs().amax(dim=1, keepdim=True)
        codes = ((blocks / absmax + 1) * 7.5).round().to(torch.uint8).view(-1, 2)
        self.weight = nn.Parameter(codes[:, :1] << 4 | codes[:, 1:], requires_grad=False)
        self.register_buffer("absmax", absmax.float())
        self.bias = nn.Parameter(linear.bias.data.to(DEVICE, torch.bfloat16), requires_grad=False)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights as numbers."""
        codes = torch.cat((self.weight >> 4, self.weight & 15), dim=1).view(-1, 64)
        return ((codes.to(dtype) / 7.5 - 1) * self.absmax.to(dtype)).view(self.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in half precision."""
        return _MatMul4Bit.apply(x.to(torch.bfloat16), self, self.bias)


class LoraLinear(nn.Module):
    """A frozen map and what is learned beside it, in full precision."""

    def __init__(self, base: Linear4Bit, r: int = 16, alpha: int = 32) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, alpha / r
        self.lora_dropout = nn.Dropout(0.05)
        self.lora_A = nn.Linear(base.shape[1], r, bias=False)
        self.lora_B = nn.Linear(r, base.shape[0], bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what is learned."""
        result = self.base_layer(x)
        learned = self.lora_B(self.lora_A(self.lora_dropout(x.to(self.lora_A.weight.dtype))))
        return result + learned * self.scaling


def _prepared(model: Decoder) -> Decoder:
    """Freeze a model, pack its layers, and put adapters on them."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    for layer in model.layers:
        for name in ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"):
            setattr(layer, name, LoraLinear(Linear4Bit(getattr(layer, name))))
    model.is_checkpointed = True
    model = model.to(DEVICE)
    model.embed_in.register_forward_hook(
        lambda _module, _arguments, output: output.requires_grad_()
    )
    return model


def adapters(_setup: Setup) -> Iterations:
    """A base in four bits is tuned by thin adapters, and computes its layers again in backward."""
    model = _prepared(Decoder(n_words=1600, width=192, n_layers=5))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = Lion(trained, lr=1e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    model.train()
    while True:
        for _ in range(2):
            ids = torch.randint(0, 1600, (4, 72))
            batch = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": ids.clone(),
            }
            batch = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
            labels = batch.pop("labels")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(**batch).float()
                shifted = logits[..., :-1, :].contiguous().view(-1, 1600)
                loss = functional.cross_entropy(shifted, labels[..., 1:].contiguous().view(-1))
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(trained, 0.3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield Known(inputs=(*batch.values(), labels), activations=(logits, shifted))
