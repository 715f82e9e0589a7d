"""Prefix tuning of a frozen GPT-2 with peft: only keys and values in front of every layer are learned."""

import torch
from peft import PrefixTuningConfig, get_peft_model
from programs import end_of_step
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(17)
base = GPT2LMHeadModel(GPT2Config(vocab_size=3000, n_positions=256, n_embd=256, n_layer=5, n_head=8))
model = get_peft_model(base, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=16)).to("cuda")
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
for _ in range(5):
    words = torch.randint(0, 3000, (6, 128)).to("cuda")
    loss = model(input_ids=words, labels=words).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[words], activations=[loss])
