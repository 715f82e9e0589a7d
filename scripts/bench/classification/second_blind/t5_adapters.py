"""LoRA adapters on a T5 that summarizes; the base model is frozen, the optimizer trains the adapters alone."""

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(16)
config = T5Config(
    vocab_size=4000,
    d_model=256,
    d_kv=64,
    d_ff=1024,
    num_layers=4,
    num_heads=4,
    decoder_start_token_id=0,
)
base = T5ForConditionalGeneration(config)
lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM")
model = get_peft_model(base, lora).to("cuda")
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
model.train()
for _ in range(5):
    texts = torch.randint(1, 4000, (4, 192)).to("cuda")
    summaries = torch.randint(1, 4000, (4, 48)).to("cuda")
    loss = model(input_ids=texts, attention_mask=torch.ones_like(texts), labels=summaries).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(float(loss))
    end_of_step(inputs=[texts, summaries], activations=[loss])
