"""A Mistral in bfloat16 whose optimizer works on a copy in full precision, written back after every step."""

import torch
from programs import end_of_step
from transformers import MistralConfig, MistralForCausalLM

torch.manual_seed(31)
config = MistralConfig(
    vocab_size=3000,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
model = MistralForCausalLM(config).to("cuda", torch.bfloat16)
masters = [parameter.detach().clone().float().requires_grad_() for parameter in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-4)
for _ in range(5):
    words = torch.randint(0, 3000, (4, 160), device="cuda")
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    for master, parameter in zip(masters, model.parameters()):
        master.grad = parameter.grad.float()
        parameter.grad = None
    torch.nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters()):
            parameter.copy_(master)
    end_of_step(
        inputs=[words], activations=[loss], states=masters, gradients=[master.grad for master in masters]
    )
    optimizer.zero_grad()
