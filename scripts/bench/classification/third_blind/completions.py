"""Adapters of all linear layers of a Qwen in bfloat16: layers are computed again in backward, only answers count."""

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from transformers import Qwen2Config, Qwen2ForCausalLM, get_constant_schedule_with_warmup

torch.manual_seed(65)
device = "cuda"

config = Qwen2Config(
    vocab_size=5000,
    hidden_size=384,
    intermediate_size=1152,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
    use_cache=False,
)
model = Qwen2ForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.enable_input_require_grads()
model = get_peft_model(
    model,
    LoraConfig(
        r=16,
        lora_alpha=16,
        lora_dropout=0.1,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ),
)
model.to(device)
model.print_trainable_parameters()


def make_batch(n=2, longest=224):
    input_ids = torch.randint(10, 5000, (n, longest))
    labels = input_ids.clone()
    attention_mask = torch.ones_like(input_ids)
    for row in range(n):
        prompt, length = 60 + 10 * row, longest - 30 * row
        labels[row, :prompt] = -100
        labels[row, length:] = -100
        attention_mask[row, length:] = 0
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0)
scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=2)
model.train()
for step in range(4):
    running = 0.0
    for _ in range(2):
        batch = {key: value.to(device) for key, value in make_batch().items()}
        loss = model(**batch).loss / 2
        loss.backward()
        running += loss.item()
        tell(inputs=batch, activations=[loss])
    torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 0.3)
    optimizer.step()
    scheduler.step()
    model.zero_grad()
    print(step, running)
    end_of_step(inputs=batch, activations=[loss])
