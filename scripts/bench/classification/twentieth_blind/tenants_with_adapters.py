"""A service in which every tenant has a LoRA of its own on one Mistral: requests of several tenants are answered in one batch, sampled with top-p, bfloat16, inference only."""

import random

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

torch.manual_seed(8)
device = "cuda"
VOCAB, EOS = 8000, 2
base = MistralForCausalLM(
    MistralConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=1792,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=1024,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
).to(torch.bfloat16)

TENANTS = {"bank": 16, "airline": 8, "pharmacy": 32}
model = None
for name, rank in TENANTS.items():
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    if model is None:
        model = get_peft_model(base, config, adapter_name=name)
    else:
        model.add_adapter(name, config)
model = model.to(device).eval()


def top_p(logits, p=0.9, temperature=0.7):
    probs = torch.softmax(logits.float() / temperature, -1)
    ordered, index = probs.sort(-1, descending=True)
    ordered[ordered.cumsum(-1) - ordered > p] = 0
    return index.gather(-1, torch.multinomial(ordered, 1))


@torch.inference_mode()
def answer(requests, max_new_tokens=8):
    longest = max(len(ids) for _, ids in requests)
    ids = torch.zeros(len(requests), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (_, prompt) in enumerate(requests):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    tell(inputs=[ids, mask])
    names = [tenant if tenant in TENANTS else "__base__" for tenant, _ in requests]
    cache = DynamicCache()
    out, current = [], ids
    finished = torch.zeros(len(requests), dtype=torch.bool, device=device)
    for _ in range(max_new_tokens):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -current.shape[1] :]
        logits = model(
            input_ids=current,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            adapter_names=names,
        ).logits[:, -1]
        tell(caches=[[layer.keys, layer.values] for layer in cache.layers])
        current = top_p(logits)
        current[finished] = 0
        finished |= current[:, 0] == EOS
        out.append(current)
        mask = torch.cat([mask, torch.ones_like(current)], 1)
        tell(inputs=[current, mask])
        if finished.all():
            break
    return torch.cat(out, 1).cpu().tolist()


rng = random.Random(1)
queue = [
    (rng.choice([*TENANTS, "trial"]), [rng.randrange(3, VOCAB) for _ in range(rng.randint(60, 180))])
    for _ in range(40)
]
while queue:
    batch, queue = queue[:6], queue[6:]
    answers = answer(batch)
    print({tenant: len(tokens) for (tenant, _), tokens in zip(batch, answers)})
    end_of_step()
