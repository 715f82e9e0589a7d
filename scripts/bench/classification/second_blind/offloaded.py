"""What autograd saves is kept on the host until backward: a GPT-NeoX under save_on_cpu."""

import torch
from programs import end_of_step
from torch.autograd.graph import save_on_cpu
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

torch.manual_seed(33)
config = GPTNeoXConfig(
    vocab_size=3000,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=1024,
    max_position_embeddings=192,
)
model = GPTNeoXForCausalLM(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    words = torch.randint(0, 3000, (4, 160)).to("cuda")
    with save_on_cpu():
        loss = model(input_ids=words, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end_of_step(inputs=[words], activations=[loss])
