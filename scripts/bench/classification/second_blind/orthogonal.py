"""A small GPT whose matrices are trained by Muon, and everything else by AdamW."""

import torch
from programs import end_of_step
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(25)
model = GPT2LMHeadModel(GPT2Config(vocab_size=3000, n_positions=128, n_embd=256, n_layer=4, n_head=8)).cuda()
hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and ".h." in name]
others = [p for name, p in model.named_parameters() if not (p.ndim == 2 and ".h." in name)]
optimizers = [
    torch.optim.Muon(hidden, lr=0.02, momentum=0.95),
    torch.optim.AdamW(others, lr=3e-4, betas=(0.9, 0.95)),
]
for _ in range(5):
    tokens = torch.randint(0, 3000, (6, 129), device="cuda")
    loss = model(input_ids=tokens[:, :-1], labels=tokens[:, 1:]).loss
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    end_of_step(inputs=[tokens], activations=[loss])
