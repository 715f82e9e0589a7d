"""A small DeepSeek-V3 is trained from nothing: latent attention and experts, torch's Muon beside AdamW, bfloat16 by autocast."""

import numpy as np
import torch
from programs import end_of_step
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

VOCABULARY, BLOCK, BATCH, MICRO_BATCHES = 12000, 128, 4, 2


def build_model():
    config = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        moe_intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=96,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        max_position_embeddings=512,
        use_cache=False,
    )
    return DeepseekV3ForCausalLM(config)


def get_batch(data, device="cuda"):
    ix = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


def make_optimizers(model):
    """Matrices within the layers by Muon; embeddings, norms, the experts' stacks and the head by AdamW."""
    matrices, others = [], []
    for name, param in model.named_parameters():
        is_matrix = param.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if is_matrix else others).append(param)
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95)
    adamw = torch.optim.AdamW(others, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    return [muon, adamw]


def warm_up_stable_decay(step, warm_up=2, total=100, decay=20):
    if step < warm_up:
        return (step + 1) / warm_up
    return min(1.0, (total - step) / decay)


def main():
    torch.manual_seed(203)
    data = np.random.default_rng(203).integers(0, VOCABULARY, 60_000).astype(np.uint16)
    model = build_model().cuda()
    model.train()
    optimizers = make_optimizers(model)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, warm_up_stable_decay) for o in optimizers]
    x, y = get_batch(data)
    for step in range(5):
        total = 0.0
        for _ in range(MICRO_BATCHES):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(input_ids=x).logits
                loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), y.view(-1))
                loss = loss / MICRO_BATCHES
            x, y = get_batch(data)
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers):
            optimizer.step()
            scheduler.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        print(f"step {step}: loss {total:.3f}, norm {norm.item():.2f}")
        end_of_step(inputs=[x, y], activations=[logits, loss])


if __name__ == "__main__":
    main()
