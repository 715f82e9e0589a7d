"""A Mamba learns sequences under gradient checkpointing; a plain loop with Adamax."""

import torch
from programs import end_of_step
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(37)
model = MambaForCausalLM(
    MambaConfig(vocab_size=2000, hidden_size=192, state_size=8, num_hidden_layers=3, use_cache=False)
).to("cuda")
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
for _ in range(4):
    words = torch.randint(0, 2000, (4, 48)).to("cuda")
    loss = model(input_ids=words, labels=words).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[words], activations=[loss])
