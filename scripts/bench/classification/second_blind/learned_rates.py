"""Meta-SGD: a ViT of transformers takes one step with rates of its own for each weight, all learned together."""

import torch
from programs import end_of_step
from torch.func import functional_call
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(51)
config = ViTConfig(
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=768,
    image_size=32,
    patch_size=8,
    num_labels=5,
    attn_implementation="eager",
)
model = ViTForImageClassification(config).cuda()
rates = {name: torch.full_like(p, 0.01).requires_grad_() for name, p in model.named_parameters()}
optimizer = torch.optim.Adam([*model.parameters(), *rates.values()], lr=1e-4)


def episode(n):
    return torch.randn(n, 3, 32, 32).cuda(), torch.randint(0, 5, (n,)).cuda()


def adapt(images, labels):
    loss = functional.cross_entropy(model(images).logits, labels)
    names, weights = zip(*model.named_parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    return {
        name: weight - rates[name] * gradient for name, weight, gradient in zip(names, weights, gradients)
    }


for _ in range(4):
    (support, of_support), (query, of_query) = episode(10), episode(15)
    adapted = adapt(support, of_support)
    loss = functional.cross_entropy(functional_call(model, adapted, (query,)).logits, of_query)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end_of_step(
        inputs=[support, query, of_support, of_query],
        weights=list(rates.values()),
        activations=[loss],
    )
